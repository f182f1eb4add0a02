//! A decoder that is divided among several devices of this process (tensor parallelism): a thread for each rank.
//!
//! Rank 0 plans steps and samples. Its thread and those of the other ranks compute the same steps, which are plain data.
//! Threads of one process share the file in the system's cache, one configuration and one version of the program, so that
//! there is nothing to compare when they start. After each step, every thread waits for its device. So a rank that fails
//! while the host waits for another one ends the communicator at once, and the error names it.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::rocm::{RocmError, collective::Communicator};
use candle_core::{Device, Error, Result as CandleResult, Tensor};
use model_thread::{ModelThread, catch_panic, error_summary};

use super::adapter::AdapterTargets;
use super::cache_dtype::CacheDType;
use super::decoder::Decoder;
use super::files::ModelFiles;
use super::loading::{LoadOptions, least_usable_memory, load_files};
use super::packed::packed_step;
use super::part::Part;
use crate::step::{Capacity, PartialWork, Step, StepModel, Tasks};

/// A decoder of which each device has a part.
pub struct Ranks {
    /// Commands for each rank's thread.
    commands: Vec<Sender<Command>>,
    threads: Vec<ModelThread>,
    shared: Arc<Shared>,
    capacity: Capacity,
    tasks: Tasks,
    cache_dtype: Option<CacheDType>,
    adapter_targets: Option<AdapterTargets>,
}

/// State that the threads share.
struct Shared {
    communicators: Vec<Communicator>,
    /// Total time of each rank's steps, in nanoseconds.
    times: Vec<AtomicU64>,
    /// Error of the first rank that failed.
    failure: OnceLock<String>,
}

/// Work that all ranks do in the same order.
#[derive(Clone)]
enum Work {
    Step(Arc<Step>),
    CopyBlocks(Arc<[(u32, u32)]>),
    Embed(Arc<[Vec<u32>]>),
    Classify(Arc<[Vec<u32>]>),
    /// A part of [`Self::Embed`], for a number of rows; true for the first part.
    EmbedPart(Arc<[Vec<u32>]>, usize, bool),
    /// Nothing, after all earlier work.
    Settle,
}

/// Work, and the sender of its result if it is wanted.
struct Command {
    work: Work,
    result: Option<Sender<CandleResult<Option<Tensor>>>>,
}

/// Message of a thread that loads its part.
enum Report {
    Progress(f32),
    Loaded(usize, Box<Result<LoadedPart>>),
}

/// Properties of a loaded part.
struct LoadedPart {
    capacity: Capacity,
    tasks: Tasks,
    cache_dtype: Option<CacheDType>,
    adapter_targets: Option<AdapterTargets>,
    /// Sizes of weights and cache, in bytes.
    bytes: [usize; 2],
    trained_context: usize,
}

/// A thread's rank.
struct Rank {
    communicator: Communicator,
    path: PathBuf,
    options: LoadOptions,
    shared: Arc<Shared>,
}

