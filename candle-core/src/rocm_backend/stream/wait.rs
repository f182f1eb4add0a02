//! Waiting for a device's stream, with an optional deadline.
use rocm_rs::hip::{self, bindings};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Environment variable with the maximum time that the host waits for a device, in seconds, like `30` or `0.5`. There is no
/// limit if it is unset or 0.
pub const DEADLINE_VARIABLE: &str = "CANDLE_ROCM_DEADLINE";

/// Number of launches named by the error for a missed deadline.
const MAX_RECENT: usize = 8;
/// Time for which the host polls without sleeping, since most waits are short.
const SPIN_TIME: Duration = Duration::from_micros(100);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Waits for a stream, which must outlive it.
pub(crate) struct StreamWait {
    stream: bindings::hipStream_t,
    /// Deadline in nanoseconds; 0 for none.
    deadline: AtomicU64,
    /// Names of the last launches, the latest last; only recorded if there is a deadline.
    recent: Mutex<VecDeque<String>>,
}

// SAFETY: HIP allows a stream handle to be used from any thread.
unsafe impl Send for StreamWait {}
// SAFETY: as above; the rest is atomics and a mutex.
unsafe impl Sync for StreamWait {}

pub(crate) enum WaitError {
    Failed(hip::Error),
    DeadlineExceeded { after: Duration, recent: Vec<String> },
}

impl StreamWait {
    pub(crate) fn of(stream: &hip::Stream, deadline: Option<Duration>) -> Self {
        let wait = Self { stream: stream.as_raw(), deadline: AtomicU64::new(0), recent: Mutex::default() };
        wait.set_deadline(deadline);
        wait
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.deadline.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Duration>) {
        let nanos = deadline.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.deadline.store(nanos, Ordering::Relaxed);
        if nanos == 0 {
            self.recent.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Records the name of a launch if there is a deadline.
    #[inline]
    pub(crate) fn record_launch(&self, kernel: &str) {
        if self.deadline.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == MAX_RECENT {
            recent.pop_front();
        }
        recent.push_back(kernel.to_string());
    }

    /// Waits for all work enqueued on the stream so far. The device is bound.
    pub(crate) fn finish(&self) -> Result<(), WaitError> {
        let Some(limit) = self.deadline() else {
            // SAFETY: the stream is alive.
            return done(unsafe { bindings::hipStreamSynchronize(self.stream) });
        };
        let begun = Instant::now();
        loop {
            // SAFETY: as above.
            let code = unsafe { bindings::hipStreamQuery(self.stream) };
            if code != bindings::hipError_t_hipErrorNotReady {
                return done(code);
            }
            let after = begun.elapsed();
            if after >= limit {
                let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
                return Err(WaitError::DeadlineExceeded { after, recent: recent.iter().cloned().collect() });
            }
            match after < SPIN_TIME {
                true => std::thread::yield_now(),
                false => std::thread::sleep((after / 8).min(MAX_SLEEP)),
            }
        }
    }
}

fn done(code: bindings::hipError_t) -> Result<(), WaitError> {
    hip::Error::from_hip_error(code).map_err(WaitError::Failed)
}

/// Reads [`DEADLINE_VARIABLE`].
///
/// # Errors
/// A message if the value is invalid.
pub(crate) fn deadline_from_env() -> Result<Option<Duration>, String> {
    parse(std::env::var_os(DEADLINE_VARIABLE))
}

fn parse(value: Option<OsString>) -> Result<Option<Duration>, String> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let text = value.to_string_lossy();
    let seconds = text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match seconds {
        Some(Duration::ZERO) => Ok(None),
        Some(limit) => Ok(Some(limit)),
        None => Err(format!("{DEADLINE_VARIABLE}={text} is not understood; expected seconds, like 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_seconds() {
        let parse = |text: &str| parse(Some(text.into()));
        assert_eq!(parse("30"), Ok(Some(Duration::from_secs(30))));
        assert_eq!(parse(" 0.5 "), Ok(Some(Duration::from_millis(500))));
        assert_eq!((parse("0"), parse(""), super::parse(None)), (Ok(None), Ok(None), Ok(None)));
        for bad in ["soon", "-1", "inf", "nan"] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(DEADLINE_VARIABLE) && error.contains(bad), "{error}");
        }
    }
}
