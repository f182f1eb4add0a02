//! The shipped kernels that a device has loaded: found by their number, without a lock after their first use.
use super::device::DeviceState;
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::KernelId;
use hip_kernels::Module;
use rocm_rs::hip::{self, bindings};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// Functions by the number of their kernel; null until first used.
pub(super) struct KernelTable {
    functions: Box<[AtomicPtr<bindings::ihipModuleSymbol_t>]>,
    /// Loaded modules; they stay until the device goes.
    modules: Mutex<Vec<LoadedModule>>,
}

struct LoadedModule {
    id: Module,
    module: hip::Module,
}

// SAFETY: a module handle is not bound to a thread; it is only touched under the mutex around the list.
unsafe impl Send for LoadedModule {}

impl KernelTable {
    pub(super) fn empty() -> Self {
        let functions = (0..KernelId::COUNT).map(|_| AtomicPtr::default()).collect();
        Self { functions, modules: Mutex::default() }
    }

    /// The function of a kernel, loaded with its module the first time. The GPU is bound.
    ///
    /// # Errors
    /// [`RocmError::CodeObject`] if the binary holds nothing for this GPU, [`RocmError::MissingKernel`] if the code
    /// object lacks the kernel, or HIP's own.
    #[inline]
    pub(super) fn function(&self, id: KernelId, device: &DeviceState) -> Result<bindings::hipFunction_t> {
        // Relaxed would do for the handle itself; what the driver wrote for it must be seen as well.
        let function = self.functions[id.index()].load(Ordering::Acquire);
        match function.is_null() {
            false => Ok(function),
            true => self.load(id, device),
        }
    }

    /// Whether the function is loaded already.
    pub(super) fn holds(&self, id: KernelId) -> bool {
        !self.functions[id.index()].load(Ordering::Relaxed).is_null()
    }

    #[cold]
    fn load(&self, id: KernelId, device: &DeviceState) -> Result<bindings::hipFunction_t> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match modules.iter().position(|loaded| loaded.id == id.module()) {
            Some(index) => index,
            None => {
                let module = device.load_shipped(id.module())?;
                modules.push(LoadedModule { id: id.module(), module });
                modules.len() - 1
            }
        };
        let found = modules[index].module.get_function(id.name());
        if let Err(error) = &found {
            if error.code() == bindings::hipError_t_hipErrorNotFound {
                // HIP keeps the last error for whoever asks next.
                let _ = hip::get_last_error();
                let (module, kernel) = (id.module().name().to_string(), id.name().to_string());
                let device = device.label().to_string();
                return Err(RocmError::MissingKernel { module, kernel, device }.into());
            }
        }
        let function = device.stream.check(found, || format!("hipModuleGetFunction({})", id.name()))?;
        // Threads that raced here store the same handle.
        self.functions[id.index()].store(function.as_raw(), Ordering::Release);
        Ok(function.as_raw())
    }
}
