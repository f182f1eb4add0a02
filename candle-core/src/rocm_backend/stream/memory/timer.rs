//! A thread that does work periodically.
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that does work periodically. Dropping the timer waits for work in progress and ends the thread, so it must not
/// be dropped by the work itself.
pub(super) struct Timer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    /// Starts a thread that waits `period` before each call of `work` and ends when `work` returns false.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        period: Duration,
        mut work: impl FnMut() -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let wait = move || {
            let (flag, changed) = &*stopped;
            let flag = flag.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = changed.wait_timeout_while(flag, period, |stop| !*stop);
            !*waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let thread = std::thread::Builder::new().name("candle-rocm-memory".to_string());
        let thread = thread.spawn(move || while wait() && work() {})?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the work has already been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_thread_ends_when_work_returns_false() {
        let (sender, receiver) = mpsc::channel();
        let mut left = 3;
        let timer = Timer::start(Duration::ZERO, move || {
            left -= 1;
            sender.send(left).is_ok() && left > 0
        });
        // The channel closes when the thread ends.
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [2, 1, 0]);
        drop(timer);
    }

    #[test]
    fn dropping_the_timer_ends_a_long_wait() {
        let (sender, receiver) = mpsc::channel();
        drop(Timer::start(Duration::from_secs(1 << 40), move || sender.send(()).is_ok()).unwrap());
        assert!(receiver.recv().is_err());
    }
}
