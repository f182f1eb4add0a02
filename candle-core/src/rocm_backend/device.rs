//! A ROCm device: one GPU, one stream, and what is loaded on it.
use super::buffer::Buffer;
use super::error::notes;
use super::fault::FaultRecord;
use super::kernels::{KernelCache, ModuleId};
use super::launch::RocmKernel;
use super::memory::{Memory, Trouble};
use super::random::Rng;
use super::staging::Staging;
use super::wait::{deadline_from_env, StreamWait, Unfinished};
use super::RocmError;
use crate::Result;
use rocm_rs::hip::{self, bindings};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Unique identifier of a stream on a GPU: devices with the same id work in one order on the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(usize);

impl DeviceId {
    fn new() -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(1);
        Self(COUNTER.fetch_add(1, Ordering::Relaxed))
    }
}

/// A GPU as Candle sees it. Cheap to clone; clones share the stream, the loaded kernels and the random state.
///
/// Every `RocmDevice::new` of one ordinal shares the stream and the kernels of the others while any of them lives,
/// so that tensors made through either may meet in one operation; the random state is each one's own.
#[derive(Clone)]
pub struct RocmDevice {
    pub(super) state: Arc<DeviceState>,
    pub(super) rng: Arc<Mutex<Rng>>,
}

impl std::fmt::Debug for RocmDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RocmDevice({}, {:?})", self.state.label(), self.state.id)
    }
}

/// What the clones of a device share. Fields are dropped from the top: the stream goes last.
pub(super) struct DeviceState {
    pub(super) id: DeviceId,
    pub(super) ordinal: usize,
    hip: hip::Device,
    arch: String,
    name: String,
    pub(super) blas: Mutex<Option<super::matmul::Blas>>,
    kernels: KernelCache,
    pub(super) faults: FaultRecord,
    pub(super) staging: Mutex<Option<Staging>>,
    pub(super) launches: AtomicU64,
    pub(super) memory: Memory,
    pub(super) wait: Arc<StreamWait>,
    pub(super) stream: hip::Stream,
}

// SAFETY: stream and device handles are plain handles that HIP lets any thread use; each use binds the device to
// the calling thread first. Everything else in here is Send by itself.
unsafe impl Send for DeviceState {}
// SAFETY: as above; HIP serialises concurrent calls on one stream.
unsafe impl Sync for DeviceState {}

impl Drop for DeviceState {
    fn drop(&mut self) {
        // Nothing may be unloaded under a running kernel. Errors have nobody left to go to.
        if self.bind().is_ok() && matches!(self.wait.finish(), Err(Unfinished::Overdue { .. })) {
            self.abandon();
        }
    }
}

impl DeviceState {
    fn open(ordinal: usize) -> Result<Self> {
        // Names what is missing, be it the driver, the runtime or the device.
        let archs = rocm_loader::device_archs().map_err(RocmError::from)?;
        let Some(arch) = archs.get(ordinal).cloned() else {
            let driver = rocm_loader::driver().map_err(RocmError::from)?.description();
            return Err(RocmError::NoSuchDevice { ordinal, count: archs.len(), driver }.into());
        };
        let label = || format!("rocm:{ordinal} ({arch})");
        let hip = check(hip::Device::new(ordinal as i32), label, || "hipGetDeviceCount".to_string())?;
        check(hip.set_current(), label, || format!("hipSetDevice({ordinal})"))?;
        let name = properties(ordinal)?.name;
        let stream =
            check(hip.get_stream_with_flags(hip::stream::stream_flags::NON_BLOCKING), label, || {
                "hipStreamCreateWithFlags(hipStreamNonBlocking)".to_string()
            })?;
        let deadline = deadline_from_env().map_err(RocmError::Setting)?;
        let wait = Arc::new(StreamWait::of(&stream, deadline));
        let memory = Memory::of_bound_device(wait.clone()).or_else(|trouble| match trouble {
            Trouble::Hip((error, of)) => check(Err(error), label, || of),
            Trouble::Setting(text) => Err(RocmError::Setting(text).into()),
        })?;
        Ok(Self {
            id: DeviceId::new(),
            ordinal,
            hip,
            arch,
            name,
            blas: Mutex::new(None),
            kernels: KernelCache::new(),
            faults: FaultRecord::default(),
            staging: Mutex::new(None),
            launches: AtomicU64::new(0),
            memory,
            wait,
            stream,
        })
    }

    /// `rocm:0 (gfx1100)`, as errors name the device.
    pub(super) fn label(&self) -> String {
        format!("rocm:{} ({})", self.ordinal, self.arch)
    }

