//! The scheduler alone; its plans are executed on a cache of numbers.
use llm_engine::engine::scheduler::{Limits, Plan, Scheduler};
use llm_engine::engine::sequence::Sequence;
use llm_engine::step::BLOCK_SIZE;
use proptest::prelude::*;

use super::cache::{Cache, digest_of, state_of};

fn limits(running: usize, rows: usize) -> Limits {
    Limits { running, rows, prompt_rows: rows, scored_rows: rows }
}

/// Number of tokens that a request generates.
type Wanted = usize;

struct Run {
    scheduler: Scheduler<Wanted>,
    cache: Cache,
    plan: Plan,
    limits: Limits,
    /// Requests in the order of their first tokens.
    first: Vec<u64>,
    finished: usize,
    /// If true, decoding sequences get drafts.
    drafts: bool,
    /// Slots of recurrent states.
    states: Vec<u64>,
}

/// Returns the token that follows a sequence of cells with this digest.
fn following(digest: u64) -> u32 {
    (digest % 3) as u32
}

/// Appends drafts to the decoding sequences, of which each token is right in two of three cases.
fn propose(scheduler: &mut Scheduler<Wanted>) {
    let most = scheduler.max_drafts();
    for sequence in scheduler.decoding() {
        let mut tokens = [sequence.prompt(), sequence.written()].concat();
        let known = tokens.len();
        let most = most.min(sequence.writer - sequence.written().len() - 1);
        for _ in 0..most {
            let next = following(digest_of(&tokens));
            tokens.push(if tokens.len().is_multiple_of(3) { next + 1 } else { next });
        }
        sequence.push_drafts(&tokens[known..]);
    }
}

impl Run {
    fn new(blocks: usize, shares: bool, limits: Limits) -> Self {
        let scheduler = Scheduler::new(blocks as u32, shares, limits);
        Self {
            scheduler,
            cache: Cache::new(blocks),
            plan: Plan::default(),
            limits,
            first: vec![],
            finished: 0,
            drafts: false,
            states: Vec::new(),
        }
    }

    /// Creates a run whose sequences have recurrent states, for which there are `slots` slots.
    fn with_states(blocks: usize, shares: bool, limits: Limits, slots: usize) -> Self {
        let run = Self::new(blocks, shares, limits);
        let scheduler = run.scheduler.with_states(slots as u32);
        Self { scheduler, states: (0..slots as u64).map(|slot| !slot).collect(), ..run }
    }

    fn submit(&mut self, prompt: Vec<u32>, wanted: Wanted) -> u64 {
        self.scheduler.submit(Sequence::new(prompt, wanted))
    }

    fn check(&self) {
        let tables: Vec<_> = self.scheduler.running().iter().map(Sequence::blocks).collect();
        self.scheduler.pool().check(tables).unwrap();
        let states = self.scheduler.running().iter().filter_map(Sequence::state);
        self.scheduler.pool().states().check(states).unwrap();
    }

