//! A rank of a communicator: joining the others, failing, and monitoring its work while the host waits.
use super::board::{Board, Call};
use super::links::Links;
use crate::rocm_backend::device::RocmDevice;
use crate::rocm_backend::stream::{seconds, WorkMonitor};
use crate::rocm_backend::RocmError;
use crate::{Device, Result};
use rocm_loader::rccl::*;
use std::ffi::{c_int, CStr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Environment variable with the maximum time that a rank waits for the others, in seconds.
pub const DEADLINE_VARIABLE: &str = "CANDLE_ROCM_COLLECTIVE_DEADLINE";
/// Default of [`DEADLINE_VARIABLE`].
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
/// Interval at which the library is polled for ranks that have joined.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Time for which the host queries without sleeping, since the library enqueues most calls within it.
const SPIN_TIME: Duration = Duration::from_millis(1);

/// Identifier that the ranks of a communicator share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(pub(super) ncclUniqueId);

impl Id {
    /// Creates an identifier, which one process passes to the others. It serves one communicator.
    ///
    /// # Errors
    /// If RCCL is missing or fails.
    pub fn new() -> Result<Self> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the identifier is written to a live variable.
        match unsafe { ncclGetUniqueId(&mut id) } {
            ncclSuccess => Ok(Self(id)),
            result => {
                let cause = failure_text(result, std::ptr::null_mut());
                Err(RocmError::Unsupported(format!("creating a unique id failed: {cause}")).into())
            }
        }
    }

    /// Creates the identifier from the bytes of [`Self::to_bytes`].
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(ncclUniqueId { internal: bytes })
    }

    /// Returns the bytes, to be passed to another process.
    pub fn to_bytes(&self) -> [u8; 128] {
        self.0.internal
    }
}

/// One rank: a device that takes part in operations with the other ranks. Cheap to clone.
#[derive(Clone)]
pub struct Communicator(Arc<Rank>);

/// State shared by the clones of a communicator.
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// The device as passed by the caller, and its state.
    device: Device,
    pub(super) rocm: RocmDevice,
    handle: Mutex<Handle>,
    deadline: AtomicU64,
    /// True once a graph has captured an operation, so that replays may wait for others.
    is_captured: AtomicBool,
    board: Arc<Board>,
    /// Connections to ranks of other processes.
    links: OnceLock<Links>,
    id: Id,
}

/// The library's handle, which is used by one thread at a time.
pub(super) struct Handle {
    /// Null after a failure.
    pub(super) raw: ncclComm_t,
    failure: Option<String>,
    /// Number of calls, and how many of them the host has waited for.
    calls: u64,
    finished: u64,
}

// SAFETY: the library allows a handle to be used from any thread, one at a time; a mutex guards its use.
unsafe impl Send for Handle {}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {} on {:?})", self.rank(), self.world_size(), self.0.rocm)
    }
}

/// Returns the text of a result, with the library's and the driver's explanations.
fn failure_text(result: ncclResult_t, raw: ncclComm_t) -> String {
    // SAFETY: takes any integer, and returns a static text.
    let mut text = unsafe { CStr::from_ptr(ncclGetErrorString(result)) }.to_string_lossy().into_owned();
    let detail = rocm_loader::last_error().or_else(|| explanation(raw));
    if let Some(detail) = detail.filter(|detail| !detail.is_empty()) {
        text.push_str("; ");
        text.push_str(&detail);
    }
    // HIP keeps the last error; clear it so that an unrelated call does not return it.
    let _ = rocm_rs::hip::get_last_error();
    text
}

/// Returns the library's explanation of the last failure.
fn explanation(raw: ncclComm_t) -> Option<String> {
    // SAFETY: a live handle or null; the text is copied before the thread's next call.
    let text = unsafe { ncclGetLastError(raw) };
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_string())
}

fn deadline_from_env() -> Result<Duration> {
    let Some(value) = std::env::var_os(DEADLINE_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(DEFAULT_DEADLINE);
    };
    let text = value.to_string_lossy();
    seconds(text.trim()).filter(|deadline| !deadline.is_zero()).ok_or_else(|| {
        let expected = "expected a positive number of seconds, like 30 or 0.5";
        RocmError::InvalidSetting(format!("{DEADLINE_VARIABLE}={text} is not understood; {expected}")).into()
    })
}

