//! The states of a worker from its start to its end.

use parking_lot::Mutex;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What the worker does now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    /// It prepares itself and takes no work.
    Loading {
        /// How far it is, 0 to 1.
        progress: f32,
        /// What it does: "reading the weights".
        what: String,
    },
    /// It takes work.
    Ready,
    /// It ends: running work goes on, no other is taken.
    Draining,
    /// It cannot work.
    Failed {
        /// Why, and what to do.
        reason: String,
    },
}

impl State {
    /// Why no work is taken now, and when to ask again; `None` where work is taken.
    pub fn refusal(&self) -> Option<(String, Duration)> {
        match self {
            State::Ready => None,
            State::Loading { progress, what } => {
                Some((format!("loading, {:.0}%: {what}", progress * 100.0), Duration::from_secs(5)))
            }
            State::Draining => Some(("the worker is ending".to_owned(), Duration::from_secs(10))),
            State::Failed { reason } => Some((reason.clone(), Duration::from_secs(60))),
        }
    }
}

type Hook = Box<dyn FnOnce() + Send>;

struct Shared {
    started: Instant,
    state: watch::Sender<State>,
    /// Why the worker can never work again.
    failure: watch::Sender<Option<String>>,
    cut: watch::Sender<bool>,
    work: watch::Sender<usize>,
    at_cut: Mutex<Vec<Hook>>,
}

/// A handle to the worker's state; clones share it.
///
/// It begins as loading. [`Lifecycle::drain`] is final. A failed worker works again only by way of
/// [`Lifecycle::loading`].
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
    /// A worker that has just begun to load.
    pub fn new() -> Lifecycle {
        let state = State::Loading { progress: 0.0, what: "starting".to_owned() };
        Lifecycle(Arc::new(Shared {
            started: Instant::now(),
            state: watch::Sender::new(state),
            failure: watch::Sender::new(None),
            cut: watch::Sender::new(false),
            work: watch::Sender::new(0),
            at_cut: Mutex::new(Vec::new()),
        }))
    }

    /// Says how far loading is (0 to 1), and what is being done.
    pub fn loading(&self, progress: f32, what: impl Into<String>) {
        let progress = if progress.is_nan() { 0.0 } else { progress.clamp(0.0, 1.0) };
        self.go(State::Loading { progress, what: what.into() }, |_| true);
    }

    /// The worker takes work from now on, unless it has failed or is ending.
    pub fn ready(&self) {
        self.go(State::Ready, |now| !matches!(now, State::Failed { .. }));
    }

    /// The worker cannot work until it is loaded anew. `reason` is for people, and says what to do.
    pub fn suspend(&self, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(reason, "the worker failed");
        self.go(State::Failed { reason }, |_| true);
    }

    /// The worker can never work again: it is suspended, and [`crate::serve`] ends a few seconds later with `reason` as its
    /// error, so that whatever supervises the process restarts it. The first reason stays.
    pub fn fail(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let first = self.0.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| reason.clone());
            first
        });
        if first {
            self.suspend(reason);
        }
    }

    /// Why the worker can never work again, if that is so.
    pub fn failure(&self) -> Option<String> {
        self.0.failure.borrow().clone()
    }

    /// Begins the end, as SIGTERM does.
    pub fn drain(&self) {
        self.go(State::Draining, |_| true);
    }

    /// Ends what still runs: streams get an error event, jobs are cancelled. [`crate::serve`] calls it at the
    /// deadline.
    pub fn cut(&self) {
        self.drain();
        self.0.cut.send_replace(true);
        let hooks = std::mem::take(&mut *self.0.at_cut.lock());
        hooks.into_iter().for_each(|hook| hook());
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.0.state.borrow().clone()
    }

    /// Whether work is taken.
    pub fn is_ready(&self) -> bool {
        *self.0.state.borrow() == State::Ready
    }

    /// How long the worker lives.
    pub fn age(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// Tells of every change of the state.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.0.state.subscribe()
    }

    /// Waits until the worker begins to end.
    pub async fn draining(&self) {
        wait(&self.0.state, |state| *state == State::Draining).await;
    }

    /// Waits until [`Lifecycle::fail`].
    pub(crate) async fn failed(&self) {
        wait(&self.0.failure, |failure| failure.is_some()).await;
    }

    /// Waits until [`Lifecycle::cut`].
    pub async fn cut_off(&self) {
        wait(&self.0.cut, |cut| *cut).await;
    }

    /// Waits until no [`Work`] is left.
    pub async fn idle(&self) {
        wait(&self.0.work, |work| *work == 0).await;
    }

    /// Something that the end of the worker waits for while it lives: a request, a job.
    pub fn work(&self) -> Work {
        self.0.work.send_modify(|work| *work += 1);
        Work(self.clone())
    }

    /// Whether [`Lifecycle::cut`] has been.
    pub fn is_cut(&self) -> bool {
        *self.0.cut.borrow()
    }

    /// How many [`Work`] there are.
    pub fn working(&self) -> usize {
        *self.0.work.borrow()
    }

    /// Calls `hook` at [`Lifecycle::cut`], or now if that has been.
    pub fn at_cut(&self, hook: impl FnOnce() + Send + 'static) {
        let mut hooks = self.0.at_cut.lock();
        if *self.0.cut.borrow() {
            drop(hooks);
            return hook();
        }
        hooks.push(Box::new(hook));
    }

    fn go(&self, next: State, may: impl FnOnce(&State) -> bool) {
        self.0.state.send_if_modified(|now| {
            // Loading after a failure is a try anew; nothing comes after the end.
            let changes = *now != State::Draining && *now != next && may(now);
            if changes {
                *now = next;
            }
            changes
        });
    }
}