    /// Runs one step. The next token of each sequence is derived from its digest.
    fn step(&mut self) {
        let Self { scheduler, cache, plan, limits, first, finished, drafts, states } = self;
        let preempted = scheduler.counters().preempted;
        if *drafts {
            propose(scheduler);
        }
        scheduler.plan(plan);
        let step = &plan.step;
        assert!(!step.tokens.is_empty(), "a step must have at least one row");
        assert!(step.tokens.len() <= limits.rows && scheduler.running().len() <= limits.running);
        let oldest = scheduler.running()[0].id();
        let mut written: Vec<u32> = step.slots.iter().map(|slot| slot / BLOCK_SIZE as u32).collect();
        written.sort_unstable();
        written.dedup();
        let holders = |block: u32| {
            scheduler.running().iter().filter(|sequence| sequence.blocks().contains(&block)).count()
        };
        assert!(written.iter().all(|&block| holders(block) == 1), "written blocks must not be shared");
        let calm = scheduler.counters().preempted == preempted && scheduler.pool().available() > 0;
        for sequence in scheduler.running() {
            let tokens = sequence.prompt().len() + sequence.written().len();
            assert!(
                !calm || sequence.computed() + 1 < tokens || sequence.rows() == 1 + sequence.drafts().len(),
                "decoding sequences come first"
            );
        }
        cache.copy(&plan.copies);
        let digests = cache.step(step);
        if !states.is_empty() {
            Cache::copy_states(states, &plan.restored);
            Cache::step_states(states, step);
        }
        let planned = scheduler.planned().zip(&step.sequences).zip(&digests);
        for (place, ((sequence, rows), &digest)) in planned.enumerate() {
            assert!(place > 0 || sequence.id() == oldest, "the oldest sequence advances in each step");
            let tokens = [sequence.prompt(), sequence.written(), sequence.drafts()].concat();
            assert_eq!(
                &step.tokens[rows.rows.clone()],
                &tokens[rows.context - rows.rows.len()..rows.context]
            );
            assert_eq!(digest, digest_of(&tokens[..rows.context]), "the cells must match the tokens");
            if let Some(slot) = step.states.get(place) {
                let expected = state_of(&tokens[..rows.context]);
                assert_eq!(states[*slot as usize], expected, "the state must match the tokens");
            }
            let logits = if rows.context == tokens.len() { 1 + sequence.drafts().len() } else { 0 };
            assert_eq!(rows.logits, logits);
        }
        Cache::copy_states(states, &plan.checkpoints);
        scheduler.commit(plan);
        let wanted = step.sequences.iter().filter(|sequence| sequence.logits > 0);
        assert_eq!(scheduler.awaiting_token().count(), wanted.count());
        for sequence in scheduler.awaiting_token() {
            if sequence.written().is_empty() {
                first.push(sequence.id());
            }
            let (drafts, mut accepted) = (sequence.take_drafts(), 0);
            loop {
                let next = following(digest_of(&[sequence.prompt(), sequence.written()].concat()));
                sequence.push(next);
                if drafts.get(accepted) != Some(&next) {
                    break;
                }
                accepted += 1;
            }
            sequence.accept(accepted);
        }
        scheduler.finish_verification();
        for sequence in scheduler.running() {
            let tokens = sequence.prompt().len() + sequence.written().len();
            assert!(sequence.blocks().len() <= tokens.div_ceil(BLOCK_SIZE), "rejected rows keep no blocks");
        }
        let mut removed = Vec::new();
        scheduler.remove(|sequence| sequence.written().len() == sequence.writer, &mut removed);
        *finished += removed.len();
        self.check();
    }

    /// Runs steps until no sequence is left, at most `most`.
    fn finish(&mut self, most: usize) {
        for _ in 0..most {
            if self.scheduler.is_empty() {
                return;
            }
            self.step();
        }
        panic!("not finished after {most} steps");
    }
}

#[derive(Clone, Debug)]
enum Action {
    Submit { prompt: Vec<u32>, wanted: Wanted },
    Cancel(prop::sample::Index),
    Steps(usize),
}

/// Prompts share a prefix with one of two texts, followed by random tokens.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    (0..2_u32, 0..70_usize, prop::collection::vec(0..3_u32, 1..40))
        .prop_map(|(text, common, own)| (0..common as u32).map(|i| i * 5 + text).chain(own).collect())
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (prompt(), 1..40_usize).prop_map(|(prompt, wanted)| Action::Submit { prompt, wanted }),
        1 => any::<prop::sample::Index>().prop_map(Action::Cancel),
        3 => (1..12_usize).prop_map(Action::Steps),
    ];
    prop::collection::vec(action, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn all_requests_finish_and_blocks_stay_consistent(
        spare in 0..30_usize,
        shares: bool,
        running in 1..9_usize,
        more_rows in 0..60_usize,
        drafts: bool,
        // Recurrent states in addition to those of the running sequences.
        checkpoints in prop::option::of(0..6_usize),
        actions in actions(),
    ) {
        // The longest sequence just fits: 109 prompt tokens and 39 generated ones.
        let limits = limits(running, running + more_rows);
        let blocks = 148_usize.div_ceil(BLOCK_SIZE) + spare;
        let mut run = match checkpoints {
            Some(more) => Run::with_states(blocks, shares, limits, running + more),
            None => Run::new(blocks, shares, limits),
        };
        run.drafts = drafts && checkpoints.is_none();
        let (mut submitted, mut cancelled, mut tokens) = (0, 0, 0);
        for action in actions {
            match action {
                Action::Submit { prompt, wanted } => {
                    submitted += 1;
                    tokens += prompt.len() + wanted;
                    run.submit(prompt, wanted);
                }
                Action::Cancel(index) if !run.scheduler.is_empty() => {
                    let mut left = index.index(run.scheduler.running().len() + run.scheduler.waiting());
                    let nth = |_: &mut Sequence<Wanted>| { left = left.wrapping_sub(1); left == usize::MAX };
                    run.scheduler.remove(nth, &mut Vec::new());
                    run.check();
                    cancelled += 1;
                }
                Action::Steps(steps) => (0..steps).for_each(|_| if !run.scheduler.is_empty() { run.step() }),
                Action::Cancel(_) => {}
            }
        }
        // The oldest sequence advances in each step, so each token takes at most one step.
        run.finish(tokens + 1);
        prop_assert_eq!(run.finished + cancelled, submitted);
        prop_assert_eq!(run.scheduler.pool().used(), 0);
        prop_assert_eq!(run.scheduler.pool().states().used(), 0);
    }

    #[test]
    fn prompts_of_one_length_are_answered_in_order(
        length in 1..200_usize,
        count in 1..30_usize,
        rows in 8..100_usize,
    ) {
        let mut run = Run::new(1000, false, limits(8, rows));
        let submitted: Vec<_> = (0..count).map(|_| run.submit(vec![1; length], 3)).collect();
        run.finish(count * (length + 3));
        prop_assert_eq!(run.first, submitted);
    }
}