impl Communicator {
    /// Joins a communicator as rank `rank` of `world_size`, and waits for the other ranks, which pass the same `id`.
    /// A thread that holds several ranks uses [`Self::for_devices`].
    ///
    /// # Errors
    /// [`RocmError::Collective`] if RCCL is missing, the rank is out of range or taken, or the others do not join in time.
    pub fn new(device: &Device, rank: usize, world_size: usize, id: &Id) -> Result<Self> {
        Self::linked(device, rank, world_size, id, None)
    }

    /// Like [`Self::new`], with connections to the ranks of other processes.
    pub(super) fn linked(
        device: &Device,
        rank: usize,
        world_size: usize,
        id: &Id,
        links: Option<Links>,
    ) -> Result<Self> {
        let rank = Rank::join(device, rank, world_size, id)?;
        if let Some(links) = links {
            let _ = rank.links.set(links);
        }
        rank.settle("joining the communicator", "have all ranks been started with this unique id?")?;
        Ok(Self(rank))
    }

    /// Makes the devices of this process the ranks of a communicator, in this order.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn for_devices(devices: &[Device]) -> Result<Vec<Self>> {
        let id = Id::new()?;
        // SAFETY: takes no arguments; the group is ended below in any case.
        let started = unsafe { ncclGroupStart() };
        let joined: Result<Vec<Arc<Rank>>> = devices
            .iter()
            .enumerate()
            .map(|(rank, device)| Rank::join(device, rank, devices.len(), &id))
            .collect();
        // SAFETY: as above.
        let ended = unsafe { ncclGroupEnd() };
        let ranks = joined?;
        for rank in &ranks {
            for result in [started, ended] {
                rank.settled(&mut rank.handle(), result, "joining the communicator", "")?;
            }
        }
        Ok(ranks.into_iter().map(Self).collect())
    }

    /// Returns the rank of the device.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.0.world_size
    }

    /// Returns the identifier that the ranks share.
    pub fn id(&self) -> Id {
        self.0.id
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the maximum time that the host waits for the other ranks.
    pub fn deadline(&self) -> Duration {
        self.0.deadline()
    }

    /// Sets the maximum time that the host waits for the other ranks. The default is 120 seconds, or that of the
    /// environment variable [`DEADLINE_VARIABLE`].
    pub fn set_deadline(&self, deadline: Duration) {
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.0.deadline.store(nanos, Ordering::Relaxed);
    }

    /// Ends the communicator without waiting for its operations. The other ranks return an error that names this rank, or
    /// reach their deadline. Every later operation fails.
    pub fn abort(&self) {
        self.abort_because("the communicator was aborted");
    }

    /// Like [`Self::abort`], with a reason that the errors of this process' ranks contain.
    pub fn abort_because(&self, reason: impl Into<String>) {
        let mut handle = self.0.handle();
        self.0.fail(&mut handle, reason.into());
    }

    pub(super) fn state(&self) -> &Arc<Rank> {
        &self.0
    }
}

impl Rank {
    fn join(device: &Device, rank: usize, world_size: usize, id: &Id) -> Result<Arc<Self>> {
        let rocm = device.as_rocm_device()?.clone();
        let board = Board::of(&id.0.internal, world_size);
        let handle = Mutex::new(Handle { raw: std::ptr::null_mut(), failure: None, calls: 0, finished: 0 });
        let (deadline, is_captured) = (AtomicU64::new(0), AtomicBool::new(false));
        let (device, links, id) = (device.clone(), OnceLock::new(), *id);
        let shared = Arc::new(Self {
            rank,
            world_size,
            device,
            rocm,
            handle,
            deadline,
            is_captured,
            board,
            links,
            id,
        });
        let communicator = Communicator(shared.clone());
        communicator.set_deadline(deadline_from_env()?);
        let operation = "joining the communicator";
        let (Ok(number), Ok(count)) = (c_int::try_from(rank), c_int::try_from(world_size)) else {
            return Err(shared.error(operation, format!("rank {rank} of {world_size} is out of range")));
        };
        let joined = shared.board.join(rank, world_size);
        joined.map_err(|cause| shared.error(operation, cause))?;
        let stream = &shared.rocm.state().stream;
        stream.refuse_capture(|| operation.to_string(), "create it before the capture")?;
        stream.bind()?;
        let mut config = ncclConfig_t::non_blocking();
        let mut raw = std::ptr::null_mut();
        // SAFETY: handle and settings are live variables.
        let result = unsafe { ncclCommInitRankConfig(&mut raw, count, id.0, number, &mut config) };
        let mut handle = shared.handle();
        handle.raw = raw;
        if !matches!(result, ncclSuccess | ncclInProgress) {
            let cause = failure_text(result, raw);
            return Err(shared.failed(&mut handle, operation, cause));
        }
        drop(handle);
        let monitor: Weak<Self> = Arc::downgrade(&shared);
        stream.wait().add_monitor(monitor);
        Ok(shared)
    }

