//! Selection of the rows of each step: pure bookkeeping without threads or tensors.
use std::collections::{HashMap, VecDeque};

use crate::step::{BLOCK_SIZE, MAX_DRAFTED_ROWS, Step};

use super::blocks::{BlockPool, BlockTokens, Parent};
use super::cache_events::CacheEvent;
use super::sequence::Sequence;
use super::states::StatePool;

/// Maximum number of prompts that share the rows of a step; more prompts join if rows are left.
const MAX_PROMPTS_PER_GROUP: usize = 4;
/// Interval, in steps, at which admission is retried even if no more blocks are free.
const RETRY_STEPS: u64 = 16;

/// Limits of a step.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of sequences that hold blocks.
    pub running: usize,
    /// Maximum number of rows of a step; at least `running`, so that each sequence can have one.
    pub rows: usize,
    /// Maximum number of rows of a step while no sequence generates text, if that is more than `rows`.
    pub prompt_rows: usize,
    /// Maximum number of rows per step of prompts that need the logits of all their rows; at least 1. Bounds the memory
    /// for logits.
    pub scored_rows: usize,
}

/// Plan of a step: block copies, then rows.
#[derive(Default)]
pub struct Plan {
    /// Rows of the step.
    pub step: Step,
    /// Blocks to copy first, as (source, destination).
    pub copies: Vec<(u32, u32)>,
    /// Checkpoints of recurrent states to copy first, as (source, destination).
    pub restored: Vec<(u32, u32)>,
    /// Recurrent states to copy after the step, as (source, destination).
    pub checkpoints: Vec<(u32, u32)>,
    /// Block tables of earlier steps, kept for reuse.
    tables: Vec<Vec<u32>>,
}

impl Plan {
    fn clear(&mut self) {
        let step = &mut self.step;
        self.tables.extend(step.sequences.drain(..).map(|sequence| sequence.blocks));
        let vectors =
            [&mut step.tokens, &mut step.positions, &mut step.slots, &mut step.states, &mut step.kept];
        vectors.into_iter().for_each(Vec::clear);
        (step.axes, step.pictures) = Default::default();
        [&mut self.copies, &mut self.restored, &mut self.checkpoints].into_iter().for_each(Vec::clear);
    }

    /// Drops the adapters and the pictures of a finished step.
    pub fn drop_adapters(&mut self) {
        self.step.sequences.iter_mut().for_each(|sequence| sequence.adapter = None);
        self.step.pictures.clear();
    }

    fn push<W>(&mut self, sequence: &Sequence<W>) {
        let (from, context) = (sequence.computed, sequence.computed + sequence.rows);
        let mut blocks = self.tables.pop().unwrap_or_default();
        blocks.clear();
        blocks.extend_from_slice(&sequence.blocks);
        let logits = sequence.logit_positions(from..context).len();
        let adapter = sequence.adapter.clone();
        let first = self.step.tokens.len();
        self.step.pictures.extend(sequence.picture_rows(first));
        self.step.push(&sequence.tokens[..context], from, blocks, logits, adapter);
        self.step.states.extend(sequence.state);
        self.step.kept.extend(sequence.kept_states());
        self.push_axes(sequence, first);
    }

    /// Adds the positions of three axes of the rows from `first` on, if the sequence or one before it has them.
    fn push_axes<W>(&mut self, sequence: &Sequence<W>, first: usize) {
        let Step { axes, positions, .. } = &mut self.step;
        let prompt_axes = sequence.pictures.axes.as_ref();
        if prompt_axes.is_none() && axes.is_empty() {
            return;
        }
        axes.extend(positions[axes.len()..first].iter().map(|position| [*position; 3]));
        let at = |position: &u32| prompt_axes.map_or([*position; 3], |all| all.at(*position as usize));
        axes.extend(positions[first..].iter().map(at));
    }
}

/// Cumulative counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Prompt positions that were computed, including those recomputed after a preemption.
    pub read: u64,
    /// Prompt positions that were found in the cache.
    pub cached: u64,
    /// Number of preemptions.
    pub preempted: u64,
}

