//! A ROCm device: one GPU, one stream, its loaded kernels, and state attached by higher layers.
use super::attachments::AppendList;
use super::faults::FaultRecord;
use super::kernels::KernelTable;
use super::properties::{drives_display, pci_address, properties};
use crate::rocm_backend::stream::memory::SystemMemory;
use crate::rocm_backend::stream::{
    clear, download, upload, Buffer, DeviceElement, Stream, StreamId, ZeroableElement,
};
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::KernelId;
use rocm_rs::hip::{self, bindings};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Unique identifier of a device's stream. Devices with the same id share the stream, its order and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(StreamId);

/// A GPU as a Candle device. Cheap to clone; clones share the stream, the loaded kernels and the random state.
///
/// All devices that `RocmDevice::new` returns for one ordinal share the stream and the kernels while any of them is
/// alive, so that their tensors can be combined in one operation. Each has its own random state.
#[derive(Clone)]
// A single `Arc`, since every storage clones its device.
pub struct RocmDevice(Arc<OpenDevice>);

struct OpenDevice {
    state: Arc<DeviceState>,
    rng: Mutex<Rng>,
}

impl std::fmt::Debug for RocmDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RocmDevice({}, {:?})", self.state().label(), self.id())
    }
}

/// State of a device's random number generator: the key and the next unused counter block.
pub(crate) struct Rng {
    pub(crate) seed: u64,
    pub(crate) next_block: u64,
}

impl Default for Rng {
    fn default() -> Self {
        // The initial seed of upstream's CUDA devices.
        Self { seed: 299_792_458, next_block: 0 }
    }
}

/// State that a higher layer attaches to a device: library handles, algorithms chosen for shapes, user-supplied kernels,
/// deferred launches. A device has at most one attachment of each type.
pub(crate) trait Attachment: Any + Send + Sync {
    /// Creates the attachment on first use. It must not request another attachment.
    fn attach(device: &Arc<DeviceState>) -> Self
    where
        Self: Sized;

    /// Enqueues pending work before the device closes. The GPU is bound to the calling thread.
    ///
    /// # Errors
    /// If enqueueing fails. The device ignores the error, since it is being dropped.
    fn before_close(&self, _device: &DeviceState) -> Result<()> {
        Ok(())
    }

    /// Prepares for the capture of a graph. The GPU is bound to the calling thread.
    ///
    /// # Errors
    /// If a resource cannot be allocated.
    fn before_capture(&self, _device: &DeviceState) -> Result<()> {
        Ok(())
    }
}

impl<T: Default + Send + 'static> Attachment for Mutex<T> {
    fn attach(_: &Arc<DeviceState>) -> Self {
        Self::default()
    }
}

/// State shared by the clones of a device. Fields are dropped in order of declaration, so the stream is last.
pub(crate) struct DeviceState {
    arch: String,
    name: String,
    multiprocessors: usize,
    attachments: AppendList<Box<dyn Attachment>>,
    kernels: KernelTable,
    faults: Arc<FaultRecord>,
    /// Fault records of other streams whose results this device has used.
    inherited_faults: Mutex<Vec<Arc<FaultRecord>>>,
    /// Problems of the installation that the device's use has revealed.
    problems: Mutex<Vec<String>>,
    pub(super) launches: AtomicU64,
    pub(crate) stream: Arc<Stream>,
}

impl Drop for DeviceState {
    fn drop(&mut self) {
        // Modules must not be unloaded while a kernel runs. A drop cannot return errors.
        let close_all = || self.attachments.iter().try_for_each(|attachment| attachment.before_close(self));
        let _ = self.stream.bind().and_then(|()| close_all());
        if !self.stream.finish_or_abandon() {
            self.kernels.abandon();
            std::mem::forget(std::mem::take(&mut self.attachments));
        }
    }
}

