//! Which convolutions go to MIOpen: asked once for each shape, and kept, so that from the second call on it is one call.
//!
//! MIOpen's immediate mode names solutions without timing them on anybody's data. The first that is no last resort and
//! whose workspace is within the bound is compiled and taken; where there is none, or where a table says that ours are
//! faster, our own kernels compute. With tuning, all of them are measured at the first call of a shape. A failure of the
//! library never reaches the caller: it is logged once, and our kernels take over.
use super::convolution_choices::{self, Choice, Choices, ConvMethod};
use super::convolution_shape::ConvShape;
use super::miopen::{self, Handle, Problem, Solution};
use super::owned::{Failure, FailureLog};
use crate::rocm_backend::device::DeviceState;
use crate::{DType, Result};
use hip_kernels::contract::DevicePtr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// `0` leaves convolutions to our own kernels, `1` takes MIOpen wherever it has a solution; unset, a table says.
pub const LIBRARY_VARIABLE: &str = "CANDLE_ROCM_MIOPEN";
/// `1` measures MIOpen's solutions and our kernels at the first call of a shape, and keeps the choice on disk.
pub const TUNE_VARIABLE: &str = "CANDLE_ROCM_CONV_TUNE";
/// Bytes that a convolution may take beside its result.
pub const WORKSPACE_VARIABLE: &str = "CANDLE_ROCM_CONV_WORKSPACE";

const DEFAULT_WORKSPACE: usize = 256 << 20;
/// So many shapes are remembered; then all are forgotten.
const SHAPES: usize = 2048;
/// A search that takes longer than this is logged.
const LONG: Duration = Duration::from_secs(5);
/// Calls that are measured together, after one that is not.
const MEASURED: u32 = 5;

/// Architectures, by how their names begin, whose convolutions are ours where the environment says nothing.
const OWN: &[&str] = &[
    // Measured (docs/performance.md): cuDNN's heuristics through this interface take up to 19 times as long.
    "sm_",
];

/// Architectures, likewise, where our own kernels do not convolve on tiles.
const UNFOLDED: &[&str] = &[
    // Measured (docs/performance.md): the products of cuBLAS make up for the copy, and for more.
    "sm_",
];

/// Settings from the environment and the program.
struct Settings {
    library: AtomicU8,
    tiles: AtomicU8,
    tuning: AtomicU8,
    workspace: AtomicUsize,
}

const UNSET: u8 = 2;

fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let text = |name: &str| std::env::var(name).ok().map(|text| text.trim().to_string());
        let switch = |name: &str| match text(name).as_deref() {
            None | Some("") => UNSET,
            Some("0") => 0,
            Some("1") => 1,
            Some(other) => {
                tracing::warn!("{name}={other} is not understood and left aside; wanted 0 or 1");
                UNSET
            }
        };
        let workspace = match text(WORKSPACE_VARIABLE).filter(|text| !text.is_empty()) {
            None => DEFAULT_WORKSPACE,
            Some(text) => crate::rocm_backend::stream::memory::bytes(&text).unwrap_or_else(|| {
                tracing::warn!(
                    "{WORKSPACE_VARIABLE}={text} is not understood and left aside; wanted bytes, like 64M"
                );
                DEFAULT_WORKSPACE
            }),
        };
        Settings {
            library: AtomicU8::new(switch(LIBRARY_VARIABLE)),
            tiles: AtomicU8::new(UNSET),
            tuning: AtomicU8::new(switch(TUNE_VARIABLE)),
            workspace: AtomicUsize::new(workspace),
        }
    })
}

/// Returns how many bytes a convolution may take beside its result.
pub fn conv_workspace() -> usize {
    settings().workspace.load(Ordering::Relaxed)
}

/// Bounds the memory that a convolution takes beside its result: 256 MiB unless this or `CANDLE_ROCM_CONV_WORKSPACE`
/// says otherwise. MIOpen's solutions that want more are passed over; what was chosen before is kept. Our own kernels
/// never take more than 64 MiB of it.
pub fn set_conv_workspace(bytes: usize) {
    settings().workspace.store(bytes, Ordering::Relaxed);
}

/// Has convolutions computed by our own kernels (`Some(false)`), by MIOpen wherever it has a solution (`Some(true)`), or
/// by whichever a table says (`None`, the default); in place of `CANDLE_ROCM_MIOPEN`. For shapes that are met later.
pub fn set_conv_library(wanted: Option<bool>) {
    settings().library.store(wanted.map_or(UNSET, u8::from), Ordering::Relaxed);
}

/// Has our own kernels convolve on tiles or unfold, whatever a table says: for tests of both.
#[doc(hidden)]
pub fn set_conv_tiles(wanted: Option<bool>) {
    settings().tiles.store(wanted.map_or(UNSET, u8::from), Ordering::Relaxed);
}

/// Whether convolutions of shapes that are met later are measured at their first call, which then waits for the device;
/// in place of `CANDLE_ROCM_CONV_TUNE`. Choices are kept on disk, see `CANDLE_ROCM_CONV_CACHE`.
pub fn set_conv_tuning(tune: bool) {
    settings().tuning.store(u8::from(tune), Ordering::Relaxed);
}

