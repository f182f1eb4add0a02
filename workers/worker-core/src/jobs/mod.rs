//! Jobs: work that is asked for in one request and followed in others.
//!
//! A job's events are kept in a log. Readers read from the log and not from the job, so that one who comes
//! late gets everything from the start, and one who is slow holds nobody up.

mod entry;
mod request;
mod table;

pub use request::{Target, accepted};

use crate::admission::cut_error;
use crate::lifecycle::Lifecycle;
use crate::sse::{Frame, Name, respond};
use crate::{ApiError, sse};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{delete, get};
use axum::{Json, Router};
use entry::{Entry, Reader};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use table::Table;
use uuid::Uuid;

/// How jobs of one kind are kept and read.
#[derive(Debug)]
pub struct Options<E> {
    /// Makes the event that tells of an error: the job's own, or the end of the worker.
    pub error: fn(&ApiError) -> E,
    /// Names of events, for those who listen by name.
    pub name: Option<Name<E>>,
    /// Whether `data: [DONE]` comes last.
    pub done: bool,
    /// Time of silence after which a reader gets a comment.
    pub keep_alive: Duration,
    /// Bytes of memory that the log of one job may have; a job that writes more fails.
    pub log_bytes: usize,
    /// How long an ended job can still be read.
    pub keep: Duration,
    /// Ended jobs that are kept at most; the oldest go first.
    pub kept: usize,
    /// Bytes that the logs of ended jobs may have together.
    pub kept_bytes: usize,
}

impl<E> Options<E> {
    /// No names, `[DONE]` at the end, logs of 16 MiB; ended jobs are kept for 5 minutes, 256 of them, in
    /// 128 MiB.
    pub fn new(error: fn(&ApiError) -> E) -> Options<E> {
        Options {
            error,
            name: None,
            done: true,
            keep_alive: sse::Options::<E>::default().keep_alive,
            log_bytes: 16 << 20,
            keep: Duration::from_secs(300),
            kept: 256,
            kept_bytes: 128 << 20,
        }
    }
}

/// What becomes of a job when its last reader leaves before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDisconnect {
    /// It goes on.
    Continue,
    /// It is cancelled.
    Cancel,
}

struct Shared<E> {
    options: Options<E>,
    lifecycle: Lifecycle,
    table: Mutex<Table>,
}

/// The jobs of a worker, whose events are `E`; clones share them.
pub struct Jobs<E>(Arc<Shared<E>>);

impl<E> Clone for Jobs<E> {
    fn clone(&self) -> Self {
        Jobs(self.0.clone())
    }
}

impl<E> std::fmt::Debug for Jobs<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs").field("running", &self.0.table.lock().running()).finish_non_exhaustive()
    }
}

impl<E: Serialize + 'static> Jobs<E> {
    /// No jobs yet. When `lifecycle` is cut, those that run end with an error event.
    pub fn new(options: Options<E>, lifecycle: &Lifecycle) -> Jobs<E> {
        let table = Mutex::new(Table::new(options.keep, options.kept, options.kept_bytes));
        let jobs = Jobs(Arc::new(Shared { options, lifecycle: lifecycle.clone(), table }));
        let weak = Arc::downgrade(&jobs.0);
        lifecycle.at_cut(move || {
            let Some(shared) = weak.upgrade() else { return };
            let running = shared.table.lock().all();
            for entry in running {
                shared.close(&entry, Some(&cut_error()));
                entry.cancel();
            }
        });
        jobs
    }

    /// Begins a job, with an id that nobody can guess.
    pub fn create(&self, on_disconnect: OnDisconnect) -> Job<E> {
        let work = self.0.lifecycle.work();
        let entry = Arc::new(Entry::new(Uuid::new_v4(), on_disconnect == OnDisconnect::Cancel, work));
        self.0.table.lock().insert(entry.clone());
        // The worker may have been cut between the request and here.
        if self.0.lifecycle.is_cut() {
            self.0.close(&entry, Some(&cut_error()));
            entry.cancel();
        }
        Job { shared: self.0.clone(), entry }
    }

    /// Jobs that have not ended.
    pub fn running(&self) -> usize {
        self.0.table.lock().running()
    }

    /// Asks a job to stop; `false` where it has ended already.
    ///
    /// # Errors
    /// 404 for an id that is not known, or no more.
    pub fn cancel(&self, id: &str) -> Result<bool, ApiError> {
        let entry = self.0.find(id)?;
        let runs = !entry.ended();
        if runs {
            entry.cancel();
        }
        Ok(runs)
    }

    /// Answers with the events of a job, from the start, or after the one that the header Last-Event-ID names.
    ///
    /// # Errors
    /// 404 for an id that is not known, or no more.
    pub fn stream(&self, id: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
        let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<usize>().ok());
        let reader = Reader::new(self.0.find(id)?, last.map_or(0, |last| last.saturating_add(1)));
        Ok(respond(reader, self.0.options.done, self.0.options.keep_alive))
    }

    /// `GET /{id}/stream` and `DELETE /{id}`, to be nested where the worker takes its jobs.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/{id}/stream", get(Self::get_stream))
            .route("/{id}", delete(Self::delete))
            .with_state(self.clone())
    }

    async fn get_stream(
        State(jobs): State<Self>,
        Path(id): Path<String>,
        headers: HeaderMap,
    ) -> Result<Response, ApiError> {
        jobs.stream(&id, &headers)
    }

    async fn delete(State(jobs): State<Self>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
        let status = if jobs.cancel(&id)? { "cancelled" } else { "ended" };
        Ok(Json(json!({ "job_id": id, "status": status })))
    }
}

