//! The library for matrix products: rocBLAS, or our own kernels where rocBLAS has none for the GPU.
use super::device::DeviceState;
use crate::rocm_backend::error::notes;
use crate::rocm_backend::RocmError;
use crate::Result;
use rocm_rs::rocblas;

/// What computes a device's products.
pub(crate) enum ProductLibrary {
    /// rocBLAS' handle, bound to the device's stream.
    Rocblas(Handle),
    /// Tiles of ours: rocBLAS would end the process, since it has no kernels for this GPU.
    Own,
}

pub(crate) struct Handle(pub(crate) rocblas::Handle);

// SAFETY: a handle may be used from any thread, one at a time; it lives under the device's mutex.
unsafe impl Send for Handle {}

impl ProductLibrary {
    /// The GPU is not yet bound.
    pub(super) fn open(state: &DeviceState) -> Result<Self> {
        let tensile_files = rocm_loader::driver().and_then(|driver| driver.tensile_files(state.arch()));
        if let Err(rocm_loader::LoadError::NoTensileFiles { .. }) = tensile_files {
            return Ok(Self::Own);
        }
        state.stream.bind()?;
        let handle = state.checked(rocblas::Handle::new(), || "rocblas_create_handle".to_string())?;
        state.checked(handle.set_stream(state.stream.hip()), || "rocblas_set_stream".to_string())?;
        Ok(Self::Rocblas(Handle(handle)))
    }
}

/// Whether rocBLAS has kernels for `arch`.
///
/// # Errors
/// What is missing, where it was looked for, and what to do.
pub(super) fn check(arch: &str) -> Result<()> {
    rocm_loader::driver().and_then(|driver| driver.tensile_files(arch)).map_err(RocmError::from)?;
    Ok(())
}

impl DeviceState {
    /// Turns rocBLAS' result into ours; `call` is only made up on failure.
    pub(crate) fn checked<T>(&self, result: rocblas::Result<T>, call: impl FnOnce() -> String) -> Result<T> {
        result.map_err(|error| {
            let notes = notes(None);
            let _ = rocm_rs::hip::get_last_error();
            RocmError::Rocblas { call: call(), device: self.label().to_string(), error, notes }.into()
        })
    }
}
