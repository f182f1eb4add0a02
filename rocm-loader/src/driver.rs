//! Which driver serves the calls: chosen once per process, by a variable, by the program, or by
//! whether the machine has an AMD GPU.
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};

use rocm_rs::hip::bindings as hip_types;

use crate::error::{LoadError, forget};
use crate::forward::Ours;
use crate::library::Library;
use crate::tables::{hip, miopen, rocblas};
use crate::{emulator, gpu, hipblaslt, nvidia};

/// The environment variable that names the driver.
pub const DRIVER_VARIABLE: &str = "CANDLE_ROCM_DRIVER";

/// The architecture of the software GPU if none is named.
pub const DEFAULT_EMULATED_ARCH: &str = "gfx1100";

/// The kinds of driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// ROCm's own libraries, opened at run time.
    Native,
    /// The software GPU inside this executable.
    Emulator,
    /// CUDA's libraries, opened at run time: for development, no AMD figure.
    Nvidia,
}

/// A driver to use, as [`DRIVER_VARIABLE`] or a program names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// ROCm's own libraries.
    Native,
    /// The software GPU, one device per architecture; none named means [`DEFAULT_EMULATED_ARCH`].
    Emulator(Vec<String>),
    /// CUDA's libraries. Taken only where it is named.
    Nvidia,
}

impl Choice {
    /// What [`DRIVER_VARIABLE`] says; `None` if it is unset or empty.
    ///
    /// # Errors
    /// [`LoadError::UnknownDriver`] for anything but the allowed values.
    pub fn from_environment() -> Result<Option<Self>, LoadError> {
        match std::env::var_os(DRIVER_VARIABLE) {
            None => Ok(None),
            Some(value) if value.is_empty() => Ok(None),
            Some(value) => value.to_string_lossy().parse().map(Some),
        }
    }

    /// The same choice with the default architecture filled in.
    fn resolved(self) -> Self {
        match self {
            Self::Emulator(archs) if archs.is_empty() => {
                Self::Emulator(vec![DEFAULT_EMULATED_ARCH.to_owned()])
            }
            other => other,
        }
    }
}

impl FromStr for Choice {
    type Err = LoadError;

    fn from_str(value: &str) -> Result<Self, LoadError> {
        let unknown = || LoadError::UnknownDriver { value: value.to_owned() };
        match value.trim() {
            "native" => Ok(Self::Native),
            "nvidia" => Ok(Self::Nvidia),
            "emulator" => Ok(Self::Emulator(Vec::new())),
            other => {
                let list = other.strip_prefix("emulator:").ok_or_else(unknown)?;
                let archs: Vec<String> = list.split(',').map(|arch| arch.trim().to_owned()).collect();
                if archs.iter().all(|arch| arch.starts_with("gfx")) {
                    Ok(Self::Emulator(archs))
                } else {
                    Err(unknown())
                }
            }
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("native"),
            Self::Nvidia => f.write_str("nvidia"),
            Self::Emulator(archs) if archs.is_empty() => f.write_str("emulator"),
            Self::Emulator(archs) => write!(f, "emulator:{}", archs.join(",")),
        }
    }
}

/// The driver of this process.
#[derive(Debug)]
pub struct Driver {
    choice: Choice,
}

/// Versions as the driver reports them; `None` where the library is missing or does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// HIP runtime: major * 10_000_000 + minor * 100_000 + patch.
    pub hip_runtime: Option<i32>,
    /// HIP driver, in the same form.
    pub hip_driver: Option<i32>,
    /// rocBLAS' version string; with CUDA cuBLAS', which says so.
    pub rocblas: Option<String>,
    /// MIOpen's major, minor and patch; with CUDA cuDNN's.
    pub miopen: Option<[usize; 3]>,
    /// hipBLASLt: major * 100_000 + minor * 100 + patch; cuBLASLt's own number for the NVIDIA driver.
    pub hipblaslt: Option<i32>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Held while a driver starts. A failure is not kept, so a program may still select another driver.
static STARTING: Mutex<()> = Mutex::new(());

/// The driver of this process; the first call chooses it: [`DRIVER_VARIABLE`] if set, else native
/// if the kernel reports an AMD GPU.
///
/// # Errors
/// No GPU, no ROCm, an unknown driver in the variable, or a software GPU that is not compiled in
/// or refuses its architectures; the text says which and what to do.
pub fn driver() -> Result<&'static Driver, LoadError> {
    match DRIVER.get() {
        Some(driver) => Ok(driver),
        None => start(None),
    }
}

/// Chooses the driver from within the program, before its first use; the environment variable is
/// then not looked at. Choosing the running driver again is no error.
///
/// # Errors
/// [`LoadError::AlreadySelected`] if another driver runs; otherwise as [`driver`].
pub fn select(choice: Choice) -> Result<(), LoadError> {
    let wanted = choice.resolved();
    let running = start(Some(&wanted))?;
    if running.choice == wanted {
        Ok(())
    } else {
        Err(LoadError::AlreadySelected { current: running.choice.to_string(), wanted: wanted.to_string() })
    }
}