/// Batches requests into steps. Decoding sequences come first, with one row each and those of their drafts; the
/// remaining rows go to prompts, in chunks, first come, first served. Of the waiting requests, those of the clients with
/// the fewest running ones are admitted first. When blocks run out, the youngest sequence is preempted: it
/// releases its blocks and recomputes its tokens later. The oldest sequence therefore advances in every step.
pub struct Scheduler<W> {
    pool: BlockPool,
    limits: Limits,
    /// Maximum number of rows of the planned step.
    step_rows: usize,
    /// Sequences that may hold blocks, oldest first.
    running: Vec<Sequence<W>>,
    /// Sequences without blocks, oldest first.
    waiting: VecDeque<Sequence<W>>,
    /// Blocks that this step's prompts fill. Other prompts with the same tokens wait for them.
    filling: Vec<(Parent, BlockTokens)>,
    /// If true, the planned step encodes a picture. A step encodes at most one, which limits its duration.
    has_picture: bool,
    /// Prompts that share the remaining rows: (id, rows).
    group: Vec<(u64, usize)>,
    counters: Counters,
    submitted: u64,
    plans: u64,
}

impl<W> Scheduler<W> {
    /// Creates a scheduler for `blocks` blocks. If `shares` is true, sequences share common prefixes.
    pub fn new(blocks: u32, shares: bool, limits: Limits) -> Self {
        Self {
            pool: BlockPool::new(blocks, shares),
            limits,
            step_rows: limits.rows,
            running: Vec::new(),
            waiting: VecDeque::new(),
            filling: Vec::new(),
            has_picture: false,
            group: Vec::new(),
            counters: Counters::default(),
            submitted: 0,
            plans: 0,
        }
    }

    /// Lets sequences hold `slots` recurrent states, of which there are at least as many as running sequences: one for each,
    /// and others for its drafts and for checkpoints.
    pub fn with_states(mut self, slots: u32) -> Self {
        self.pool.states = StatePool::new(slots);
        self
    }

    /// Returns the block pool.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Forgets the contents of all blocks, because the cache was freed. There must be no sequences.
    pub fn forget_cached(&mut self) {
        self.pool.clear();
    }

    /// Starts recording events of cache blocks. No block may be cached yet.
    pub fn record_cache_events(&mut self) {
        self.pool.record_events();
    }

