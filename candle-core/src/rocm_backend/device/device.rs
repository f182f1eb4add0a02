//! A ROCm device: one GPU, one stream, its kernels, and what higher floors attach to it.
use super::attachments::AppendList;
use super::faults::FaultRecord;
use super::kernels::KernelTable;
use super::properties::{draws_a_display, properties};
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

/// Unique identifier of a stream on a GPU: devices with the same id work in one order on the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(StreamId);

/// A GPU as Candle sees it. Cheap to clone; clones share the stream, the loaded kernels and the random state.
///
/// Every `RocmDevice::new` of one ordinal shares the stream and the kernels of the others while any of them lives,
/// so that tensors made through either may meet in one operation; the random state is each one's own.
#[derive(Clone)]
// One counter to change for each clone: every storage has one.
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

/// Where a device stands in its sequence of random numbers: the key and the next unused counter block.
pub(crate) struct Rng {
    pub(crate) seed: u64,
    pub(crate) next_block: u64,
}

impl Default for Rng {
    fn default() -> Self {
        // Upstream's CUDA devices start with the same seed.
        Self { seed: 299_792_458, next_block: 0 }
    }
}

/// Something that belongs to a device and of which this file knows nothing: library handles, choices made for shapes,
/// kernels of the caller's own, launches that are held back. There is one of each type on a device.
pub(crate) trait Attachment: Any + Send + Sync {
    /// Makes it when it is first asked for. It may not ask for another attachment meanwhile.
    fn attach(device: &Arc<DeviceState>) -> Self
    where
        Self: Sized;

    /// Enqueues what has to be on the stream before the device closes. The GPU is bound.
    ///
    /// # Errors
    /// The errors of what it enqueues, which the device drops: no caller is left to receive them.
    fn before_close(&self, _device: &DeviceState) -> Result<()> {
        Ok(())
    }
}

impl<T: Default + Send + 'static> Attachment for Mutex<T> {
    fn attach(_: &Arc<DeviceState>) -> Self {
        Self::default()
    }
}

/// State that the clones of a device share. Fields are dropped from the top: the stream goes last.
pub(crate) struct DeviceState {
    arch: String,
    name: String,
    multiprocessors: usize,
    attachments: AppendList<Box<dyn Attachment>>,
    kernels: KernelTable,
    faults: Arc<FaultRecord>,
    /// Fault records of the streams that this one came after: it may have used what they computed.
    followed: Mutex<Vec<Arc<FaultRecord>>>,
    pub(super) launches: AtomicU64,
    pub(crate) stream: Arc<Stream>,
}

impl Drop for DeviceState {
    fn drop(&mut self) {
        // Nothing may be unloaded under a running kernel. Errors have nobody left to go to.
        let close_all = || self.attachments.iter().try_for_each(|attachment| attachment.before_close(self));
        let _ = self.stream.bind().and_then(|()| close_all());
        if !self.stream.finish_or_give_up() {
            self.kernels.abandon();
            std::mem::forget(std::mem::take(&mut self.attachments));
        }
    }
}

impl DeviceState {
    fn open(ordinal: usize) -> Result<Arc<Self>> {
        // Names what is missing, be it the driver, the runtime or the device.
        let archs = rocm_loader::device_archs().map_err(RocmError::from)?;
        let Some(arch) = archs.get(ordinal).cloned() else {
            let driver = rocm_loader::driver().map_err(RocmError::from)?.description();
            return Err(RocmError::NoSuchDevice { ordinal, count: archs.len(), driver }.into());
        };
        let properties = properties(ordinal)?;
        let shared = properties.integrated || draws_a_display(ordinal);
        let stream = Stream::open(ordinal, format!("rocm:{ordinal} ({arch})"), shared)?;
        let faults = FaultRecord::of(&stream);
        Ok(Arc::new(Self {
            kernels: KernelTable::new(arch.clone(), faults.clone(), stream.clone()),
            arch,
            name: properties.name,
            multiprocessors: properties.multiprocessors,
            attachments: AppendList::default(),
            faults,
            followed: Mutex::default(),
            launches: AtomicU64::new(0),
            stream,
        }))
    }

