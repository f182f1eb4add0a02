//! State of the running driver: libcuda and the devices.
use std::sync::atomic::AtomicPtr;
use std::sync::{Mutex, OnceLock};

use rocm_driver_api::{Library, LoadError};
use rocm_rs::hip::bindings::ihipCtx_t;

use crate::cuda::{Code, Cuda, Handle};
use crate::hip::status;
use crate::library::{self, CudaLibrary, Search};

/// The disclaimer that belongs to every result of this driver.
pub(crate) const DEVELOPMENT_NOTE: &str = "NVIDIA, for development: no AMD figure";

/// The oldest supported version, CUDA 12.0, in the form of `cuDriverGetVersion`.
const OLDEST_CUDA: i32 = 12_000;

/// libcuda, on which all other libraries depend.
pub(crate) static CUDA: CudaLibrary<Cuda> = CudaLibrary {
    serves: Library::Hip,
    name: library::CUDA,
    advice: "It comes with NVIDIA's GPU driver (525 or newer), not with the CUDA toolkit. Start a container with \
             --gpus all; if the library is in another folder, add that to LD_LIBRARY_PATH",
    search: || Search {
        names: vec![library::CUDA.into()],
        first: Vec::new(),
        last: vec![library::WSL_FOLDER.into()],
    },
    opened: OnceLock::new(),
};

/// A GPU.
pub(crate) struct Device {
    pub(crate) handle: Handle,
    /// The primary context; null until it is retained.
    pub(crate) context: AtomicPtr<ihipCtx_t>,
    /// Held while the context is retained or reset.
    pub(crate) context_lock: Mutex<()>,
    pub(crate) cublas_handles: Mutex<Vec<CublasHandle>>,
}

/// A handle of cuBLAS, which is used again after the caller has destroyed it.
pub(crate) struct CublasHandle {
    pub(crate) address: usize,
    pub(crate) is_idle: bool,
}

/// Initializes CUDA and lists the devices.
///
/// # Errors
/// The name of the call that failed, and its code.
fn list(cuda: &Cuda) -> Result<Vec<Device>, (&'static str, Code)> {
    let ok = |call, code| if code == 0 { Ok(()) } else { Err((call, code)) };
    let mut count = 0;
    // SAFETY: takes an integer.
    ok("cuInit", unsafe { (cuda.cuInit)(0) })?;
    // SAFETY: writes one int.
    ok("cuDeviceGetCount", unsafe { (cuda.cuDeviceGetCount)(&mut count) })?;
    (0..count)
        .map(|ordinal| {
            let mut handle = 0;
            // SAFETY: writes one int.
            ok("cuDeviceGet", unsafe { (cuda.cuDeviceGet)(&mut handle, ordinal) })?;
            Ok(Device {
                handle,
                context: AtomicPtr::default(),
                context_lock: Mutex::new(()),
                cublas_handles: Mutex::default(),
            })
        })
        .collect()
}

/// libcuda and its devices.
pub(crate) struct Running {
    pub(crate) cuda: &'static Cuda,
    pub(crate) devices: Vec<Device>,
    /// CUDA's version: major * 1000 + minor * 10.
    pub(crate) version: i32,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// Returns the running driver; `None` before [`start`].
#[inline]
pub(crate) fn running() -> Option<&'static Running> {
    RUNNING.get()
}

/// Opens libcuda and lists the devices.
///
/// # Errors
/// libcuda is missing or too old, or there is no device.
pub(crate) fn start() -> Result<(), LoadError> {
    if RUNNING.get().is_some() {
        return Ok(());
    }
    let (opened, cuda) = CUDA.open()?;
    let mut version = 0;
    // SAFETY: writes one int; may be called before cuInit.
    let code = unsafe { (cuda.cuDriverGetVersion)(&mut version) };
    if code == 0 && version < OLDEST_CUDA {
        return Err(LoadError::TooOld {
            path: opened.path.clone(),
            found: format!("CUDA up to {}", version_text(version)),
            needed: format!("CUDA {}", version_text(OLDEST_CUDA)),
            advice: "install a newer NVIDIA driver (525 or later)",
        });
    }
    let devices = list(cuda).map_err(|(call, code)| LoadError::NoDevice {
        runtime: describe(version),
        call,
        code: status::hip_of(code),
        reason: format!("{}; {}", status::error_text(cuda, code), library::reasons_for_no_device()),
    })?;
    RUNNING.get_or_init(|| Running { cuda, devices, version });
    Ok(())
}

/// Returns a one-line description for reports.
pub(crate) fn description() -> String {
    describe(RUNNING.get().map_or(0, |running| running.version))
}

fn describe(version: i32) -> String {
    let path = CUDA.open().map_or(library::CUDA, |(opened, _)| &opened.path);
    format!("CUDA driver {} ({path}), {DEVELOPMENT_NOTE}", version_text(version))
}

/// Formats CUDA's version number: 13_000 becomes `13.0`.
fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
