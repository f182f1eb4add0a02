//! Continuous-batching engine: the model's thread, its handle, the scheduler and the block pool.
//!
//! | file | subject |
//! |---|---|
//! | `blocks` | reference-counted cache blocks and prefix sharing |
//! | `cache_events` | record of cached blocks, for gateways |
//! | `states` | slots of recurrent states, and their checkpoints |
//! | `sequence` | a request's tokens and blocks |
//! | `scheduler` | selection of the rows of each step |
//! | `speculation` | proposal of draft tokens, which a step verifies together |
//! | `draft_model` | draft tokens from a smaller model, or from the head that predicts further tokens |
//! | `ngram` | draft tokens by prompt lookup |
//! | `draft_length` | number of draft tokens, adapted to their acceptance |
//! | `overlap` | host work on other threads during a step |
//! | `writer` | a request's text, random numbers, grammar and events |
//! | `events` | bounded channel from the thread to a stream |
//! | `limits` | validation of requests |
//! | `embedding` | embedding jobs |
//! | `residency` | unloading of a model that is not needed |
//! | `slots` | slots for loaded models, which several engines share |
//! | `thread` | main loop of the engine thread |
//! | `adapters` | adapters in the memory of the device or the host |
//! | `status` | state shared by the thread and the handles |
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use model_thread::ModelThread;
use tokio::sync::{mpsc, oneshot};

use crate::model::adapter::{self, Adapter, AdapterTargets};
use crate::model::cache_dtype::CacheDType;
use crate::model::vision::{ImageProcessor, PromptAxes};
use crate::request::{Event, Request, RequestError};
use crate::step::{BLOCK_SIZE, Capacity, StepModel, Tasks};
use crate::text::TextCodec;

mod adapters;
pub mod blocks;
mod cache_events;
mod draft_length;
mod draft_model;
mod embedding;
mod events;
mod limits;
mod ngram;
mod overlap;
mod residency;
pub mod scheduler;
pub mod sequence;
mod slots;
mod speculation;
pub mod states;
mod status;
mod thread;
mod writer;

pub use cache_events::{CacheEvent, CacheEventSink, block_hash, seed};
pub use embedding::EmbeddingResult;
pub use residency::{ModelSource, ModelState, Unloading};
pub use slots::{ModelSlot, ModelSlots};
pub use speculation::{DraftSource, MAX_DRAFT_TOKENS, Speculation};
pub use status::Status;

use adapters::AdapterJob;
use embedding::EmbeddingJob;
use events::EventSink;
use residency::{ResidentModel, SlotCallbacks};
use scheduler::{Limits, Scheduler};
use sequence::{PromptPictures, Sequence};
use speculation::Drafter;
use status::{QueueSlot, Shared};
use thread::{Command, EngineLoop};
use writer::Writer;

/// Minimum length limit of embedded prompts, in tokens, if a step has fewer rows. Prompts longer than a step are
/// computed in parts, so that streams wait for at most one step.
const MIN_EMBEDDING_LIMIT: usize = 2048;

/// Maximum number of bytes of the logits of prompts in a step, unless a single row has more.
const PROMPT_LOGITS_BYTES: usize = 128 << 20;

/// Limits of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum number of requests in a batch, limited to `step_tokens`.
    pub max_running: usize,
    /// Maximum number of requests and embedding jobs that wait in addition.
    pub max_waiting: usize,
    /// Maximum number of rows per step, which bounds the duration of a step.
    pub step_tokens: usize,
    /// Maximum number of rows per step while no text is being generated; no effect if it is less than `step_tokens`.
    pub prompt_step_tokens: usize,
    /// If true, requests share the cache blocks of common prefixes, which are kept for later requests.
    pub prefix_cache: bool,
    /// Maximum number of unread events of a stream. Above it, the stream ends with an error, because the engine does
    /// not wait for readers.
    pub max_unread: usize,
    /// Speculative decoding; `None` computes one token of each text in a step.
    pub speculation: Option<Speculation>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_running: 64,
            max_waiting: 256,
            step_tokens: 512,
            prompt_step_tokens: 0,
            prefix_cache: true,
            max_unread: 4096,
            speculation: None,
        }
    }
}

