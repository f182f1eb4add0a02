//! Communicators: one per rank. A handle is a number, so that an invalid handle causes an error instead of a crash.
use super::segment::{MAX_RANKS, RankState, Segment};
use super::types::{Config, MAGIC, Result, Status, StatusError, UniqueId, reject};
use crate::runtime::{ErrorCode, Handles, runtime};
use parking_lot::{Mutex, MutexGuard};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

/// Progress of a rank through its calls.
#[derive(Default)]
pub struct Position {
    /// Number of calls that have begun.
    pub calls: u64,
    /// Number of parts that were published and consumed.
    pub step: u64,
    /// The work that is executed; other work waits.
    pub active: Option<usize>,
}

/// A rank of a communicator.
pub struct Communicator {
    pub rank: usize,
    pub ranks: usize,
    pub device: usize,
    pub segment: Segment,
    position: Mutex<Position>,
    /// The first failure.
    failure: OnceLock<(Status, CString)>,
    is_aborted: AtomicBool,
    /// The ranks that this rank waited for last, one bit each.
    awaited: AtomicU32,
}

static LIVE: LazyLock<Handles<Communicator>> =
    LazyLock::new(|| Handles::new(0x50, "a communicator", ErrorCode::InvalidHandle));

/// Returns a live communicator.
///
/// # Errors
/// `InvalidArgument`.
pub fn get(handle: *mut c_void) -> Result<Arc<Communicator>> {
    let found = LIVE.get(handle);
    found.map_err(|error| StatusError { status: Status::InvalidArgument, reason: error.detail })
}

/// Creates a rank on the calling thread's current device, without waiting for the others.
///
/// # Errors
/// `InvalidArgument` for ranks out of range or a blocking communicator, and the errors of [`Segment::join`].
pub fn create(id: &UniqueId, rank: i32, ranks: i32, config: Option<Config>) -> Result<*mut c_void> {
    let Some(config) = config.filter(|config| config.magic == MAGIC) else {
        return reject(Status::InvalidArgument, "the settings are missing or not initialized");
    };
    if config.blocking != 0 {
        return reject(Status::InvalidUsage, "blocking communicators are not supported; set blocking to 0");
    }
    let (Ok(rank), Ok(ranks)) = (usize::try_from(rank), usize::try_from(ranks)) else {
        return reject(Status::InvalidArgument, format!("rank {rank} of {ranks} is negative"));
    };
    if ranks > MAX_RANKS || rank >= ranks {
        let reason = format!("there is no rank {rank} of {ranks}; at most {MAX_RANKS} ranks are supported");
        return reject(Status::InvalidArgument, reason);
    }
    let device = runtime().and_then(|runtime| runtime.current_device());
    let device = device
        .map_err(|error| StatusError { status: Status::UnhandledCudaError, reason: error.detail })?
        .ordinal;
    let segment = Segment::join(id, rank, ranks)?;
    Ok(LIVE.insert(Arc::new(Communicator {
        rank,
        ranks,
        device,
        segment,
        position: Mutex::default(),
        failure: OnceLock::new(),
        is_aborted: AtomicBool::new(false),
        awaited: AtomicU32::new(0),
    })))
}

/// Removes a communicator. An aborted one makes its operations end without a result.
///
/// # Errors
/// `InvalidArgument`.
pub fn remove(handle: *mut c_void, is_abort: bool) -> Result<()> {
    let removed = LIVE.remove(handle);
    let removed =
        removed.map_err(|error| StatusError { status: Status::InvalidArgument, reason: error.detail })?;
    removed.is_aborted.store(is_abort, Ordering::Release);
    if !removed.segment.have_all_joined() {
        removed.segment.remove_name();
    }
    // The others keep an earlier failure as the reason.
    match removed.failure.get() {
        Some(_) => removed.segment.notify(),
        None => removed.segment.set_state(if is_abort { RankState::Aborted } else { RankState::Destroyed }),
    }
    Ok(())
}

impl Communicator {
    /// Returns the progress, locked.
    pub fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock()
    }

    /// Records the first failure, and publishes `state` to the other ranks.
    pub fn fail(&self, state: RankState, status: Status, reason: impl Into<Vec<u8>>) {
        let text = CString::new(reason).unwrap_or_default();
        if self.failure.set((status, text)).is_ok() {
            self.segment.set_state(state);
        }
    }

    /// Returns the text of the first failure.
    pub fn failure(&self) -> Option<&(Status, CString)> {
        self.failure.get()
    }

    /// Returns the text of the first failure, or else of the ranks that this rank waits for.
    pub fn explanation(&self) -> CString {
        if let Some((_, text)) = self.failure() {
            return text.clone();
        }
        let is_missing = |rank: &usize| match self.segment.have_all_joined() {
            true => self.awaited.load(Ordering::Relaxed) >> rank & 1 == 1,
            false => !self.segment.has_joined(*rank),
        };
        let ranks: Vec<String> = (0..self.ranks).filter(is_missing).map(|rank| rank.to_string()).collect();
        let text = match ranks.is_empty() {
            true => String::new(),
            false => format!("rank {} waits for rank {}", self.rank, ranks.join(", ")),
        };
        CString::new(text).unwrap_or_default()
    }

    /// Returns true if the operations must end without a result.
    pub fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Returns the status of the communicator: `Success`, `InProgress` until all ranks have joined, or its failure.
    pub fn status(&self) -> Status {
        if let (None, false) = (self.failure(), self.segment.have_all_joined()) {
            self.check_others(0..self.ranks, |_| !self.segment.have_all_joined());
        }
        if let (None, Some(text)) = (self.failure(), self.segment.disagreement()) {
            self.fail(RankState::Failed, Status::InvalidUsage, text);
        }
        match self.failure() {
            Some((status, _)) => *status,
            None if self.segment.have_all_joined() => Status::Success,
            None => Status::InProgress,
        }
    }

    /// Fails if one of the ranks has ended, and this rank still waits for it.
    pub fn check_others(&self, ranks: impl IntoIterator<Item = usize>, still_waits: impl Fn(usize) -> bool) {
        let others: Vec<usize> = ranks.into_iter().filter(|rank| *rank != self.rank).collect();
        let awaited = others.iter().fold(0, |bits, rank| bits | 1 << rank);
        self.awaited.store(awaited, Ordering::Relaxed);
        for (rank, text) in others.into_iter().filter_map(|rank| Some((rank, self.segment.end_reason(rank)?)))
        {
            // It may have done its part before it ended.
            if still_waits(rank) {
                return self.fail(RankState::Active, Status::RemoteError, text);
            }
        }
    }
}