    /// Makes this the calling thread's current device: HIP keeps one per thread, and others may have changed it.
    pub(super) fn bind(&self) -> Result<()> {
        self.check(self.hip.set_current(), || format!("hipSetDevice({})", self.ordinal))
    }

    /// Turns HIP's result into ours; `call` is only made up on failure.
    pub(super) fn check<T>(&self, result: hip::Result<T>, call: impl FnOnce() -> String) -> Result<T> {
        check(result, || self.label(), call)
    }

    /// The same for a raw status code.
    pub(super) fn check_code(&self, code: bindings::hipError_t, call: impl FnOnce() -> String) -> Result<()> {
        self.check(hip::Error::from_hip_error(code), call)
    }

    /// Waits for the stream, then reports an index fault that a kernel has left since the last time.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.bind()?;
        self.finish("waiting for the device")?;
        self.faults.take(self)
    }

    /// Waits for the stream. The device is bound.
    ///
    /// # Errors
    /// What failed on it, or that the deadline has passed; `purpose` says what was waited for.
    pub(super) fn finish(&self, purpose: &'static str) -> Result<()> {
        match self.wait.finish() {
            Ok(()) => Ok(()),
            Err(Unfinished::Failed(error)) => {
                self.check(Err(error), || format!("hipStreamSynchronize ({purpose})"))
            }
            Err(Unfinished::Overdue { after, recent }) => {
                let launches = match recent.is_empty() {
                    true => "no kernel since the deadline was set".to_string(),
                    false => recent.join(", "),
                };
                let seconds = after.as_secs_f64();
                Err(RocmError::Overdue { device: self.label(), seconds, purpose, launches }.into())
            }
        }
    }

    /// [`Self::finish`], but only if there is a deadline: for what comes before a call that waits by itself.
    pub(super) fn finish_if_limited(&self, purpose: &'static str) -> Result<()> {
        self.wait.deadline().map_or(Ok(()), |_| self.finish(purpose))
    }

    /// Leaves everything to the end of the process: giving back would wait for a stream that does not end.
    fn abandon(&mut self) {
        fn leave<T>(place: &mut Mutex<Option<T>>) {
            std::mem::forget(place.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
        leave(&mut self.blas);
        leave(&mut self.staging);
        std::mem::forget(std::mem::replace(&mut self.kernels, KernelCache::new()));
        std::mem::forget(std::mem::take(&mut self.faults));
        self.memory.abandon();
        // A stream without a handle is not destroyed.
        std::mem::forget(std::mem::replace(&mut self.stream, hip::Stream::from_raw(std::ptr::null_mut())));
    }

    /// Has the other streams of this GPU give back what they have parked. Returns whether there was anything.
    pub(super) fn siblings_give_back(&self) -> bool {
        let open = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let siblings: Vec<Arc<Self>> = open
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|state| state.ordinal == self.ordinal && state.id != self.id)
            .collect();
        // A state whose last clone this is locks the list when it is dropped.
        drop(open);
        siblings.iter().any(|state| state.give_back_parked().is_ok_and(|bytes| bytes > 0))
    }

    /// Lets this stream come after all that `other` still has to do, if it is another.
    pub(super) fn order_after(&self, other: &Self) -> Result<()> {
        if self.id != other.id {
            other.synchronize()?;
        }
        Ok(())
    }

    pub(super) fn raw_stream(&self) -> bindings::hipStream_t {
        self.stream.as_raw()
    }
}

/// What is asked of a GPU without opening it.
pub(super) struct Properties {
    /// The name under which it is sold.
    pub(super) name: String,
    /// Whether it is built into the processor and uses its memory.
    pub(super) integrated: bool,
    pub(super) total_memory: usize,
}

/// The properties of GPU `ordinal`.
pub(super) fn properties(ordinal: usize) -> Result<Properties> {
    let properties = hip::get_device_properties(ordinal as i32);
    let label = || format!("rocm:{ordinal}");
    let properties = check(properties, label, || format!("hipGetDeviceProperties({ordinal})"))?;
    let (integrated, total_memory) = (properties.integrated != 0, properties.total_global_mem);
    Ok(Properties { name: properties.name, integrated, total_memory })
}

fn check<T>(
    result: hip::Result<T>,
    device: impl FnOnce() -> String,
    call: impl FnOnce() -> String,
) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(error) => {
            let notes = notes(Some(error.code()));
            // HIP keeps the last error for whoever asks next; it has been told here.
            let _ = hip::get_last_error();
            Err(RocmError::Hip { call: call(), device: device(), error, notes }.into())
        }
    }
}

