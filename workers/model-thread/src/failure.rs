//! Classification of device errors by type.
use std::fmt::Display;
use std::io::ErrorKind;

use candle_core::Error;

/// Returns true if a device or the host ran out of memory; later work may still succeed.
pub fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
            is_out_of_memory(inner)
        }
        Error::Io(error) => error.kind() == ErrorKind::OutOfMemory,
        #[cfg(feature = "rocm")]
        Error::Rocm(error) => {
            error.downcast_ref().is_some_and(candle_core::rocm::RocmError::is_out_of_memory)
        }
        #[cfg(feature = "cuda")]
        Error::Cuda(error) => error.downcast_ref().is_some_and(cuda_is_out_of_memory),
        _ => false,
    }
}

#[cfg(feature = "cuda")]
fn cuda_is_out_of_memory(error: &candle_core::cuda::CudaError) -> bool {
    use candle_core::cuda::{CudaError, cudarc::driver::sys::CUresult};
    match error {
        CudaError::Cuda(driver) | CudaError::Load { cuda: driver, .. } => {
            driver.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
        }
        _ => false,
    }
}

/// Returns the first line of an error's text, without the backtrace that Candle appends.
pub fn error_summary(error: &dyn Display) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_is_detected_by_type_and_not_by_text() {
        let short = || Error::Io(ErrorKind::OutOfMemory.into());
        for error in [short(), short().context("a step"), short().with_path("x"), short().bt()] {
            assert!(is_out_of_memory(&error), "{error}");
        }
        for error in [Error::Msg("out of memory".into()), Error::Io(ErrorKind::NotFound.into())] {
            assert!(!is_out_of_memory(&error), "{error}");
        }
        #[cfg(feature = "rocm")]
        {
            let device = || "rocm:0 (gfx1100)".to_owned();
            let full = candle_core::rocm::RocmError::OutOfMemory {
                requested: 2,
                free: 1,
                total: 3,
                device: device(),
            };
            assert!(is_out_of_memory(&Error::from(full).context("a step")));
            let wrong = candle_core::rocm::RocmError::InvalidSetting("out of memory".into());
            assert!(!is_out_of_memory(&Error::from(wrong)));
        }
    }

    #[test]
    fn a_summary_is_one_line() {
        assert_eq!(error_summary(&Error::Msg("a\nb".into())), "a");
        assert_eq!(error_summary(&""), "");
    }
}