/// Whether the software GPU is the driver; false before a driver runs.
pub(crate) fn is_emulated() -> bool {
    DRIVER.get().is_some_and(|driver| driver.kind() == DriverKind::Emulator)
}

/// Starts the wanted driver, or the one that is named or found, unless one runs already.
fn start(wanted: Option<&Choice>) -> Result<&'static Driver, LoadError> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = DRIVER.get() {
        return Ok(driver);
    }
    let choice = match wanted {
        Some(choice) => choice.clone(),
        None => match Choice::from_environment()? {
            Some(choice) => choice.resolved(),
            None => gpu::find().map(|_| Choice::Native).map_err(|reason| LoadError::NoGpu { reason })?,
        },
    };
    match &choice {
        Choice::Native => Library::Hip.open().map(|_| ())?,
        Choice::Emulator(archs) => emulator::start(archs)?,
        Choice::Nvidia => nvidia::start()?,
    }
    Ok(DRIVER.get_or_init(|| Driver { choice }))
}

/// Whether a device can be expected: a driver, a device and the runtime are there. Opens no
/// library and starts no driver; [`device_archs`] says for certain, and what is missing.
pub fn is_available() -> bool {
    if let Some(driver) = DRIVER.get() {
        return match driver.kind() {
            DriverKind::Native => gpu::find().is_ok(),
            DriverKind::Emulator => true,
            DriverKind::Nvidia => nvidia::is_available(),
        };
    }
    match Choice::from_environment() {
        Ok(Some(Choice::Emulator(_))) => cfg!(feature = "emulator"),
        Ok(Some(Choice::Nvidia)) => nvidia::is_available(),
        Ok(Some(Choice::Native) | None) => gpu::find().is_ok() && Library::Hip.is_installed(),
        Err(_) => false,
    }
}

/// The architecture of every device, in HIP's order, features included where the driver reports
/// them (`gfx90a:sramecc+:xnack-`). Never empty.
///
/// # Errors
/// As [`driver`]; [`LoadError::NoDevice`] if the runtime reports none.
pub fn device_archs() -> Result<Vec<String>, LoadError> {
    let driver = driver()?;
    let no_device = |call, code| LoadError::NoDevice {
        runtime: driver.description(),
        call,
        code,
        reason: match driver.kind() {
            DriverKind::Native => gpu::reasons_for_no_device(),
            DriverKind::Emulator => emulator::last_error().unwrap_or_else(|| "it says no more".to_owned()),
            DriverKind::Nvidia => nvidia::reasons_for_no_device(),
        },
    };
    let mut count: c_int = 0;
    // SAFETY: `count` outlives the call, which writes one int.
    let code = unsafe { hip::hipGetDeviceCount(&mut count) };
    if code != hip_types::hipError_t_hipSuccess {
        return Err(no_device("hipGetDeviceCount", code));
    }
    if count <= 0 {
        return Err(no_device("hipGetDeviceCount", hip_types::hipError_t_hipErrorNoDevice));
    }
    (0..count)
        .map(|ordinal| {
            // SAFETY: the structure is plain integers, arrays and raw pointers: all zero is valid.
            let mut properties: hip_types::hipDeviceProp_tR0600 = unsafe { std::mem::zeroed() };
            // SAFETY: `properties` is the R0600 layout that this function fills.
            let code = unsafe { hip::hipGetDevicePropertiesR0600(&mut properties, ordinal) };
            if code == hip_types::hipError_t_hipSuccess {
                Ok(text_of(&properties.gcnArchName))
            } else {
                Err(no_device("hipGetDevicePropertiesR0600", code))
            }
        })
        .collect()
}

