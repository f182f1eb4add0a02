//! The library for matrix products: rocBLAS, or the built-in kernels if rocBLAS does not support the GPU.
use crate::rocm_backend::device::{Attachment, DeviceState, RocmDevice};
use crate::rocm_backend::error::notes;
use crate::rocm_backend::stream::capturing;
use crate::rocm_backend::RocmError;
use crate::Result;
use rocm_rs::hip::DeviceMemory;
use rocm_rs::rocblas;
use std::sync::{Arc, Mutex, PoisonError};

/// Workspace of rocBLAS on devices that capture graphs, in bytes. It is rocBLAS' default, but never replaced by a larger
/// one, since graphs contain its address.
const WORKSPACE: usize = 32 << 20;

/// Remedy for a library that is used for the first time in a capture.
pub(super) const WARM_UP: &str = "run the same operations once before the capture";

/// The library of a device; `None` before its first use.
#[derive(Default)]
struct Products(Mutex<Option<ProductLibrary>>);

impl Attachment for Products {
    fn attach(_: &Arc<DeviceState>) -> Self {
        Self::default()
    }

    fn before_capture(&self, device: &DeviceState) -> Result<()> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(ProductLibrary::Rocblas(handle)) => handle.fix_workspace(device),
            _ => Ok(()),
        }
    }
}

/// Implementation of a device's matrix products.
pub(crate) enum ProductLibrary {
    /// rocBLAS, with a handle bound to the device's stream.
    Rocblas(Handle),
    /// Built-in kernels. rocBLAS would abort the process, because it has no kernels for this GPU.
    Own,
}

pub(crate) struct Handle(pub(crate) rocblas::Handle, Option<DeviceMemory<u8>>);

// SAFETY: a handle may be used from any thread, one at a time; a mutex of the device guards its use.
unsafe impl Send for Handle {}

impl Handle {
    /// Makes rocBLAS use the same workspace from now on.
    fn fix_workspace(&mut self, device: &DeviceState) -> Result<()> {
        if self.1.is_some() {
            return Ok(());
        }
        let allocated = DeviceMemory::<u8>::new(WORKSPACE);
        let memory = device.stream.check(allocated, || format!("hipMalloc({WORKSPACE} B for rocBLAS)"))?;
        self.1 = Some(memory);
        self.set_workspace(device)
    }

    fn set_workspace(&self, device: &DeviceState) -> Result<()> {
        let Some(memory) = &self.1 else { return Ok(()) };
        let (handle, address) = (self.0.as_raw(), memory.as_ptr());
        // SAFETY: the memory is valid until the handle is destroyed, which is dropped before it.
        let status = unsafe { rocm_loader::rocblas::rocblas_set_workspace(handle, address, WORKSPACE) };
        let result = match status {
            0 => Ok(()),
            status => Err(rocblas::Error::new(status)),
        };
        device.checked(result, || "rocblas_set_workspace".to_string())
    }

    /// Makes rocBLAS enqueue on the stream that the calling thread uses.
    fn use_stream(&self, device: &DeviceState) -> Result<()> {
        device.checked(self.0.set_stream(device.stream.hip()), || "rocblas_set_stream".to_string())?;
        // cuBLAS forgets the workspace.
        self.set_workspace(device)
    }
}

impl ProductLibrary {
    /// Opens the library. The GPU need not be bound.
    fn open(state: &DeviceState) -> Result<Self> {
        let tensile_files = rocm_loader::driver().and_then(|driver| driver.tensile_files(state.arch()));
        if let Err(rocm_loader::LoadError::NoTensileFiles { .. }) = tensile_files {
            return Ok(Self::Own);
        }
        state.stream.refuse_capture(|| "opening rocBLAS".to_string(), WARM_UP)?;
        state.stream.bind()?;
        let handle = state.checked(rocblas::Handle::new(), || "rocblas_create_handle".to_string())?;
        state.checked(handle.set_stream(state.stream.hip()), || "rocblas_set_stream".to_string())?;
        Ok(Self::Rocblas(Handle(handle, None)))
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
        let products = &self.attachment::<Products>().0;
        let mut products = products.lock().unwrap_or_else(PoisonError::into_inner);
        let library: &ProductLibrary = match &mut *products {
            Some(library) => library,
            empty => empty.insert(ProductLibrary::open(self)?),
        };
        match library {
            ProductLibrary::Rocblas(handle) if self.stream.is_capturing() => {
                handle.use_stream(self)?;
                let result = work(library);
                capturing::outside(|| handle.use_stream(self))?;
                result
            }
            _ => work(library),
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