    /// Returns the events of cache blocks since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.pool.take_events()
    }

    /// Returns the cumulative counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the sequences that hold blocks, oldest first.
    pub fn running(&self) -> &[Sequence<W>] {
        &self.running
    }

    /// Returns the running and the waiting sequences.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence<W>> {
        self.running.iter().chain(&self.waiting)
    }

    /// Returns the running and the waiting sequences, mutably.
    pub fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence<W>> {
        self.running.iter_mut().chain(&mut self.waiting)
    }

    /// Returns the number of waiting sequences.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Queues a sequence and returns its id. The caller ensures that all its tokens, except the last one to
    /// be generated, fit into the cache.
    pub fn submit(&mut self, mut sequence: Sequence<W>) -> u64 {
        self.submitted += 1;
        sequence.id = self.submitted;
        self.waiting.push_back(sequence);
        self.submitted
    }

    /// Removes all sequences for which `done` returns true, and releases their blocks. Must not be called
    /// between [`Self::plan`] and [`Self::commit`].
    pub fn remove(&mut self, mut done: impl FnMut(&mut Sequence<W>) -> bool, removed: &mut Vec<Sequence<W>>) {
        let mut index = 0;
        while index < self.running.len() {
            if done(&mut self.running[index]) {
                let mut sequence = self.running.remove(index);
                sequence.release(&mut self.pool);
                removed.push(sequence);
            } else {
                index += 1;
            }
        }
        let mut index = 0;
        while index < self.waiting.len() {
            if done(&mut self.waiting[index]) {
                removed.extend(self.waiting.remove(index));
            } else {
                index += 1;
            }
        }
    }

    /// Plans the next step. The plan has at least one row if there is any sequence.
    pub fn plan(&mut self, plan: &mut Plan) {
        plan.clear();
        self.plans += 1;
        self.filling.clear();
        self.has_picture = false;
        self.running.iter_mut().for_each(|sequence| sequence.rows = 0);
        self.step_rows = self.row_limit();
        self.reserve_drafts();
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].pending() == 1 {
                let rows = 1 + self.running[index].drafted;
                let assigned = self.assign_rows(index, rows, plan);
                self.running[index].keep_drafts(assigned.saturating_sub(1));
            }
            index += 1;
        }
        self.plan_prompts(plan);
        self.running.iter().filter(|sequence| sequence.rows > 0).for_each(|sequence| plan.push(sequence));
        self.plan_checkpoints(plan);
    }

    /// Returns the maximum number of rows of the next step. A larger step reads quantized weights less often, but sequences that
    /// generate text would wait for it.
    fn row_limit(&self) -> usize {
        let Limits { rows, prompt_rows, .. } = self.limits;
        match self.running.iter().any(|sequence| sequence.pending() <= 1) {
            true => rows,
            false => rows.max(prompt_rows),
        }
    }

    /// Plans copies of the states of prompts whose rows end at the position of the next checkpoint.
    fn plan_checkpoints(&mut self, plan: &mut Plan) {
        if !self.pool.shares() {
            return;
        }
        for sequence in self.running.iter().filter(|sequence| sequence.rows > 0) {
            if let Some(state) = sequence.state
                && sequence.drafted == 0
                && sequence.next_checkpoint() == Some(sequence.computed + sequence.rows)
                && let Some(slot) = self.pool.states.allocate()
            {
                plan.checkpoints.push((state, slot));
            }
        }
    }

    /// Returns the maximum number of draft tokens per decoding sequence in the next step: a power of two minus 1, or 0
    /// if too many sequences are decoding.
    pub fn max_drafts(&self) -> usize {
        let decoding = self.running.iter().filter(|sequence| sequence.is_decoding()).count();
        // Prompts get at least half of the rows.
        let rows = MAX_DRAFTED_ROWS.min(self.limits.rows / 2) / decoding.max(1);
        rows.checked_ilog2().map_or(0, |log| (1 << log) - 1)
    }

    /// Returns the sequences whose next rows may include draft tokens.
    pub fn decoding(&mut self) -> impl Iterator<Item = &mut Sequence<W>> {
        self.running.iter_mut().filter(|sequence| sequence.is_decoding())
    }

    /// Allocates the blocks and the states of draft tokens, and drops drafts that get none. Leaves a free block per sequence,
    /// so that drafts cause no preemption, and states for sequences that may be admitted.
    pub fn reserve_drafts(&mut self) {
        let spare = self.running.len();
        let spare_states = self.waiting.len().min(self.limits.running.saturating_sub(spare));
        for sequence in self.running.iter_mut().filter(|sequence| sequence.drafted > 0) {
            while sequence.blocks_missing() > 0 && self.pool.available() > spare {
                sequence.blocks.extend(self.pool.allocate());
            }
            let rows = (sequence.blocks.len() * BLOCK_SIZE).saturating_sub(sequence.computed);
            sequence.keep_drafts(rows.saturating_sub(1));
            sequence.allocate_draft_states(&mut self.pool, spare_states);
        }
    }

    /// Registers the blocks filled by accepted drafts, and releases the blocks of rejected ones. The drafts of the
    /// committed step must be verified.
    pub fn finish_verification(&mut self) {
        let pool = &mut self.pool;
        self.running.iter_mut().for_each(|sequence| sequence.finish_verification(pool));
    }

    /// Records that the planned step is computed, or queued before all later steps.
    pub fn commit(&mut self, plan: &Plan) {
        for &(from, _) in &plan.copies {
            self.pool.release(from);
        }
        for sequence in self.running.iter_mut().filter(|sequence| sequence.rows > 0) {
            let before = sequence.prompt_computed();
            sequence.commit(&mut self.pool);
            self.counters.read += (sequence.prompt_computed() - before) as u64;
            let checkpoint = plan.checkpoints.iter().find(|(from, _)| Some(*from) == sequence.state);
            if let Some((_, slot)) = checkpoint {
                self.pool.states.add_checkpoint(*slot, sequence.blocks[sequence.computed / BLOCK_SIZE - 1]);
            }
        }
    }

    /// Discards a plan whose step failed. Its sequences must be removed before the next step.
    pub fn discard(&mut self, plan: &Plan) {
        plan.copies.iter().for_each(|&(from, _)| self.pool.release(from));
        plan.checkpoints.iter().for_each(|&(_, slot)| self.pool.states.release(slot));
        // Sequences without rows stay, but their blocks and states may not have been copied.
        let waits = |sequence: &Sequence<W>| {
            let is_restored = plan.restored.iter().any(|&(_, to)| Some(to) == sequence.state);
            let is_copied = plan.copies.iter().any(|(_, to)| sequence.blocks.contains(to));
            sequence.rows == 0 && (is_restored || is_copied)
        };
        while let Some(index) = self.running.iter().position(waits) {
            let sequence = self.running.remove(index);
            self.preempt(sequence);
        }
    }

    /// Discards the plan of a step that ran out of memory, if it has more rows than [`Limits::rows`]. Its sequences wait, and
    /// later steps have at most as many rows. Returns false for other plans.
    pub fn retry_with_fewer_rows(&mut self, plan: &Plan) -> bool {
        if plan.step.tokens.len() <= self.limits.rows {
            return false;
        }
        self.limits.prompt_rows = 0;
        self.discard(plan);
        while let Some(index) = self.running.iter().rposition(|sequence| sequence.rows > 0) {
            let sequence = self.running.remove(index);
            self.preempt(sequence);
        }
        true
    }

    /// Returns the sequences with rows in the plan, in the order of the step.
    pub fn planned(&mut self) -> impl Iterator<Item = &mut Sequence<W>> {
        self.running.iter_mut().filter(|sequence| sequence.rows > 0)
    }

    /// Returns the sequences whose next token is sampled from the planned step, which is not committed yet.
    pub fn will_await_token(&mut self) -> impl Iterator<Item = &mut Sequence<W>> {
        self.running.iter_mut().filter(|sequence| sequence.will_want_logits())
    }

    /// Returns the sequences whose next token is sampled from the committed step, in the order of its logits.
    pub fn awaiting_token(&mut self) -> impl Iterator<Item = &mut Sequence<W>> {
        self.running.iter_mut().filter(|sequence| sequence.wants_logits())
    }

    /// Distributes the remaining rows to prompts: evenly to a few, and what they leave to the next few.
    fn plan_prompts(&mut self, plan: &mut Plan) {
        let mut next = Some(0);
        loop {
            let left = self.rows_left();
            self.fill_group(MAX_PROMPTS_PER_GROUP.min(left), &mut next, plan);
            if self.group.is_empty() {
                return;
            }
            let mut group = std::mem::take(&mut self.group);
            divide(&mut group, left);
            let mut are_complete = true;
            for &(id, rows) in &group {
                if let Ok(index) = self.running.binary_search_by_key(&id, |sequence| sequence.id) {
                    are_complete &= self.assign_rows(index, rows, plan) == rows;
                }
            }
            self.group = group;
            if !are_complete {
                return;
            }
        }
    }

    fn scored_rows_left(&self) -> usize {
        let scored = self.running.iter().filter(|sequence| sequence.has_unscored_rows());
        self.limits.scored_rows.saturating_sub(scored.map(|sequence| sequence.rows).sum())
    }

    fn rows_left(&self) -> usize {
        // Pictures with bidirectional attention are not split, and may exceed the limit.
        self.step_rows.saturating_sub(self.running.iter().map(|sequence| sequence.rows).sum())
    }

    /// Fills the group with the next prompts: running ones first, then newly admitted ones. `next` is the
    /// index among the running sequences, or `None` after the last.
    fn fill_group(&mut self, max_prompts: usize, next: &mut Option<usize>, plan: &mut Plan) {
        self.group.clear();
        while self.group.len() < max_prompts {
            let index = match *next {
                Some(index) if index < self.running.len() => {
                    *next = Some(index + 1);
                    index
                }
                _ => {
                    *next = None;
                    let Some(index) = self.admit(plan) else { return };
                    index
                }
            };
            let sequence = &self.running[index];
            if sequence.rows > 0 {
                continue;
            }
            if let Some(rows) = self.prepare(index, plan) {
                self.group.push((self.running[index].id, rows));
            }
        }
    }

    /// Adopts shared blocks. Returns the rows left to compute; `None` if another sequence fills its next block.
    fn prepare(&mut self, index: usize, plan: &mut Plan) -> Option<usize> {
        let sequence = &mut self.running[index];
        if !self.pool.shares() {
            let rows = sequence.pending();
            return self.with_pictures(index, rows);
        }
        let mut cached = sequence.share(&mut self.pool);
        if cached > 0 {
            plan.restored.extend(sequence.checkpoint(&mut self.pool).zip(sequence.state));
        }
        let waits =
            sequence.may_share() && sequence.next_block().is_some_and(|block| self.filling.contains(&block));
        if !waits {
            if let Some((pair, positions)) = sequence.copy_partial_match(&mut self.pool) {
                plan.copies.push(pair);
                cached += positions;
            }
            self.filling.extend(sequence.next_block());
        }
        sequence.count_cached(cached);
        self.counters.cached += cached as u64;
        let wanted = sequence.state.and_then(|_| sequence.next_checkpoint());
        let rows = wanted.map_or(sequence.pending(), |end| sequence.pending().min(end - sequence.computed));
        if waits { None } else { self.with_pictures(index, rows) }
    }

    /// Reduces the number of next rows so that the step encodes at most one picture; `None` if that leaves no row.
    fn with_pictures(&mut self, index: usize, rows: usize) -> Option<usize> {
        let (rows, has_picture) = self.running[index].rows_with_pictures(rows, !self.has_picture);
        self.has_picture |= has_picture;
        (rows > 0).then_some(rows)
    }

    /// Admits the next waiting sequence that can run, and returns its index among the running ones.
    fn admit(&mut self, plan: &mut Plan) -> Option<usize> {
        if self.running.len() >= self.limits.running || self.waiting.is_empty() {
            return None;
        }
        let filling = &self.filling;
        let fills =
            |sequence: &Sequence<W>| sequence.next_block().is_some_and(|block| filling.contains(&block));
        let candidates = self.waiting.iter().enumerate();
        let candidates = candidates.filter(|(_, sequence)| !(sequence.may_share() && fills(sequence)));
        let mut running_of_client: HashMap<u128, usize> = HashMap::new();
        self.running.iter().for_each(|running| *running_of_client.entry(running.client).or_default() += 1);
        let others = |sequence: &Sequence<W>| running_of_client.get(&sequence.client).copied().unwrap_or(0);
        // Preempted sequences continue first. Among equal ones, `min_by_key` returns the oldest.
        let next = candidates.min_by_key(|(_, sequence)| (!sequence.preempted, others(sequence)));
        let (waiting_index, _) = next?;
        let promised: usize = self.running.iter().map(Sequence::blocks_missing).sum();
        let spare = |pool: &BlockPool| pool.available().saturating_sub(promised);
        let sequence = &mut self.waiting[waiting_index];
        let before = spare(&self.pool);
        if !self.running.is_empty() && before < sequence.needed && !self.plans.is_multiple_of(RETRY_STEPS) {
            return None;
        }
        let shared = if self.pool.shares() { sequence.share(&mut self.pool) } else { 0 };
        // Each running sequence may need a block soon; without spare ones, the new one would be preempted.
        let wanted = sequence.blocks_missing() + self.running.len();
        let after = spare(&self.pool);
        if after < wanted {
            sequence.needed = before + wanted - after;
            self.pool.release_all(&mut sequence.blocks);
            sequence.computed = 0;
            return None;
        }
        let mut sequence = self.waiting.remove(waiting_index)?;
        if !self.pool.states.is_empty() {
            let checkpoint = sequence.checkpoint(&mut self.pool);
            sequence.state = self.pool.states.allocate();
            plan.restored.extend(checkpoint.zip(sequence.state));
        }
        sequence.count_cached(shared);
        self.counters.cached += shared as u64;
        let index = self.running.partition_point(|other| other.id < sequence.id);
        self.running.insert(index, sequence);
        Some(index)
    }

    /// Assigns up to `rows` rows to a running sequence, and allocates their blocks, preempting younger
    /// sequences if necessary. Returns the number of rows assigned.
    fn assign_rows(&mut self, index: usize, mut rows: usize, plan: &mut Plan) -> usize {
        if self.running[index].has_unscored_rows() {
            rows = rows.min(self.scored_rows_left());
        }
        let computed = self.running[index].computed;
        if let Some(span) = self.running[index].bidirectional_span(computed + rows) {
            rows = span.end - computed;
        }
        let needed = (computed + rows).div_ceil(BLOCK_SIZE);
        while self.running[index].blocks.len() < needed {
            if let Some(block) = self.pool.allocate() {
                self.running[index].blocks.push(block);
            } else if index + 1 < self.running.len() {
                self.preempt_youngest(plan);
            } else {
                break;
            }
        }
        let sequence = &mut self.running[index];
        sequence.rows = rows.min(sequence.blocks.len() * BLOCK_SIZE - sequence.computed);
        if let Some(span) = sequence.bidirectional_span(computed + sequence.rows) {
            sequence.rows = span.start.saturating_sub(computed);
        }
        sequence.rows
    }

    fn preempt_youngest(&mut self, plan: &mut Plan) {
        let Some(sequence) = self.running.pop() else { return };
        plan.copies.retain(|&(from, to)| {
            let is_target = sequence.blocks.contains(&to);
            if is_target {
                self.pool.release(from);
            }
            !is_target
        });
        plan.restored.retain(|&(_, to)| Some(to) != sequence.state);
        self.preempt(sequence);
    }

    /// Lets a sequence that was running wait, without blocks and state.
    fn preempt(&mut self, mut sequence: Sequence<W>) {
        sequence.release(&mut self.pool);
        sequence.keep_drafts(0);
        (sequence.computed, sequence.rows, sequence.needed, sequence.preempted) = (0, 0, 0, true);
        self.counters.preempted += 1;
        let waiting_index = self.waiting.partition_point(|other| other.id < sequence.id);
        self.waiting.insert(waiting_index, sequence);
    }
}

