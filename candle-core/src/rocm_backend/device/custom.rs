//! User-supplied kernels: loaded from a code object, and launched with arguments that are checked against its metadata.
use super::attachments::AppendList;
use super::device::{Attachment, DeviceState, RocmDevice};
use super::kernels::load_module;
use super::launch::{enqueue, LaunchConfig, Order};
use crate::rocm_backend::RocmError;
use crate::scalar::Scalar;
use crate::Result;
use half::{bf16, f16};
use hip_kernels::contract::{DevicePtr, KernelLayout};
use hip_kernels::metadata::{self, ArgumentMetadata};
use rocm_rs::hip::{self, bindings};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// A loaded code object. Its bytes are part of its identity, so that modules with the same name are never confused.
struct LoadedModule {
    name: Box<str>,
    code_object: Box<[u8]>,
    module: hip::Module,
}

// SAFETY: a module handle is not bound to a thread, and is only read after it was loaded.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

impl LoadedModule {
    /// Compares all bytes of the code object, since the caller may have reused the address.
    fn is(&self, name: &str, code_object: &[u8]) -> bool {
        *self.name == *name && *self.code_object == *code_object
    }
}

struct LoadedKernel {
    module: Arc<LoadedModule>,
    name: Box<str>,
    function: bindings::hipFunction_t,
    arguments: Vec<ArgumentMetadata>,
}

impl LoadedKernel {
    fn is(&self, module: &str, code_object: &[u8], name: &str) -> bool {
        *self.name == *name && self.module.is(module, code_object)
    }
}

// SAFETY: the function handle belongs to a module that lives as long as this, and HIP allows it to be launched
// from any thread.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above; launching does not change the handle.
unsafe impl Sync for LoadedKernel {}

/// User-supplied kernels that are loaded on a device, expected to be few.
#[derive(Default)]
struct CustomKernels {
    loaded: AppendList<Arc<LoadedKernel>>,
    loading: Mutex<()>,
}

impl Attachment for CustomKernels {
    fn attach(_: &Arc<DeviceState>) -> Self {
        Self::default()
    }
}

impl CustomKernels {
    fn find(&self, module: &str, code_object: &[u8], name: &str) -> Option<&LoadedKernel> {
        self.loaded.iter().find(|kernel| kernel.is(module, code_object, name)).map(|kernel| &**kernel)
    }

    fn load(
        &self,
        device: &DeviceState,
        module: &str,
        code_object: &[u8],
        name: &str,
    ) -> Result<&LoadedKernel> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = self.find(module, code_object, name) {
            return Ok(kernel);
        }
        let invalid_module = |reason: String| RocmError::CustomModule {
            module: module.to_string(),
            device: device.label().to_string(),
            reason,
        };
        metadata::check(code_object).map_err(|wrong| {
            invalid_module(format!(
                "hipModuleLoadData was not called with these {} bytes: {wrong}",
                code_object.len()
            ))
        })?;
        // HIP's error would not name the two architectures.
        let kind_of = |nvidia: bool| if nvidia { "an NVIDIA GPU" } else { "an AMD GPU" };
        let (object, gpu) = (metadata::is_cubin(code_object), device.arch().starts_with("sm_"));
        if object != gpu {
            let (object, gpu) = (kind_of(object), kind_of(gpu));
            return Err(
                invalid_module(format!("it is an object for {object}, and this device is {gpu}")).into()
            );
        }
        let described = metadata::kernels(code_object).map_err(invalid_module)?;
        let Some(described) = described.into_iter().find(|kernel| kernel.name == name) else {
            return Err(invalid_module(format!(
                "it has no kernel {name} (declared as extern \"C\" __global__?)"
            ))
            .into());
        };
        let first_use = || format!("loading the kernel {name}");
        device.stream.refuse_capture(first_use, "run the same operations once before the capture")?;
        device.stream.bind()?;
        let known = self.loaded.iter().find(|kernel| kernel.module.is(module, code_object));
        let loaded_module = match known {
            Some(kernel) => kernel.module.clone(),
            None => Arc::new(LoadedModule {
                name: module.into(),
                code_object: code_object.into(),
                module: load_module(&device.stream, module, code_object)?,
            }),
        };
        let function = device
            .stream
            .check(loaded_module.module.get_function(name), || format!("hipModuleGetFunction({name})"))?
            .as_raw();
        let arguments = described.explicit;
        let kernel = Arc::new(LoadedKernel { module: loaded_module, name: name.into(), function, arguments });
        Ok(self.loaded.select_or_append(
            |entry| entry.is(module, code_object, name).then_some(&**entry),
            || kernel.clone(),
        ))
    }
}

impl RocmDevice {
    /// Returns the kernel `name` of a user-supplied code object, like `CudaDevice::get_or_load_custom_func`
    /// on a CUDA device.
    ///
    /// A code object is a file written by `hipcc --genco` or `clang --offload-arch=... --cuda-device-only`, with
    /// one target per file; see [`hip_kernels::best_target`](crate::rocm::hip_kernels::best_target) for choosing
    /// among several. It is loaded on first use and unloaded with the device. A module is identified by its name
    /// and its bytes, so that two code objects may share a name, and a rebuilt code object is loaded again. Later
    /// calls find the kernel without a lock or an allocation; they compare the bytes.
    ///
    /// # Errors
    /// [`RocmError::CustomModule`] if the bytes are not a complete code object or have no kernel of this name,
    /// [`RocmError::Hip`] if HIP does not accept the code object for this GPU.
    pub fn custom_kernel<'a>(
        &'a self,
        module: &str,
        code_object: &[u8],
        name: &str,
    ) -> Result<RocmKernel<'a>> {
        let state = self.state();
        let kernels = state.attachment::<CustomKernels>();
        let kernel = match kernels.find(module, code_object, name) {
            Some(kernel) => kernel,
            None => kernels.load(state, module, code_object, name)?,
        };
        Ok(RocmKernel { kernel, state })
    }
}

