//! Execution of one kernel launch, whose workgroups run on the host's cores.
use super::check::Checker;
use super::initial_state::{DispatchPacket, InitialState, Pointers, private_bytes};
use super::memory::{Global, KERNARG_SURROUNDINGS, Lds, Memory, wide_vectors};
use super::profile::Footprint;
use super::watch::Watch;
use super::wave_size::{PerWaveSize, WavePool, WaveSizes};
use super::workgroup::Dispatch;
use super::{AddressSpace, Checks, Counters, Fault, FaultKind, Program, Range, shuffle};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Default maximum number of instructions per wave. A wave that exceeds the limit is considered to hang.
pub const DEFAULT_INSTRUCTION_LIMIT: u64 = 2_000_000_000;

/// A kernel of a program, from its descriptor and metadata.
#[derive(Clone, Debug, Default)]
pub struct KernelSpec {
    /// Name of the kernel.
    pub name: String,
    /// Absolute address of the first instruction: the program's `text_address` plus its offset.
    pub entry: u64,
    /// Vector registers per lane.
    pub vgprs: u32,
    /// Scalar registers per wave.
    pub sgprs: u32,
    /// Static LDS bytes per workgroup.
    pub lds_bytes: u32,
    /// Private bytes per lane.
    pub private_bytes: u32,
    /// Size of the kernel argument segment in bytes.
    pub kernarg_bytes: u32,
    /// COMPUTE_PGM_RSRC1 of the kernel descriptor.
    pub rsrc1: u32,
    /// COMPUTE_PGM_RSRC2 of the kernel descriptor.
    pub rsrc2: u32,
    /// COMPUTE_PGM_RSRC3 of the kernel descriptor.
    pub rsrc3: u32,
    /// Kernel code properties of the descriptor: which registers the dispatcher initializes.
    pub code_properties: u16,
    /// True if the kernel was compiled for waves of 32 lanes.
    pub wave32: bool,
}

/// Parameters of a kernel launch.
pub struct Launch<'a> {
    /// Loaded code.
    pub program: &'a Program,
    /// Kernel of the program.
    pub kernel: &'a KernelSpec,
    /// Number of workgroups in x, y, z.
    pub grid: [u32; 3],
    /// Work-items per workgroup in x, y, z.
    pub block: [u32; 3],
    /// Dynamic LDS bytes per workgroup, in addition to the static ones.
    pub dynamic_lds: u32,
    /// Kernel argument segment, including the hidden arguments.
    pub kernarg: &'a [u8],
    /// Memory that the kernel may access.
    pub memory: &'a AddressSpace,
    /// Maximum number of host threads.
    pub threads: usize,
    /// Maximum instructions per wave: [`DEFAULT_INSTRUCTION_LIMIT`], or less to detect hangs sooner.
    pub instruction_limit: u64,
    /// Optional instrumentation of the launch.
    pub instrumentation: Instrumentation,
}

/// Optional instrumentation of a launch. The default is none, which costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Instrumentation {
    /// Seed of a random order in which waves and workgroups take turns, on one host thread.
    pub seed: Option<u64>,
    /// Checks of memory accesses.
    pub checks: Checks,
    /// If true, [`Counters::profile`] is filled in.
    pub profile: bool,
}

impl Instrumentation {
    /// Returns true if single instructions have to be observed.
    fn watches(&self) -> bool {
        self.seed.is_some() || self.profile || self.checks.watches_accesses()
    }
}

/// Maximum LDS bytes of a workgroup on any supported GPU.
const MAX_LDS_BYTES: u64 = 160 << 10;
const MAX_WORK_ITEMS: u64 = 1024;
/// Alignment of the kernel argument segment (16 bytes, LLVM's "Kernel Dispatch").
const KERNARG_ALIGNMENT: usize = 16;
/// Minimum estimated instructions of a launch to use several threads; for less, waking a thread costs more.
const MIN_PARALLEL_INSTRUCTIONS: u64 = 3000;

thread_local! {
    static WAVES: RefCell<(WavePool, Lds)> = RefCell::default();
}

/// Returns false if the calling thread is exiting and its thread-local wave storage is already dropped.
pub fn can_launch_on_this_thread() -> bool {
    WAVES.try_with(|_| ()).is_ok()
}

