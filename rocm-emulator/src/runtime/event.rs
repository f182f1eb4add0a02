//! Events: points in streams, with the time at which they were reached.
use super::capture::Capture;
use super::error::{HipError, Result, bail};
use super::stream::Queue;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Instant;

/// hipEventDisableTiming.
pub const DISABLE_TIMING: u32 = 2;

/// An event, which refers to its last recording.
pub struct Event {
    pub device: usize,
    pub flags: u32,
    last: Mutex<Last>,
}

/// The last recording of an event.
#[derive(Clone, Default)]
pub enum Last {
    #[default]
    Never,
    Enqueued(Arc<Recording>),
    /// Recorded by a capture, after these nodes.
    Captured(Arc<Capture>, Vec<usize>),
}

/// A recording of an event, which is reached when the stream executes it.
pub struct Recording {
    queue: Arc<Queue>,
    reached: Mutex<Option<Instant>>,
    arrival: Condvar,
}

impl Recording {
    /// Creates a recording in `queue` that has not been reached.
    pub fn new(queue: Arc<Queue>) -> Arc<Self> {
        Arc::new(Self { queue, reached: Mutex::new(None), arrival: Condvar::new() })
    }

    /// Marks the recording as reached, with the current time.
    pub fn reach(&self) {
        *self.reached.lock() = Some(Instant::now());
        self.arrival.notify_all();
    }

    /// Waits until the stream has reached the recording.
    pub fn wait(&self) {
        if let Some(scheduler) = self.queue.scheduler() {
            return scheduler.run_until(|| self.time().is_some());
        }
        let mut reached = self.reached.lock();
        while reached.is_none() {
            self.arrival.wait(&mut reached);
        }
    }

    /// Returns the time at which the recording was reached; `None` before.
    pub fn time(&self) -> Option<Instant> {
        *self.reached.lock()
    }

    /// Notes a query of the recording, so that a scheduler may run commands.
    pub fn poll(&self) {
        self.queue.poll();
    }

    /// Returns and clears the stream's failure before the recording that has not been reported yet.
    pub fn take_fault(&self) -> Option<HipError> {
        self.queue.take_fault()
    }
}

impl Event {
    /// Creates an event that was never recorded.
    pub fn new(device: usize, flags: u32) -> Self {
        Self { device, flags, last: Mutex::default() }
    }

    /// Makes the event refer to a new recording.
    pub fn set(&self, last: Last) {
        *self.last.lock() = last;
    }

    /// Returns the last recording.
    pub fn last(&self) -> Last {
        self.last.lock().clone()
    }

    /// Returns the last recording, for a call that waits for it or queries it; `None` if there is none.
    ///
    /// # Errors
    /// `CapturedEvent` if a capture recorded the event. The capture is invalidated.
    pub fn enqueued(&self) -> Result<Option<Arc<Recording>>> {
        match self.last() {
            Last::Never => Ok(None),
            Last::Enqueued(recording) => Ok(Some(recording)),
            Last::Captured(capture, _) => {
                capture.invalidate();
                bail!(CapturedEvent, "the event was last recorded in a capturing stream")
            }
        }
    }

    /// Returns the milliseconds from `start` to `stop`.
    ///
    /// # Errors
    /// `InvalidHandle` if they are on different devices, lack timing or were never recorded; `NotReady` if not yet reached.
    pub fn elapsed(start: &Self, stop: &Self) -> Result<f32> {
        if start.device != stop.device {
            bail!(InvalidHandle, "the events are on devices {} and {}", start.device, stop.device);
        }
        if (start.flags | stop.flags) & DISABLE_TIMING != 0 {
            bail!(InvalidHandle, "the event was created with hipEventDisableTiming");
        }
        let (Some(first), Some(second)) = (start.enqueued()?, stop.enqueued()?) else {
            bail!(InvalidHandle, "the event was never recorded");
        };
        let (Some(from), Some(to)) = (first.time(), second.time()) else {
            bail!(NotReady, "the stream has not reached the event yet");
        };
        let seconds = if to >= from { (to - from).as_secs_f64() } else { -(from - to).as_secs_f64() };
        Ok((seconds * 1e3) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ErrorCode;

    #[test]
    fn time_needs_two_reached_recordings() {
        let (start, stop) = (Event::new(0, 0), Event::new(0, 0));
        assert_eq!(Event::elapsed(&start, &stop).unwrap_err().code, ErrorCode::InvalidHandle);
        let (first, second) = (Recording::new(Arc::default()), Recording::new(Arc::default()));
        start.set(Last::Enqueued(first.clone()));
        stop.set(Last::Enqueued(second.clone()));
        first.reach();
        assert_eq!(Event::elapsed(&start, &stop).unwrap_err().code, ErrorCode::NotReady);
        second.reach();
        let forward = Event::elapsed(&start, &stop).unwrap();
        assert!(forward >= 0.0);
        assert_eq!(Event::elapsed(&stop, &start).unwrap(), -forward);
        let untimed = Event::new(0, DISABLE_TIMING);
        assert_eq!(Event::elapsed(&start, &untimed).unwrap_err().code, ErrorCode::InvalidHandle);
    }
}