impl Ranks {
    /// Loads a part of the decoder on each device. Returns it with the sizes of a device's weights and cache in bytes, and
    /// the context length of its configuration.
    ///
    /// # Errors
    /// Returns an error that names the rank, if a part cannot be loaded or the devices cannot be connected.
    pub fn load(
        path: &Path,
        devices: &[Device],
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<(Self, [usize; 2], usize)> {
        let memory_bytes =
            options.memory_bytes.map_or_else(|| least_usable_memory(devices), |bytes| Ok(Some(bytes)))?;
        let options = LoadOptions { memory_bytes, ..options };
        let communicators = Communicator::for_devices(devices)
            .with_context(|| format!("cannot connect {} GPUs", devices.len()))?;
        let times = devices.iter().map(|_| AtomicU64::default()).collect();
        let shared = Arc::new(Shared { communicators, times, failure: OnceLock::new() });
        let (capacity, tasks) =
            (Capacity { vocabulary: 0, context: 0, blocks: 0, states: None }, Tasks::default());
        let (commands, threads) = (Vec::new(), Vec::new());
        let shared_state = shared.clone();
        let (cache_dtype, adapter_targets) = (None, None);
        let mut ranks =
            Self { commands, threads, shared: shared_state, capacity, tasks, cache_dtype, adapter_targets };
        let (sender, reports) = channel();
        for communicator in &shared.communicators {
            let (commands, received) = channel();
            let (communicator, path, shared) = (communicator.clone(), path.to_owned(), shared.clone());
            let (name, reports) = (format!("llm-rank-{}", communicator.rank()), sender.clone());
            let rank = Rank { communicator, path, options: options.clone(), shared };
            let thread = ModelThread::spawn(&name, move || rank.run(reports, received));
            ranks.threads.push(thread.context("cannot start a rank's thread")?);
            ranks.commands.push(commands);
        }
        drop(sender);
        let mut loaded: Vec<Option<Result<LoadedPart>>> = devices.iter().map(|_| None).collect();
        for report in reports {
            match report {
                Report::Progress(share) => progress(share),
                Report::Loaded(rank, part) => loaded[rank] = Some(*part),
            }
        }
        let mut parts = Vec::with_capacity(loaded.len());
        for (rank, part) in loaded.into_iter().enumerate() {
            let part = part.unwrap_or_else(|| Err(anyhow!("its thread has ended")));
            parts.push(part.with_context(|| format!("rank {rank} of {}", devices.len()))?);
        }
        let LoadedPart { capacity, tasks, cache_dtype, adapter_targets, bytes, trained_context } =
            parts.remove(0);
        ensure!(
            parts.iter().all(|part| part.capacity == capacity),
            "internal error: the ranks' caches have different sizes"
        );
        (ranks.capacity, ranks.tasks, ranks.cache_dtype) = (capacity, tasks, cache_dtype);
        let others = parts.into_iter().filter_map(|part| part.adapter_targets);
        ranks.adapter_targets = adapter_targets.map(|first| first.with_ranks(others));
        Ok((ranks, bytes, trained_context))
    }

    /// Sets the maximum time for which a rank waits for the others.
    pub fn set_deadline(&self, deadline: Duration) {
        self.shared.communicators.iter().for_each(|communicator| communicator.set_deadline(deadline));
    }

    /// Computes on all ranks. Returns the result of rank 0 without waiting for the devices.
    fn compute(&self, work: &Work) -> CandleResult<Option<Tensor>> {
        self.check_failure()?;
        let (sender, result) = channel();
        let mut sender = Some(sender);
        for commands in &self.commands {
            // A thread that has ended has recorded its failure.
            let _ = commands.send(Command { work: work.clone(), result: sender.take() });
        }
        match result.recv() {
            Ok(result) => result,
            Err(_) => {
                self.check_failure()?;
                Err(Error::Msg("the thread of rank 0 has ended".to_owned()))
            }
        }
    }

    fn compute_tensor(&self, work: &Work) -> CandleResult<Tensor> {
        let tensor = self.compute(work)?;
        tensor.ok_or_else(|| Error::Msg("internal error: rank 0 has no result".to_owned()))
    }

    fn check_failure(&self) -> CandleResult<()> {
        match self.shared.failure.get() {
            Some(reason) => Err(Error::Msg(reason.clone())),
            None => Ok(()),
        }
    }

    /// Rejects prompts that all ranks would reject, since an error of a rank ends all of them.
    fn check_prompts(&self, prompts: &[Vec<u32>]) -> CandleResult<Arc<[Vec<u32>]>> {
        packed_step(prompts, self.capacity.vocabulary, self.capacity.context)?;
        Ok(prompts.into())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.commands.clear();
        self.threads.iter().for_each(ModelThread::join);
    }
}

impl Rank {
    /// Loads this rank's part, then computes until there are no more commands or a rank fails.
    fn run(self, reports: Sender<Report>, commands: Receiver<Command>) {
        let rank = self.communicator.rank();
        let loaded = catch_panic(|| self.load(&reports));
        let (part, decoder) = match loaded.unwrap_or_else(|panic| Err(anyhow!("it panicked: {panic}"))) {
            Ok((decoder, part)) => (Ok(part), Some(decoder)),
            Err(error) => (Err(error), None),
        };
        let _ = reports.send(Report::Loaded(rank, Box::new(part)));
        drop(reports);
        let Some(mut decoder) = decoder else { return };
        let mut partial = None;
        for Command { work, result } in commands {
            let begun = Instant::now();
            let computed = catch_panic(|| compute(&mut decoder, &mut partial, &work))
                .unwrap_or_else(|panic| Err(Error::Msg(format!("it panicked: {panic}"))));
            let failed = computed.as_ref().err().map(|error| self.fail(error));
            if let Some(result) = result {
                let _ = result.send(computed);
            }
            if failed.is_some() {
                return;
            }
            if let Err(error) = self.communicator.device().synchronize() {
                return self.fail(&error);
            }
            if let Work::Step(_) = work {
                let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.shared.times[rank].fetch_add(nanos, Ordering::Relaxed);
            }
        }
    }

