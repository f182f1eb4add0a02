//! Waiting for a device's stream: for good, or until a deadline that the user sets.
use rocm_rs::hip::{self, bindings};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Seconds that the host waits for a device at most, like `30` or `0.5`; without a limit if unset or 0.
pub const DEADLINE_VARIABLE: &str = "CANDLE_ROCM_DEADLINE";

/// Number of launches that an error about a passed deadline names.
const RECENT: usize = 8;
/// So long the host asks without pause: work in progress mostly ends soon.
const EAGER: Duration = Duration::from_micros(100);
/// The longest pause between two questions.
const PAUSE: Duration = Duration::from_millis(1);

/// A stream to wait for. The stream itself belongs to the device and outlives all waiting.
pub(crate) struct StreamWait {
    stream: bindings::hipStream_t,
    /// In nanoseconds; 0 for none.
    deadline: AtomicU64,
    /// Names of the last launches, the latest last; kept only while there is a deadline.
    recent: Mutex<VecDeque<String>>,
}

// SAFETY: a stream handle is a plain handle that HIP lets any thread use.
unsafe impl Send for StreamWait {}
// SAFETY: as above; the rest is atomics and a mutex.
unsafe impl Sync for StreamWait {}

/// Why waiting ended without the stream's end.
pub(crate) enum Unfinished {
    Failed(hip::Error),
    Overdue { after: Duration, recent: Vec<String> },
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

    /// Notes a launch, if somebody may want to know.
    #[inline]
    pub(crate) fn launched(&self, kernel: &str) {
        if self.deadline.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(kernel.to_string());
    }

    /// Waits for all that is on the stream now. The device is bound.
    pub(crate) fn finish(&self) -> Result<(), Unfinished> {
        let Some(limit) = self.deadline() else {
            // SAFETY: the handle is the device's live stream.
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
                return Err(Unfinished::Overdue { after, recent: recent.iter().cloned().collect() });
            }
            match after < EAGER {
                true => std::thread::yield_now(),
                false => std::thread::sleep((after / 8).min(PAUSE)),
            }
        }
    }
}

fn done(code: bindings::hipError_t) -> Result<(), Unfinished> {
    hip::Error::from_hip_error(code).map_err(Unfinished::Failed)
}

/// Reads [`DEADLINE_VARIABLE`].
///
/// # Errors
/// Text that says what is wrong with it.
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
        None => Err(format!("{DEADLINE_VARIABLE}={text} is not understood; wanted seconds, like 30 or 0.5")),
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
