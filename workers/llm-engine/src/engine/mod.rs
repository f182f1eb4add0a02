//! The thread that owns the model, the handle to it, the scheduler and the blocks of the cache.
//!
//! | file | subject |
//! |---|---|
//! | `blocks` | blocks of the cache: who holds them, which are shared |
//! | `sequence` | a request's tokens, and where they lie in the cache |
//! | `scheduler` | which rows the next step has |
//! | `writer` | a request's text, random numbers, grammar and events |
//! | `limits` | what is refused before work starts |
//! | `embedding` | prompts to be embedded |
//! | `thread` | the loop that steps |
//! | `status` | what thread and handles both see |
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use model_thread::ModelThread;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::request::{Event, Refused, Request};
use crate::step::{BLOCK, Capacity, StepModel};
use crate::text::Text;

pub mod blocks;
mod embedding;
mod limits;
pub mod scheduler;
pub mod sequence;
mod status;
mod thread;
mod writer;

pub use embedding::Embedded;
pub use status::Status;

use embedding::Embedding;
use scheduler::{Limits, Scheduler};
use sequence::Sequence;
use status::{Place, Shared};
use thread::{Command, Worker};
use writer::Writer;

/// Tokens of a prompt that is embedded, if a step has not more: a prompt is computed at once, while all streams wait, and
/// outside of the cache.
const EMBEDDED: usize = 2048;

/// Bounds of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Requests that hold blocks of the cache at once; no more than `step_tokens` do.
    pub max_running: usize,
    /// Requests, and embeddings, taken beyond those.
    pub max_waiting: usize,
    /// Rows of one step at most: bounds how long a step takes.
    pub step_tokens: usize,
    /// Whether blocks of a common prefix are shared, and kept for requests to come.
    pub prefix_cache: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_running: 64, max_waiting: 256, step_tokens: 512, prefix_cache: true }
    }
}

/// A handle to a running engine. When the last is dropped, the engine goes on until all streams have ended.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    text: Arc<Text>,
    capacity: Capacity,
    /// Requests that may be open at once.
    most: usize,
    /// Tokens of a prompt that is embedded.
    longest: usize,
    thread: ModelThread,
}