/// Divides `left` rows evenly, at least one each if possible. Rows that a prompt does not need go to the others.
fn divide(group: &mut [(u64, usize)], mut left: usize) {
    group.sort_unstable_by_key(|&(id, wanted)| (wanted, id));
    let mut remaining = group.len();
    for (_, rows) in group.iter_mut() {
        *rows = (*rows).min(left.div_ceil(remaining));
        left -= *rows;
        remaining -= 1;
    }
    group.sort_unstable_by_key(|&(id, _)| id);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_for_a_preempted_sequence_is_dropped() {
        let mut scheduler =
            Scheduler::new(9, true, Limits { running: 2, rows: 64, prompt_rows: 64, scored_rows: 64 });
        let mut plan = Plan::default();
        let prompt: Vec<u32> = (0..32).collect();
        scheduler.submit(Sequence::new(prompt.clone(), ()));
        scheduler.plan(&mut plan);
        scheduler.commit(&plan);
        scheduler.running[0].push(7);
        scheduler.submit(Sequence::new(prompt, ()));
        scheduler.plan(&mut plan);
        assert_eq!(plan.copies.len(), 1);
        scheduler.preempt_youngest(&mut plan);
        assert!(plan.copies.is_empty());
        scheduler.pool.check([scheduler.running[0].blocks()]).unwrap();
        assert_eq!((scheduler.waiting(), scheduler.counters.preempted), (1, 1));
    }

    #[test]
    fn steps_are_larger_only_while_no_text_is_generated() {
        let limits = Limits { running: 2, rows: 16, prompt_rows: 64, scored_rows: 64 };
        let (mut scheduler, mut plan) = (Scheduler::new(40, false, limits), Plan::default());
        let mut rows_of_next = |scheduler: &mut Scheduler<()>| {
            scheduler.plan(&mut plan);
            scheduler.commit(&plan);
            plan.step.tokens.len()
        };
        scheduler.submit(Sequence::new((0..100).collect(), ()));
        assert_eq!([0; 2].map(|_| rows_of_next(&mut scheduler)), [64, 36]);
        // The first text waits for its token, and then for its row.
        scheduler.submit(Sequence::new((0..100).collect(), ()));
        assert_eq!(rows_of_next(&mut scheduler), 16);
        scheduler.running[0].push(7);
        assert_eq!(rows_of_next(&mut scheduler), 16);
        scheduler.remove(|sequence| sequence.id == 1, &mut Vec::new());
        assert_eq!(rows_of_next(&mut scheduler), 64);
    }

    #[test]
    fn a_large_step_without_memory_is_repeated_with_fewer_rows() {
        let limits = Limits { running: 4, rows: 16, prompt_rows: 64, scored_rows: 64 };
        let (mut scheduler, mut plan) = (Scheduler::new(40, true, limits), Plan::default());
        for first in [0, 100] {
            scheduler.submit(Sequence::new((first..first + 30).collect(), ()));
        }
        scheduler.plan(&mut plan);
        assert_eq!(plan.step.tokens.len(), 60);
        assert!(scheduler.retry_with_fewer_rows(&plan));
        assert_eq!((scheduler.running().len(), scheduler.waiting()), (0, 2));
        scheduler.pool.check([]).unwrap();
        let mut tokens = Vec::new();
        for _ in 0..4 {
            scheduler.plan(&mut plan);
            assert!(plan.step.tokens.len() <= 16);
            assert!(!scheduler.retry_with_fewer_rows(&plan));
            scheduler.commit(&plan);
            tokens.extend(plan.step.tokens.clone());
        }
        tokens.sort_unstable();
        assert_eq!(tokens, (0..30).chain(100..130).collect::<Vec<_>>());
    }
}