    pub(super) fn handle(&self) -> MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    pub(super) fn error(&self, operation: impl Into<String>, cause: String) -> crate::Error {
        let (rank, world_size) = (self.rank, self.world_size);
        let device = self.rocm.state().label().to_string();
        RocmError::Collective { operation: operation.into(), rank, world_size, device, cause }.into()
    }

    /// Ends the communicator, so that its operations end without results.
    fn fail(&self, handle: &mut Handle, reason: String) {
        if handle.failure.is_some() {
            return;
        }
        self.board.failed(self.rank, reason.clone());
        handle.failure = Some(reason);
        if let Some(links) = self.links.get() {
            links.close();
        }
        let raw = std::mem::replace(&mut handle.raw, std::ptr::null_mut());
        if !raw.is_null() {
            // Operations that are not aborted would wait forever.
            let _ = self.rocm.state().stream.bind();
            // SAFETY: a live handle, which is not used again.
            let _ = unsafe { ncclCommAbort(raw) };
        }
    }

    /// Ends the communicator and returns the error of an operation.
    pub(super) fn failed(
        &self,
        handle: &mut Handle,
        operation: impl Into<String>,
        cause: String,
    ) -> crate::Error {
        let operation = operation.into();
        let cause = cause + &self.board.differences(self.rank);
        self.fail(handle, format!("{operation}: {cause}"));
        self.error(operation, cause)
    }

    /// Returns an error if the communicator has failed.
    pub(super) fn check_usable(&self, handle: &Handle, operation: impl FnOnce() -> String) -> Result<()> {
        match &handle.failure {
            None => Ok(()),
            Some(reason) => {
                let cause = format!("the communicator has failed before: {reason}; create another one");
                Err(self.error(operation(), cause))
            }
        }
    }

    /// Waits until the library has processed the last call.
    pub(super) fn settle(&self, operation: &str, hint: &str) -> Result<()> {
        self.settled(&mut self.handle(), ncclInProgress, operation, hint)
    }

