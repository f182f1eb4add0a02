//! State machine of a worker from startup to shutdown.

use parking_lot::Mutex;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// State of the worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    /// The worker is loading and rejects work.
    Loading {
        /// Completed fraction, 0 to 1.
        progress: f32,
        /// Current activity, such as "reading the weights".
        what: String,
    },
    /// The worker accepts work.
    Ready,
    /// The worker will shut down soon. It reports that it is not ready, but still accepts work, until all gateways have
    /// noticed.
    Terminating,
    /// The worker is shutting down: running work continues, new work is rejected.
    Draining,
    /// The worker has failed and rejects work.
    Failed {
        /// Cause and remedy.
        reason: String,
    },
}

impl State {
    /// Returns why work is rejected and when to retry, or `None` if work is accepted.
    pub fn refusal(&self) -> Option<(String, Duration)> {
        match self {
            State::Ready | State::Terminating => None,
            State::Loading { progress, what } => {
                Some((format!("loading, {:.0}%: {what}", progress * 100.0), Duration::from_secs(5)))
            }
            State::Draining => Some(("the worker is shutting down".to_owned(), Duration::from_secs(10))),
            State::Failed { reason } => Some((reason.clone(), Duration::from_secs(60))),
        }
    }

    /// Returns why the worker is not ready and when to retry, or `None` if it is ready.
    pub(crate) fn not_ready(&self) -> Option<(String, Duration)> {
        match self {
            State::Terminating => {
                Some(("the worker will shut down soon".to_owned(), Duration::from_secs(10)))
            }
            state => state.refusal(),
        }
    }
}

type Hook = Box<dyn FnOnce() + Send>;

struct Shared {
    started: Instant,
    state: watch::Sender<State>,
    /// Cause of a permanent failure.
    failure: watch::Sender<Option<String>>,
    aborted: watch::Sender<bool>,
    work: watch::Sender<usize>,
    on_abort: Mutex<Vec<Hook>>,
}

/// Handle to the state of the worker. Clones share the state.
///
/// The initial state is [`State::Loading`], and [`State::Draining`] is final. A failed worker becomes ready
/// again only after [`Lifecycle::loading`].
#[derive(Clone)]
pub struct Lifecycle(Arc<Shared>);

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle::new()
    }
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lifecycle").field(&self.state()).finish()
    }
}

impl Lifecycle {
    /// Creates a handle in the state [`State::Loading`].
    pub fn new() -> Lifecycle {
        let state = State::Loading { progress: 0.0, what: "starting".to_owned() };
        Lifecycle(Arc::new(Shared {
            started: Instant::now(),
            state: watch::Sender::new(state),
            failure: watch::Sender::new(None),
            aborted: watch::Sender::new(false),
            work: watch::Sender::new(0),
            on_abort: Mutex::new(Vec::new()),
        }))
    }

    /// Reports the completed fraction of loading (0 to 1) and the current activity.
    pub fn loading(&self, progress: f32, what: impl Into<String>) {
        let progress = if progress.is_nan() { 0.0 } else { progress.clamp(0.0, 1.0) };
        self.transition(State::Loading { progress, what: what.into() }, |now| *now != State::Terminating);
    }

    /// Sets the state to ready, unless the worker has failed, will shut down or is draining.
    pub fn ready(&self) {
        self.transition(State::Ready, |now| !matches!(now, State::Failed { .. } | State::Terminating));
    }

    /// Marks the worker as failed until it is loaded again. `reason` is for users: cause and remedy.
    pub fn mark_failed(&self, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(reason, "the worker failed");
        self.transition(State::Failed { reason }, |_| true);
    }

