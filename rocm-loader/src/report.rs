//! Reports on the driver: devices and versions, queried through the forwarded functions.
use std::ffi::{CStr, c_char, c_int};

use rocm_driver_api::LoadError;
use rocm_driver_api::error::take;
use rocm_rs::hip::bindings as hip_types;

use crate::functions::{hip, hipblaslt, miopen, rccl, rocblas};
use crate::selection::{RunningDriver, driver};

/// Versions reported by the driver; `None` if the library is missing or reports none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// HIP runtime: major * 10_000_000 + minor * 100_000 + patch.
    pub hip_runtime: Option<i32>,
    /// HIP driver, in the same form.
    pub hip_driver: Option<i32>,
    /// rocBLAS' version string, or the name and version of the driver's substitute.
    pub rocblas: Option<String>,
    /// MIOpen's major, minor and patch number, or those of the driver's substitute.
    pub miopen: Option<[usize; 3]>,
    /// hipBLASLt: major * 100_000 + minor * 100 + patch, or the version of the driver's substitute.
    pub hipblaslt: Option<i32>,
    /// RCCL: major * 10_000 + minor * 100 + patch, or the version of the driver's substitute.
    pub rccl: Option<i32>,
}

/// Returns the architecture of every device in HIP's order, with features if the driver reports them
/// (`gfx90a:sramecc+:xnack-`). The list is never empty.
///
/// # Errors
/// The errors of [`driver`]; [`LoadError::NoDevice`] if the runtime reports no device.
pub fn device_archs() -> Result<Vec<String>, LoadError> {
    let driver = driver()?;
    let no_device = |call, code| LoadError::NoDevice {
        runtime: driver.description(),
        call,
        code,
        reason: driver.reasons_for_no_device(),
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

/// Returns the C string in a fixed array, up to its terminator or the array's end.
fn text_of(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl RunningDriver {
    /// Queries the version of every library. This opens the libraries and creates a hipBLASLt handle, so call it for
    /// reports only.
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
            rccl: rccl_version(),
        };
        // A library missing here must not be reported as the reason for a later failure.
        take();
        versions
    }
}

fn rocblas_version() -> Option<String> {
    let mut size = 0usize;
    // SAFETY: writes one integer.
    if unsafe { rocblas::rocblas_get_version_string_size(&mut size) } != 0 || size == 0 {
        return None;
    }
    // One extra byte terminates the text even if the reported size excludes the terminator.
    let mut text = vec![0u8; size + 1];
    // SAFETY: the buffer holds at least `size` bytes.
    if unsafe { rocblas::rocblas_get_version_string(text.as_mut_ptr().cast::<c_char>(), size) } != 0 {
        return None;
    }
    CStr::from_bytes_until_nul(&text).ok().map(|text| version_text(&text.to_string_lossy()))
}

fn hipblaslt_version() -> Option<i32> {
    let (mut handle, mut version) = (std::ptr::null_mut(), 0);
    // SAFETY: `handle` and `version` outlive the calls, and the handle is destroyed once.
    unsafe {
        if hipblaslt::hipblasLtCreate(&mut handle) != hipblaslt::HIPBLAS_STATUS_SUCCESS {
            return None;
        }
        let status = hipblaslt::hipblasLtGetVersion(handle, &mut version);
        hipblaslt::hipblasLtDestroy(handle);
        (status == hipblaslt::HIPBLAS_STATUS_SUCCESS).then_some(version)
    }
}

fn rccl_version() -> Option<i32> {
    let mut version = 0;
    // SAFETY: writes one int.
    let result = unsafe { rccl::ncclGetVersion(&mut version) };
    (result == rccl::ncclSuccess).then_some(version)
}

/// Removes the trailing dot of a rocBLAS version whose build has no name: `4.4.0.`.
fn version_text(text: &str) -> String {
    text.trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_dot_is_removed_from_a_version() {
        assert_eq!(version_text("4.4.0.3ff0dc8d."), "4.4.0.3ff0dc8d");
        assert_eq!(version_text("4.4.0. "), "4.4.0");
        assert_eq!(version_text("5.0.2"), "5.0.2");
    }
}
