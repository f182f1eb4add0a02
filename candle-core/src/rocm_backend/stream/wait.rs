//! Waiting for a device's stream, with an optional deadline.
use rocm_rs::hip::{self, bindings};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Environment variable with the maximum time that the host waits for a device, in seconds, like `30` or `0.5`. There is no
/// limit if it is unset or 0.
pub const DEADLINE_VARIABLE: &str = "CANDLE_ROCM_DEADLINE";

/// Number of launches named by the error for a missed deadline.
const MAX_RECENT: usize = 8;
/// Time for which the host polls without sleeping, since most waits are short.
const SPIN_TIME: Duration = Duration::from_micros(100);
const MAX_SLEEP: Duration = Duration::from_millis(1);
/// Maximum sleep while work between devices is awaited, which has no other way to wait.
const MAX_MONITORED_SLEEP: Duration = Duration::from_micros(50);
/// Time within which a stream must finish after a monitor has made its work end.
const ABORT_TIME: Duration = Duration::from_secs(10);

/// Waits for a stream, which must outlive it.
pub(crate) struct StreamWait {
    stream: bindings::hipStream_t,
    /// Deadline in nanoseconds; 0 for none.
    deadline: AtomicU64,
    /// Names of the last launches, the latest last; only recorded if there is a deadline.
    recent: Mutex<VecDeque<String>>,
    monitors: Mutex<Vec<Weak<dyn WorkMonitor>>>,
    has_monitors: AtomicBool,
}

// SAFETY: HIP allows a stream handle to be used from any thread.
unsafe impl Send for StreamWait {}
// SAFETY: as above; the rest is atomics and a mutex.
unsafe impl Sync for StreamWait {}

/// Monitors work on a stream that may wait for other devices or processes. A higher layer registers it with
/// [`StreamWait::add_monitor`].
pub(crate) trait WorkMonitor: Send + Sync {
    /// Returns a mark of the enqueued work; `None` if there is none that may wait for others.
    fn mark(&self) -> Option<u64>;
    /// Records that the work up to a mark has finished.
    fn finished(&self, mark: u64);
    /// Checks the work after the host has waited for it for this time; `None` if the stream has finished.
    ///
    /// # Errors
    /// If the work will not finish by itself, or has ended without a result. The monitor has made it end.
    fn check(&self, waited: Option<Duration>) -> crate::Result<()>;
}

pub(crate) enum WaitError {
    Failed(hip::Error),
    /// A monitor has failed. If the stream has not finished, it hangs.
    Monitored {
        error: crate::Error,
        has_finished: bool,
    },
    DeadlineExceeded {
        after: Duration,
        recent: Vec<String>,
    },
}

impl StreamWait {
    pub(crate) fn of(stream: &hip::Stream, deadline: Option<Duration>) -> Self {
        let wait = Self {
            stream: stream.as_raw(),
            deadline: AtomicU64::new(0),
            recent: Mutex::default(),
            monitors: Mutex::default(),
            has_monitors: AtomicBool::new(false),
        };
        wait.set_deadline(deadline);
        wait
    }

    /// Adds a monitor, which is used until it is dropped.
    pub(crate) fn add_monitor(&self, monitor: Weak<dyn WorkMonitor>) {
        self.monitors.lock().unwrap_or_else(PoisonError::into_inner).push(monitor);
        self.has_monitors.store(true, Ordering::Release);
    }

    /// Returns the monitors of unfinished work, with its marks.
    fn monitors(&self) -> Vec<(Arc<dyn WorkMonitor>, u64)> {
        if !self.has_monitors.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
        monitors.retain(|monitor| monitor.strong_count() > 0);
        self.has_monitors.store(!monitors.is_empty(), Ordering::Release);
        let marked = |monitor: &Weak<dyn WorkMonitor>| {
            let monitor = monitor.upgrade()?;
            let mark = monitor.mark()?;
            Some((monitor, mark))
        };
        monitors.iter().filter_map(marked).collect()
    }

    /// Returns true if [`Self::finish`] polls, so that a wait without it might not end.
    pub(crate) fn is_bounded(&self) -> bool {
        self.deadline().is_some() || !self.monitors().is_empty()
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
        let (limit, monitors) = (self.deadline(), self.monitors());
        if limit.is_none() && monitors.is_empty() {
            // SAFETY: the stream is alive.
            return done(unsafe { bindings::hipStreamSynchronize(self.stream) });
        }
        let max_sleep = if monitors.is_empty() { MAX_SLEEP } else { MAX_MONITORED_SLEEP };
        let begun = Instant::now();
        // The error of a monitor, with the time at which it has made the work end.
        let mut failed = None;
        loop {
            // SAFETY: as above.
            let code = unsafe { bindings::hipStreamQuery(self.stream) };
            let (after, is_done) = (begun.elapsed(), code != bindings::hipError_t_hipErrorNotReady);
            match failed.take() {
                Some((at, error)) if is_done || after >= at + ABORT_TIME => {
                    return Err(WaitError::Monitored { error, has_finished: is_done });
                }
                Some(earlier) => failed = Some(earlier),
                None if is_done => {
                    // An operation of a failed communicator ends without a result.
                    let checked = monitors.iter().try_for_each(|(monitor, _)| monitor.check(None));
                    monitors.iter().for_each(|(monitor, mark)| monitor.finished(*mark));
                    return match checked {
                        Ok(()) => done(code),
                        Err(error) => Err(WaitError::Monitored { error, has_finished: true }),
                    };
                }
                None => {
                    let checked = monitors.iter().try_for_each(|(monitor, _)| monitor.check(Some(after)));
                    failed = checked.err().map(|error| (after, error));
                }
            }
            if limit.is_some_and(|limit| after >= limit) {
                let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
                return Err(WaitError::DeadlineExceeded { after, recent: recent.iter().cloned().collect() });
            }
            match after < SPIN_TIME {
                true => std::thread::yield_now(),
                false => std::thread::sleep((after / 8).min(max_sleep)),
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

/// Parses a number of seconds; `None` if it is no duration.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

fn parse(value: Option<OsString>) -> Result<Option<Duration>, String> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let text = value.to_string_lossy();
    match seconds(text.trim()) {
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
