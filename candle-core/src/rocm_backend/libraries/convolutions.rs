//! Choice between MIOpen and the built-in kernels for a convolution. It is made once for each shape and cached.
//!
//! MIOpen's immediate mode lists solutions without running them. The first solution that is not a naive fallback and
//! whose workspace is within the limit is compiled and used. If there is none, or if a table says that the built-in
//! kernels are faster, those are used. With tuning, all candidates are measured at the first call of a shape. A failure
//! of the library is logged once and never returned to the caller; the built-in kernels are used instead. After
//! [`MAX_FAILURES`] of them the library is not called any more.
use super::convolution_choices::{self, Choice, Choices, ConvMethod};
use super::convolution_shape::ConvShape;
use super::miopen::{self, Handle, Problem, Solution};
use super::owned::{Failure, FailureLog};
use super::rocblas::WARM_UP;
use crate::rocm_backend::device::DeviceState;
use crate::rocm_backend::stream::capturing;
use crate::{DType, Result};
use hip_kernels::contract::DevicePtr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Environment variable: `0` uses the built-in kernels, `1` uses MIOpen wherever it has a solution. If it is unset, a
/// table decides.
pub const LIBRARY_VARIABLE: &str = "CANDLE_ROCM_MIOPEN";
/// Environment variable: `1` measures all candidates at the first call of a shape, and stores the fastest on disk.
pub const TUNE_VARIABLE: &str = "CANDLE_ROCM_CONV_TUNE";
/// Environment variable: maximum number of bytes that a convolution may use in addition to its result.
pub const WORKSPACE_VARIABLE: &str = "CANDLE_ROCM_CONV_WORKSPACE";

const DEFAULT_WORKSPACE: usize = 256 << 20;
/// Maximum number of cached shapes; the cache is cleared when it is full.
const MAX_CACHED_SHAPES: usize = 2048;
/// Number of solutions that may fail to compile or to run. A MIOpen whose compiler does not work fails for every shape, and
/// each attempt takes time and prints errors.
const MAX_FAILURES: u32 = 2;
/// A search that takes longer than this is logged.
const SLOW_SEARCH: Duration = Duration::from_secs(5);
/// Number of calls that are timed together, after one warm-up call.
const TIMED_CALLS: u32 = 5;

/// Prefixes of the architectures on which the built-in kernels are used by default.
const OWN_KERNEL_ARCHS: &[&str] = &[
    // Measured (docs/explanation/performance.md): cuDNN's heuristics through this interface take up to 19 times as long.
    "sm_",
];

/// Prefixes of the architectures on which the built-in kernels use unfolding instead of tiles.
const UNFOLDED_ARCHS: &[&str] = &[
    // Measured (docs/explanation/performance.md): cuBLAS is faster than tiles, even with the unfolded copy.
    "sm_",
];