    /// Like [`Self::settle`], after a call that has returned `result`. `hint` is added to the error of a missed deadline.
    pub(super) fn settled(
        &self,
        handle: &mut Handle,
        mut result: ncclResult_t,
        operation: &str,
        hint: &str,
    ) -> Result<()> {
        self.check_usable(handle, || operation.to_string())?;
        let begun = Instant::now();
        loop {
            match result {
                ncclSuccess => return Ok(()),
                ncclInProgress => {}
                result => {
                    let cause = failure_text(result, handle.raw);
                    return Err(self.failed(handle, operation, cause));
                }
            }
            let waited = begun.elapsed();
            // SAFETY: a live handle.
            result = unsafe { state_of(handle.raw) };
            if result == ncclInProgress {
                if waited >= self.deadline() {
                    self.check_others(handle, operation)?;
                    return Err(self.missed_deadline(handle, operation, waited, hint));
                }
                if waited < SPIN_TIME {
                    std::thread::yield_now();
                } else {
                    // Not while spinning, since it reads from the connections to the other ranks.
                    self.check_others(handle, operation)?;
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
        }
    }

    /// Fails if another rank has failed or ended, since it does not take part any more.
    fn check_others(&self, handle: &mut Handle, operation: &str) -> Result<()> {
        let cause = match self.board.has_failure(Some(self.rank)) {
            true => Some("another rank has failed".to_string()),
            false => self.links.get().and_then(Links::ended),
        };
        cause.map_or(Ok(()), |cause| Err(self.failed(handle, operation, cause)))
    }

    fn missed_deadline(
        &self,
        handle: &mut Handle,
        operation: &str,
        waited: Duration,
        hint: &str,
    ) -> crate::Error {
        let mut cause = format!(
            "not all ranks took part within {:.3} s; raise the deadline ({DEADLINE_VARIABLE}=seconds or \
             Communicator::set_deadline) if they are only slow",
            waited.as_secs_f64()
        );
        let explanation = explanation(handle.raw).unwrap_or_default();
        for part in [hint, &explanation].into_iter().filter(|part| !part.is_empty()) {
            cause.push_str("; ");
            cause.push_str(part);
        }
        self.failed(handle, operation, cause)
    }

    /// Records a call that is about to be enqueued.
    pub(super) fn record(&self, handle: &mut Handle, call: Call) {
        handle.calls += 1;
        if self.rocm.state().stream.is_capturing() {
            self.is_captured.store(true, Ordering::Relaxed);
        }
        self.board.called(self.rank, call);
    }
}

const WAITING: &str = "waiting for operations between ranks";

impl WorkMonitor for Rank {
    fn mark(&self) -> Option<u64> {
        let handle = self.handle();
        let is_pending = handle.calls > handle.finished || self.is_captured.load(Ordering::Relaxed);
        (is_pending && handle.calls > 0).then_some(handle.calls)
    }

    fn finished(&self, mark: u64) {
        let mut handle = self.handle();
        if handle.failure.is_none() {
            handle.finished = handle.finished.max(mark);
        }
    }

    fn check(&self, waited: Option<Duration>) -> Result<()> {
        let mut handle = self.handle();
        self.check_usable(&handle, || WAITING.to_string())?;
        // SAFETY: a live handle.
        let result = unsafe { state_of(handle.raw) };
        if !matches!(result, ncclSuccess | ncclInProgress) {
            let cause = failure_text(result, handle.raw);
            return Err(self.failed(&mut handle, WAITING, cause));
        }
        let Some(waited) = waited else { return Ok(()) };
        self.check_others(&mut handle, WAITING)?;
        match waited >= self.deadline() {
            true => Err(self.missed_deadline(&mut handle, WAITING, waited, "")),
            false => Ok(()),
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(links)) = (&handle.failure, self.links.get_mut()) {
            links.leave();
        }
        let stream = &self.rocm.state().stream;
        if handle.raw.is_null() || stream.bind().is_err() {
            return;
        }
        let until = Instant::now() + Duration::from_nanos(*self.deadline.get_mut());
        // Operations that still run use the communicator. The stream does not monitor it any more.
        let is_usable = loop {
            // SAFETY: a live handle.
            if unsafe { state_of(handle.raw) } != ncclSuccess || Instant::now() >= until {
                break false;
            }
            if handle.calls == handle.finished || !stream.is_busy() {
                break true;
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        // A drop cannot return errors.
        let _ = match is_usable {
            // SAFETY: a live handle, which is not used again.
            true => unsafe { end(handle.raw, until) },
            // SAFETY: as above.
            false => unsafe { ncclCommAbort(handle.raw) },
        };
    }
}

/// Returns the state of a communicator, or the error of the query.
///
/// # Safety
/// The handle must be live.
unsafe fn state_of(raw: ncclComm_t) -> ncclResult_t {
    let mut state = ncclInProgress;
    // SAFETY: the caller's handle, and a live variable.
    match unsafe { ncclCommGetAsyncError(raw, &mut state) } {
        ncclSuccess => state,
        failed => failed,
    }
}

/// Destroys a communicator whose operations have finished.
///
/// # Safety
/// The handle must be live and must not be used again.
unsafe fn end(raw: ncclComm_t, until: Instant) -> ncclResult_t {
    // SAFETY: a live handle.
    let mut state = unsafe { ncclCommFinalize(raw) };
    while state == ncclInProgress && Instant::now() < until {
        std::thread::sleep(POLL_INTERVAL);
        // SAFETY: a live handle.
        state = unsafe { state_of(raw) };
    }
    match state {
        // SAFETY: a live handle, which is not used again.
        ncclSuccess => unsafe { ncclCommDestroy(raw) },
        // SAFETY: as above.
        _ => unsafe { ncclCommAbort(raw) },
    }
}
