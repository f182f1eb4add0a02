//! The library for matrix products: rocBLAS, or the built-in kernels if rocBLAS does not support the GPU.
use crate::rocm_backend::device::{DeviceState, RocmDevice};
use crate::rocm_backend::error::notes;
use crate::rocm_backend::RocmError;
use crate::Result;
use rocm_rs::rocblas;
use std::sync::{Arc, Mutex, PoisonError};

/// Implementation of a device's matrix products.
pub(crate) enum ProductLibrary {
    /// rocBLAS, with a handle bound to the device's stream.
    Rocblas(Handle),
    /// Built-in kernels. rocBLAS would abort the process, because it has no kernels for this GPU.
    Own,
}

pub(crate) struct Handle(pub(crate) rocblas::Handle);

// SAFETY: a handle may be used from any thread, one at a time; a mutex of the device guards its use.
unsafe impl Send for Handle {}

impl ProductLibrary {
    /// Opens the library. The GPU need not be bound.
    fn open(state: &DeviceState) -> Result<Self> {
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

impl RocmDevice {
    /// Checks that rocBLAS is installed and has kernels for this GPU. Without such kernels, slower built-in kernels are
    /// used.
    ///
    /// # Errors
    /// If the library or its kernels are missing; the message names the searched paths and the remedy.
    pub fn check_rocblas(&self) -> Result<()> {
        rocm_loader::driver()
            .and_then(|driver| driver.tensile_files(self.arch()))
            .map_err(RocmError::from)?;
        Ok(())
    }
}

impl DeviceState {
    /// Calls `work` with the library for products, which is opened on first use and locked during the call.
    pub(crate) fn with_products<R>(
        self: &Arc<Self>,
        work: impl FnOnce(&ProductLibrary) -> Result<R>,
    ) -> Result<R> {
        let products = self.attachment::<Mutex<Option<ProductLibrary>>>();
        match &mut *products.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(library) => work(library),
            empty => work(empty.insert(ProductLibrary::open(self)?)),
        }
    }

    /// Returns true if rocBLAS computes products, false if it has no kernels for the GPU.
    pub(crate) fn has_product_library(self: &Arc<Self>) -> Result<bool> {
        self.with_products(|library| Ok(matches!(library, ProductLibrary::Rocblas(_))))
    }

    /// Converts rocBLAS' result; `call` is only evaluated on failure.
    pub(crate) fn checked<T>(&self, result: rocblas::Result<T>, call: impl FnOnce() -> String) -> Result<T> {
        result.map_err(|error| {
            let notes = notes(None);
            let _ = rocm_rs::hip::get_last_error();
            RocmError::Rocblas { call: call(), device: self.label().to_string(), error, notes }.into()
        })
    }
}