impl DeviceState {
    fn open(ordinal: usize) -> Result<Arc<Self>> {
        // Its error names the missing part: driver, runtime or device.
        let archs = rocm_loader::device_archs().map_err(RocmError::from)?;
        let Some(arch) = archs.get(ordinal).cloned() else {
            let driver = rocm_loader::driver().map_err(RocmError::from)?.description();
            return Err(RocmError::NoSuchDevice { ordinal, count: archs.len(), driver }.into());
        };
        let properties = properties(ordinal)?;
        let system = SystemMemory { address: pci_address(ordinal), integrated: properties.integrated };
        let shared = properties.integrated || system.address.as_deref().is_some_and(drives_display);
        let stream = Stream::open(ordinal, format!("rocm:{ordinal} ({arch})"), system, shared)?;
        let faults = FaultRecord::new(&stream);
        Ok(Arc::new(Self {
            kernels: KernelTable::new(arch.clone(), faults.clone(), stream.clone()),
            arch,
            name: properties.name,
            multiprocessors: properties.multiprocessors,
            attachments: AppendList::default(),
            faults,
            inherited_faults: Mutex::default(),
            problems: Mutex::default(),
            launches: AtomicU64::new(0),
            stream,
        }))
    }

    /// Returns the attachment of type `A` and creates it on first use. Later calls take no lock.
    pub(crate) fn attachment<A: Attachment>(self: &Arc<Self>) -> &A {
        self.attachments
            .select_or_append(|entry| (&**entry as &dyn Any).downcast_ref(), || Box::new(A::attach(self)))
    }

    /// Returns the function of a built-in kernel and loads its module on first use. The GPU is bound.
    #[inline]
    pub(crate) fn function(&self, kernel: KernelId) -> Result<bindings::hipFunction_t> {
        self.kernels.function(kernel)
    }

    /// Prepares all attachments for the capture of a graph.
    pub(super) fn prepare_capture(&self) -> Result<()> {
        self.stream.bind()?;
        self.attachments.iter().try_for_each(|attachment| attachment.before_capture(self))
    }

    /// Returns true if a built-in kernel is loaded. Loading its module enqueues copies.
    pub(crate) fn is_loaded(&self, kernel: KernelId) -> bool {
        self.kernels.is_loaded(kernel)
    }

    /// Returns the device's name in errors, such as `rocm:0 (gfx1100)`.
    pub(crate) fn label(&self) -> &str {
        self.stream.label()
    }

    pub(crate) fn arch(&self) -> &str {
        &self.arch
    }

    /// Returns HIP's number of multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Returns true if launches may now overlap: in a captured graph, on NVIDIA GPUs of the architecture sm_90.
    pub(crate) fn overlaps_launches(&self) -> bool {
        self.stream.is_capturing() && self.arch == "sm_90"
    }

    /// Returns true if the matrix units flush subnormal f16 and bf16 operands to zero, as on gfx90a.
    pub(crate) fn drops_denormals(&self) -> bool {
        self.arch.starts_with("gfx90a")
    }

    pub(crate) fn id(&self) -> DeviceId {
        DeviceId(self.stream.id())
    }

    /// Logs a problem of the installation, and keeps it for [`RocmDevice::problems`].
    pub(crate) fn report_problem(&self, text: String) {
        tracing::warn!("{}: {text}", self.label());
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Waits for the stream, then returns an error if a kernel has reported an index fault since the last call. This
    /// includes faults of other streams whose results this device has used.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.stream.bind_and_flush()?;
        self.stream.finish("waiting for the device")?;
        self.check_faults()
    }

    /// Copies a buffer to the host; returns errors of earlier work like [`Self::synchronize`].
    pub(crate) fn download<T: DeviceElement>(&self, buffer: &Buffer<T>) -> Result<Vec<T>> {
        self.stream.wait_for_stream(buffer.stream())?;
        let host = download(&self.stream, buffer)?;
        self.check_faults()?;
        Ok(host)
    }

    /// Returns and clears the faults reported by kernels. The caller has waited for the stream.
    fn check_faults(&self) -> Result<()> {
        self.faults.take()?;
        let mut inherited = self.inherited_faults.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(record) = inherited.pop() {
            record.take_with_stream_failure()?;
        }
        Ok(())
    }

