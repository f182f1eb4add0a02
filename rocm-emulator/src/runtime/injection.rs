//! Failures on demand: calls that fail, a device that is lost, memory that runs out, a launch that never ends.
//!
//! Programs show what they do about a failing driver only when it fails. What is asked for here happens at a counted
//! call, so that a test can go through all of them. Nothing is counted while nothing is asked for.
use super::error::{ErrorCode, HipError, Result, bail, fail};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is to fail, and when. Calls are counted from the moment that it is asked for, the first is number 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Injection {
    /// Functions by C name, and which of their calls fails: `hipErrorOutOfMemory` for those that get memory,
    /// `hipErrorUnknown` for others, `rocblas_status_internal_error` for rocBLAS, `HIPBLAS_STATUS_INTERNAL_ERROR` for
    /// hipBLASLt, `miopenStatusUnknownError` for MIOpen.
    pub failing: Vec<(String, u64)>,
    /// With this call all devices are lost: it and all later ones fail with `hipErrorLaunchFailure`.
    pub lost: Option<(String, u64)>,
    /// Requests for more bytes than this are refused, however much is free.
    pub largest: Option<u64>,
    /// This launch never ends, nor does what follows on its stream, until [`release_stalled`].
    pub stalled: Option<u64>,
}

impl Injection {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Default)]
struct State {
    asked: Injection,
    calls: BTreeMap<String, u64>,
    launches: u64,
    lost: bool,
    /// How often stalled launches were released.
    released: u64,
}

/// Whether anything is asked for, so that calls cost one load otherwise.
static ACTIVE: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<State> =
    Mutex::new(State { asked: NOTHING, calls: BTreeMap::new(), launches: 0, lost: false, released: 0 });
static RELEASED: Condvar = Condvar::new();

const NOTHING: Injection = Injection { failing: Vec::new(), lost: None, largest: None, stalled: None };

/// Asks for failures instead of those asked for before; counts start anew, lost devices are back, and launches that
/// were stalled go on.
pub fn inject(asked: Injection) {
    let mut state = STATE.lock();
    ACTIVE.store(!asked.is_empty(), Ordering::Release);
    *state = State { asked, released: state.released + 1, ..State::default() };
    RELEASED.notify_all();
}

/// Lets launches go on that were stalled.
pub fn release_stalled() {
    STATE.lock().released += 1;
    RELEASED.notify_all();
}

/// Functions that give out memory.
const ALLOCATING: [&str; 3] = ["hipMalloc", "hipHostMalloc", "hipModuleLoadData"];

/// To be asked at every call of a C function.
///
/// # Errors
/// What was asked for.
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
    state.lost |= state.asked.lost.as_ref().is_some_and(is_now);
    if state.lost {
        bail!(LaunchFailure, "the device is lost, as was asked for");
    }
    if state.asked.failing.iter().any(is_now) {
        let code = if ALLOCATING.contains(&function) { ErrorCode::OutOfMemory } else { ErrorCode::Unknown };
        return fail(code, format!("call {count} fails, as was asked for"));
    }
    Ok(())
}

/// To be asked at every request for memory of a device.
///
/// # Errors
/// `OutOfMemory` if it is larger than was asked for.
pub fn requested(bytes: usize) -> Result<()> {
    if !ACTIVE.load(Ordering::Acquire) {
        return Ok(());
    }
    match STATE.lock().asked.largest {
        Some(largest) if bytes as u64 > largest => Err(HipError::new(
            ErrorCode::OutOfMemory,
            format!("{bytes} bytes asked for, and requests above {largest} are refused, as was asked for"),
        )),
        _ => Ok(()),
    }
}

/// Holds a stream up.
pub struct Stall {
    /// How often stalled launches had been released when this one was asked for.
    released: u64,
}

impl Stall {
    /// Returns after the next [`release_stalled`].
    pub fn wait(&self) {
        let mut state = STATE.lock();
        while state.released == self.released {
            RELEASED.wait(&mut state);
        }
    }
}

/// To be asked at every launch: what is to come before it, if it is the one that stalls.
pub fn launching() -> Option<Stall> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    let mut state = STATE.lock();
    state.launches += 1;
    (state.asked.stalled == Some(state.launches)).then_some(Stall { released: state.released })
}

/// How often each function was called since failures were asked for last; empty if none were.
pub fn calls() -> BTreeMap<String, u64> {
    STATE.lock().calls.clone()
}
