//! A single job: its event log, its readers and its cancellation.

use crate::lifecycle::WorkGuard;
use crate::sse::Frame;
use parking_lot::Mutex;
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use uuid::Uuid;

struct Log {
    frames: Vec<Frame>,
    bytes: usize,
    /// Delays shutdown of the worker until the log is closed.
    work: Option<WorkGuard>,
    /// Values that are dropped when the log is closed.
    held: Vec<Box<dyn Any + Send>>,
}

type Hook = Box<dyn FnOnce() + Send>;

pub(super) struct Entry {
    pub id: Uuid,
    log: Mutex<Log>,
    changed: watch::Sender<()>,
    cancel: watch::Sender<bool>,
    hook: Mutex<Option<Hook>>,
    readers: AtomicUsize,
    /// Number of times that a client has begun to read the log or queried the state.
    visits: AtomicUsize,
    /// Time without readers after which the job is cancelled.
    abandon_timeout: Option<Duration>,
}

impl Entry {
    pub fn new(id: Uuid, abandon_timeout: Option<Duration>, work: WorkGuard) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            id,
            log: Mutex::new(Log { frames: Vec::new(), bytes: 0, work: Some(work), held: Vec::new() }),
            changed: watch::Sender::new(()),
            cancel: watch::Sender::new(false),
            hook: Mutex::new(None),
            readers: AtomicUsize::new(0),
            visits: AtomicUsize::new(0),
            abandon_timeout,
        });
        entry.watch();
        entry
    }

    /// Cancels the job after its timeout, unless a client visits it before or reads it then.
    fn watch(self: &Arc<Entry>) {
        let (Some(timeout), Ok(runtime)) = (self.abandon_timeout, Handle::try_current()) else { return };
        let (entry, visits) = (Arc::downgrade(self), self.visits.load(Ordering::Acquire));
        // Start the timeout here, not when the task is first polled.
        let abandoned = tokio::time::sleep(timeout);
        runtime.spawn(async move {
            abandoned.await;
            let Some(entry) = entry.upgrade() else { return };
            let is_unread = entry.readers.load(Ordering::Acquire) == 0;
            if is_unread && entry.visits.load(Ordering::Acquire) == visits && !entry.ended() {
                tracing::info!(job_id = %entry.id, "cancelling a job that no client follows");
                entry.cancel();
            }
        });
    }

    /// Records that a client queries the state of the job. Returns the last frame, and true if the log is closed.
    pub fn visit(self: &Arc<Entry>) -> (Option<Frame>, bool) {
        self.visits.fetch_add(1, Ordering::AcqRel);
        self.watch();
        let log = self.log.lock();
        (log.frames.last().cloned(), log.work.is_none())
    }

    /// Appends a frame. Returns false if the log is closed or would exceed `limit` bytes.
    pub fn push(&self, frame: Frame, limit: usize) -> bool {
        let mut log = self.log.lock();
        let bytes = log.bytes.saturating_add(frame.size());
        if log.work.is_none() || bytes > limit {
            return false;
        }
        log.add(frame);
        drop(log);
        self.changed.send_replace(());
        true
    }

    /// Closes the log, after an optional last frame. The first call returns the size of the log in bytes.
    pub fn close(&self, last: Option<Frame>) -> Option<usize> {
        // Release the slots before readers see the end, so that the client can immediately start another job.
        let held = std::mem::take(&mut self.log.lock().held);
        drop(held);
        let mut log = self.log.lock();
        let work = log.work.take()?;
        last.into_iter().for_each(|frame| log.add(frame));
        let (bytes, late) = (log.bytes, std::mem::take(&mut log.held));
        drop(log);
        self.changed.send_replace(());
        // Drop the hook outside the lock, because its destructor may access the job.
        let hook = self.hook.lock().take();
        drop((hook, work, late));
        Some(bytes)
    }

    /// Keeps a value until the log is closed.
    pub fn hold(&self, held: Box<dyn Any + Send>) {
        let mut log = self.log.lock();
        if log.work.is_some() {
            log.held.push(held);
        }
    }

    pub fn ended(&self) -> bool {
        self.log.lock().work.is_none()
    }

    pub fn cancel(&self) {
        self.cancel.send_replace(true);
        let hook = self.hook.lock().take();
        hook.into_iter().for_each(|hook| hook());
    }

    pub fn is_cancelled(&self) -> bool {
        *self.cancel.borrow()
    }

    pub async fn cancelled(&self) {
        // This cannot fail, because the entry owns the sender.
        let _ = self.cancel.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    pub fn on_cancel(&self, hook: Hook) {
        *self.hook.lock() = Some(hook);
        // A concurrent cancellation may have missed the hook, so check again.
        if self.is_cancelled() {
            self.cancel();
        }
    }
}

impl Log {
    fn add(&mut self, frame: Frame) {
        self.bytes += frame.size();
        let id = Some(self.frames.len());
        self.frames.push(Frame { id, ..frame });
    }
}

/// Stream of the frames of a log from a given index; waits for more until the log is closed.
pub(super) struct Reader {
    entry: Arc<Entry>,
    next: usize,
    changed: WatchStream<()>,
}

impl Reader {
    pub fn new(entry: Arc<Entry>, next: usize) -> Reader {
        entry.readers.fetch_add(1, Ordering::AcqRel);
        entry.visits.fetch_add(1, Ordering::AcqRel);
        let changed = WatchStream::new(entry.changed.subscribe());
        Reader { entry, next, changed }
    }
}

impl Stream for Reader {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        loop {
            let log = self.entry.log.lock();
            let (frame, ended) = (log.frames.get(self.next).cloned(), log.work.is_none());
            drop(log);
            if let Some(frame) = frame {
                self.next += 1;
                return Poll::Ready(Some(frame));
            }
            if ended {
                return Poll::Ready(None);
            }
            // The watch stream reports changes since the last poll, so no change is missed in between.
            match Pin::new(&mut self.changed).poll_next(context) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.entry.readers.fetch_sub(1, Ordering::AcqRel) == 1 && !self.entry.ended() {
            self.entry.watch();
        }
    }
}