/// Every open state.
static ALL: Mutex<Vec<Weak<DeviceState>>> = Mutex::new(Vec::new());

/// Enters a state into [`ALL`].
fn registered(state: DeviceState) -> Arc<DeviceState> {
    let state = Arc::new(state);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|state| state.strong_count() > 0);
    all.push(Arc::downgrade(&state));
    state
}

/// The state that `RocmDevice::new` shares, by ordinal. Weak: a device that nobody uses is closed.
static OPEN: Mutex<Vec<Weak<DeviceState>>> = Mutex::new(Vec::new());

impl RocmDevice {
    /// Opens GPU `ordinal`, or joins the one that is open already.
    ///
    /// # Errors
    /// If there is no driver (what is missing is named), no such GPU (how many there are is said), or HIP fails.
    pub(super) fn open(ordinal: usize) -> Result<Self> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|state| state.strong_count() > 0);
        let shared = open.iter().filter_map(Weak::upgrade).find(|state| state.ordinal == ordinal);
        let state = match shared {
            Some(state) => state,
            None => {
                let state = registered(DeviceState::open(ordinal)?);
                open.push(Arc::downgrade(&state));
                state
            }
        };
        Ok(Self { state, rng: Arc::new(Mutex::new(Rng::default())) })
    }

    /// Opens GPU `ordinal` with a stream of its own, shared with no other device.
    ///
    /// An operation waits for what its operands' streams have still to do, but a later write into an operand in place
    /// does not wait for the operation: call `synchronize` on the operation's device before.
    ///
    /// # Errors
    /// As [`crate::Device::new_rocm`].
    pub fn new_with_stream(ordinal: usize) -> Result<Self> {
        let state = registered(DeviceState::open(ordinal)?);
        Ok(Self { state, rng: Arc::new(Mutex::new(Rng::default())) })
    }

    pub fn id(&self) -> DeviceId {
        self.state.id
    }

    /// The GPU's number, as in `rocm:0`.
    pub fn ordinal(&self) -> usize {
        self.state.ordinal
    }

    /// The GPU's architecture as the driver names it: `gfx1100`, `gfx90a:sramecc+:xnack-`.
    pub fn arch(&self) -> &str {
        &self.state.arch
    }

    /// The GPU's marketing name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The driver all ROCm devices of this process use, with its versions.
    ///
    /// # Errors
    /// None once a device is open.
    pub fn driver(&self) -> Result<&'static rocm_loader::Driver> {
        Ok(rocm_loader::driver().map_err(RocmError::from)?)
    }

    /// `native` or `emulator`: results made on the emulator should say so.
    pub fn driver_name(&self) -> &'static str {
        match rocm_loader::driver().map(|driver| driver.kind()) {
            Ok(rocm_loader::DriverKind::Emulator) => "emulator",
            Ok(rocm_loader::DriverKind::Native) => "native",
            Err(_) => "none",
        }
    }

    /// Kernels launched on this device's stream so far, library calls (rocBLAS) and copies not counted.
    pub fn kernels_launched(&self) -> u64 {
        self.state.launches.load(Ordering::Relaxed)
    }

    /// How long the host waits for this device at most. None by default; `CANDLE_ROCM_DEADLINE` sets it for devices
    /// that are opened later.
    pub fn deadline(&self) -> Option<Duration> {
        self.state.wait.deadline()
    }

    /// Sets how long the host waits for this device at most: what takes longer is an error that names the last
    /// launches, instead of a hang. A kernel that does not end cannot be stopped; the device's memory then stays taken
    /// until the process ends.
    ///
    /// With a deadline the host asks the stream again and again instead of sleeping until it is woken.
    pub fn set_deadline(&self, deadline: Option<Duration>) {
        self.state.wait.set_deadline(deadline);
    }

    /// The stream on which everything of this device is ordered, for calls into other libraries.
    pub fn stream(&self) -> &hip::Stream {
        &self.state.stream
    }

    /// Makes this the calling thread's current HIP device, as calls into other libraries need it.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn bind_to_thread(&self) -> Result<()> {
        self.state.bind()
    }

    /// Uninitialised memory for `len` elements.
    ///
    /// # Errors
    /// [`RocmError::OutOfMemory`] if the device has not that much.
    ///
    /// # Safety
    /// The memory must be written before it is read.
    pub unsafe fn alloc<T>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::new(&self.state, len)
    }

    /// Memory for `len` elements, all bits zero.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    pub fn alloc_zeros<T: Copy>(&self, len: usize) -> Result<Buffer<T>> {
        let buffer = Buffer::new(&self.state, len)?;
        super::copy::clear(&self.state, buffer.ptr(), buffer.size_in_bytes())?;
        Ok(buffer)
    }

    /// Copies `data` to new device memory. `data` may be reused at once.
    ///
    /// # Errors
    /// As [`Self::alloc`], or if the copy fails.
    pub fn clone_htod<T: Copy>(&self, data: &[T]) -> Result<Buffer<T>> {
        let buffer = Buffer::new(&self.state, data.len())?;
        super::copy::upload(&self.state, data, buffer.ptr())?;
        Ok(buffer)
    }

    /// Copies a buffer to the host. Waits for all work on the stream, and reports what failed in it.
    ///
    /// # Errors
    /// If the copy fails, or something enqueued before it did.
    pub fn clone_dtoh<T: Copy>(&self, buffer: &Buffer<T>) -> Result<Vec<T>> {
        super::copy::download(&self.state, buffer)
    }

    /// The kernel whose name is the parts of `name` joined by underscores: `&["softmax", "f32"]` is `softmax_f32`.
    /// Loads its module on first use; from the second time on it is a lookup without lock or allocation.
    ///
    /// # Errors
    /// [`RocmError::MissingKernel`] if the module has no such kernel, [`RocmError::CodeObject`] if the binary holds
    /// nothing for this GPU, as [`Self::custom_kernel`] for
    /// the caller's own.
    pub fn kernel<'a, 'm>(
        &'a self,
        module: impl Into<ModuleId<'m>>,
        name: &[&str],
    ) -> Result<RocmKernel<'a>> {
        let module = module.into();
        let state = &*self.state;
        let kernel = match state.kernels.get(module, name) {
            Some(kernel) => kernel,
            None => {
                state.bind()?;
                state.kernels.load(module, name, &|| state.label(), || match module {
                    ModuleId::Shipped(shipped) => state.load_shipped(shipped),
                    ModuleId::Custom { name, code_object } => state.load_custom(name, code_object),
                })?
            }
        };
        Ok(RocmKernel { kernel, state })
    }

    /// Kernel `name` of the caller's own code object, the counterpart of
    /// `CudaDevice::get_or_load_custom_func`.
    ///
    /// A code object is what `hipcc --genco` or `clang --offload-arch=... --cuda-device-only` writes; one
    /// target per file, see [`hip_kernels::best_target`](super::hip_kernels::best_target) for choosing among
    /// several. It is loaded on first use and stays until the device goes. `module` only names it, in errors
    /// and for the eye: the same name with other bytes is another module, so that two users of a name do not
    /// meet and a code object that was built anew is not taken for the old one. From the second time on this
    /// is a lookup without lock or allocation, which compares the bytes.
    ///
    /// # Errors
    /// [`RocmError::CustomModule`] if the bytes are no whole code object or have no such kernel,
    /// [`RocmError::Hip`] if HIP does not accept it for this GPU.
    pub fn custom_kernel<'a>(
        &'a self,
        module: &str,
        code_object: &[u8],
        name: &str,
    ) -> Result<RocmKernel<'a>> {
        self.kernel(ModuleId::Custom { name: module, code_object }, &[name])
    }
}

impl DeviceState {
    fn load_custom(&self, module: &str, code_object: &[u8]) -> Result<hip::Module> {
        super::code_object::check(code_object).map_err(|wrong| RocmError::CustomModule {
            module: module.to_string(),
            device: self.label(),
            reason: format!(
                "hipModuleLoadData was not tried with these {} bytes: {wrong}",
                code_object.len()
            ),
        })?;
        self.load_module(module, code_object)
    }

    fn load_module(&self, name: &str, code_object: &[u8]) -> Result<hip::Module> {
        self.check(hip::Module::load_data(code_object), || {
            format!("hipModuleLoadData({name}, {} B)", code_object.len())
        })
    }

    fn load_shipped(&self, module: hip_kernels::Module) -> Result<hip::Module> {
        let code_object = hip_kernels::code_object(module, &self.arch).map_err(RocmError::from)?;
        let loaded = self.load_module(module.name(), &code_object.bytes)?;
        if module == hip_kernels::Module::Indexing {
            self.faults.attach(self, &loaded)?;
        }
        Ok(loaded)
    }
}