    /// The attachment of type `A`, made if there is none yet. Later calls take no lock.
    pub(crate) fn attachment<A: Attachment>(self: &Arc<Self>) -> &A {
        self.attachments
            .select_or_append(|entry| (&**entry as &dyn Any).downcast_ref(), || Box::new(A::attach(self)))
    }

    /// The function of a shipped kernel, loaded with its module the first time. The GPU is bound.
    #[inline]
    pub(crate) fn function(&self, kernel: KernelId) -> Result<bindings::hipFunction_t> {
        self.kernels.function(kernel)
    }

    /// Returns true if a shipped kernel is loaded: loading its module enqueues copies.
    pub(crate) fn is_loaded(&self, kernel: KernelId) -> bool {
        self.kernels.holds(kernel)
    }

    /// `rocm:0 (gfx1100)`, as errors name the device.
    pub(crate) fn label(&self) -> &str {
        self.stream.label()
    }

    pub(crate) fn arch(&self) -> &str {
        &self.arch
    }

    /// Number of multiprocessors in HIP's terms.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Whether its matrix units take f16 and bf16 below the normal ranges for 0: those of gfx90a do.
    pub(crate) fn drops_denormals(&self) -> bool {
        self.arch.starts_with("gfx90a")
    }

    pub(crate) fn id(&self) -> DeviceId {
        DeviceId(self.stream.id())
    }

    /// Waits for the stream, then reports an index fault that a kernel has left since the last time, also one of the
    /// streams that this one came after.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.stream.begin()?;
        self.stream.finish("waiting for the device")?;
        self.reported()
    }

    /// Copies a buffer to the host; reports what failed before, as [`Self::synchronize`] does.
    pub(crate) fn download<T: DeviceElement>(&self, buffer: &Buffer<T>) -> Result<Vec<T>> {
        self.stream.follow(buffer.stream())?;
        let host = download(&self.stream, buffer)?;
        self.reported()?;
        Ok(host)
    }

    /// Returns what kernels have reported. The stream has been waited for.
    fn reported(&self) -> Result<()> {
        self.faults.take()?;
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(record) = followed.pop() {
            record.take_all()?;
        }
        Ok(())
    }

    /// Lets this device's stream come after all that `other` still has to do, if it is another. The host does not
    /// wait; what the other stream's kernels report comes back from whichever is waited for first.
    pub(crate) fn order_after(&self, other: &Self) -> Result<()> {
        if self.stream.id() == other.stream.id() {
            return Ok(());
        }
        self.stream.follow(&other.stream)?;
        self.take_over_reports(other);
        Ok(())
    }

    /// Has what `other`'s kernels report come back from here as well: this device uses what they computed.
    pub(crate) fn take_over_reports(&self, other: &Self) {
        // One lock at a time: the other side may be following this one.
        let theirs = other.followed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        for record in theirs.iter().chain([&other.faults]) {
            if !record.is_of(&self.stream) && !followed.iter().any(|known| Arc::ptr_eq(known, record)) {
                followed.push(record.clone());
            }
        }
    }
}