/// Handle to a running engine. Without handles, the engine runs until all streams have ended.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    commands: Arc<Sender<Command>>,
    shared: Arc<Shared>,
    text: Arc<TextCodec>,
    capacity: Capacity,
    tasks: Tasks,
    cache_dtype: Option<CacheDType>,
    /// Maximum number of open requests.
    max_open: usize,
    /// Maximum number of rows per step.
    step_tokens: usize,
    /// Maximum length of an embedded prompt, in tokens.
    embedding_limit: usize,
    /// Maximum number of unread events of a stream.
    max_unread: usize,
    /// Maximum number of draft tokens of a text in a step; 0 without speculation.
    max_drafts: usize,
    adapter_targets: Option<AdapterTargets>,
    image_processor: std::result::Result<Arc<ImageProcessor>, &'static str>,
    thread: ModelThread,
}

impl Engine {
    /// Starts the engine thread, which takes ownership of the model.
    ///
    /// # Errors
    /// Returns an error for a zero option, an empty or oversized cache, or if the thread cannot be started.
    pub fn start(model: Box<dyn StepModel>, text: Arc<TextCodec>, options: Options) -> Result<Self> {
        Self::start_unloading(model, text, options, None)
    }

    /// Like [`Self::start`]. With `unloading`, the model is unloaded when it is not needed; the next request waits until it
    /// is loaded again.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_unloading(
        mut model: Box<dyn StepModel>,
        text: Arc<TextCodec>,
        options: Options,
        unloading: Option<Unloading>,
    ) -> Result<Self> {
        let Options { max_running, max_waiting, step_tokens, prefix_cache, max_unread, .. } = options;
        let (prompt_rows, speculation) = (options.prompt_step_tokens, options.speculation);
        let (capacity, tasks) = (model.capacity(), model.tasks());
        let adapter_targets = model.adapter_targets().cloned();
        let (image_processor, cache_dtype) = (model.image_processor(), model.cache_dtype());
        ensure!(max_running > 0 && step_tokens > 0, "max_running and step_tokens must be at least 1");
        ensure!((1..1 << 20).contains(&max_unread), "max_unread is {max_unread}, but must be 1 to 1048575");
        ensure!(capacity.blocks > 0, "the cache has no blocks; give it more memory");
        speculation.iter().try_for_each(Speculation::check)?;
        let max_drafts = speculation.as_ref().map_or(0, |speculation| speculation.max_tokens);
        let slots = capacity.blocks.checked_mul(BLOCK_SIZE).and_then(|slots| u32::try_from(slots).ok());
        ensure!(slots.is_some(), "a cache of {} blocks has more slots than u32 can index", capacity.blocks);
        let running = max_running.min(step_tokens).min(capacity.states.unwrap_or(usize::MAX));
        let scored_rows = (PROMPT_LOGITS_BYTES / size_of::<f32>() / capacity.vocabulary.max(1)).max(1);
        let drafter = speculation.map(|speculation| Drafter::new(speculation, &mut *model, step_tokens));
        let drafter = drafter.transpose()?;
        let limits = Limits { running, rows: step_tokens, prompt_rows, scored_rows };
        let scheduler = Scheduler::new(capacity.blocks as u32, prefix_cache, limits);
        let scheduler = scheduler.with_states(capacity.states.unwrap_or(0) as u32);
        let shared = Arc::new(Shared::default());
        let (commands, received) = channel();
        let commands = Arc::new(commands);
        let model = ResidentModel::new(model, unloading, slot_callbacks(&commands));
        let engine_loop = EngineLoop::new(model, scheduler, drafter, step_tokens, received, shared.clone());
        let thread = ModelThread::spawn("llm-engine", move || engine_loop.run());
        let thread = thread.context("cannot start the engine's thread")?;
        let max_open = running.saturating_add(max_waiting);
        let embedding_limit = match tasks.generate {
            true => step_tokens.max(MIN_EMBEDDING_LIMIT).min(capacity.context),
            // No streams wait for embeddings.
            false => capacity.context,
        };
        let inner = Inner {
            commands,
            shared,
            text,
            capacity,
            tasks,
            cache_dtype,
            max_open,
            step_tokens,
            embedding_limit,
            max_unread,
            max_drafts,
            adapter_targets,
            image_processor,
            thread,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Queues a request. The returned stream delivers its events.
    ///
    /// # Errors
    /// Returns an error, without computing anything, if the request is invalid, the queue is full, or the
    /// engine is draining, stopped or has failed.
    pub fn submit(&self, request: Request) -> Result<Stream, RequestError> {
        let Inner { text, capacity, tasks, .. } = &*self.inner;
        if !tasks.generate {
            return Err(RequestError::Unsupported { task: "text", tasks: *tasks });
        }
        let max_tokens = limits::max_tokens(&request, *capacity)?;
        let pictures = self.prompt_pictures(&request)?;
        let slot = self.queue_slot(1)?;
        let grammar = request.constraint.as_ref().map(|constraint| text.grammar(constraint)).transpose();
        let grammar = grammar
            .map_err(|error| RequestError::Invalid { field: "constraint", why: format!("{error:#}") })?;
        let (sink, events) = EventSink::new(self.inner.max_unread);
        let cancelled = Arc::new(AtomicBool::new(false));
        let limits = (max_tokens, capacity.vocabulary, self.inner.max_drafts);
        let (client, salt, adapter) = (request.client, request.cache_salt, request.adapter.clone());
        let (scores_prompt, is_uncached) = (request.prompt_logprobs.is_some(), request.no_cached_prefix);
        let (prompt, writer) = Writer::new(request, limits, grammar, text, slot, sink, cancelled.clone());
        let sequence = Sequence::new(prompt, writer).of_client(client).with_salt(salt).with_adapter(adapter);
        let sequence = sequence.with_pictures(pictures);
        let sequence = match (scores_prompt, is_uncached) {
            (true, _) => sequence.with_prompt_logits(),
            (false, true) => sequence.without_sharing(),
            (false, false) => sequence,
        };
        self.send(Command::Submit(Box::new(sequence)))?;
        Ok(Stream { events, cancelled, commands: Arc::downgrade(&self.inner.commands) })
    }

    /// Queues prompts for embedding. The result of each is one vector, in order, pooled as the model's files
    /// specify. Prompts are computed in batches between steps; dropping the receiver cancels the rest. A job counts as
    /// one queued request for each batch that it fills.
    ///
    /// # Errors
    /// See [`Self::submit`]. Failures of the device are sent to the receiver.
    pub fn embed(&self, prompts: Vec<Vec<u32>>) -> Result<oneshot::Receiver<EmbeddingResult>, RequestError> {
        if !self.inner.tasks.embed {
            return Err(RequestError::Unsupported { task: "embeddings", tasks: self.inner.tasks });
        }
        self.queue_job(prompts, None)
    }

    /// Like [`Self::embed`], for scores of pairs of texts: one number for each. `second_starts` are the indices of the first
    /// tokens of the second segments.
    ///
    /// # Errors
    /// See [`Self::embed`].
    pub fn classify(
        &self,
        prompts: Vec<Vec<u32>>,
        second_starts: Vec<usize>,
    ) -> Result<oneshot::Receiver<EmbeddingResult>, RequestError> {
        if !self.inner.tasks.classify {
            return Err(RequestError::Unsupported { task: "scores", tasks: self.inner.tasks });
        }
        if second_starts.len() != prompts.len() {
            let why = format!("has {} entries for {} prompts", second_starts.len(), prompts.len());
            return Err(RequestError::Invalid { field: "second_starts", why });
        }
        self.queue_job(prompts, Some(second_starts))
    }

    fn queue_job(
        &self,
        prompts: Vec<Vec<u32>>,
        second_starts: Option<Vec<usize>>,
    ) -> Result<oneshot::Receiver<EmbeddingResult>, RequestError> {
        let Inner { capacity, max_open, step_tokens, .. } = *self.inner;
        for prompt in &prompts {
            limits::prompt("prompts", prompt, capacity)?;
            let (prompt, limit) = (prompt.len(), self.inner.embedding_limit);
            if prompt > limit {
                return Err(RequestError::EmbeddingLength { prompt, limit });
            }
        }
        let rows: usize = prompts.iter().map(Vec::len).sum();
        // A job that would fill more than the whole queue is accepted while the queue is empty.
        let slot = self.queue_slot(rows.div_ceil(step_tokens).clamp(1, max_open))?;
        let (reply, receiver) = oneshot::channel();
        self.send(Command::Embed(EmbeddingJob::new(prompts, second_starts, slot, reply)))?;
        Ok(receiver)
    }

    /// Loads an adapter of PEFT's format (LoRA) from a folder, and waits until it is in memory: that of the device, or that of the
    /// host while the model is unloaded. Its memory is freed after it and all requests that use it are dropped.
    ///
    /// # Errors
    /// Returns an error that names the file and the missing, unsupported or wrong field or tensor, if the model takes no
    /// adapters or no more of them, or if the device fails.
    pub fn load_adapter(&self, folder: &Path) -> Result<Arc<Adapter>> {
        let targets = self.inner.adapter_targets.as_ref().context(
            "adapters are not supported for this model; they require a model that generates text, whose layers have equal \
             sizes, without recurrent states, norms of values and grouped projections of queries, keys and values",
        )?;
        let files = adapter::read(folder, targets)?;
        let (job, loaded) = AdapterJob::new(files, targets);
        self.send(Command::LoadAdapter(Box::new(job)))?;
        loaded.recv().context("the engine stopped")?
    }

    /// Drops an adapter. Requests that use it continue; its memory is freed after the last one.
    pub fn unload_adapter(&self, adapter: Arc<Adapter>) {
        drop(adapter);
        // Sending fails if the thread has already ended.
        let _ = self.inner.commands.send(Command::FreeAdapters);
    }

    /// Returns the pictures of a request's prompt, with the positions of its tokens.
    fn prompt_pictures(&self, request: &Request) -> Result<PromptPictures, RequestError> {
        if request.pictures.is_empty() {
            return Ok(PromptPictures::default());
        }
        let processor = self.inner.image_processor.as_ref();
        let invalid =
            |why: &&str| RequestError::Invalid { field: "pictures", why: format!("the model {why}") };
        let processor = processor.map_err(invalid)?;
        let axes = || Arc::new(PromptAxes::new(request.prompt.len(), &request.pictures));
        Ok(PromptPictures {
            placements: request.pictures.clone(),
            axes: processor.has_axes().then(axes),
            is_bidirectional: processor.is_bidirectional(),
        })
    }

    /// Returns the processor of pictures, which prompts may then contain.
    ///
    /// # Errors
    /// Returns the reason if the model reads no pictures, as in "accepts only text".
    pub fn image_processor(&self) -> std::result::Result<&Arc<ImageProcessor>, &'static str> {
        self.inner.image_processor.as_ref().map_err(|reason| *reason)
    }

    /// Returns the data type of the cache; `None` if the model has none.
    pub fn cache_dtype(&self) -> Option<CacheDType> {
        self.inner.cache_dtype
    }

    /// Returns the tasks that the model can do.
    pub fn tasks(&self) -> Tasks {
        self.inner.tasks
    }

    /// Returns the maximum number of draft tokens of a text in a step; 0 without speculation.
    pub fn max_drafts(&self) -> usize {
        self.inner.max_drafts
    }

    /// Returns the maximum length of an embedded prompt, in tokens.
    pub fn max_embedding_tokens(&self) -> usize {
        self.inner.embedding_limit
    }

    /// Returns the tokenizer and chat template.
    pub fn text(&self) -> &Arc<TextCodec> {
        &self.inner.text
    }

    /// Returns the size limits of the model.
    pub fn capacity(&self) -> Capacity {
        self.inner.capacity
    }

    /// Returns the current counters without waiting for a step.
    pub fn status(&self) -> Status {
        self.inner.shared.status(self.inner.capacity)
    }

    /// Stops accepting requests; accepted ones continue.
    pub fn drain(&self) {
        self.inner.shared.draining.store(true, Relaxed);
    }

    /// From now on, releases the model's slot whenever another engine claims it. Before this, a claim has no effect.
    pub fn allow_claims(&self) {
        let _ = self.inner.commands.send(Command::WatchSlot);
    }

    /// Keeps a loaded model in memory, even if its slot is claimed or no request comes, until the returned value is
    /// dropped.
    pub fn hold(&self) -> Hold {
        self.inner.shared.holds.fetch_add(1, Relaxed);
        Hold(self.clone())
    }

    /// Registers a callback that receives the error message when the engine fails, before its streams end. It
    /// runs immediately if the engine has already failed. Only the first callback is kept.
    pub fn on_failure(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        self.inner.shared.on_failure(Box::new(hook));
    }

    /// Sends the events of cache blocks to `sink` after each step. Must be called before the first request.
    pub fn record_cache_events(&self, sink: CacheEventSink) {
        // Sending fails if the thread has already ended.
        let _ = self.inner.commands.send(Command::RecordCacheEvents(sink));
    }

    /// Cancels all streams, and waits for the current step and the thread to end.
    pub fn stop(&self) {
        self.request_stop();
        self.inner.thread.join();
    }

    /// Like [`Self::stop`], but waits at most `limit`. Returns false if the thread is still running, because
    /// the device hangs; the thread is then abandoned.
    pub fn stop_within(&self, limit: Duration) -> bool {
        self.request_stop();
        self.inner.thread.join_within(limit)
    }

    fn request_stop(&self) {
        self.inner.shared.stopping.store(true, Relaxed);
        // Sending fails if the thread has already ended.
        let _ = self.inner.commands.send(Command::Wake);
    }

    fn queue_slot(&self, count: usize) -> Result<QueueSlot, RequestError> {
        self.check_open()?;
        let Inner { shared, max_open, capacity, .. } = &*self.inner;
        QueueSlot::take(shared, count, *max_open)
            .map_err(|_| RequestError::QueueFull { waiting: shared.status(*capacity).waiting })
    }

    fn check_open(&self) -> Result<(), RequestError> {
        let shared = &self.inner.shared;
        let why = match shared.failed() {
            Some(failure) => failure.message.as_str(),
            None if shared.stopping.load(Relaxed) => "it was stopped",
            None if shared.draining.load(Relaxed) => "it is draining",
            None => return Ok(()),
        };
        Err(RequestError::Closed { why: why.into() })
    }

    fn send(&self, command: Command) -> Result<(), RequestError> {
        self.inner.commands.send(command).map_err(|_| {
            let closed = self.check_open().err();
            closed.unwrap_or_else(|| RequestError::Closed { why: "its thread has ended".into() })
        })
    }
}

