//! Owner thread of a model and its device, shared by all workers. It can be joined within a time limit.
//! Panics are returned as errors, and device errors are classified by type.
mod failure;
mod state;

pub use failure::{error_summary, is_out_of_memory};
pub use state::ModelState;

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

/// A named thread that can be joined within a time limit. Dropping it detaches the thread.
#[derive(Debug)]
pub struct ModelThread {
    handle: Mutex<Option<JoinHandle<()>>>,
    /// Channel that is disconnected when the thread ends.
    ended: Mutex<Receiver<()>>,
}

impl ModelThread {
    /// Spawns a thread called `name` that executes `run`.
    ///
    /// # Errors
    /// Returns the error of the operating system if it cannot start a thread.
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (running, ended) = channel::<()>();
        let run = move || {
            let _running = running;
            run();
        };
        let handle = Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { handle: Mutex::new(Some(handle)), ended: Mutex::new(ended) })
    }

    /// Waits until the thread has ended.
    pub fn join(&self) {
        if let Some(handle) = self.handle.lock().take() {
            // The panic hook has already printed a panic that `run` did not catch.
            let _ = handle.join();
        }
    }

    /// Waits until the thread has ended, but no longer than `limit`. Returns false if it is still running: a
    /// hung device call cannot be interrupted.
    pub fn join_within(&self, limit: Duration) -> bool {
        let ended = self.ended.lock().recv_timeout(limit);
        if ended == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        self.join();
        true
    }
}

/// Runs `work` and returns its result, or the panic message if it panics.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_message(&*panic).to_owned())
}

/// Returns the message of a caught panic, or "no message" if its payload is not a string.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_returns_at_the_time_limit() {
        let (permit, permits) = channel::<()>();
        let thread = ModelThread::spawn("held", move || {
            let _ = permits.recv();
        })
        .unwrap();
        assert!(!thread.join_within(Duration::from_millis(5)));
        drop(permit);
        assert!(thread.join_within(Duration::from_secs(60)));
        assert!(thread.join_within(Duration::ZERO));
        thread.join();
        let panics = ModelThread::spawn("panics", || panic!("a bug")).unwrap();
        assert!(panics.join_within(Duration::from_secs(60)));
    }

    #[test]
    fn panics_are_returned_as_messages() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        assert_eq!(catch_panic(|| panic!("a bug")), Err::<(), _>("a bug".to_owned()));
        assert_eq!(catch_panic(|| panic!("bug {}", 1)), Err::<(), _>("bug 1".to_owned()));
        assert_eq!(catch_panic(|| std::panic::panic_any(1)), Err::<(), _>("no message".to_owned()));
    }
}