/// A C string in a fixed array, up to its terminator or the array's end.
fn text_of(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Driver {
    /// ROCm, the software GPU or CUDA.
    pub fn kind(&self) -> DriverKind {
        match self.choice {
            Choice::Native => DriverKind::Native,
            Choice::Emulator(_) => DriverKind::Emulator,
            Choice::Nvidia => DriverKind::Nvidia,
        }
    }

    /// The libraries behind the driver by the names of their files, without versions where there are several, and
    /// where they lie; none for the software GPU. CUDA's are opened for it.
    pub fn libraries(&self) -> Vec<(&'static str, Option<PathBuf>)> {
        match self.choice {
            Choice::Native => Library::ALL.map(|library| (library.soname_stem(), library.file())).into(),
            Choice::Emulator(_) => Vec::new(),
            Choice::Nvidia => nvidia::libraries(),
        }
    }

    /// One line for reports: what runs, from where. A result of the software GPU says so by this.
    pub fn description(&self) -> String {
        match &self.choice {
            Choice::Native => match Library::Hip.open() {
                Ok(opened) => format!("ROCm (HIP runtime {})", opened.path),
                Err(error) => format!("ROCm ({error})"),
            },
            Choice::Emulator(archs) => format!("software GPU ({})", archs.join(", ")),
            Choice::Nvidia => nvidia::description(),
        }
    }

    /// Asks every library for its version. Opens those that are not yet open, and makes a handle of
    /// hipBLASLt, so this is for reports, not for the way of an operation.
    pub fn versions(&self) -> Versions {
        let mut runtime: c_int = 0;
        let mut driver: c_int = 0;
        // SAFETY: both write one int, and both outlive the call.
        let (runtime_code, driver_code) =
            unsafe { (hip::hipRuntimeGetVersion(&mut runtime), hip::hipDriverGetVersion(&mut driver)) };
        let mut parts = [0usize; 3];
        let [major, minor, patch] = &mut parts;
        // SAFETY: three distinct integers that outlive the call.
        let miopen_code = unsafe { miopen::miopenGetVersion(major, minor, patch) };
        let versions = Versions {
            hip_runtime: (runtime_code == 0).then_some(runtime),
            hip_driver: (driver_code == 0).then_some(driver),
            rocblas: rocblas_version(),
            miopen: (miopen_code == 0).then_some(parts),
            hipblaslt: hipblaslt_version(),
        };
        // A library that is missing here is an answer, not the reason of a later failure.
        forget();
        versions
    }
}

fn rocblas_version() -> Option<String> {
    let mut size = 0usize;
    // SAFETY: writes one integer.
    if unsafe { rocblas::rocblas_get_version_string_size(&mut size) } != 0 || size == 0 {
        return None;
    }
    // One byte more than asked for, so that the text is terminated whatever the library counts.
    let mut text = vec![0u8; size + 1];
    // SAFETY: the buffer holds at least `size` bytes.
    if unsafe { rocblas::rocblas_get_version_string(text.as_mut_ptr().cast::<c_char>(), size) } != 0 {
        return None;
    }
    CStr::from_bytes_until_nul(&text).ok().map(|text| version_text(&text.to_string_lossy()))
}

fn hipblaslt_version() -> Option<i32> {
    let (mut handle, mut version) = (std::ptr::null_mut(), 0);
    // SAFETY: places for a handle, which is ended again, and for an int.
    unsafe {
        if hipblaslt::hipblasLtCreate(&mut handle) != hipblaslt::HIPBLAS_STATUS_SUCCESS {
            return None;
        }
        let status = hipblaslt::hipblasLtGetVersion(handle, &mut version);
        hipblaslt::hipblasLtDestroy(handle);
        (status == hipblaslt::HIPBLAS_STATUS_SUCCESS).then_some(version)
    }
}

/// rocBLAS ends its version with a dot where its build has no name: `4.4.0.`.
fn version_text(text: &str) -> String {
    text.trim().trim_end_matches('.').to_owned()
}

/// The address that serves a function: in a library of ROCm, or in a driver of ours.
pub(crate) fn resolve(library: Library, symbol: &'static str, ours: Ours) -> Result<*mut c_void, LoadError> {
    match driver()?.kind() {
        DriverKind::Native => library.open()?.address(symbol),
        DriverKind::Emulator => ours.emulated.ok_or(LoadError::NotEmulated { symbol }),
        DriverKind::Nvidia => ours.nvidia.ok_or(LoadError::NotOnNvidia { symbol }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_parsed_and_printed() {
        let parsed = |text: &str| text.parse::<Choice>();
        assert_eq!(parsed("native"), Ok(Choice::Native));
        assert_eq!(parsed("nvidia"), Ok(Choice::Nvidia));
        assert_eq!(Choice::Nvidia.to_string(), "nvidia");
        assert_eq!(parsed("emulator"), Ok(Choice::Emulator(vec![])));
        let two = Choice::Emulator(vec!["gfx90a".to_owned(), "gfx1100".to_owned()]);
        assert_eq!(parsed("emulator:gfx90a, gfx1100"), Ok(two.clone()));
        assert_eq!(two.to_string(), "emulator:gfx90a,gfx1100");
        for wrong in ["", "cuda", "emulator:", "emulator:gfx1100,", "emulator:rdna3", "Native"] {
            assert_eq!(parsed(wrong), Err(LoadError::UnknownDriver { value: wrong.to_owned() }), "{wrong}");
        }
    }

    #[test]
    fn a_version_has_no_dot_at_its_end() {
        assert_eq!(version_text("4.4.0.3ff0dc8d."), "4.4.0.3ff0dc8d");
        assert_eq!(version_text("4.4.0. "), "4.4.0");
        assert_eq!(version_text("5.0.2"), "5.0.2");
    }

    #[test]
    fn an_unknown_driver_names_the_allowed_ones() {
        let error = "cuda".parse::<Choice>().map_err(|error| error.to_string());
        let text = error.err().unwrap_or_default();
        for part in ["CANDLE_ROCM_DRIVER=\"cuda\"", "`native`", "`emulator`", "emulator:gfx1100", "`nvidia`"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
