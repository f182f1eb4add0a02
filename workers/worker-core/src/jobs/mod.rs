//! Jobs: work that is started by one request and followed by others.
//!
//! Each job has a log of its events. Readers read the log, so that a late reader receives all events, and a
//! slow reader delays neither the job nor other readers.

mod entry;
mod request;
mod table;

pub use request::{Target, accepted};

use crate::admission::worker_stopped_error;
use crate::lifecycle::Lifecycle;
use crate::sse::{EventName, Frame, respond};
use crate::{ApiError, sse};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use entry::{Entry, Reader};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use table::Table;
use uuid::Uuid;

/// Event format and retention of jobs.
#[derive(Debug)]
pub struct Options<E> {
    /// Name of the worker, with which the ids of its jobs begin, so that gateways can route by them.
    pub worker_id: Arc<str>,
    /// Creates the event that reports an error.
    pub error: fn(&ApiError) -> E,
    /// Returns the SSE name of an event.
    pub name: Option<EventName<E>>,
    /// If true, streams end with `data: [DONE]`.
    pub done: bool,
    /// Idle time after which an SSE comment is sent.
    pub keep_alive: Duration,
    /// Maximum size of the log of one job in bytes; a job that exceeds it fails.
    pub max_log_bytes: usize,
    /// Time for which a finished job can still be read.
    pub retention: Duration,
    /// Maximum number of finished jobs that are kept; the oldest are removed first.
    pub max_ended: usize,
    /// Maximum total size in bytes of the logs of finished jobs.
    pub max_ended_bytes: usize,
}

impl<E> Options<E> {
    /// Returns options for the worker of this name, with unnamed events, `[DONE]` at the end and logs of at most 16 MiB. Up to 256
    /// finished jobs with logs of 128 MiB in total are kept for 5 minutes.
    pub fn new(worker_id: &str, error: fn(&ApiError) -> E) -> Options<E> {
        Options {
            worker_id: worker_id.into(),
            error,
            name: None,
            done: true,
            keep_alive: sse::Options::<E>::default().keep_alive,
            max_log_bytes: 16 << 20,
            retention: Duration::from_secs(300),
            max_ended: 256,
            max_ended_bytes: 128 << 20,
        }
    }
}

/// Behaviour of a job that no client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDisconnect {
    /// The job continues.
    Continue,
    /// The job is cancelled if no client reads it or queries its state for this time.
    CancelAfter(Duration),
}

struct Shared<E> {
    options: Options<E>,
    lifecycle: Lifecycle,
    table: Mutex<Table>,
}

/// The jobs of a worker, with events of type `E`. Clones share the jobs.
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
    /// Creates an empty set of jobs. When `lifecycle` is aborted, running jobs end with an error event.
    pub fn new(options: Options<E>, lifecycle: &Lifecycle) -> Jobs<E> {
        let table = Mutex::new(Table::new(options.retention, options.max_ended, options.max_ended_bytes));
        let jobs = Jobs(Arc::new(Shared { options, lifecycle: lifecycle.clone(), table }));
        let weak = Arc::downgrade(&jobs.0);
        lifecycle.on_abort(move || {
            let Some(shared) = weak.upgrade() else { return };
            let running = shared.table.lock().all();
            for entry in running {
                shared.close(&entry, Some(&worker_stopped_error()));
                entry.cancel();
            }
        });
        jobs
    }

    /// Creates a job. Its id is the name of the worker, a dot, and a random UUID.
    pub fn create(&self, on_disconnect: OnDisconnect) -> Job<E> {
        let work = self.0.lifecycle.start_work();
        let timeout = match on_disconnect {
            OnDisconnect::Continue => None,
            OnDisconnect::CancelAfter(timeout) => Some(timeout),
        };
        let entry = Entry::new(Uuid::new_v4(), timeout, work);
        self.0.table.lock().insert(entry.clone());
        // The worker may have been aborted since the request arrived.
        if self.0.lifecycle.is_aborted() {
            self.0.close(&entry, Some(&worker_stopped_error()));
            entry.cancel();
        }
        Job { shared: self.0.clone(), entry }
    }

    /// Returns the number of unfinished jobs.
    pub fn running(&self) -> usize {
        self.0.table.lock().running()
    }

    /// Requests cancellation of a job. Returns false if it has already ended.
    ///
    /// # Errors
    /// 404 if the id is unknown or the job has been removed.
    pub fn cancel(&self, id: &str) -> Result<bool, ApiError> {
        let entry = self.0.find(id)?;
        let runs = !entry.ended();
        if runs {
            entry.cancel();
        }
        Ok(runs)
    }

    /// Streams the events of a job, from the start or after the event named by the Last-Event-ID header.
    ///
    /// # Errors
    /// 404 if the id is unknown or the job has been removed.
    pub fn stream(&self, id: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
        let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<usize>().ok());
        let reader = Reader::new(self.0.find(id)?, last.map_or(0, |last| last.saturating_add(1)));
        Ok(respond(reader, self.0.options.done, self.0.options.keep_alive))
    }

    /// Returns the state of a job and its last event, as JSON.
    ///
    /// # Errors
    /// 404 if the id is unknown or the job has been removed.
    pub fn state(&self, id: &str) -> Result<Response, ApiError> {
        let entry = self.0.find(id)?;
        let (last, ended) = entry.visit();
        let status = if ended { "ended" } else { "running" };
        let name = last.as_ref().and_then(|frame| frame.name);
        let event = name.map_or("null".to_owned(), |name| format!("\"{name}\""));
        // The data is JSON, which may contain images.
        let data = last.as_ref().map_or("null", |frame| &*frame.data);
        let body = format!(
            r#"{{"job_id":"{}","status":"{status}","event":{event},"data":{data}}}"#,
            self.0.id(&entry)
        );
        Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
    }

    /// Returns the routes `GET /{id}/stream`, `GET /{id}` and `DELETE /{id}`, to be nested under the route that creates jobs.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/{id}/stream", get(Self::get_stream))
            .route("/{id}", get(Self::get_state).delete(Self::delete))
            .with_state(self.clone())
    }

    async fn get_stream(
        State(jobs): State<Self>,
        Path(id): Path<String>,
        headers: HeaderMap,
    ) -> Result<Response, ApiError> {
        jobs.stream(&id, &headers)
    }

    async fn get_state(State(jobs): State<Self>, Path(id): Path<String>) -> Result<Response, ApiError> {
        jobs.state(&id)
    }

    async fn delete(State(jobs): State<Self>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
        let status = if jobs.cancel(&id)? { "cancelled" } else { "ended" };
        Ok(Json(json!({ "job_id": id, "status": status })))
    }
}