/// A solution of MIOpen for a shape, with all that a call needs.
pub(crate) struct Plan {
    problem: Problem,
    solution: Solution,
}

impl Plan {
    /// Bytes of workspace.
    pub(crate) fn workspace(&self) -> usize {
        self.solution.workspace
    }
}

/// Implementation of a convolution.
#[derive(Clone)]
pub(crate) enum Computed {
    Own(ConvMethod),
    Library(Arc<Plan>),
    /// To be measured: these, and our own.
    Measured(Vec<Arc<Plan>>),
}

/// One of what is measured.
#[derive(Clone, Copy)]
pub(crate) enum Candidate<'a> {
    Own(ConvMethod),
    Library(&'a Plan),
}

/// The library of a device, and what was found out of each shape.
#[derive(Default)]
struct Convolutions {
    known: HashMap<ConvShape, Computed>,
    library: Option<Opened>,
    failures: FailureLog,
}

enum Opened {
    Library { handle: Handle, choices: Choices },
    Missing,
}

fn convolutions(device: &Arc<DeviceState>) -> MutexGuard<'_, Convolutions> {
    device.attachment::<Mutex<Convolutions>>().lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceState {
    /// Chooses what computes convolutions of this shape.
    pub(crate) fn convolution(self: &Arc<Self>, shape: &ConvShape) -> Computed {
        let wanted = settings().library.load(Ordering::Relaxed);
        let own = Computed::Own(self.own_convolution(shape.dtype));
        if wanted == 0 || !miopen::takes(shape.dtype) {
            return own;
        }
        let mut convolutions = convolutions(self);
        if let Some(known) = convolutions.known.get(shape) {
            return known.clone();
        }
        let is_ours = wanted == UNSET && settings().tuning.load(Ordering::Relaxed) != 1 && self.is_in(OWN);
        let computed = match is_ours {
            true => own,
            false => warn_if_slow(format!("MIOpen: {shape}"), || convolutions.ask(self, shape)),
        };
        convolutions.know(shape, computed.clone());
        computed
    }

    fn is_in(&self, table: &[&str]) -> bool {
        table.iter().any(|prefix| self.arch().starts_with(prefix))
    }

    /// Method of our own kernels where nothing was measured.
    pub(crate) fn own_convolution(&self, dtype: DType) -> ConvMethod {
        let narrow = matches!(dtype, DType::F16 | DType::BF16);
        match settings().tiles.load(Ordering::Relaxed) {
            0 => ConvMethod::Unfolded,
            1 => ConvMethod::Tiles,
            _ if self.is_in(UNFOLDED) || (narrow && self.drops_denormals()) => ConvMethod::Unfolded,
            _ => ConvMethod::Tiles,
        }
    }

    /// Enqueues a convolution by the library; `false`, and our kernels from now on, if it fails.
    ///
    /// # Safety
    /// See [`Problem::run`].
    pub(crate) unsafe fn convolve_by_library(
        self: &Arc<Self>,
        shape: &ConvShape,
        plan: &Plan,
        operands: [DevicePtr; 2],
        result: DevicePtr,
        workspace: DevicePtr,
    ) -> Result<bool> {
        let mut convolutions = convolutions(self);
        self.stream.begin()?;
        let Some(Opened::Library { handle, .. }) = &convolutions.library else { return Ok(false) };
        // SAFETY: the caller's.
        let outcome = unsafe { plan.problem.run(handle, plan.solution, operands, result, workspace) };
        if let Err(failure) = outcome {
            // HIP keeps the last error for whoever asks next.
            let _ = rocm_rs::hip::get_last_error();
            convolutions.log(self, &failure);
            convolutions.know(shape, Computed::Own(self.own_convolution(shape.dtype)));
            return Ok(false);
        }
        Ok(true)
    }

    /// Measures `run` for each plan and for our own kernels, and keeps the fastest. Waits for the device.
    ///
    /// # Errors
    /// Those of our own kernels.
    pub(crate) fn tune_convolution(
        self: &Arc<Self>,
        shape: &ConvShape,
        plans: &[Arc<Plan>],
        mut run: impl FnMut(Candidate) -> Result<bool>,
    ) -> Result<()> {
        let mut time = |candidate: Candidate| -> Result<Option<Duration>> {
            if !run(candidate)? {
                return Ok(None);
            }
            self.stream.finish("tuning a convolution")?;
            let start = Instant::now();
            for _ in 0..MEASURED {
                run(candidate)?;
            }
            self.stream.finish("tuning a convolution")?;
            Ok(Some(start.elapsed()))
        };
        let own = [ConvMethod::Tiles, ConvMethod::Unfolded]
            .map(|method| (Candidate::Own(method), Computed::Own(method), Choice::Own(method)));
        let of_library = plans.iter().map(|plan| {
            let choice = Choice::Solution(plan.solution.id);
            (Candidate::Library(plan.as_ref()), Computed::Library(plan.clone()), choice)
        });
        let method = self.own_convolution(shape.dtype);
        let mut best = (Duration::MAX, Computed::Own(method), Choice::Own(method));
        for (candidate, computed, choice) in own.into_iter().chain(of_library) {
            if let Some(elapsed) = time(candidate)?.filter(|elapsed| *elapsed < best.0) {
                best = (elapsed, computed, choice);
            }
        }
        let mut convolutions = convolutions(self);
        convolutions.know(shape, best.1);
        if let Some(Opened::Library { choices, .. }) = &mut convolutions.library {
            tracing::info!("{shape}: {:?} is fastest", best.2);
            if let Err(error) = choices.keep(shape, best.2) {
                let place = choices.place();
                let text = format_args!("choices are not kept on disk: {place}: {error}");
                convolutions.failures.add("convolutions", self.label(), text);
            }
        }
        Ok(())
    }
}