/// The state that `RocmDevice::new` shares, by ordinal. Weak: a device that nobody uses is closed.
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

    /// Opens GPU `ordinal`, or joins the one that is open already.
    ///
    /// # Errors
    /// If there is no driver (what is missing is named), no such GPU (how many there are is said), or HIP fails.
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

    /// Opens GPU `ordinal` with a stream of its own, shared with no other device.
    ///
    /// An operation comes after what its operands' streams have still to do, but a later write into an operand in place
    /// does not wait for the operation: call `synchronize` on the operation's device before.
    ///
    /// # Errors
    /// See [`crate::Device::new_rocm`].
    pub fn new_with_stream(ordinal: usize) -> Result<Self> {
        Ok(Self::of(DeviceState::open(ordinal)?))
    }

    /// Unique to the device's stream.
    pub fn id(&self) -> DeviceId {
        self.state().id()
    }

    /// The GPU's number, as in `rocm:0`.
    pub fn ordinal(&self) -> usize {
        self.state().stream.ordinal()
    }

    /// The GPU's architecture as the driver names it: `gfx1100`, `gfx90a:sramecc+:xnack-`.
    pub fn arch(&self) -> &str {
        &self.state().arch
    }

    /// Whether it multiplies tiles of matrices by instructions of their own: all but gfx10.3, as `tiles.cuh` has it.
    pub fn has_matrix_units(&self) -> bool {
        !self.arch().starts_with("gfx10")
    }

    /// Number of multiprocessors in HIP's terms.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.state().multiprocessors
    }

    /// The GPU's marketing name.
    pub fn name(&self) -> &str {
        &self.state().name
    }

    /// The driver all ROCm devices of this process use, with its versions.
    ///
    /// # Errors
    /// None once a device is open.
    pub fn driver(&self) -> Result<&'static rocm_loader::RunningDriver> {
        Ok(rocm_loader::driver().map_err(RocmError::from)?)
    }

    /// The driver's name in `CANDLE_ROCM_DRIVER`: `native`, `emulator` or `nvidia`. Results that are not made on ROCm
    /// should carry the driver's [`note`](rocm_loader::Driver::note).
    pub fn driver_name(&self) -> &'static str {
        rocm_loader::driver().map_or("none", |driver| driver.name())
    }

    /// Kernels launched on this device's stream so far, library calls (rocBLAS) and copies not counted.
    pub fn kernels_launched(&self) -> u64 {
        self.state().launches.load(Ordering::Relaxed)
    }

    /// Returns how long the host waits for this device at most. None by default; `CANDLE_ROCM_DEADLINE` sets it for devices
    /// that are opened later.
    pub fn deadline(&self) -> Option<Duration> {
        self.state().stream.wait().deadline()
    }

    /// Sets how long the host waits for this device at most: what takes longer is an error that names the last
    /// launches, instead of a hang. A kernel that does not end cannot be stopped; the device's memory then stays taken
    /// until the process ends.
    ///
    /// With a deadline the host asks the stream again and again instead of sleeping until it is woken.
    pub fn set_deadline(&self, deadline: Option<Duration>) {
        self.state().stream.wait().set_deadline(deadline);
    }

    /// The stream on which everything of this device is ordered, for calls into other libraries. Ask for it before each
    /// of them: what is held back to be launched together with what follows is enqueued by then.
    pub fn stream(&self) -> &hip::Stream {
        self.state().stream.begin_silently();
        self.state().stream.hip()
    }

    /// Makes this the calling thread's current HIP device, as calls into other libraries need it. A library that
    /// changes the thread's device behind this process' back has to restore it, or this has to be called after it.
    ///
    /// # Errors
    /// If HIP fails.
    pub fn bind_to_thread(&self) -> Result<()> {
        self.state().stream.bind_anew()
    }

    /// Uninitialised memory for `len` elements.
    ///
    /// # Errors
    /// [`RocmError::OutOfMemory`] if the device has not that much.
    ///
    /// # Safety
    /// The memory must be written before it is read.
    pub unsafe fn alloc<T: DeviceElement>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::on(&self.state().stream, len)
    }

    /// Memory for `len` elements, all bits zero.
    ///
    /// # Errors
    /// See [`Self::alloc`].
    pub fn alloc_zeros<T: ZeroableElement>(&self, len: usize) -> Result<Buffer<T>> {
        let buffer = Buffer::on(&self.state().stream, len)?;
        // SAFETY: the buffer has just this size.
        unsafe { clear(&self.state().stream, buffer.ptr(), buffer.size_in_bytes())? };
        Ok(buffer)
    }

    /// Copies `data` to new device memory. `data` may be reused at once.
    ///
    /// # Errors
    /// See [`Self::alloc`]; or if the copy fails.
    pub fn clone_htod<T: DeviceElement>(&self, data: &[T]) -> Result<Buffer<T>> {
        let buffer = Buffer::on(&self.state().stream, data.len())?;
        // SAFETY: the buffer has room for as many elements.
        unsafe { upload(&self.state().stream, data, buffer.ptr())? };
        Ok(buffer)
    }

    /// Copies a buffer to the host. Waits for all work on the stream, and reports what failed in it.
    ///
    /// # Errors
    /// If the copy fails, or something enqueued before it did.
    pub fn clone_dtoh<T: DeviceElement>(&self, buffer: &Buffer<T>) -> Result<Vec<T>> {
        self.state().download(buffer)
    }
}
