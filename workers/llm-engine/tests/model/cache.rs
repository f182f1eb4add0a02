//! Encoded caches, copies of blocks, and rejected steps.
use llm_engine::model::cache_dtype::{CacheDType, CacheEncoding};
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::{SequenceStep, Step, StepModel};
use serde_json::json;

use super::configs::named;
use super::reference::{self, folder_of};
use super::steps::{
    LENGTHS, Reference, Runner, device, load, load_on_cpu_with, load_with, reference_of, reference_on_cpu,
    run_texts, tolerance,
};

fn runner(lengths: &[usize]) -> (Runner, reference::Model) {
    let (folder, model) = folder_of("llama");
    (Runner::new(load(folder.path()), lengths), model)
}

/// Checks that the second sequence, which begins with copies of the first one's blocks, diverges from it within a block.
fn check_copied_blocks(mut runner: Runner, reference: &mut Reference, bound: f32) {
    runner.step(&[(0, 24, false)]);
    let (own, other) = (runner.block(), runner.block());
    let shared = runner.sequences[0].blocks.clone();
    runner.model.copy_blocks(&[(shared[1], own), (shared[0], other)]).unwrap();
    let first = runner.sequences[0].tokens[..20].to_vec();
    let second = &mut runner.sequences[1];
    second.tokens[..20].copy_from_slice(&first);
    (second.blocks, second.done) = (vec![other, own], 20);
    runner.check_step(&[(1, 6, true), (0, 1, true)], reference, tolerance(bound));
    runner.check_step(&[(0, 1, true), (1, 1, true)], reference, tolerance(bound));
}

#[test]
fn copied_blocks_are_independent() {
    let (runner, mut reference) = runner(&[40, 40]);
    check_copied_blocks(runner, &mut reference, 1e-4);
}

/// The step has more rows than one scatter launch of the separate operations, and many blocks.
#[test]
fn long_prompts_are_written() {
    let (mut runner, mut reference) = runner(&[120, 100]);
    runner.check_step(&[(0, 110, true), (1, 70, true)], &mut reference, tolerance(1e-4));
    runner.check_step(&[(0, 1, true), (1, 1, true)], &mut reference, tolerance(1e-4));
}

/// Encoded caches, and the largest difference of logits from those with a cache of f32, relative to the largest logit.
const ENCODED: [(CacheEncoding, f32); 2] = [(CacheEncoding::Int8, 0.05), (CacheEncoding::Fp8, 0.2)];

fn encoded(encoding: CacheEncoding) -> LoadOptions {
    let cache_dtype = Some(CacheDType::Encoded(encoding));
    LoadOptions { dtype: Some(device().1), cache_dtype, ..LoadOptions::default() }
}

/// Mixed batches, shared blocks, and a sequence that is computed again after preemption.
#[test]
fn encoded_caches_change_logits_little() {
    for (name, encodings) in [("llama", &ENCODED[..]), ("qwen3", &ENCODED[..1]), ("gemma3", &ENCODED[1..])] {
        let (folder, _) = folder_of(name);
        for (encoding, bound) in encodings {
            let mut reference = reference_on_cpu(folder.path());
            let runner = Runner::new(load_with(folder.path(), encoded(*encoding)), &LENGTHS);
            let worst = run_texts(runner, &mut reference, *bound).into_iter().fold(0f32, f32::max);
            println!("{name}, {encoding:?}: {worst}");
            assert!(worst > 1e-4, "{name}: the cache is not encoded");
        }
    }
}

/// The CPU computes the same encodings by separate operations.
#[test]
fn encoded_caches_of_the_cpu_change_logits_little() {
    let (folder, _) = folder_of("llama");
    for (encoding, bound) in ENCODED {
        let mut exact = reference_on_cpu(folder.path());
        let mut runner = Runner::new(load_on_cpu_with(folder.path(), encoded(encoding)), &[40, 30]);
        runner.check_step(&[(0, 21, true), (1, 7, true)], &mut exact, bound);
        runner.check_step(&[(0, 1, true), (1, 9, true)], &mut exact, bound);
        runner.check_step(&[(0, 1, true), (1, 1, true)], &mut exact, bound);
        let worst = runner.errors.iter().copied().fold(0f32, f32::max);
        println!("{encoding:?}: {worst}");
        assert!(worst > 1e-4, "the cache is not encoded");
    }
}

/// A row of a head with 16 elements takes 18 bytes with its scale, and 32 in f16.
#[test]
fn encoded_caches_take_half_of_the_memory() {
    let (folder, _) = folder_of("llama");
    let of_floats = LoadOptions { cache_dtype: Some(CacheDType::F16), ..encoded(CacheEncoding::Int8) };
    let of_floats = load_with(folder.path(), of_floats);
    for (encoding, _) in ENCODED {
        let model = load_with(folder.path(), encoded(encoding));
        let bytes_each = |model: &llm_engine::model::decoder::Decoder| {
            model.cache().bytes() as f64 / (model.capacity().blocks + 1) as f64
        };
        assert_eq!(bytes_each(&model) / bytes_each(&of_floats), 18.0 / 32.0);
        let more = model.capacity().blocks as f64 / of_floats.capacity().blocks as f64;
        assert!((more / (32.0 / 18.0) - 1.0).abs() < 0.02, "{encoding:?}: {more} times the blocks");
        assert!(model.cache().bytes() <= (1 << 20) + (1 << 20) / model.capacity().blocks);
    }
}

#[test]
fn copied_blocks_of_encoded_caches_are_independent() {
    let (folder, _) = folder_of("llama");
    for (encoding, bound) in ENCODED {
        let runner = Runner::new(load_with(folder.path(), encoded(encoding)), &[40, 40]);
        let mut reference = reference_of(load_on_cpu_with(folder.path(), encoded(encoding)));
        check_copied_blocks(runner, &mut reference, bound);
    }
}

#[test]
fn encoded_caches_of_other_widths_are_refused() {
    if device().0.is_cpu() {
        println!("not applicable: the CPU supports all widths");
        return;
    }
    let (folder, _) = folder_of("llama");
    let mut config = named("llama").config;
    for width in [12, 264] {
        config["head_dim"] = json!(width);
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let error = load_decoder(folder.path(), &device().0, encoded(CacheEncoding::Fp8), &mut |_| ());
        let Err(error) = error else { panic!("a cache with heads of {width} elements was loaded") };
        let error = format!("{error:#}");
        let expected = format!("a cache of fp8 does not support heads of {width} elements");
        assert!(error.contains(&expected) && error.contains("--cache-dtype f16"), "{error}");
    }
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
