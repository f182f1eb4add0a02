//! Built-in kernels that a device has loaded, indexed by number. Lookups take no lock after the first use.
use super::faults::{self, FaultRecord};
use crate::rocm_backend::error::notes;
use crate::rocm_backend::stream::Stream;
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::KernelId;
use hip_kernels::Module;
use rocm_rs::hip::{self, bindings};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Functions indexed by the number of their kernel; null until first used.
pub(super) struct KernelTable {
    functions: Box<[AtomicPtr<bindings::ihipModuleSymbol_t>]>,
    /// Loaded modules, which are unloaded with the device.
    modules: Mutex<Vec<LoadedModule>>,
    arch: String,
    faults: Arc<FaultRecord>,
    stream: Arc<Stream>,
    /// Target of the first code object that HIP refused although another one fits, and HIP's error.
    refused: OnceLock<String>,
}

struct LoadedModule {
    id: Module,
    module: hip::Module,
}

// SAFETY: a module handle is not bound to a thread, and it is only accessed while the list is locked.
unsafe impl Send for LoadedModule {}

/// Loads a code object; `name` appears in errors. The GPU is bound.
pub(super) fn load_module(stream: &Stream, name: &str, code_object: &[u8]) -> Result<hip::Module> {
    stream.check(hip::Module::load_data(code_object), || {
        format!("hipModuleLoadData({name}, {} B)", code_object.len())
    })
}

impl KernelTable {
    /// Creates an empty table of the kernels for `arch`, which report faults to `faults`.
    pub(super) fn new(arch: String, faults: Arc<FaultRecord>, stream: Arc<Stream>) -> Self {
        let functions = (0..KernelId::COUNT).map(|_| AtomicPtr::default()).collect();
        Self { functions, modules: Mutex::default(), arch, faults, stream, refused: OnceLock::new() }
    }

    /// Returns the function of a kernel and loads its module on first use. The GPU is bound.
    ///
    /// # Errors
    /// [`RocmError::CodeObject`] if the binary has no code object for this GPU, [`RocmError::MissingKernel`] if the code
    /// object lacks the kernel, or HIP's error.
    #[inline]
    pub(super) fn function(&self, id: KernelId) -> Result<bindings::hipFunction_t> {
        // Acquire also makes the driver's writes to the object behind the handle visible.
        let function = self.functions[id.index()].load(Ordering::Acquire);
        match function.is_null() {
            false => Ok(function),
            true => self.load(id),
        }
    }

    pub(super) fn is_loaded(&self, id: KernelId) -> bool {
        !self.functions[id.index()].load(Ordering::Relaxed).is_null()
    }

    /// Leaks the modules until the process ends, since unloading one waits for its kernels.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(self.modules.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Returns the target of a code object that HIP refused although another one fits the GPU, and HIP's error.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    /// Loads the best code object that HIP accepts: if it refuses the exact one, a generic one.
    fn load_module(&self, module: Module) -> Result<hip::Module> {
        let mut object = hip_kernels::code_object(module, &self.arch).map_err(RocmError::from)?;
        let mut loaded = hip::Module::load_data(&object.bytes);
        for target in hip_kernels::fitting_targets(&self.arch, hip_kernels::archs()).into_iter().skip(1) {
            match &loaded {
                Err(error) if !error.is_out_of_memory() => {
                    self.refused.get_or_init(|| format!("{}: {error}{}", object.target, notes(None)));
                    // HIP keeps the last error; clear it so that an unrelated call does not return it.
                    let _ = hip::get_last_error();
                }
                _ => break,
            }
            object = hip_kernels::code_object(module, target).map_err(RocmError::from)?;
            loaded = hip::Module::load_data(&object.bytes);
        }
        let loaded = self.stream.check(loaded, || {
            let refused = self.refused().map(|refused| format!("; {refused}")).unwrap_or_default();
            format!(
                "hipModuleLoadData({} for {}, {} B{refused})",
                module.name(),
                object.target,
                object.bytes.len()
            )
        })?;
        if hip_kernels::metadata::has_symbol(&object.bytes, faults::GLOBAL) {
            self.faults.attach(&loaded)?;
        }
        Ok(loaded)
    }

    #[cold]
    fn load(&self, id: KernelId) -> Result<bindings::hipFunction_t> {
        let first_use = || format!("loading the kernel {}", id.name());
        self.stream.refuse_capture(first_use, "run the same operations once before the capture")?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match modules.iter().position(|loaded| loaded.id == id.module()) {
            Some(index) => index,
            None => {
                let module = self.load_module(id.module())?;
                modules.push(LoadedModule { id: id.module(), module });
                modules.len() - 1
            }
        };
        let found = modules[index].module.get_function(id.name());
        if let Err(error) = &found {
            if error.code() == bindings::hipError_t_hipErrorNotFound {
                // HIP keeps the last error; clear it so that an unrelated call does not return it.
                let _ = hip::get_last_error();
                let (module, kernel) = (id.module().name().to_string(), id.name().to_string());
                let device = self.stream.label().to_string();
                return Err(RocmError::MissingKernel { module, kernel, device }.into());
            }
        }
        let function = self.stream.check(found, || format!("hipModuleGetFunction({})", id.name()))?;
        // Racing threads store the same handle.
        self.functions[id.index()].store(function.as_raw(), Ordering::Release);
        Ok(function.as_raw())
    }
}