async fn wait<T>(sender: &watch::Sender<T>, until: impl FnMut(&T) -> bool) {
    // The sender lives as long as this borrow of it, so that the wait cannot fail.
    let _ = sender.subscribe().wait_for(until).await;
}

/// Work that runs, until it is dropped.
#[derive(Debug)]
pub struct Work(Lifecycle);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.0.work.send_modify(|work| *work -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn goes_the_way_from_loading_to_draining() {
        let lifecycle = Lifecycle::new();
        assert!(!lifecycle.is_ready());
        lifecycle.loading(7.0, "weights");
        assert_eq!(lifecycle.state(), State::Loading { progress: 1.0, what: "weights".into() });
        lifecycle.ready();
        assert!(lifecycle.is_ready() && lifecycle.state().refusal().is_none());
        lifecycle.suspend("the card is lost");
        lifecycle.ready();
        assert_eq!(lifecycle.state(), State::Failed { reason: "the card is lost".into() });
        lifecycle.loading(0.0, "again");
        lifecycle.ready();
        assert!(lifecycle.is_ready());
        lifecycle.drain();
        lifecycle.ready();
        lifecycle.loading(0.5, "again");
        lifecycle.suspend("late");
        assert_eq!(lifecycle.state(), State::Draining);
    }

    #[test]
    fn progress_that_is_no_number_is_none() {
        let lifecycle = Lifecycle::new();
        lifecycle.loading(f32::NAN, "x");
        assert_eq!(lifecycle.state(), State::Loading { progress: 0.0, what: "x".into() });
    }

    #[tokio::test]
    async fn is_idle_when_the_last_work_ends() {
        let lifecycle = Lifecycle::new();
        lifecycle.idle().await;
        let (one, two) = (lifecycle.work(), lifecycle.work());
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
    async fn hooks_run_once_at_the_cut_and_at_once_after_it() {
        let (lifecycle, count) = (Lifecycle::new(), Arc::new(AtomicUsize::new(0)));
        let hook = || {
            let count = count.clone();
            move || {
                let _ = count.fetch_add(1, Ordering::Relaxed);
            }
        };
        lifecycle.at_cut(hook());
        assert_eq!(count.load(Ordering::Relaxed), 0);
        lifecycle.cut();
        lifecycle.cut();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        lifecycle.at_cut(hook());
        assert_eq!(count.load(Ordering::Relaxed), 2);
        lifecycle.cut_off().await;
        lifecycle.draining().await;
    }
}