#[test]
fn short_prompts_do_not_wait_for_a_long_prompt() {
    let mut run = Run::new(2000, true, limits(64, 64));
    let writing = run.submit(vec![9; 4], 10_000);
    run.step();
    let long = run.submit((0..16_000).collect(), 1);
    let short: Vec<_> = (0..20_u32).map(|i| run.submit(vec![i + 1; 30], 1)).collect();
    // The short prompts have 600 rows, and get at least half of 63 rows in each step.
    (0..24).for_each(|_| run.step());
    assert_eq!(run.first[0], writing);
    assert_eq!(run.first[1..], short);
    let written = |run: &Run| run.scheduler.running()[0].written().len();
    assert_eq!(written(&run), 25, "a decoding sequence gets a token in each step");
    while run.first.len() < 22 {
        run.step();
    }
    assert_eq!(run.first[21], long);
}

#[test]
fn recurrent_states_continue_from_checkpoints() {
    let prompt =
        |own: u32, rows: usize| -> Vec<u32> { (0..80).chain((0..rows as u32).map(|_| own)).collect() };
    let mut run = Run::with_states(200, true, limits(4, 256), 10);
    let mut counted = (0, 0);
    let mut next = |run: &mut Run| {
        run.finish(20);
        let counters = run.scheduler.counters();
        let since = (counters.read - counted.0, counters.cached - counted.1);
        counted = (counters.read, counters.cached);
        since
    };
    // The prompt ends after a block, whose last row is computed for its logits.
    run.submit(prompt(0, 0), 5);
    assert_eq!(next(&mut run), (80, 0));
    run.submit(prompt(0, 0), 5);
    assert_eq!(next(&mut run), (16, 64));
    // The first of these prompts leaves the text after 80 rows, where the others find a checkpoint.
    for (own, expected) in (1000..).zip([(56, 64), (40, 80), (40, 80)]) {
        run.submit(prompt(own, 40), 5);
        assert_eq!(next(&mut run), expected);
    }
    // Several prompts at once wait for the first.
    (0..4).for_each(|_| _ = run.submit(prompt(2000, 33), 5));
    assert_eq!(next(&mut run), (33 + 3, 80 + 3 * 112));
}

#[test]
fn checkpoints_of_preempted_prompts_are_at_the_ends_of_blocks() {
    let mut run = Run::with_states(24, true, limits(2, 8), 6);
    run.submit(vec![1], 60);
    run.step();
    let prompt: Vec<u32> = (10..362).collect();
    run.submit(prompt.clone(), 3);
    // The first sequence takes its fourth block from the second one after 329 of these tokens, which fill 20 blocks.
    run.finish(300);
    assert_eq!(run.scheduler.counters().preempted, 1);
    let read = run.scheduler.counters().read;
    run.submit([&prompt[..325], &[1; 9][..]].concat(), 3);
    run.finish(20);
    assert_eq!(run.scheduler.counters().read - read, 334 - 320);
}