    /// Orders later work of this device's stream after the work enqueued on `other`'s stream. The host does not wait.
    /// A fault of the other stream's kernels is returned by the device that is waited for first.
    pub(crate) fn order_after(&self, other: &Self) -> Result<()> {
        if self.stream.id() == other.stream.id() {
            return Ok(());
        }
        self.stream.wait_for_stream(&other.stream)?;
        self.inherit_faults(other);
        Ok(())
    }

    /// Makes this device report faults of `other`'s kernels too, since it uses their results.
    pub(crate) fn inherit_faults(&self, other: &Self) {
        // Only one lock is held at a time, since `other` may inherit from this device concurrently.
        let theirs = other.inherited_faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut inherited = self.inherited_faults.lock().unwrap_or_else(PoisonError::into_inner);
        for record in theirs.iter().chain([&other.faults]) {
            if !record.belongs_to(&self.stream) && !inherited.iter().any(|known| Arc::ptr_eq(known, record)) {
                inherited.push(record.clone());
            }
        }
    }
}

/// State shared by the devices of `RocmDevice::new`, by ordinal. References are weak, so that unused devices close.
static OPEN: Mutex<Vec<(usize, Weak<DeviceState>)>> = Mutex::new(Vec::new());

impl RocmDevice {
    fn of(state: Arc<DeviceState>) -> Self {
        Self(Arc::new(OpenDevice { state, rng: Mutex::default() }))
    }

    #[inline]
    pub(crate) fn state(&self) -> &Arc<DeviceState> {
        &self.0.state
    }