/// Settings from the environment variables and the setters below.
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
                tracing::warn!("{name}={other} is invalid and ignored; expected 0 or 1");
                UNSET
            }
        };
        let workspace = match text(WORKSPACE_VARIABLE).filter(|text| !text.is_empty()) {
            None => DEFAULT_WORKSPACE,
            Some(text) => crate::rocm_backend::stream::memory::bytes(&text).unwrap_or_else(|| {
                tracing::warn!(
                    "{WORKSPACE_VARIABLE}={text} is invalid and ignored; expected a size in bytes, like 64M"
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

/// Returns the maximum number of bytes that a convolution may use in addition to its result.
pub fn conv_workspace() -> usize {
    settings().workspace.load(Ordering::Relaxed)
}

/// Sets the maximum number of bytes that a convolution may use in addition to its result. The default is 256 MiB, or
/// `CANDLE_ROCM_CONV_WORKSPACE`. MIOpen solutions that need more are not used; earlier choices stay valid. The built-in
/// kernels use at most 64 MiB.
pub fn set_conv_workspace(bytes: usize) {
    settings().workspace.store(bytes, Ordering::Relaxed);
}

/// Sets whether convolutions use the built-in kernels (`Some(false)`), MIOpen wherever it has a solution (`Some(true)`),
/// or a table's choice (`None`, the default). Overrides `CANDLE_ROCM_MIOPEN`, and applies to shapes not used before.
pub fn set_conv_library(wanted: Option<bool>) {
    settings().library.store(wanted.map_or(UNSET, u8::from), Ordering::Relaxed);
}

/// Forces the built-in kernels to use tiles or unfolding, for tests.
#[doc(hidden)]
pub fn set_conv_tiles(wanted: Option<bool>) {
    settings().tiles.store(wanted.map_or(UNSET, u8::from), Ordering::Relaxed);
}

/// Enables or disables tuning, overriding `CANDLE_ROCM_CONV_TUNE`. The first call of a shape then measures all candidates
/// and waits for the device. Results are stored on disk, see `CANDLE_ROCM_CONV_CACHE`.
pub fn set_conv_tuning(tune: bool) {
    settings().tuning.store(u8::from(tune), Ordering::Relaxed);
}

/// A MIOpen solution for a shape, with its descriptors.
pub(crate) struct Plan {
    problem: Problem,
    solution: Solution,
}

impl Plan {
    /// Returns the size of the workspace in bytes.
    pub(crate) fn workspace(&self) -> usize {
        self.solution.workspace
    }
}

/// Implementation of a convolution.
#[derive(Clone)]
pub(crate) enum ConvBackend {
    Own(ConvMethod),
    Library(Arc<Plan>),
    /// To be tuned: the built-in kernels and these solutions must be measured.
    Untuned(Vec<Arc<Plan>>),
}

/// A candidate that is measured.
#[derive(Clone, Copy)]
pub(crate) enum Candidate<'a> {
    Own(ConvMethod),
    Library(&'a Plan),
}

/// The library of a device, and the implementation chosen for each shape.
#[derive(Default)]
struct Convolutions {
    chosen: HashMap<ConvShape, ConvBackend>,
    library: Option<LibraryState>,
    failures: FailureLog,
    failed_solutions: u32,
}

enum LibraryState {
    Library { handle: Handle, choices: Choices },
    Missing,
}

fn convolutions(device: &Arc<DeviceState>) -> MutexGuard<'_, Convolutions> {
    device.attachment::<Mutex<Convolutions>>().lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceState {
    /// Returns the implementation for convolutions of this shape.
    ///
    /// # Errors
    /// If MIOpen's solution is not known yet and the calling thread captures a graph.
    pub(crate) fn convolution(self: &Arc<Self>, shape: &ConvShape) -> Result<ConvBackend> {
        let wanted = settings().library.load(Ordering::Relaxed);
        let own = ConvBackend::Own(self.own_convolution(shape.dtype));
        if wanted == 0 || !miopen::is_supported(shape.dtype) {
            return Ok(own);
        }
        let mut convolutions = convolutions(self);
        if convolutions.failed_solutions >= MAX_FAILURES {
            return Ok(own);
        }
        if let Some(chosen) = convolutions.chosen.get(shape) {
            return Ok(chosen.clone());
        }
        self.stream.refuse_capture(|| format!("choosing a solution of MIOpen for {shape}"), WARM_UP)?;
        let is_tuned = settings().tuning.load(Ordering::Relaxed) == 1;
        let implementation = match wanted == UNSET && !is_tuned && self.is_in(OWN_KERNEL_ARCHS) {
            true => own,
            false => warn_if_slow(format!("MIOpen: {shape}"), || convolutions.query(self, shape)),
        };
        convolutions.remember(shape, implementation.clone());
        Ok(implementation)
    }

    fn is_in(&self, table: &[&str]) -> bool {
        table.iter().any(|prefix| self.arch().starts_with(prefix))
    }

    /// Returns the default algorithm of the built-in kernels.
    pub(crate) fn own_convolution(&self, dtype: DType) -> ConvMethod {
        let narrow = matches!(dtype, DType::F16 | DType::BF16);
        match settings().tiles.load(Ordering::Relaxed) {
            0 => ConvMethod::Unfolded,
            1 => ConvMethod::Tiles,
            _ if self.is_in(UNFOLDED_ARCHS) || (narrow && self.drops_denormals()) => ConvMethod::Unfolded,
            _ => ConvMethod::Tiles,
        }
    }

    /// Enqueues a convolution by the library. If it fails, returns `false` and uses the built-in kernels from then on.
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
        if convolutions.failed_solutions >= MAX_FAILURES {
            return Ok(false);
        }
        self.stream.bind_and_flush()?;
        let Some(LibraryState::Library { handle, .. }) = &convolutions.library else { return Ok(false) };
        let use_stream = || miopen::set_stream(handle, self.stream.raw());
        let is_capturing = self.stream.is_capturing();
        let mut outcome = if is_capturing { use_stream() } else { Ok(()) };
        if outcome.is_ok() {
            // SAFETY: guaranteed by the caller.
            outcome = unsafe { plan.problem.run(handle, plan.solution, operands, result, workspace) };
        }
        if is_capturing {
            outcome = outcome.and(capturing::outside(use_stream));
        }
        if let Err(failure) = outcome {
            // HIP keeps the last error; clear it so that an unrelated call does not return it.
            let _ = rocm_rs::hip::get_last_error();
            convolutions.log(self, &failure);
            count_failure(&mut convolutions.failed_solutions, self, &failure);
            convolutions.remember(shape, ConvBackend::Own(self.own_convolution(shape.dtype)));
            return Ok(false);
        }
        Ok(true)
    }

    /// Measures `run` for the built-in kernels and for each plan, and stores the fastest. Waits for the device.
    ///
    /// # Errors
    /// If a built-in kernel fails.
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
            for _ in 0..TIMED_CALLS {
                run(candidate)?;
            }
            self.stream.finish("tuning a convolution")?;
            Ok(Some(start.elapsed()))
        };
        let own = [ConvMethod::Tiles, ConvMethod::Unfolded]
            .map(|method| (Candidate::Own(method), ConvBackend::Own(method), Choice::Own(method)));
        let library = plans.iter().map(|plan| {
            let choice = Choice::Solution(plan.solution.id);
            (Candidate::Library(plan.as_ref()), ConvBackend::Library(plan.clone()), choice)
        });
        let method = self.own_convolution(shape.dtype);
        let mut best = (Duration::MAX, ConvBackend::Own(method), Choice::Own(method));
        for (candidate, computed, choice) in own.into_iter().chain(library) {
            if let Some(elapsed) = time(candidate)?.filter(|elapsed| *elapsed < best.0) {
                best = (elapsed, computed, choice);
            }
        }
        let mut convolutions = convolutions(self);
        convolutions.remember(shape, best.1);
        if let Some(LibraryState::Library { choices, .. }) = &mut convolutions.library {
            tracing::info!("{shape}: {:?} is fastest", best.2);
            if let Err(error) = choices.store(shape, best.2) {
                let location = choices.location();
                let text = format_args!("tuning results cannot be stored in {location}: {error}");
                convolutions.failures.add("convolutions", self.label(), text);
            }
        }
        Ok(())
    }
}

impl Convolutions {
    fn remember(&mut self, shape: &ConvShape, implementation: ConvBackend) {
        if self.chosen.len() >= MAX_CACHED_SHAPES {
            self.chosen.clear();
        }
        self.chosen.insert(*shape, implementation);
    }

    /// Queries the library for solutions. If it has none or fails, returns the built-in kernels.
    fn query(&mut self, device: &DeviceState, shape: &ConvShape) -> ConvBackend {
        match self.plan(device, shape) {
            Ok(implementation) => implementation,
            Err(failure) => {
                let _ = rocm_rs::hip::get_last_error();
                self.log(device, &failure);
                ConvBackend::Own(device.own_convolution(shape.dtype))
            }
        }
    }

    fn plan(&mut self, device: &DeviceState, shape: &ConvShape) -> std::result::Result<ConvBackend, Failure> {
        if self.library.is_none() {
            // Set before the attempt, so that a failure is not retried.
            self.library = Some(LibraryState::Missing);
            self.library = Some(open(device)?);
        }
        let own = ConvBackend::Own(device.own_convolution(shape.dtype));
        let Some(LibraryState::Library { handle, choices }) = &self.library else { return Ok(own) };
        let measured = choices.of(shape);
        if let Some(Choice::Own(method)) = measured {
            return Ok(ConvBackend::Own(method));
        }
        let limit = conv_workspace();
        let mut offered = Problem::of(shape)?.solutions(handle)?;
        offered.retain(|solution| solution.workspace <= limit);
        let mut tunes = settings().tuning.load(Ordering::Relaxed) == 1;
        if let Some(Choice::Solution(id)) = measured {
            if offered.iter().any(|solution| solution.id == id) {
                offered.retain(|solution| solution.id == id);
                tunes = false;
            }
        }
        let mut plans = Vec::new();
        for solution in offered {
            let problem = Problem::of(shape)?;
            match problem.compile(handle, solution) {
                Ok(()) => plans.push(Arc::new(Plan { problem, solution })),
                Err(failure) => {
                    let _ = rocm_rs::hip::get_last_error();
                    tracing::debug!("{shape}: solution {} is skipped: {failure}", solution.id);
                    if count_failure(&mut self.failed_solutions, device, &failure) {
                        return Ok(own);
                    }
                }
            }
            if !tunes && !plans.is_empty() {
                break;
            }
        }
        Ok(match tunes {
            true => ConvBackend::Untuned(plans),
            false => plans.pop().map_or(own, ConvBackend::Library),
        })
    }

    fn log(&mut self, device: &DeviceState, failure: &Failure) {
        let text = format_args!("{failure}; the built-in kernels are used instead");
        self.failures.add("convolutions", device.label(), text);
    }
}

/// Counts a solution that does not compile or run. Returns true, and reports the problem, if it is the last that may fail.
fn count_failure(failed: &mut u32, device: &DeviceState, failure: &Failure) -> bool {
    *failed += 1;
    if *failed == MAX_FAILURES {
        device.report_problem(format!(
            "{MAX_FAILURES} solutions of MIOpen failed, so convolutions use the built-in kernels from now on; install a \
             MIOpen whose compiler works, or set {LIBRARY_VARIABLE}=0 ({failure})"
        ));
    }
    *failed >= MAX_FAILURES
}

fn open(device: &DeviceState) -> std::result::Result<LibraryState, Failure> {
    let version = miopen::version()?;
    device.stream.bind().map_err(|error| Failure(error.to_string()))?;
    let handle = miopen::open(device.stream.raw())?;
    let choices = Choices::load(convolution_choices::path(), device.arch(), &version);
    Ok(LibraryState::Library { handle, choices })
}

/// Logs a warning if `work` takes longer than [`SLOW_SEARCH`], since MIOpen may compile kernels at first use.
fn warn_if_slow<R>(subject: String, work: impl FnOnce() -> R) -> R {
    let (done, wait) = mpsc::channel::<()>();
    let watch = std::thread::Builder::new().name("convolutions".to_string()).spawn(move || {
        if wait.recv_timeout(SLOW_SEARCH) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(
                "{subject}: compiling takes longer than {} s; the result is stored in MIOpen's cache \
                 (~/.cache/miopen). {LIBRARY_VARIABLE}=0 uses the built-in kernels, which are already compiled",
                SLOW_SEARCH.as_secs()
            );
        }
    });
    let result = work();
    drop(done);
    // If the thread could not be started, only the warning is missing.
    if let Ok(watch) = watch {
        let _ = watch.join();
    }
    result
}
