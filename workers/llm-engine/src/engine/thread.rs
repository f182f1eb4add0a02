//! Main loop of the thread that owns the model: receives commands, computes steps, delivers events. On ROCm, the text
//! of a step is delivered while the device computes the next one.
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use model_thread::{catch_panic, error_summary, is_out_of_memory};

use crate::model::adapter::Adapter;
use crate::sampling::{self, Row, SampleBatch, Sampled};
use crate::step::StepModel;

use super::adapters::{AdapterJob, ResidentAdapters, move_to_devices};
use super::cache_events::CacheEventSink;
use super::embedding::{self, EmbeddingJob};
use super::overlap::run_overlapped;
use super::residency::{ModelState, ResidentModel};
use super::scheduler::{Plan, Scheduler};
use super::sequence::Sequence;
use super::slots::ModelSlot;
use super::speculation::Drafter;
use super::status::{Shared, StepTokens};
use super::writer::Writer;

/// Maximum number of consecutive failed steps while the device still works.
const MAX_CONSECUTIVE_FAILURES: usize = 3;

/// Command from a handle.
pub(super) enum Command {
    Submit(Box<Sequence<Writer>>),
    Embed(EmbeddingJob),
    /// Sends events of cache blocks to a sink from now on.
    RecordCacheEvents(CacheEventSink),
    /// Loads an adapter.
    LoadAdapter(Box<AdapterJob>),
    /// Frees the memory of unused adapters.
    FreeAdapters,
    /// Unloads the model after the requests that were accepted before.
    Unload,
    /// Delivers a slot for the model, which may then be loaded.
    GrantSlot(ModelSlot),
    /// Releases the slot when another engine claims it, from now on.
    WatchSlot,
    /// Wakes the thread after [`Shared::stopping`] or [`Shared::holds`] was changed.
    Wake,
}

/// State of the engine thread.
pub(super) struct EngineLoop {
    model: ResidentModel,
    scheduler: Scheduler<Writer>,
    drafter: Option<Drafter>,
    plan: Plan,
    commands: Receiver<Command>,
    embeddings: VecDeque<EmbeddingJob>,
    /// Maximum number of rows of an embedding batch, unless a single prompt has more.
    rows: usize,
    /// Sequences that have ended, whose streams are closed after their blocks are released.
    ended: Vec<Sequence<Writer>>,
    /// Number of consecutive failed steps.
    failures: usize,
    shared: Arc<Shared>,
    overhead: Duration,
    cache_events: Option<CacheEventSink>,
    adapters: ResidentAdapters,
    /// Requests that wait until the model, which will be unloaded, is loaded again.
    deferred: Vec<Command>,
}

