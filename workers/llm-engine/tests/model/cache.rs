//! Copies of blocks, and rejected steps.
use llm_engine::step::{SequenceStep, Step, StepModel};

use super::configs::named;
use super::reference;
use super::steps::{Runner, load, tolerance};

fn runner(lengths: &[usize]) -> (Runner, reference::Model) {
    let folder = tempfile::tempdir().unwrap();
    let case = named("llama");
    let (model, weights) = reference::model(&case);
    reference::write(folder.path(), &case.config, &weights, 1);
    (Runner::new(load(folder.path()), lengths), model)
}

/// The second sequence diverges from the first within a block.
#[test]
fn copied_blocks_are_independent() {
    let (mut runner, mut reference) = runner(&[40, 40]);
    runner.step(&[(0, 24, false)]);
    let (own, other) = (runner.block(), runner.block());
    let shared = runner.sequences[0].blocks.clone();
    runner.model.copy_blocks(&[(shared[1], own), (shared[0], other)]).unwrap();
    let first = runner.sequences[0].tokens[..20].to_vec();
    let second = &mut runner.sequences[1];
    second.tokens[..20].copy_from_slice(&first);
    (second.blocks, second.done) = (vec![other, own], 20);
    runner.check_step(&[(1, 6, true), (0, 1, true)], &mut reference, tolerance(1e-4));
    runner.check_step(&[(0, 1, true), (1, 1, true)], &mut reference, tolerance(1e-4));
}

/// The step has more rows than one scatter launch of the separate operations, and many blocks.
#[test]
fn long_prompts_are_written() {
    let (mut runner, mut reference) = runner(&[120, 100]);
    runner.check_step(&[(0, 110, true), (1, 70, true)], &mut reference, tolerance(1e-4));
    runner.check_step(&[(0, 1, true), (1, 1, true)], &mut reference, tolerance(1e-4));
}

#[test]
fn invalid_steps_are_rejected() {
    let (mut runner, _) = runner(&[4]);
    let sequence = SequenceStep { rows: 0..2, context: 2, blocks: vec![3], logits: 1, adapter: None };
    let good = Step {
        tokens: vec![1, 2],
        positions: vec![0, 1],
        slots: vec![48, 49],
        sequences: vec![sequence.clone()],
        ..Step::default()
    };
    runner.model.step(&good).unwrap();
    let with = |change: fn(&mut Step)| {
        let mut step = good.clone();
        change(&mut step);
        step
    };
    for (step, why) in [
        (with(|step| step.tokens[0] = 64), "token 64"),
        (with(|step| step.positions[1] = 128), "position 128"),
        (with(|step| step.slots[1] = u32::MAX), "slot"),
        (with(|step| step.slots.truncate(1)), "1 slots"),
        (with(|step| step.states.push(0)), "1 slots of states instead of 0"),
        (with(|step| step.sequences[0].rows = 0..1), "and 2 positions"),
        (with(|step| step.sequences[0].rows = 1..2), "after row 0"),
        (with(|step| step.sequences[0].context = 3), "3 positions"),
        (with(|step| step.sequences[0].blocks = vec![]), "in blocks []"),
        (with(|step| step.sequences[0].blocks = vec![100_000]), "100000"),
        (with(|step| step.sequences.clear()), "the sequences have 0 rows"),
    ] {
        let error = runner.model.step(&step).unwrap_err().to_string();
        assert!(error.contains(why), "{error} does not contain {why:?}");
    }
    assert!(runner.model.copy_blocks(&[(0, 100_000)]).is_err());
    assert_eq!(runner.model.step(&Step::default()).unwrap().dims(), [0, 64]);
    assert!(runner.model.embed(&[vec![]]).is_err());
    assert!(runner.model.embed(&[vec![64]]).is_err());
    assert!(runner.model.embed(&[vec![1; 129]]).is_err());
}