impl Convolutions {
    fn know(&mut self, shape: &ConvShape, computed: Computed) {
        if self.known.len() >= SHAPES {
            self.known.clear();
        }
        self.known.insert(*shape, computed);
    }

    /// Asks the library; our own kernels if it has nothing, or fails.
    fn ask(&mut self, device: &DeviceState, shape: &ConvShape) -> Computed {
        match self.plans(device, shape) {
            Ok(computed) => computed,
            Err(failure) => {
                let _ = rocm_rs::hip::get_last_error();
                self.log(device, &failure);
                Computed::Own(device.own_convolution(shape.dtype))
            }
        }
    }

    fn plans(&mut self, device: &DeviceState, shape: &ConvShape) -> std::result::Result<Computed, Failure> {
        if self.library.is_none() {
            // Kept also if it fails, so that it is asked for once.
            self.library = Some(Opened::Missing);
            self.library = Some(open(device)?);
        }
        let own = Computed::Own(device.own_convolution(shape.dtype));
        let Some(Opened::Library { handle, choices }) = &self.library else { return Ok(own) };
        let measured = choices.of(shape);
        if let Some(Choice::Own(method)) = measured {
            return Ok(Computed::Own(method));
        }
        let bound = conv_workspace();
        let mut offered = Problem::of(shape)?.solutions(handle)?;
        offered.retain(|solution| solution.workspace <= bound);
        let tunes = settings().tuning.load(Ordering::Relaxed) == 1;
        match measured {
            Some(Choice::Solution(id)) if offered.iter().any(|solution| solution.id == id) => {
                offered.retain(|solution| solution.id == id);
            }
            _ if tunes => {
                let mut plans = Vec::new();
                for solution in offered {
                    plans.extend(compiled(handle, shape, solution)?);
                }
                return Ok(Computed::Measured(plans));
            }
            _ => {}
        }
        for solution in offered {
            if let Some(plan) = compiled(handle, shape, solution)? {
                return Ok(Computed::Library(plan));
            }
        }
        Ok(own)
    }

    fn log(&mut self, device: &DeviceState, failure: &Failure) {
        let text = format_args!("{failure}; our own kernels compute instead");
        self.failures.add("convolutions", device.label(), text);
    }
}

/// A solution that MIOpen can compile; one that it cannot is passed over.
fn compiled(
    handle: &Handle,
    shape: &ConvShape,
    solution: Solution,
) -> std::result::Result<Option<Arc<Plan>>, Failure> {
    let problem = Problem::of(shape)?;
    match problem.compile(handle, solution) {
        Ok(()) => Ok(Some(Arc::new(Plan { problem, solution }))),
        Err(failure) => {
            let _ = rocm_rs::hip::get_last_error();
            tracing::debug!("{shape}: solution {} is passed over: {failure}", solution.id);
            Ok(None)
        }
    }
}

fn open(device: &DeviceState) -> std::result::Result<Opened, Failure> {
    let version = miopen::version()?;
    device.stream.bind().map_err(|error| Failure(error.to_string()))?;
    let handle = miopen::open(device.stream.raw())?;
    let choices = Choices::load(convolution_choices::path(), device.arch(), &version);
    Ok(Opened::Library { handle, choices })
}

/// Logs what is being done if it takes longer than some seconds: MIOpen compiles kernels at first use.
fn warn_if_slow<R>(what: String, work: impl FnOnce() -> R) -> R {
    let (done, wait) = mpsc::channel::<()>();
    let watch = std::thread::Builder::new().name("convolutions".to_string()).spawn(move || {
        if wait.recv_timeout(LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(
                "{what}: compiling for {} s now; it is kept in MIOpen's own cache (~/.cache/miopen). \
                 {LIBRARY_VARIABLE}=0 leaves convolutions to our own kernels, which are compiled already",
                LONG.as_secs()
            );
        }
    });
    let result = work();
    drop(done);
    // Without a thread the work is done all the same.
    if let Ok(watch) = watch {
        let _ = watch.join();
    }
    result
}
