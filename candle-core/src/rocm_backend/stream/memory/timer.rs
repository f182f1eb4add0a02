//! Work that a thread does again and again.
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that does its work every so often. Dropping it ends the thread, once work in progress is done: never drop it
/// from within the work.
pub(super) struct Timer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    /// Starts a thread that waits `period` before each call of `work` and ends when that returns false.
    ///
    /// # Errors
    /// If the system gives no thread.
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
            // A panic in the work was reported when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn it_works_until_there_is_nothing_to_do() {
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
    fn dropping_it_ends_a_long_wait() {
        let (sender, receiver) = mpsc::channel();
        drop(Timer::start(Duration::from_secs(1 << 40), move || sender.send(()).is_ok()).unwrap());
        assert!(receiver.recv().is_err());
    }
}