impl<E: Serialize> Shared<E> {
    fn find(&self, id: &str) -> Result<Arc<Entry>, ApiError> {
        let own = &*self.options.worker_id;
        let (worker, uuid) = id.rsplit_once('.').unwrap_or(("", id));
        let found = Uuid::try_parse(uuid).ok().and_then(|uuid| self.table.lock().find(uuid));
        found.filter(|_| worker == own).ok_or_else(|| {
            let why = match worker {
                "" => "job not found; ids of jobs begin with the name of their worker".to_owned(),
                _ if worker == own => {
                    "job not found; finished jobs are removed after a few minutes".to_owned()
                }
                _ => format!("job not found; it belongs to the worker {worker:?}, and this is {own:?}"),
            };
            ApiError::not_found(why).with_code("job_not_found")
        })
    }

    fn id(&self, entry: &Entry) -> String {
        format!("{}.{}", self.options.worker_id, entry.id)
    }

    fn frame(&self, event: &E) -> Result<Frame, ApiError> {
        Frame::new(event, self.options.name.and_then(|name| name(event)))
    }

    /// Closes a job, after an event that reports `error` if there is one.
    fn close(&self, entry: &Entry, error: Option<&ApiError>) {
        let last = error.map(|error| {
            let event = (self.options.error)(error);
            self.frame(&event).unwrap_or_else(|broken| Frame::error(&broken.body(), None))
        });
        if let Some(bytes) = entry.close(last) {
            self.table.lock().mark_ended(entry.id, bytes);
        }
    }
}

/// Producer handle of a job. If it is dropped without [`Job::end`] or [`Job::fail`], the job fails.
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
    /// Returns the id of the job.
    pub fn id(&self) -> String {
        self.shared.id(&self.entry)
    }

    /// Appends an event. Returns false if the job is closed (worker aborted, log full, event not
    /// serializable) and its producer must stop. A cancelled job may still append its final event.
    pub fn push(&self, event: &E) -> bool {
        let written = self.shared.frame(event).and_then(|frame| {
            let fits = self.entry.push(frame, self.shared.options.max_log_bytes);
            let full = || ApiError::internal("the job exceeded its log size limit");
            fits.then_some(()).ok_or_else(|| full().with_code("log_full"))
        });
        let Err(error) = written else { return true };
        self.shared.close(&self.entry, Some(&error));
        self.entry.cancel();
        false
    }

    /// Closes the job. Readers receive the remaining events before the end of the stream.
    pub fn end(self) {
        self.shared.close(&self.entry, None);
    }

    /// Closes the job with an event that reports `error`.
    pub fn fail(self, error: &ApiError) {
        self.shared.close(&self.entry, Some(error));
    }

    /// Keeps a value until the job ends, such as the [`crate::WorkPermit`] of the client.
    pub fn hold(&self, held: impl Send + 'static) {
        self.entry.hold(Box::new(held));
    }

    /// Returns true if cancellation has been requested.
    pub fn is_cancelled(&self) -> bool {
        self.entry.is_cancelled()
    }

    /// Returns a future that completes when cancellation is requested. It can be moved to another task.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<E> {
        let entry = self.entry.clone();
        async move { entry.cancelled().await }
    }

    /// Registers a hook that is called once on cancellation, or immediately if the job has been cancelled. It
    /// replaces an earlier hook.
    pub fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) {
        self.entry.on_cancel(Box::new(hook));
    }
}

impl<E: Serialize> Drop for Job<E> {
    fn drop(&mut self) {
        // Only the first close has an effect, so this does nothing after `end`.
        self.shared.close(&self.entry, Some(&ApiError::internal("the job ended unexpectedly; see the log")));
    }
}

#[cfg(test)]
mod tests;