    /// Reports a permanent failure: the worker is marked as failed, and [`crate::serve`] returns `reason` a
    /// few seconds later, so that a supervisor restarts the process. Later calls keep the first reason.
    pub fn fail(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let first = self.0.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| reason.clone());
            first
        });
        if first {
            self.mark_failed(reason);
        }
    }

    /// Returns the cause of a permanent failure, if one was reported.
    pub fn failure(&self) -> Option<String> {
        self.0.failure.borrow().clone()
    }

    /// Announces a shutdown: the worker is no longer ready, but accepts work until [`Lifecycle::drain`]. A worker that
    /// does not accept work drains immediately.
    pub fn terminate(&self) {
        self.transition(State::Terminating, |now| *now == State::Ready);
        if self.state() != State::Terminating {
            self.drain();
        }
    }

    /// Starts a graceful shutdown, like SIGTERM without `--drain-grace`.
    pub fn drain(&self) {
        self.transition(State::Draining, |_| true);
    }

    /// Aborts running work: streams end with an error event and jobs are cancelled. [`crate::serve`] calls it
    /// at the shutdown deadline.
    pub fn abort(&self) {
        self.drain();
        self.0.aborted.send_replace(true);
        let hooks = std::mem::take(&mut *self.0.on_abort.lock());
        hooks.into_iter().for_each(|hook| hook());
    }

    /// Returns the current state.
    pub fn state(&self) -> State {
        self.0.state.borrow().clone()
    }

    /// Returns true if work is accepted.
    pub fn is_ready(&self) -> bool {
        *self.0.state.borrow() == State::Ready
    }

    /// Returns the time since the worker was started.
    pub fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// Returns a receiver that is notified of every change of the state.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.0.state.subscribe()
    }

    /// Waits until the worker is draining.
    pub async fn draining(&self) {
        wait(&self.0.state, |state| *state == State::Draining).await;
    }

    /// Waits until [`Lifecycle::fail`] is called.
    pub(crate) async fn failed(&self) {
        wait(&self.0.failure, |failure| failure.is_some()).await;
    }

    /// Waits until [`Lifecycle::abort`] is called.
    pub async fn aborted(&self) {
        wait(&self.0.aborted, |aborted| *aborted).await;
    }

    /// Waits until all [`WorkGuard`]s have been dropped.
    pub async fn idle(&self) {
        wait(&self.0.work, |work| *work == 0).await;
    }

    /// Registers running work, such as a request or a job. Shutdown waits until the guard is dropped.
    pub fn start_work(&self) -> WorkGuard {
        self.0.work.send_modify(|work| *work += 1);
        WorkGuard(self.clone())
    }

    /// Returns true if [`Lifecycle::abort`] has been called.
    pub fn is_aborted(&self) -> bool {
        *self.0.aborted.borrow()
    }

    /// Returns the number of [`WorkGuard`]s.
    pub fn active_work(&self) -> usize {
        *self.0.work.borrow()
    }

    /// Registers a hook for [`Lifecycle::abort`]. It is called immediately if the worker has been aborted.
    pub fn on_abort(&self, hook: impl FnOnce() + Send + 'static) {
        let mut hooks = self.0.on_abort.lock();
        if *self.0.aborted.borrow() {
            drop(hooks);
            return hook();
        }
        hooks.push(Box::new(hook));
    }

    fn transition(&self, next: State, allowed: impl FnOnce(&State) -> bool) {
        self.0.state.send_if_modified(|now| {
            // Loading may follow a failure as another attempt, but draining is final.
            let changes = *now != State::Draining && *now != next && allowed(now);
            if changes {
                *now = next;
            }
            changes
        });
    }
}

async fn wait<T>(sender: &watch::Sender<T>, until: impl FnMut(&T) -> bool) {
    // This cannot fail, because the sender is borrowed during the wait.
    let _ = sender.subscribe().wait_for(until).await;
}

/// Registration of running work, which ends when the guard is dropped.
#[derive(Debug)]
pub struct WorkGuard(Lifecycle);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.0.0.work.send_modify(|work| *work -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_state_changes_from_loading_to_draining() {
        let lifecycle = Lifecycle::new();
        assert!(!lifecycle.is_ready());
        lifecycle.loading(7.0, "weights");
        assert_eq!(lifecycle.state(), State::Loading { progress: 1.0, what: "weights".into() });
        lifecycle.ready();
        assert!(lifecycle.is_ready() && lifecycle.state().refusal().is_none());
        lifecycle.mark_failed("the device failed");
        lifecycle.ready();
        assert_eq!(lifecycle.state(), State::Failed { reason: "the device failed".into() });
        lifecycle.loading(0.0, "again");
        lifecycle.ready();
        assert!(lifecycle.is_ready());
        lifecycle.drain();
        lifecycle.ready();
        lifecycle.loading(0.5, "again");
        lifecycle.mark_failed("late");
        assert_eq!(lifecycle.state(), State::Draining);
    }

    #[test]
    fn a_terminating_worker_accepts_work_but_is_not_ready() {
        let lifecycle = Lifecycle::new();
        lifecycle.ready();
        lifecycle.terminate();
        lifecycle.loading(0.5, "again");
        lifecycle.ready();
        lifecycle.terminate();
        assert_eq!(lifecycle.state(), State::Terminating);
        assert!(!lifecycle.is_ready() && lifecycle.state().refusal().is_none());
        assert!(lifecycle.state().not_ready().is_some());
        lifecycle.drain();
        assert_eq!(lifecycle.state(), State::Draining);
        let loading = Lifecycle::new();
        loading.terminate();
        assert_eq!(loading.state(), State::Draining);
    }

    #[test]
    fn nan_progress_is_zero() {
        let lifecycle = Lifecycle::new();
        lifecycle.loading(f32::NAN, "x");
        assert_eq!(lifecycle.state(), State::Loading { progress: 0.0, what: "x".into() });
    }

    #[tokio::test]
    async fn idle_completes_when_the_last_guard_is_dropped() {
        let lifecycle = Lifecycle::new();
        lifecycle.idle().await;
        let (one, two) = (lifecycle.start_work(), lifecycle.start_work());
        let idle = tokio::spawn({
            let lifecycle = lifecycle.clone();
            async move { lifecycle.idle().await }
        });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!idle.is_finished());
        drop(two);
        idle.await.unwrap();
    }

    #[tokio::test]
    async fn abort_hooks_run_once_and_immediately_after_an_abort() {
        let (lifecycle, count) = (Lifecycle::new(), Arc::new(AtomicUsize::new(0)));
        let hook = || {
            let count = count.clone();
            move || {
                let _ = count.fetch_add(1, Ordering::Relaxed);
            }
        };
        lifecycle.on_abort(hook());
        assert_eq!(count.load(Ordering::Relaxed), 0);
        lifecycle.abort();
        lifecycle.abort();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        lifecycle.on_abort(hook());
        assert_eq!(count.load(Ordering::Relaxed), 2);
        lifecycle.aborted().await;
        lifecycle.draining().await;
    }
}
