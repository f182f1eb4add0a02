//! One kernel launch: workgroups on the host's cores.
use super::check::Checker;
use super::initial_state::{DispatchPacket, InitialState, Pointers, private_bytes};
use super::memory::{Global, KERNARG_SURROUNDINGS, Lds, Memory, wide_vectors};
use super::profile::Footprint;
use super::watch::Watch;
use super::wave_size::{KeptWaves, PerWaveSize, WaveSizes};
use super::workgroup::Dispatch;
use super::{AddressSpace, Checks, Counters, Fault, FaultKind, Program, Range, shuffle};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A wave that executes more instructions than this counts as hanging, unless the launch sets another limit.
pub const DEFAULT_INSTRUCTION_LIMIT: u64 = 2_000_000_000;

/// A kernel of a program, from its descriptor and metadata.
#[derive(Clone, Debug, Default)]
pub struct KernelSpec {
    /// The kernel's name.
    pub name: String,
    /// Address of the first instruction (absolute: the program's `text_address` plus its offset).
    pub entry: u64,
    /// Vector registers of a lane.
    pub vgprs: u32,
    /// Scalar registers of a wave.
    pub sgprs: u32,
    /// Static LDS bytes per workgroup.
    pub lds_bytes: u32,
    /// Private bytes per lane.
    pub private_bytes: u32,
    /// Size of the kernel argument segment.
    pub kernarg_bytes: u32,
    /// COMPUTE_PGM_RSRC1, as in the kernel descriptor, like the fields below.
    pub rsrc1: u32,
    /// COMPUTE_PGM_RSRC2.
    pub rsrc2: u32,
    /// COMPUTE_PGM_RSRC3.
    pub rsrc3: u32,
    /// Which registers the dispatcher sets up.
    pub code_properties: u16,
    /// Whether it was compiled for waves of 32 lanes.
    pub wave32: bool,
}

/// What to run, on what, and where.
pub struct Launch<'a> {
    /// The loaded code.
    pub program: &'a Program,
    /// The kernel of it.
    pub kernel: &'a KernelSpec,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// Work-items per workgroup in x, y, z.
    pub block: [u32; 3],
    /// LDS bytes besides the static ones.
    pub dynamic_lds: u32,
    /// The kernel argument segment, hidden arguments filled in.
    pub kernarg: &'a [u8],
    /// What it may touch.
    pub memory: &'a AddressSpace,
    /// Host threads to use at most.
    pub threads: usize,
    /// Instructions one wave may execute: [`DEFAULT_INSTRUCTION_LIMIT`], or less to catch hangs sooner.
    pub instruction_limit: u64,
    /// How it is disturbed and looked at.
    pub instrumentation: Instrumentation,
}

/// How a launch is disturbed and looked at. The default is neither, and costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Instrumentation {
    /// Waves and workgroups take turns in an order that this number decides, on one host thread.
    pub seed: Option<u64>,
    /// What accesses are checked for.
    pub checks: Checks,
    /// Whether [`Counters::profile`] is filled in.
    pub profile: bool,
}

impl Instrumentation {
    /// Whether instructions have to be looked at one by one.
    fn watches(&self) -> bool {
        self.seed.is_some() || self.profile || self.checks.watches_accesses()
    }
}

/// LDS of a workgroup on every gfx11 GPU.
const MAX_LDS_BYTES: u32 = 64 << 10;
const MAX_WORK_ITEMS: u64 = 1024;
/// What every kernel may rely on (LLVM's "Kernel Dispatch": 16 bytes).
const KERNARG_ALIGNMENT: usize = 16;
/// Launches that will execute fewer instructions than this stay on the calling thread: waking another costs more.
const WORTH_SHARING: u64 = 3000;

thread_local! {
    static WAVES: RefCell<(KeptWaves, Lds)> = RefCell::default();
}