/// Returns functions that send commands as long as there are handles. A slot that is not received is released.
fn slot_callbacks(commands: &Arc<Sender<Command>>) -> SlotCallbacks {
    let (granting, claiming) = (Arc::downgrade(commands), Arc::downgrade(commands));
    SlotCallbacks {
        granted: Arc::new(move |slot| send_while_open(&granting, Command::GrantSlot(slot))),
        claimed: Arc::new(move || send_while_open(&claiming, Command::Unload)),
    }
}

/// Sends a command if the engine has handles and its thread has not ended.
fn send_while_open(commands: &Weak<Sender<Command>>, command: Command) {
    if let Some(commands) = commands.upgrade() {
        let _ = commands.send(command);
    }
}

/// Keeps a loaded model in memory until it is dropped.
pub struct Hold(Engine);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.inner.shared.holds.fetch_sub(1, Relaxed);
        // Sending fails if the thread has already ended.
        let _ = self.0.inner.commands.send(Command::Wake);
    }
}

/// Stream of a request's events. Dropping it cancels the request.
pub struct Stream {
    events: mpsc::Receiver<Event>,
    cancelled: Arc<AtomicBool>,
    /// Does not keep the engine running.
    commands: Weak<Sender<Command>>,
}

impl Stream {
    /// Returns the next event, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Blocks until the next event; returns `None` after the last one. For synchronous code only.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Cancels the request before its next step. The stream still delivers the final event.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
        // A thread that waits for a model's slot computes no steps.
        send_while_open(&self.commands, Command::Wake);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cancel();
    }
}