impl<E: Serialize> Shared<E> {
    fn find(&self, id: &str) -> Result<Arc<Entry>, ApiError> {
        let found = Uuid::try_parse(id).ok().and_then(|id| self.table.lock().find(id));
        found.ok_or_else(|| {
            let why = "there is no such job, or it ended long ago and is forgotten";
            ApiError::not_found(why).with_code("job_not_found")
        })
    }

    fn frame(&self, event: &E) -> Result<Frame, ApiError> {
        Frame::new(event, self.options.name.and_then(|name| name(event)))
    }

    /// Ends a job, with an event about `error` if there is one.
    fn close(&self, entry: &Entry, error: Option<&ApiError>) {
        let last = error.map(|error| {
            let event = (self.options.error)(error);
            self.frame(&event).unwrap_or_else(|broken| Frame::error(&broken, None))
        });
        if let Some(bytes) = entry.close(last) {
            self.table.lock().ended(entry.id, bytes);
        }
    }
}

/// A job as its maker holds it. Dropping it without [`Job::end`] or [`Job::fail`] fails it.
pub struct Job<E: Serialize> {
    shared: Arc<Shared<E>>,
    entry: Arc<Entry>,
}

impl<E: Serialize> std::fmt::Debug for Job<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Job").field(&self.entry.id).finish()
    }
}

impl<E: Serialize> Job<E> {
    /// The id under which it is read and cancelled.
    pub fn id(&self) -> String {
        self.entry.id.to_string()
    }

    /// Writes an event. `false` where the job is over (the worker was cut, the log is full, the event is no
    /// JSON): its maker is to stop. A job that is cancelled may still write how it ended.
    pub fn push(&self, event: &E) -> bool {
        let written = self.shared.frame(event).and_then(|frame| {
            let fits = self.entry.push(frame, self.shared.options.log_bytes);
            let full = || ApiError::internal("the job wrote more than its log may hold");
            fits.then_some(()).ok_or_else(|| full().with_code("log_full"))
        });
        let Err(error) = written else { return true };
        self.shared.close(&self.entry, Some(&error));
        self.entry.cancel();
        false
    }

    /// Ends the job; its readers get what they have not read, then the end.
    pub fn end(self) {
        self.shared.close(&self.entry, None);
    }

    /// Ends the job with an event about `error`.
    pub fn fail(self, error: &ApiError) {
        self.shared.close(&self.entry, Some(error));
    }

    /// Keeps something until the job ends, as the client's [`crate::Place`].
    pub fn hold(&self, held: impl Send + 'static) {
        self.entry.hold(Box::new(held));
    }

    /// Whether the job has been asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.entry.is_cancelled()
    }

    /// Waits until the job is asked to stop; the future may go to another task.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<E> {
        let entry = self.entry.clone();
        async move { entry.cancelled().await }
    }

    /// Calls `hook` once when the job is asked to stop, or now if it has been. A later hook takes the place of
    /// an earlier one.
    pub fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) {
        self.entry.on_cancel(Box::new(hook));
    }
}

impl<E: Serialize> Drop for Job<E> {
    fn drop(&mut self) {
        // Closing is for the first only: after `end` this does nothing.
        self.shared.close(&self.entry, Some(&ApiError::internal("the job was given up before its end")));
    }
}

#[cfg(test)]
mod tests;