#[test]
fn states_that_a_failed_step_did_not_restore_are_restored_again() {
    let mut run = Run::with_states(200, true, limits(4, 256), 10);
    run.submit((0..80).collect(), 1);
    run.finish(20);
    let prompt: Vec<u32> = (0..64).chain(100..140).collect();
    let first = run.submit(prompt.clone(), 3);
    run.submit(prompt, 3);
    // Both continue from the checkpoint, but the second one waits for the blocks of the first.
    run.scheduler.plan(&mut run.plan);
    assert_eq!(run.plan.restored.len(), 2);
    run.scheduler.discard(&run.plan);
    run.scheduler.remove(|sequence| sequence.id() == first, &mut Vec::new());
    run.check();
    run.finish(20);
    assert_eq!(run.finished, 2);
}

#[test]
fn a_common_prompt_is_computed_once() {
    let prompt: Vec<u32> = (0..100).collect();
    let mut run = Run::new(200, true, limits(16, 256));
    (0..16).for_each(|_| _ = run.submit(prompt.clone(), 5));
    run.step();
    run.step();
    // Six full blocks are computed once, and the four remaining rows for each sequence.
    assert_eq!(run.scheduler.counters().read, 96 + 16 * 4);
    assert_eq!(run.scheduler.counters().cached, 15 * 96);
    assert_eq!(run.scheduler.pool().used(), 6 + 16);
    run.finish(10);
    // The blocks remain cached after all sequences have ended.
    run.submit(prompt, 5);
    run.step();
    assert_eq!(run.scheduler.counters().read, 96 + 17 * 4);
}

#[test]
fn a_partially_shared_block_is_copied() {
    let mut run = Run::new(20, true, limits(4, 64));
    let prompt: Vec<u32> = (0..32).collect();
    run.submit(prompt.clone(), 1);
    run.finish(5);
    // All tokens are cached, but the last row is always computed, in a separate block.
    run.submit(prompt.clone(), 9);
    run.step();
    assert_eq!(run.plan.copies.len(), 1);
    assert_eq!((run.plan.step.tokens.len(), run.plan.step.positions[0]), (1, 31));
    // The prompts diverge within the second block.
    run.submit(prompt[..26].iter().copied().chain([7; 20]).collect(), 9);
    run.step();
    assert_eq!((run.plan.copies.len(), run.scheduler.running()[1].cached()), (1, 26));
    // The common prefix is too short for a copy.
    run.submit(prompt[..20].iter().copied().chain([8; 20]).collect(), 9);
    run.step();
    assert_eq!(run.plan.copies.len(), 0);
    run.finish(20);
}

#[test]
fn the_youngest_sequence_is_preempted() {
    let mut run = Run::new(8, false, limits(2, 64));
    let [first, second] = [40, 35].map(|length| run.submit(vec![1; length], 60));
    let third = run.submit(vec![2; 10], 2);
    run.step();
    assert_eq!(run.scheduler.running().len(), 2);
    while run.scheduler.counters().preempted == 0 {
        run.step();
    }
    assert_eq!(run.scheduler.running()[0].id(), first);
    assert_eq!((run.scheduler.running().len(), run.scheduler.waiting()), (1, 2));
    assert!(run.first == [first, second] && run.finished == 0);
    while run.finished == 0 {
        run.step();
    }
    run.step();
    assert_eq!(run.scheduler.running()[0].id(), second, "a younger sequence must not overtake");
    run.finish(400);
    assert_eq!((run.first[2], run.finished), (third, 3));
}

/// A client with many requests does not delay the first request of another until all of its own have run.
#[test]
fn clients_take_turns() {
    let mut scheduler = Scheduler::new(99, true, limits(3, 64));
    for (client, token) in [(1, 10), (1, 20), (1, 30), (1, 40), (1, 50), (2, 60), (3, 70), (2, 80)] {
        scheduler.submit(Sequence::new(vec![token; 3], 0).of_client(client));
    }
    let (mut plan, mut order) = (Plan::default(), Vec::new());
    while !scheduler.is_empty() {
        scheduler.plan(&mut plan);
        scheduler.commit(&plan);
        for sequence in scheduler.planned() {
            let token = sequence.prompt()[0];
            if !order.contains(&token) {
                order.push(token);
            }
            sequence.push(1);
        }
        let oldest = scheduler.running()[0].id();
        scheduler.remove(|sequence| sequence.id() == oldest, &mut Vec::new());
    }
    assert_eq!(order, [10, 60, 70, 20, 30, 40, 50, 80]);
}