/// Runs a launch to completion.
///
/// # Errors
/// Returns the fault of the lowest workgroup that had one; with a seed, the first that happened. Memory that
/// was written before the fault stays written.
pub fn run(launch: &Launch) -> Result<Counters, Fault> {
    let kernel = launch.kernel;
    let bad = |text: String| Fault {
        kernel: kernel.name.clone(),
        pc: kernel.entry.saturating_sub(launch.program.text_address()),
        site: Box::default(),
        workgroup: [0; 3],
        wave: 0,
        kind: FaultKind::BadLaunch(text),
    };
    let work_items: u64 = launch.block.iter().map(|&size| u64::from(size)).product();
    if work_items == 0 || work_items > MAX_WORK_ITEMS {
        return Err(bad(format!(
            "workgroup {:?} has {work_items} work-items; the allowed range is 1 to {MAX_WORK_ITEMS}",
            launch.block
        )));
    }
    let Some(groups) =
        launch.grid.iter().try_fold(1u64, |product, &size| product.checked_mul(u64::from(size)))
    else {
        return Err(bad(format!("grid {:?} is too large", launch.grid)));
    };
    let lds_bytes = u64::from(kernel.lds_bytes) + u64::from(launch.dynamic_lds);
    if lds_bytes > MAX_LDS_BYTES {
        return Err(bad(format!("{lds_bytes} bytes of LDS exceed a workgroup's {MAX_LDS_BYTES}")));
    }
    if launch.kernarg.len() < kernel.kernarg_bytes as usize {
        let (len, required) = (launch.kernarg.len(), kernel.kernarg_bytes);
        return Err(bad(format!("the argument segment has {len} bytes; the kernel requires {required}")));
    }
    let Some(entry) = launch.program.offset_of(kernel.entry) else {
        return Err(bad(format!("entry 0x{:x} is outside the code object's text", kernel.entry)));
    };
    let lds_bytes = lds_bytes as u32;
    if kernel.wave32 {
        run_waves::<32>(launch, entry, lds_bytes, groups)
    } else {
        run_waves::<64>(launch, entry, lds_bytes, groups)
    }
}

/// Runs a validated launch with waves of `W` lanes, starting at the instruction at offset `entry`.
fn run_waves<const W: usize>(
    launch: &Launch,
    entry: usize,
    lds_bytes: u32,
    groups: u64,
) -> Result<Counters, Fault>
where
    WaveSizes: PerWaveSize<W>,
{
    let (entry, entry_step) = launch.program.function_at(entry);
    // Whole blocks keep the segment aligned. The bytes around it belong to no range.
    let blocks = (launch.kernarg.len() + KERNARG_SURROUNDINGS as usize).div_ceil(64);
    let mut kernarg = vec![Block([0; 64]); blocks];
    for (block, bytes) in kernarg.iter_mut().zip(launch.kernarg.chunks(64)) {
        block.0[..bytes.len()].copy_from_slice(bytes);
    }
    // Compilers widen scalar loads up to the segment's alignment.
    let kernarg_bytes = launch.kernarg.len().next_multiple_of(KERNARG_ALIGNMENT) as u64;
    let kernarg_range = Range { base: kernarg.as_ptr() as u64, len: kernarg_bytes, writable: false };
    let packet = DispatchPacket::new(launch, kernarg_range.base);
    let packet_range =
        Range { base: &raw const packet as u64, len: size_of_val(&packet) as u64, writable: false };
    let pointers = Pointers { packet: packet_range.base, kernarg: kernarg_range.base };
    let dispatch = Dispatch {
        launch,
        initial: InitialState::new(launch.program.family(), launch.kernel, &pointers),
        entry,
        entry_step,
        private_bytes: private_bytes(launch.kernel),
        lds_bytes,
        work_items: launch.block.iter().product(),
    };
    let queue = Queue {
        dispatch: &dispatch,
        own: [kernarg_range, packet_range],
        groups,
        next: AtomicU64::new(0),
        faulty: AtomicU64::new(u64::MAX),
        outcome: Mutex::new((Counters { launches: 1, ..Counters::default() }, None)),
        footprint: Mutex::default(),
    };
    match launch.instrumentation.seed {
        Some(seed) => queue.run_shuffled(seed),
        // The race check needs one thread that sees all accesses, in a reproducible order.
        None if launch.instrumentation.checks.race => drop(queue.work(u64::MAX)),
        None => queue.run(launch.threads),
    }
    let (mut counters, fault) = queue.outcome.into_inner();
    queue.footprint.into_inner().count(&mut counters.profile);
    fault.map_or(Ok(counters), Err)
}