/// A type that may be passed to a kernel by value.
///
/// # Safety
/// The type must be `repr(C)` or a primitive, have the layout of the kernel's parameter, and contain no pointers
/// to host memory that the device cannot access.
pub unsafe trait KernelArg: Sized {}

macro_rules! kernel_args {
    ($($t:ty),*) => {
        $(
            // SAFETY: same size and alignment as the C type that kernels declare.
            unsafe impl KernelArg for $t {}
        )*
    };
}
kernel_args!(u8, i8, u16, i16, u32, i32, u64, i64, usize, f32, f64, bool, f16, bf16, float8::F8E4M3);
kernel_args!(DevicePtr, KernelLayout);

const MAX_ARGS: usize = 32;

/// A user-supplied kernel on one device, returned by [`RocmDevice::custom_kernel`].
#[derive(Clone, Copy)]
pub struct RocmKernel<'a> {
    kernel: &'a LoadedKernel,
    state: &'a DeviceState,
}

impl<'a> RocmKernel<'a> {
    /// Returns the kernel's name.
    pub fn name(&self) -> &'a str {
        &self.kernel.name
    }

    /// Begins a launch: add the arguments in the order of the kernel's parameters, then call [`Launch::run`].
    pub fn launch(&self, config: LaunchConfig) -> Launch<'a> {
        Launch {
            kernel: self.kernel,
            state: self.state,
            config,
            addresses: [std::ptr::null(); MAX_ARGS],
            sizes: [0; MAX_ARGS],
            count: 0,
            borrowed: PhantomData,
        }
    }
}

/// Builder of a launch. It borrows the arguments and allocates no memory.
#[must_use = "nothing is launched until run is called"]
pub struct Launch<'a> {
    kernel: &'a LoadedKernel,
    state: &'a DeviceState,
    config: LaunchConfig,
    addresses: [*const c_void; MAX_ARGS],
    sizes: [u32; MAX_ARGS],
    count: usize,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Launch<'a> {
    /// Adds an argument, which is passed by value.
    pub fn arg<T: KernelArg>(mut self, value: &'a T) -> Self {
        if self.count < MAX_ARGS {
            self.addresses[self.count] = std::ptr::from_ref(value).cast();
            self.sizes[self.count] = size_of::<T>() as u32;
        }
        self.count += 1;
        self
    }

    /// Adds the value of `scalar` in its dtype.
    pub fn scalar(self, scalar: &'a Scalar) -> Self {
        match scalar {
            Scalar::U8(v) => self.arg(v),
            Scalar::U32(v) => self.arg(v),
            Scalar::I16(v) => self.arg(v),
            Scalar::I32(v) => self.arg(v),
            Scalar::I64(v) => self.arg(v),
            Scalar::F32(v) => self.arg(v),
            Scalar::F64(v) => self.arg(v),
            Scalar::F16(v) => self.arg(v),
            Scalar::BF16(v) => self.arg(v),
            Scalar::F8E4M3(v) => self.arg(v),
        }
    }

    /// Enqueues the kernel on the device's stream without waiting for it. A grid of zero workgroups does nothing.
    ///
    /// # Errors
    /// [`RocmError::InvalidArguments`] if the number or the sizes of the arguments do not match the kernel, or HIP's error for the
    /// launch. Errors that occur while the kernel runs are returned by the next call that waits for the stream.
    ///
    /// # Safety
    /// The order and types of the arguments must match the kernel, and every pointer must cover everything that the kernel
    /// reads or writes through it.
    pub unsafe fn run(self) -> Result<()> {
        self.check_arguments()?;
        if self.config.is_empty() {
            return Ok(());
        }
        self.state.stream.bind_and_flush()?;
        let arguments = &self.addresses[..self.count];
        // SAFETY: number and sizes were checked, and the caller guarantees types and pointers.
        unsafe {
            enqueue(
                self.state,
                self.kernel.function,
                self.config,
                arguments,
                &self.kernel.name,
                Order::Serial,
            )
        }
    }

    fn check_arguments(&self) -> Result<()> {
        let wanted = &self.kernel.arguments;
        let wrong = |message: String| {
            let (kernel, device) = (self.kernel.name.to_string(), self.state.label().to_string());
            Err(RocmError::InvalidArguments { kernel, device, message }.into())
        };
        if self.count != wanted.len() || self.count > MAX_ARGS {
            return wrong(format!(
                "{} arguments are given, it takes {} (at most {MAX_ARGS} can be passed)",
                self.count,
                wanted.len()
            ));
        }
        for (index, (argument, given)) in wanted.iter().zip(self.sizes).enumerate() {
            if argument.size != given {
                let name = argument.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
                return wrong(format!(
                    "argument {index}{name} has {} bytes, {given} bytes are given",
                    argument.size
                ));
            }
        }
        Ok(())
    }
}