impl Engine {
    /// Starts a thread that owns the model.
    ///
    /// # Errors
    /// If an option is zero where it may not be, the model's cache has no block or more than can be numbered, or no
    /// thread can be started.
    pub fn start(model: Box<dyn StepModel>, text: Arc<Text>, options: Options) -> Result<Self> {
        let Options { max_running, max_waiting, step_tokens, prefix_cache } = options;
        let capacity = model.capacity();
        ensure!(max_running > 0 && step_tokens > 0, "max_running and step_tokens must be at least 1");
        ensure!(capacity.blocks > 0, "the model's cache has no block: give it more memory");
        let slots = capacity.blocks.checked_mul(BLOCK).and_then(|slots| u32::try_from(slots).ok());
        ensure!(slots.is_some(), "a cache of {} blocks has more slots than u32 counts", capacity.blocks);
        let running = max_running.min(step_tokens);
        let limits = Limits { running, rows: step_tokens };
        let scheduler = Scheduler::new(capacity.blocks as u32, prefix_cache, limits);
        let shared = Arc::new(Shared::default());
        let (commands, received) = channel();
        let worker = Worker::new(model, scheduler, step_tokens, received, shared.clone());
        let thread = ModelThread::spawn("llm-engine", move || worker.run());
        let thread = thread.context("cannot start the engine's thread")?;
        let most = running.saturating_add(max_waiting);
        let longest = step_tokens.max(EMBEDDED).min(capacity.context);
        let inner = Inner { commands, shared, text, capacity, most, longest, thread };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Takes a request. Its stream tells the text.
    ///
    /// # Errors
    /// If it can never be served, if too many wait, or if the engine drains, stops or has failed. Nothing is computed
    /// then.
    pub fn submit(&self, request: Request) -> Result<Stream, Refused> {
        let Inner { text, capacity, .. } = &*self.inner;
        let max_tokens = limits::max_tokens(&request, *capacity)?;
        let place = self.place()?;
        let grammar = request.constraint.as_ref().map(|constraint| text.grammar(constraint)).transpose();
        let grammar =
            grammar.map_err(|error| Refused::Invalid { field: "constraint", why: format!("{error:#}") })?;
        let (sender, events) = unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let (prompt, writer) =
            Writer::new(request, max_tokens, grammar, text, place, sender, cancelled.clone());
        self.send(Command::Submit(Box::new(Sequence::new(prompt, writer))))?;
        Ok(Stream { events, cancelled })
    }

    /// Takes prompts to be embedded: the mean of the last states of each, in order. They are computed between steps, a
    /// few at a time; dropping the receiver ends that.
    ///
    /// # Errors
    /// As [`Self::submit`]. The receiver tells if the device fails.
    pub fn embed(&self, prompts: Vec<Vec<u32>>) -> Result<oneshot::Receiver<Embedded>, Refused> {
        let capacity = self.inner.capacity;
        for prompt in &prompts {
            limits::prompt("prompts", prompt, capacity)?;
            if prompt.len() > self.inner.longest {
                return Err(Refused::EmbeddingLength { prompt: prompt.len(), limit: self.inner.longest });
            }
        }
        let (reply, receiver) = oneshot::channel();
        self.send(Command::Embed(Embedding::new(prompts, self.place()?, reply)))?;
        Ok(receiver)
    }

    /// Tokens that a prompt may have to be embedded.
    pub fn longest_embedded(&self) -> usize {
        self.inner.longest
    }

    /// The tokenizer and what belongs to it.
    pub fn text(&self) -> &Arc<Text> {
        &self.inner.text
    }

    /// What the model can hold.
    pub fn capacity(&self) -> Capacity {
        self.inner.capacity
    }

    /// How it does; never waits for a step.
    pub fn status(&self) -> Status {
        self.inner.shared.status(self.inner.capacity.blocks)
    }

    /// Takes no more requests; those taken go on.
    pub fn drain(&self) {
        self.inner.shared.draining.store(true, Relaxed);
    }

    /// Calls `hook` with the reason when the engine fails, before its streams end; at once if it has failed already. The
    /// first hook stays.
    pub fn on_failure(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        self.inner.shared.on_failure(Box::new(hook));
    }

    /// Ends all streams, as if cancelled, and waits for the step that is being computed and for the thread.
    pub fn stop(&self) {
        self.request_stop();
        self.inner.thread.join();
    }

    /// Like [`Self::stop`], but waits at most for `limit`. Returns false if the thread still runs, because the device
    /// hangs; it is then left to itself.
    pub fn stop_within(&self, limit: Duration) -> bool {
        self.request_stop();
        self.inner.thread.join_within(limit)
    }

    fn request_stop(&self) {
        self.inner.shared.stopping.store(true, Relaxed);
        // It fails where the thread has ended already.
        let _ = self.inner.commands.send(Command::Stop);
    }

    fn place(&self) -> Result<Place, Refused> {
        self.closed()?;
        let Inner { shared, most, capacity, .. } = &*self.inner;
        Place::take(shared, *most)
            .map_err(|_| Refused::QueueFull { waiting: shared.status(capacity.blocks).waiting })
    }

    fn closed(&self) -> Result<(), Refused> {
        let shared = &self.inner.shared;
        let why = match shared.failed() {
            Some(failure) => failure.message.as_str(),
            None if shared.stopping.load(Relaxed) => "it was stopped",
            None if shared.draining.load(Relaxed) => "it drains",
            None => return Ok(()),
        };
        Err(Refused::Closed { why: why.into() })
    }

    fn send(&self, command: Command) -> Result<(), Refused> {
        self.inner.commands.send(command).map_err(|_| {
            let closed = self.closed().err();
            closed.unwrap_or_else(|| Refused::Closed { why: "its thread has ended".into() })
        })
    }
}

/// The events of a request. Dropping it cancels the request.
pub struct Stream {
    events: UnboundedReceiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Stream {
    /// The next event; none behind the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event; none behind the last. Waits for it; not to be called from asynchronous code.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Cancels the request before its next step; the stream still tells the end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }
}