/// Part of the argument segment, with the segment's alignment.
#[derive(Clone)]
#[repr(C, align(64))]
struct Block([u8; 64]);

/// Queue that hands out the workgroups of a launch in order.
struct Queue<'a, const W: usize> {
    dispatch: &'a Dispatch<'a, W>,
    own: [Range; 2],
    groups: u64,
    next: AtomicU64,
    /// Lowest workgroup that faulted.
    faulty: AtomicU64,
    outcome: Mutex<(Counters, Option<Fault>)>,
    /// Cache lines that the workgroups have accessed, for a profile.
    footprint: Mutex<Footprint>,
}

impl<const W: usize> Queue<'_, W>
where
    WaveSizes: PerWaveSize<W>,
{
    fn run(&self, threads: usize) {
        // The first workgroup serves as an estimate of the others' work.
        let first = self.work(1);
        let remaining = self.groups.saturating_sub(1);
        if threads > 1 && remaining > 0 && first.saturating_mul(remaining) > MIN_PARALLEL_INSTRUCTIONS {
            let others = (threads as u64 - 1).min(remaining);
            rayon::in_place_scope(|scope| {
                for _ in 0..others {
                    scope.spawn(|_| {
                        self.work(u64::MAX);
                    });
                }
                self.work(u64::MAX);
            });
        } else {
            self.work(u64::MAX);
        }
    }

    /// Runs up to `max_workgroups` of the remaining workgroups; returns the number of executed instructions.
    fn work(&self, max_workgroups: u64) -> u64 {
        WAVES.with_borrow_mut(|(pool, lds)| {
            let waves = WaveSizes::waves(pool);
            let mut memory = self.memory();
            memory.lds = std::mem::take(lds);
            let mut watch = Watch::new(self.dispatch.launch.instrumentation.profile);
            let watched = self.dispatch.launch.instrumentation.watches();
            for _ in 0..max_workgroups {
                let group = self.next.fetch_add(1, Ordering::Relaxed);
                // Workgroups below a faulty one still run, so that the lowest fault is reported.
                if group >= self.groups || group > self.faulty.load(Ordering::Relaxed) {
                    break;
                }
                let at = self.coordinates(group);
                let outcome = if watched {
                    waves.run::<true>(self.dispatch, at, &mut memory, &mut watch)
                } else {
                    waves.run::<false>(self.dispatch, at, &mut memory, &mut watch)
                };
                if let Err(fault) = outcome {
                    let mut outcome = self.outcome.lock();
                    if self.faulty.fetch_min(group, Ordering::Relaxed) > group {
                        outcome.1 = Some(fault);
                    }
                }
            }
            memory.counters.profile = watch.profile();
            let instructions = memory.counters.instructions();
            self.outcome.lock().0 += memory.counters;
            self.footprint.lock().add(watch.footprint());
            memory.lds.forget();
            *lds = memory.lds;
            instructions
        })
    }

    /// Runs all workgroups in a random order determined by the seed, until the first fault.
    fn run_shuffled(&self, seed: u64) {
        let mut memory = self.memory();
        let mut watch = Watch::new(self.dispatch.launch.instrumentation.profile);
        let coordinates = |group| self.coordinates(group);
        let fault =
            shuffle::run(self.dispatch, self.groups, coordinates, &mut memory, &mut watch, seed).err();
        memory.counters.profile = watch.profile();
        self.footprint.lock().add(watch.footprint());
        let mut outcome = self.outcome.lock();
        outcome.0 += memory.counters;
        outcome.1 = fault;
    }

    fn memory(&self) -> Memory<'_> {
        let checks = self.dispatch.launch.instrumentation.checks;
        let checker = checks.watches_accesses().then(|| Checker::new(checks));
        Memory {
            global: Global::new(self.dispatch.launch.memory, self.own).checked_by(checker.clone()),
            lds: Lds::default(),
            counters: Counters::default(),
            checker,
            wide_vectors: wide_vectors(),
        }
    }

    fn coordinates(&self, group: u64) -> [u32; 3] {
        let [x, y, _] = self.dispatch.launch.grid.map(u64::from);
        [(group % x) as u32, (group / x % y) as u32, (group / x / y) as u32]
    }
}