    fn load(&self, reports: &Sender<Report>) -> Result<(Decoder, LoadedPart)> {
        let Self { communicator, path, options, .. } = self;
        let is_first = communicator.rank() == 0;
        let progress = &mut |share| {
            if is_first {
                let _ = reports.send(Report::Progress(share));
            }
        };
        let (part, device) = (Part::of_rank(communicator), communicator.device());
        let (decoder, bytes, trained_context) =
            load_files(ModelFiles::open(path)?, part, device, options.clone(), progress)?;
        let (capacity, tasks, cache_dtype) = (decoder.capacity(), decoder.tasks(), decoder.cache_dtype());
        let adapter_targets = decoder.own_adapter_targets().cloned();
        let part = LoadedPart { capacity, tasks, cache_dtype, adapter_targets, bytes, trained_context };
        Ok((decoder, part))
    }

    /// Ends the communicators of all ranks, so that no rank waits for this one, for example where it frees memory.
    fn fail(&self, error: &Error) {
        let (summary, rank) = (error_summary(error), self.communicator.rank());
        // An error of an operation between ranks names the rank at fault, which may be another one.
        let text = match error {
            Error::Rocm(error)
                if matches!(error.downcast_ref::<RocmError>(), Some(RocmError::Collective { .. })) =>
            {
                summary.clone()
            }
            _ => format!("rank {rank} failed: {summary}"),
        };
        if self.shared.failure.set(text).is_ok() {
            tracing::error!(rank, "{error}");
        }
        self.communicator.abort_because(summary.clone());
        for other in &self.shared.communicators {
            other.abort_because(format!("rank {rank} failed: {summary}"));
        }
    }
}

fn compute(
    decoder: &mut Decoder,
    partial: &mut Option<PartialWork>,
    work: &Work,
) -> CandleResult<Option<Tensor>> {
    match work {
        Work::Step(step) => decoder.step(step).map(Some),
        Work::CopyBlocks(pairs) => decoder.copy_blocks(pairs).map(|()| None),
        Work::Embed(prompts) => decoder.embed(prompts).map(Some),
        Work::Classify(prompts) => decoder.classify(prompts, &[]).map(Some),
        Work::EmbedPart(prompts, max_rows, is_first) => {
            if *is_first {
                *partial = None;
            }
            decoder.embed_part(prompts, *max_rows, partial)
        }
        Work::Settle => Ok(None),
    }
}

impl StepModel for Ranks {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn tasks(&self) -> Tasks {
        self.tasks
    }

    fn cache_dtype(&self) -> Option<CacheDType> {
        self.cache_dtype
    }

    fn adapter_targets(&self) -> Option<&AdapterTargets> {
        self.adapter_targets.as_ref()
    }

    fn settle(&mut self) {
        let settle = |commands: &Sender<Command>| {
            let (sender, settled) = channel();
            let _ = commands.send(Command { work: Work::Settle, result: Some(sender) });
            settled
        };
        // A thread that has ended does nothing either.
        let settled: Vec<_> = self.commands.iter().map(settle).collect();
        settled.into_iter().for_each(|settled| drop(settled.recv()));
    }

    fn step(&mut self, step: &Step) -> CandleResult<Tensor> {
        self.capacity.validate(step)?;
        self.compute_tensor(&Work::Step(Arc::new(step.clone())))
    }

    fn check(&mut self) -> CandleResult<()> {
        self.check_failure()?;
        self.shared.communicators.iter().try_for_each(|communicator| communicator.device().synchronize())
    }

    fn rank_times(&self) -> Vec<Duration> {
        self.shared.times.iter().map(|nanos| Duration::from_nanos(nanos.load(Ordering::Relaxed))).collect()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> CandleResult<()> {
        self.compute(&Work::CopyBlocks(pairs.into())).map(drop)
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> CandleResult<Tensor> {
        self.compute_tensor(&Work::Embed(self.check_prompts(prompts)?))
    }

    fn embed_part(
        &mut self,
        prompts: &[Vec<u32>],
        max_rows: usize,
        work: &mut Option<PartialWork>,
    ) -> CandleResult<Option<Tensor>> {
        let is_first = work.take().is_none();
        let embeddings = self.compute(&Work::EmbedPart(self.check_prompts(prompts)?, max_rows, is_first))?;
        if embeddings.is_none() {
            // The ranks keep what they have computed.
            *work = Some(Box::new(()));
        }
        Ok(embeddings)
    }

    fn classify(&mut self, prompts: &[Vec<u32>], _: &[usize]) -> CandleResult<Tensor> {
        self.compute_tensor(&Work::Classify(self.check_prompts(prompts)?))
    }
}