impl EngineLoop {
    pub(super) fn new(
        model: ResidentModel,
        scheduler: Scheduler<Writer>,
        drafter: Option<Drafter>,
        rows: usize,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            model,
            scheduler,
            drafter,
            plan: Plan::default(),
            commands,
            embeddings: VecDeque::new(),
            rows,
            ended: Vec::new(),
            failures: 0,
            shared,
            overhead: Duration::ZERO,
            cache_events: None,
            adapters: ResidentAdapters::default(),
            deferred: Vec::new(),
        }
    }

    /// Runs until it is stopped, a failure occurs, or all handles are dropped and all streams have ended.
    /// Then closes all streams.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        match catch_panic(|| self.serve()) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!("{error:#}");
                let summary = error_summary(&error);
                shared.fail("device_lost", format!("{summary}; check the device and restart the worker"));
            }
            Err(panic) => {
                shared.fail("engine_failed", format!("the engine panicked: {panic}; restart the worker"));
            }
        }
        if let Some(failure) = shared.failed() {
            tracing::error!(code = failure.code, "{}", failure.message);
        }
        // Dropping a request or a job notifies its client, including those still in the channel.
        let Self { scheduler, ended, embeddings, commands, .. } = self;
        shared.publish(0, scheduler.pool(), scheduler.counters());
        drop((scheduler, ended, embeddings, commands));
    }

    fn serve(&mut self) -> Result<()> {
        while self.receive_commands() {
            let mut from = Instant::now();
            self.remove_ended();
            if self.is_idle() {
                if self.must_unload() {
                    self.unload_model();
                    std::mem::take(&mut self.deferred).into_iter().for_each(|command| self.handle(command));
                }
                self.model.release_unused_slot();
                continue;
            }
            if !self.model.is_loaded() && self.model.has_slot() {
                self.load_model();
                // A model that could not be loaded leaves its slot to others.
                self.model.release_unused_slot();
                from = Instant::now();
            }
            if !self.model.is_loaded() {
                continue;
            }
            let excluded = self.move_adapters()? + self.embed_batch()?;
            if !self.scheduler.is_empty() {
                self.step(from, excluded)?;
                self.send_cache_events();
            }
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_empty() && self.embeddings.is_empty()
    }

    /// Returns true if the model must be unloaded as soon as the requests that were accepted before have ended.
    fn must_unload(&self) -> bool {
        self.model.is_claimed() && self.shared.holds.load(Relaxed) == 0
    }

    /// Receives pending commands; blocks if there is nothing to do, and unloads the model if that takes too long. Returns
    /// false if the thread should end.
    fn receive_commands(&mut self) -> bool {
        if self.is_idle() || self.model.awaits_slot() {
            let limit = self.model.idle_limit().filter(|_| self.shared.holds.load(Relaxed) == 0);
            let command = match limit {
                Some(limit) => self.commands.recv_timeout(limit),
                None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match command {
                Ok(command) => self.handle(command),
                Err(RecvTimeoutError::Timeout) => {
                    self.unload_model();
                    return true;
                }
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            if self.shared.stopping.load(Relaxed) {
                return false;
            }
            match self.commands.try_recv() {
                Ok(command) => self.handle(command),
                // Streams may outlive the handles.
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(_) | Command::Embed(_) if self.must_unload() => self.deferred.push(command),
            Command::Submit(sequence) => {
                self.model.mark_used();
                self.scheduler.submit(*sequence);
            }
            Command::Embed(embedding) => {
                self.model.mark_used();
                self.embeddings.push_back(embedding);
            }
            Command::RecordCacheEvents(sink) => {
                self.scheduler.record_cache_events();
                self.cache_events = Some(sink);
            }
            Command::LoadAdapter(job) => {
                self.settle();
                self.adapters.load(*job, self.model.is_loaded());
            }
            Command::Unload => self.model.claim(),
            Command::GrantSlot(slot) => self.model.set_slot(slot),
            Command::FreeAdapters => self.free_adapters(),
            Command::WatchSlot => self.model.watch_slot(),
            Command::Wake => {}
        }
    }

    fn send_cache_events(&mut self) {
        let Some(sink) = &mut self.cache_events else { return };
        let events = self.scheduler.take_cache_events();
        if !events.is_empty() {
            sink(events);
        }
    }

    /// Frees weights, cache and slot, and the device's memory of the adapters.
    fn unload_model(&mut self) {
        self.scheduler.forget_cached();
        self.send_cache_events();
        self.drafter.iter_mut().for_each(Drafter::forget);
        self.shared.set_model(ModelState::Unloaded);
        self.settle();
        self.adapters.move_to_host();
        self.model.unload();
    }

    /// Loads the model for the waiting requests. If loading fails, they fail, and the next request retries.
    fn load_model(&mut self) {
        self.shared.set_model(ModelState::Loading);
        let Err(error) = self.model.load() else { return self.shared.set_model(ModelState::Loaded) };
        self.shared.set_model(ModelState::Unloaded);
        tracing::error!(code = "load_failed", "{error:#}");
        let message = format!("the unloaded model could not be loaded again: {}", error_summary(&error));
        let fail = |sequence: &mut Sequence<Writer>| {
            sequence.writer.fail("load_failed", message.clone());
            true
        };
        self.scheduler.remove(fail, &mut self.ended);
        self.ended.clear();
        self.free_adapters();
        self.embeddings.drain(..).for_each(|mut job| job.fail(message.clone()));
    }

    /// Moves the adapters of the requests to the devices, and returns the time it took. If one cannot be moved, its requests
    /// fail, and the next one retries. Returns an error if the device does not work.
    fn move_adapters(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        let mut unmoved: Vec<Arc<Adapter>> = Vec::new();
        for adapter in self.scheduler.sequences().filter_map(|sequence| sequence.adapter.as_ref()) {
            if !adapter.is_on_devices() && !unmoved.contains(adapter) {
                unmoved.push(adapter.clone());
            }
        }
        if unmoved.is_empty() {
            return Ok(Duration::ZERO);
        }
        self.settle();
        for adapter in unmoved {
            let Err(error) = move_to_devices(&adapter) else { continue };
            self.model.get()?.check().with_context(|| error_summary(&error))?;
            tracing::error!(code = "load_failed", "{error:#}");
            let message = error_summary(&error);
            self.scheduler.remove(|sequence| sequence.adapter.as_ref() == Some(&adapter), &mut self.ended);
            self.ended.drain(..).for_each(|mut own| own.writer.fail("load_failed", message.clone()));
        }
        self.free_adapters();
        Ok(begin.elapsed())
    }

    /// Releases the blocks of ended sequences, then closes their streams.
    fn remove_ended(&mut self) {
        self.scheduler.remove(|sequence| sequence.writer.is_finished(), &mut self.ended);
        let scheduler = &self.scheduler;
        self.shared.publish(scheduler.running().len(), scheduler.pool(), scheduler.counters());
        self.ended.clear();
        self.plan.drop_adapters();
        self.free_adapters();
    }

    /// Frees the memory of adapters that nothing uses.
    fn free_adapters(&mut self) {
        if self.adapters.has_unused() {
            self.settle();
            self.adapters.free_unused();
        }
    }

    /// Delivers the texts, then waits until no other thread uses the devices of the model, if it is loaded.
    fn settle(&mut self) {
        self.deliver();
        if let Ok(model) = self.model.get() {
            model.settle();
        }
    }

    /// Sends the events of all accepted tokens.
    fn deliver(&mut self) {
        self.scheduler.sequences_mut().for_each(|sequence| sequence.writer.deliver());
    }

    /// Computes one step. `from` is the start of its host work; `excluded` is the time since then that is not overhead. Overhead
    /// is the host time before the launch and after the tokens were read, while the device is idle.
    fn step(&mut self, from: Instant, mut excluded: Duration) -> Result<()> {
        excluded += self.propose_drafts()?;
        self.scheduler.plan(&mut self.plan);
        let running = self.scheduler.running().len();
        ensure!(!self.plan.step.tokens.is_empty(), "none of {running} running sequences was scheduled");
        self.scheduler.planned().for_each(|sequence| sequence.writer.start());
        let overhead = from.elapsed().saturating_sub(excluded);
        let masked = self.scheduler.will_await_token().filter(|sequence| sequence.writer.has_grammar());
        let (model, plan) = (self.model.get()?, &self.plan);
        let logits = match run_overlapped(masked, Sequence::prepare_masks, || compute(model, plan)) {
            Ok(logits) => logits,
            Err(error) => return self.fail_step(error),
        };
        self.failures = 0;
        self.scheduler.commit(&self.plan);
        let mut sampled = self.sample(&logits)?.into_iter();
        let read = Instant::now();
        let mut tokens = StepTokens::default();
        self.scheduler.planned().for_each(|sequence| sequence.write(&mut sampled, &mut tokens));
        self.scheduler.finish_verification();
        if !logits.device().is_rocm() {
            // Elsewhere, the next step or its sampling blocks this thread, so that the text would be late.
            self.deliver();
        }
        self.overhead += overhead + read.elapsed();
        let rank_times = self.model.get()?.rank_times();
        self.shared.count_step(tokens, self.overhead.as_micros() as u64, rank_times);
        Ok(())
    }

    /// Proposes draft tokens, if the engine speculates, and returns the time that a draft model took. If that model fails,
    /// the engine stops speculating.
    fn propose_drafts(&mut self) -> Result<Duration> {
        let Some(drafter) = &mut self.drafter else { return Ok(Duration::ZERO) };
        let error = match drafter.propose(&mut self.scheduler, self.model.get()?) {
            Ok(took) => return Ok(took),
            Err(error) => error,
        };
        self.model.get()?.check().with_context(|| error_summary(&error))?;
        tracing::error!(
            code = "speculation_failed",
            "speculation is off until the worker is restarted: {error:#}"
        );
        self.scheduler.decoding().for_each(|sequence| sequence.keep_drafts(0));
        self.drafter = None;
        Ok(Duration::ZERO)
    }

    /// Fails the requests of a failed step; continues with the others if the device still works.
    fn fail_step(&mut self, error: anyhow::Error) -> Result<()> {
        self.deliver();
        self.model.get()?.check().with_context(|| error_summary(&error))?;
        let out_of_memory = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_out_of_memory);
        if out_of_memory && self.scheduler.retry_with_fewer_rows(&self.plan) {
            tracing::warn!(
                code = "out_of_memory",
                "steps have at most --step-tokens rows from now on: {error:#}"
            );
            return Ok(());
        }
        self.failures += 1;
        if self.failures > MAX_CONSECUTIVE_FAILURES {
            return Err(error);
        }
        let message = error_summary(&error);
        let code = if out_of_memory { "out_of_memory" } else { "step_failed" };
        tracing::error!(code, "{error:#}");
        self.scheduler.discard(&self.plan);
        self.scheduler.planned().for_each(|sequence| sequence.writer.fail(code, message.clone()));
        Ok(())
    }

    /// Samples the next tokens, and delivers those of earlier steps while the device computes. Returns a token or an error for
    /// each row of the logits.
    fn sample(&mut self, logits: &Tensor) -> Result<Vec<Result<Sampled, String>>> {
        let rows = sampler_rows(&mut self.scheduler);
        let (count, batch) = (rows.len(), sampling::launch(logits, &rows));
        self.deliver();
        if count == 0 {
            // Otherwise the host would queue many prompt steps ahead, which could not be cancelled.
            logits.device().synchronize().context("waiting for a step failed")?;
            return Ok(Vec::new());
        }
        let sampled = match batch.and_then(SampleBatch::read) {
            Ok(sampled) => sampled.into_iter().map(Ok).collect(),
            Err(_) => sample_rows(logits, &sampler_rows(&mut self.scheduler))?,
        };
        ensure!(sampled.len() == count, "sampled {} tokens for {count} rows", sampled.len());
        Ok(sampled)
    }

    /// Computes a batch of the embedding jobs. Returns the time it took.
    fn embed_batch(&mut self) -> Result<Duration> {
        if self.embeddings.is_empty() {
            return Ok(Duration::ZERO);
        }
        self.deliver();
        let begin = Instant::now();
        embedding::compute_batch(&mut self.embeddings, self.model.get()?, self.rows);
        Ok(begin.elapsed())
    }
}

/// Returns the sampler's input for the logits of the committed step.
fn sampler_rows(scheduler: &mut Scheduler<Writer>) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    scheduler.planned().for_each(|sequence| sequence.push_rows(&mut rows));
    rows
}

/// Copies blocks as planned, then computes the logits of the step.
fn compute(model: &mut dyn StepModel, plan: &Plan) -> Result<Tensor> {
    if !plan.copies.is_empty() {
        let copied = model.copy_blocks(&plan.copies);
        copied.with_context(|| format!("copying {} cache blocks failed", plan.copies.len()))?;
    }
    copy_states(model, &plan.restored)?;
    let (rows, sequences) = (plan.step.tokens.len(), plan.step.sequences.len());
    let logits = model.step(&plan.step);
    let logits =
        logits.with_context(|| format!("a step of {rows} rows from {sequences} sequences failed"))?;
    copy_states(model, &plan.checkpoints)?;
    Ok(logits)
}

fn copy_states(model: &mut dyn StepModel, pairs: &[(u32, u32)]) -> Result<()> {
    if pairs.is_empty() {
        return Ok(());
    }
    model.copy_states(pairs).with_context(|| format!("copying {} recurrent states failed", pairs.len()))
}

/// Samples each row separately after a batch failed, so that only rows without a valid token fail.
fn sample_rows(logits: &Tensor, rows: &[Row]) -> Result<Vec<Result<Sampled, String>>> {
    let failed = || format!("sampling {} tokens failed", rows.len());
    logits.device().synchronize().with_context(failed)?;
    let sample = |(index, row)| {
        let sampled = sampling::sample(&logits.narrow(0, index, 1)?, std::slice::from_ref(row))?;
        sampled.into_iter().next().context("no token was sampled")
    };
    let sampled: Vec<_> =
        rows.iter().enumerate().map(sample).map(|row| row.map_err(|e| format!("{e:#}"))).collect();
    logits.device().synchronize().with_context(failed)?;
    Ok(sampled)
}
