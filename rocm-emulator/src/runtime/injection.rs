//! Fault injection: failing calls, a lost device, exhausted memory, a launch that never ends.
//!
//! Each fault happens at a given call, so that a test can iterate over all calls of a program. Calls are counted only
//! while an injection is active.
use super::error::{ErrorCode, HipError, Result, bail, fail};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The faults to inject. Calls are counted from [`inject`] on, beginning with 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Injection {
    /// C functions and the number of the call that fails: with `hipErrorOutOfMemory` if it allocates memory,
    /// `hipErrorUnknown` for other HIP functions, `rocblas_status_internal_error` for rocBLAS,
    /// `HIPBLAS_STATUS_INTERNAL_ERROR` for hipBLASLt, `miopenStatusUnknownError` for MIOpen and `ncclInternalError`
    /// for RCCL.
    pub failing: Vec<(String, u64)>,
    /// The call at which all devices are lost: it and all later calls fail with `hipErrorLaunchFailure`.
    pub lost: Option<(String, u64)>,
    /// Requests for more bytes than this fail, even if enough memory is free.
    pub largest: Option<u64>,
    /// Number of the launch that stalls, with all later work on its stream, until [`release_stalled`].
    pub stalled: Option<u64>,
    /// Number of the graph launch from which on graphs execute nothing, so that their results are those of earlier
    /// launches.
    pub stale: Option<u64>,
    /// Target whose code objects do not load, as generic ones do not with some versions of HIP.
    pub refused: Option<String>,
    /// Copies of more bytes than this from or to host memory that HIP did not allocate fail.
    pub pageable: Option<u64>,
    /// A fault of a rank, with the number of its call. The calls of each communicator are counted from 1.
    pub collective: Option<(CollectiveFault, usize, u64)>,
}

/// A fault of a rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveFault {
    /// The rank ends instead of taking part.
    Dies,
    /// The rank takes part only after [`release_stalled`].
    Late,
    /// The rank passes one element more than the others.
    Count,
    /// The rank's communicator fails, and the others are not notified.
    Async,
}

impl Injection {
    /// Returns true if no fault is to be injected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Default)]
struct State {
    injection: Injection,
    calls: BTreeMap<String, u64>,
    launches: u64,
    replays: u64,
    lost: bool,
    /// Number of calls of [`release_stalled`], now and when the faults were injected.
    released: u64,
    released_before: u64,
}

/// True while an injection is active; otherwise calls cost only this load.
static ACTIVE: AtomicBool = AtomicBool::new(false);
static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
static RELEASED: Condvar = Condvar::new();

/// Replaces the injected faults. Resets the counts, restores lost devices and releases stalled launches.
pub fn inject(injection: Injection) {
    let mut state = STATE.lock();
    ACTIVE.store(!injection.is_empty(), Ordering::Release);
    let released = state.released + 1;
    *state = State { injection, released, released_before: released, ..State::default() };
    RELEASED.notify_all();
}

/// Lets stalled launches continue.
pub fn release_stalled() {
    STATE.lock().released += 1;
    RELEASED.notify_all();
}

/// HIP functions that allocate memory.
const ALLOCATING: [&str; 4] = ["hipMalloc", "hipHostMalloc", "hipModuleLoadData", "hipGraphInstantiate"];

/// Counts a call of a C function; every function calls this first.
///
/// # Errors
/// The injected fault for this call.
pub fn called(function: &str) -> Result<()> {
    if !ACTIVE.load(Ordering::Acquire) {
        return Ok(());
    }
    let mut guard = STATE.lock();
    let state = &mut *guard;
    let count = match state.calls.get_mut(function) {
        Some(count) => count,
        None => state.calls.entry(function.to_string()).or_default(),
    };
    *count += 1;
    let is_now = |(name, nth): &(String, u64)| name == function && nth == count;
    state.lost |= state.injection.lost.as_ref().is_some_and(is_now);
    if state.lost {
        bail!(LaunchFailure, "the device is lost (injected fault)");
    }
    if state.injection.failing.iter().any(is_now) {
        let code = if ALLOCATING.contains(&function) { ErrorCode::OutOfMemory } else { ErrorCode::Unknown };
        return fail(code, format!("call {count} failed (injected fault)"));
    }
    Ok(())
}

/// Checks a request for device memory.
///
/// # Errors
/// `OutOfMemory` if it exceeds the injected limit.
pub fn check_allocation(bytes: usize) -> Result<()> {
    if !ACTIVE.load(Ordering::Acquire) {
        return Ok(());
    }
    match STATE.lock().injection.largest {
        Some(largest) if bytes as u64 > largest => Err(HipError::new(
            ErrorCode::OutOfMemory,
            format!("{bytes} bytes requested, but requests above {largest} bytes fail (injected fault)"),
        )),
        _ => Ok(()),
    }
}

/// Checks the size of a copy from or to host memory that HIP did not allocate.
///
/// # Errors
/// `InvalidValue` if it exceeds the injected limit.
pub fn check_pageable_copy(bytes: usize) -> Result<()> {
    if ACTIVE.load(Ordering::Acquire) {
        let limit = STATE.lock().injection.pageable;
        if limit.is_some_and(|limit| bytes as u64 > limit) {
            bail!(InvalidValue, "a copy of {bytes} bytes from or to pageable memory (injected fault)");
        }
    }
    Ok(())
}

/// Checks the target of a code object.
///
/// # Errors
/// `NoBinaryForGpu` if the injected faults refuse the target.
pub fn check_code_object(target: &str) -> Result<()> {
    if ACTIVE.load(Ordering::Acquire) && STATE.lock().injection.refused.as_deref() == Some(target) {
        bail!(NoBinaryForGpu, "code objects for {target} do not load (injected fault)");
    }
    Ok(())
}

/// Stalls a stream.
pub struct Stall {
    /// Value of `State::released` when the launch was enqueued.
    released: u64,
}

impl Stall {
    /// Waits until the next [`release_stalled`].
    pub fn wait(&self) {
        let mut state = STATE.lock();
        while state.released == self.released {
            RELEASED.wait(&mut state);
        }
    }
}

/// Counts a launch. Returns the stall to enqueue before it if it is the injected one.
pub fn next_launch_stall() -> Option<Stall> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    let mut state = STATE.lock();
    state.launches += 1;
    (state.injection.stalled == Some(state.launches)).then_some(Stall { released: state.released })
}

/// Counts a launch of a graph. Returns true if it is to execute nothing.
pub fn next_replay_is_stale() -> bool {
    if !ACTIVE.load(Ordering::Acquire) {
        return false;
    }
    let mut state = STATE.lock();
    state.replays += 1;
    state.injection.stale.is_some_and(|first| state.replays >= first)
}

/// The injected fault of a rank.
pub struct FaultOfRank {
    pub kind: CollectiveFault,
    released_before: u64,
}

impl FaultOfRank {
    /// Returns true once stalled work was released after the fault was injected.
    pub fn has_ended(&self) -> bool {
        STATE.lock().released != self.released_before
    }
}

/// Returns the fault to inject into a rank's call with this number.
pub fn fault_of_rank(rank: usize, call: u64) -> Option<FaultOfRank> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    let state = STATE.lock();
    let (kind, ..) = state.injection.collective.filter(|(_, r, nth)| (*r, *nth) == (rank, call))?;
    Some(FaultOfRank { kind, released_before: state.released_before })
}

/// Returns the number of calls of each function since the last [`inject`]; empty if no injection is active.
pub fn calls() -> BTreeMap<String, u64> {
    STATE.lock().calls.clone()
}