/// Whether the calling thread can run launches: one that ends has let go of what it keeps for them.
pub fn can_run_here() -> bool {
    WAVES.try_with(|_| ()).is_ok()
}

/// Runs a launch to its end.
///
/// # Errors
/// The fault of the lowest workgroup that had one; with a seed, the first that happened. Memory written before it
/// stays written.
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
            "workgroup {:?}: it must have 1 to {MAX_WORK_ITEMS} work-items",
            launch.block
        )));
    }
    let Some(groups) =
        launch.grid.iter().try_fold(1u64, |product, &size| product.checked_mul(u64::from(size)))
    else {
        return Err(bad(format!("grid {:?} is too large", launch.grid)));
    };
    let lds_bytes = u64::from(kernel.lds_bytes) + u64::from(launch.dynamic_lds);
    if lds_bytes > u64::from(MAX_LDS_BYTES) {
        return Err(bad(format!("{lds_bytes} bytes of LDS: a workgroup has {MAX_LDS_BYTES}")));
    }
    if launch.kernarg.len() < kernel.kernarg_bytes as usize {
        let (has, wants) = (launch.kernarg.len(), kernel.kernarg_bytes);
        return Err(bad(format!("an argument segment of {has} bytes: the kernel has {wants}")));
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

/// Runs a checked launch with waves of `W` lanes from the instruction at `entry` on.
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
    // Whole blocks, for the segment's alignment; the bytes around it belong to no range.
    let blocks = (launch.kernarg.len() + KERNARG_SURROUNDINGS as usize).div_ceil(64);
    let mut kernarg = vec![Block([0; 64]); blocks];
    for (block, bytes) in kernarg.iter_mut().zip(launch.kernarg.chunks(64)) {
        block.0[..bytes.len()].copy_from_slice(bytes);
    }
    // Compilers widen scalar loads up to their alignment.
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
        // One thread sees all accesses, in the same order every time.
        None if launch.instrumentation.checks.race => drop(queue.work(u64::MAX)),
        None => queue.run(launch.threads),
    }
    let (mut counters, fault) = queue.outcome.into_inner();
    queue.footprint.into_inner().count(&mut counters.profile);
    fault.map_or(Ok(counters), Err)
}

/// A piece of the argument segment with its alignment.
#[derive(Clone)]
#[repr(C, align(64))]
struct Block([u8; 64]);

/// The workgroups of a launch, handed out in order.
struct Queue<'a, const W: usize> {
    dispatch: &'a Dispatch<'a, W>,
    own: [Range; 2],
    groups: u64,
    next: AtomicU64,
    /// The lowest workgroup that faulted.
    faulty: AtomicU64,
    outcome: Mutex<(Counters, Option<Fault>)>,
    /// Lines that the workgroups have touched, of a profile.
    footprint: Mutex<Footprint>,
}

impl<const W: usize> Queue<'_, W>
where
    WaveSizes: PerWaveSize<W>,
{
    fn run(&self, threads: usize) {
        // The first workgroup tells how much work the others are.
        let first = self.work(1);
        let remaining = self.groups.saturating_sub(1);
        if threads > 1 && remaining > 0 && first.saturating_mul(remaining) > WORTH_SHARING {
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

    /// Runs up to `most` workgroups of those that are left; returns how many instructions they were.
    fn work(&self, most: u64) -> u64 {
        WAVES.with_borrow_mut(|(kept, lds)| {
            let waves = WaveSizes::waves(kept);
            let mut memory = self.memory();
            memory.lds = std::mem::take(lds);
            let mut watch = Watch::new(self.dispatch.launch.instrumentation.profile);
            let watched = self.dispatch.launch.instrumentation.watches();
            for _ in 0..most {
                let group = self.next.fetch_add(1, Ordering::Relaxed);
                // Workgroups below a faulty one are still run, so that the lowest fault is reported.
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

    /// Runs all workgroups in an order that the seed decides, up to the first fault.
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