    pub(crate) fn rng(&self) -> MutexGuard<'_, Rng> {
        self.0.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens GPU `ordinal`, or shares the state of a device that is already open on it.
    ///
    /// # Errors
    /// If there is no driver or no GPU of this number, or HIP fails.
    pub(crate) fn open(ordinal: usize) -> Result<Self> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, state)| state.strong_count() > 0);
        let shared =
            open.iter().find(|(number, _)| *number == ordinal).and_then(|(_, state)| state.upgrade());
        let state = match shared {
            Some(state) => state,
            None => {
                let state = DeviceState::open(ordinal)?;
                open.push((ordinal, Arc::downgrade(&state)));
                state
            }
        };
        Ok(Self::of(state))
    }

    /// Opens GPU `ordinal` with a separate stream that no other device shares.
    ///
    /// An operation is ordered after pending work on the streams of its operands. A later in-place write to an operand is
    /// not ordered after the operation: call `synchronize` on the operation's device first.
    ///
    /// # Errors
    /// See [`crate::Device::new_rocm`].
    pub fn new_with_stream(ordinal: usize) -> Result<Self> {
        Ok(Self::of(DeviceState::open(ordinal)?))
    }

    /// Returns the identifier of the device's stream.
    pub fn id(&self) -> DeviceId {
        self.state().id()
    }

    /// Returns the GPU's number, such as 0 for `rocm:0`.
    pub fn ordinal(&self) -> usize {
        self.state().stream.ordinal()
    }

    /// Returns the GPU's architecture as reported by the driver, such as `gfx1100` or `gfx90a:sramecc+:xnack-`.
    pub fn arch(&self) -> &str {
        &self.state().arch
    }

    /// Returns the target of a code object that HIP refused when its first kernel was used, and HIP's error. A generic code
    /// object serves in its place.
    pub fn refused_code_object(&self) -> Option<&str> {
        self.state().kernels.refused()
    }

    /// Returns problems of the installation that the device's use has revealed, such as a MIOpen that cannot compile.
    pub fn problems(&self) -> Vec<String> {
        self.state().problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the GPU has matrix multiplication instructions, as all supported GPUs but gfx906 and gfx10.3 do.
    pub fn has_matrix_units(&self) -> bool {
        !["gfx906", "gfx10"].iter().any(|family| self.arch().starts_with(family))
    }

    /// Returns true for a data-center GPU: an Instinct, or an NVIDIA GPU of the development driver. Per lane it has twice a
    /// Radeon's memory bandwidth.
    pub(crate) fn is_data_center(&self) -> bool {
        ["gfx9", "sm_"].iter().any(|family| self.arch().starts_with(family))
    }

    /// Returns HIP's number of multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.state().multiprocessors
    }

    /// Returns the GPU's marketing name.
    pub fn name(&self) -> &str {
        &self.state().name
    }

    /// Returns the driver that all ROCm devices of this process use.
    ///
    /// # Errors
    /// Never returns an error while a device is open.
    pub fn driver(&self) -> Result<&'static rocm_loader::RunningDriver> {
        Ok(rocm_loader::driver().map_err(RocmError::from)?)
    }

    /// Returns the driver's name in `CANDLE_ROCM_DRIVER`: `native`, `emulator` or `nvidia`. Results that were not
    /// computed by ROCm should carry the driver's [`note`](rocm_loader::Driver::note).
    pub fn driver_name(&self) -> &'static str {
        rocm_loader::driver().map_or("none", |driver| driver.name())
    }

    /// Returns the number of kernels launched on this device's stream so far, excluding library calls and copies.
    pub fn kernels_launched(&self) -> u64 {
        self.state().launches.load(Ordering::Relaxed)
    }

    /// Returns the maximum time that the host waits for this device. The default is `None`; `CANDLE_ROCM_DEADLINE` sets
    /// it for devices that are opened later.
    pub fn deadline(&self) -> Option<Duration> {
        self.state().stream.wait().deadline()
    }

    /// Sets the maximum time that the host waits for this device. A longer wait returns [`RocmError::DeadlineExceeded`], which
    /// names the last launches. A kernel that never ends cannot be stopped; the device's memory then stays allocated
    /// until the process ends.
    ///
    /// With a deadline, the host polls the stream instead of sleeping until it is finished.
    pub fn set_deadline(&self, deadline: Option<Duration>) {
        self.state().stream.wait().set_deadline(deadline);
    }

    /// Returns the stream on which all work of this device is ordered, for calls into other libraries. Call this before
    /// each such call, since it enqueues launches that were deferred to be fused with later ones.
    pub fn stream(&self) -> &hip::Stream {
        self.state().stream.bind_and_flush_silently();
        self.state().stream.hip()
    }

    /// Makes this the calling thread's current HIP device, which calls into other libraries require. If a library
    /// changes the current device and does not restore it, call this again afterwards.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn bind_to_thread(&self) -> Result<()> {
        self.state().stream.rebind()
    }

    /// Allocates uninitialized memory for `len` elements.
    ///
    /// # Errors
    /// [`RocmError::OutOfMemory`] or [`RocmError::BeyondReserve`] if there is not enough memory.
    ///
    /// # Safety
    /// The memory must be written before it is read.
    pub unsafe fn alloc<T: DeviceElement>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::on(&self.state().stream, len)
    }

    /// Allocates memory for `len` elements and sets all bits to zero.
    ///
    /// # Errors
    /// See [`Self::alloc`].
    pub fn alloc_zeros<T: ZeroableElement>(&self, len: usize) -> Result<Buffer<T>> {
        let buffer = Buffer::on(&self.state().stream, len)?;
        // SAFETY: the buffer has exactly this size.
        unsafe { clear(&self.state().stream, buffer.ptr(), buffer.size_in_bytes())? };
        Ok(buffer)
    }

    /// Copies `data` to newly allocated device memory. `data` may be modified as soon as the function returns.
    ///
    /// # Errors
    /// If the allocation (see [`Self::alloc`]) or the copy fails.
    pub fn clone_htod<T: DeviceElement>(&self, data: &[T]) -> Result<Buffer<T>> {
        let buffer = Buffer::on(&self.state().stream, data.len())?;
        // SAFETY: the buffer has space for as many elements.
        unsafe { upload(&self.state().stream, data, buffer.ptr())? };
        Ok(buffer)
    }

    /// Copies a buffer to the host after waiting for all work on the stream.
    ///
    /// # Errors
    /// If the copy fails, or if work enqueued earlier has failed.
    pub fn clone_dtoh<T: DeviceElement>(&self, buffer: &Buffer<T>) -> Result<Vec<T>> {
        self.state().download(buffer)
    }
}
