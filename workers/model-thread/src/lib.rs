//! The thread that owns a model and its device, for every worker: it can be stopped within a time limit, a panic on it
//! becomes an error, and its failures are told apart by type.
mod failure;

pub use failure::{error_summary, is_out_of_memory};

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

/// A named thread that can be waited for within a time limit. Dropping it detaches the thread.
#[derive(Debug)]
pub struct ModelThread {
    handle: Mutex<Option<JoinHandle<()>>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

impl ModelThread {
    /// Starts `run` on a thread called `name`.
    ///
    /// # Errors
    /// The system cannot start a thread.
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
            // A panic that `run` did not catch has been printed by the panic hook.
            let _ = handle.join();
        }
    }

    /// Waits until the thread has ended, at most for `limit`. Returns false if it still runs: a device that hangs
    /// cannot be interrupted.
    pub fn join_within(&self, limit: Duration) -> bool {
        let ended = self.ended.lock().recv_timeout(limit);
        if ended == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        self.join();
        true
    }
}

/// Runs `work` and returns the message of its panic as the error.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_message(&*panic).to_owned())
}

/// Message of a caught panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_waited_for_within_its_limit() {
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
    fn panics_become_messages() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        assert_eq!(catch_panic(|| panic!("a bug")), Err::<(), _>("a bug".to_owned()));
        assert_eq!(catch_panic(|| panic!("bug {}", 1)), Err::<(), _>("bug 1".to_owned()));
        assert_eq!(catch_panic(|| std::panic::panic_any(1)), Err::<(), _>("no message".to_owned()));
    }
}
