//! Decoding steps as graphs, compared with the same steps without graphs.
use std::path::Path;
use std::process::Command;

use candle_core::{DType, Device};
use llm_engine::model::cache_dtype::{CacheDType, CacheEncoding};
use llm_engine::model::graphs::DecodeGraphs;
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::{BLOCK_SIZE, Step, StepModel, slot};

use super::mtp;
use super::reference::folder_of;
use super::steps::{Runner, close, device};

/// Lengths of the sequences after their prompts, so that they cross a boundary of blocks at different steps.
const PROMPTS: [usize; 5] = [3, 14, 9, 30, 16];
/// Number of sequences of each decoding step, in turn.
const BATCHES: [usize; 8] = [1, 2, 4, 3, 5, 4, 1, 5];
const STEPS: usize = 4 * BATCHES.len();

/// Returns a runner that has computed the prompts, on a stream of its own.
fn after_prompts(path: &Path, dtype: DType, cache_dtype: Option<CacheDType>, no_graphs: bool) -> Runner {
    device();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let (dtype, cache_bytes) = (Some(dtype), Some(1 << 20));
    let options = LoadOptions { dtype, cache_dtype, cache_bytes, no_graphs, ..LoadOptions::default() };
    let model = load_decoder(path, &device, options, &mut |_| ()).unwrap();
    let mut runner = Runner::new(model, &[PROMPTS[3] + STEPS + 1; PROMPTS.len()]);
    let prompts: Vec<_> = PROMPTS.iter().enumerate().map(|(index, rows)| (index, *rows, true)).collect();
    runner.step(&prompts);
    runner
}

/// Returns the logits of every step as bits, and the number of graphs.
fn decode(
    path: &Path,
    dtype: DType,
    cache_dtype: Option<CacheDType>,
    no_graphs: bool,
) -> (Vec<Vec<Vec<u32>>>, usize) {
    let mut runner = after_prompts(path, dtype, cache_dtype, no_graphs);
    let steps = (0..STEPS).map(|step| {
        let shares: Vec<_> = (0..BATCHES[step % BATCHES.len()]).map(|index| (index, 1, true)).collect();
        let logits = runner.step(&shares);
        logits.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
    });
    let steps = steps.collect();
    (steps, runner.model.graphs().count())
}

fn largest(row: &[u32]) -> usize {
    let value = |index: &usize| f32::from_bits(row[*index]);
    (0..row.len()).max_by(|a, b| value(a).total_cmp(&value(b))).unwrap()
}

#[test]
fn replayed_steps_equal_launched_steps() {
    let int8 = Some(CacheDType::Encoded(CacheEncoding::Int8));
    for (name, dtype, cache) in
        [("llama", DType::F32, None), ("llama", DType::F16, None), ("qwen2moe", DType::F16, int8)]
    {
        replays_equal_launches(name, dtype, cache);
    }
}

fn replays_equal_launches(name: &str, dtype: DType, cache: Option<CacheDType>) {
    let (folder, _) = folder_of(name);
    let (launched, none) = decode(folder.path(), dtype, cache, true);
    let (replayed, graphs) = decode(folder.path(), dtype, cache, false);
    assert_eq!(none, 0);
    // Four padded batches, and the widths of 1 to 4 blocks that they reach.
    assert!((4..=12).contains(&graphs), "{graphs} graphs");
    assert!(PROMPTS[3] + STEPS > 3 * BLOCK_SIZE, "the block tables have several widths");
    for (step, (launched, replayed)) in launched.iter().zip(&replayed).enumerate() {
        let batch = launched.len();
        if batch.is_power_of_two() {
            assert_eq!(launched, replayed, "{dtype:?}, step {step} of {batch} sequences");
        }
        for (launched, replayed) in launched.iter().zip(replayed) {
            let same = largest(launched) == largest(replayed);
            assert!(same, "{dtype:?}, step {step} of {batch} sequences");
        }
    }
}

/// Steps with the rows of drafts, several of each sequence: the numbers of rows of the sequences.
const DRAFTED: [&[usize]; 4] = [&[3], &[4, 4], &[1, 3, 5], &[2, 1]];

#[test]
fn steps_with_drafts_are_replayed() {
    for dtype in [DType::F32, DType::F16] {
        let (folder, _) = folder_of("llama");
        let [mut launched, mut replayed] =
            [true, false].map(|no_graphs| after_prompts(folder.path(), dtype, None, no_graphs));
        for turn in 0..3 {
            for rows in DRAFTED {
                let shares: Vec<_> =
                    rows.iter().enumerate().map(|(index, rows)| (index, *rows, *rows)).collect();
                let expected = launched.step(&shares);
                let logits = replayed.step(&shares);
                assert_eq!((logits.len(), expected.len()), (rows.iter().sum(), rows.iter().sum()));
                for (own, expected) in logits.iter().zip(&expected) {
                    let tolerance = if dtype == DType::F32 { 1e-4 } else { 2e-2 };
                    close(own, expected, tolerance, &format!("{dtype:?}, turn {turn}, rows {rows:?}"));
                }
            }
        }
        let graphs = replayed.model.graphs().count();
        assert!((DRAFTED.len()..=2 * DRAFTED.len()).contains(&graphs), "{graphs} graphs");
    }
}

/// Steps of a head in one block that keep a hidden state, and those in two blocks that keep none, have graphs of their own.
#[test]
fn steps_of_heads_are_replayed_with_and_without_kept_states() {
    let (folder, blocks) = (mtp::folder("glm4-moe"), [2, 1]);
    let tokens: Vec<u32> = (0..32).map(|place| (place * 7 + 3) % 48).collect();
    let decode = |no_graphs| {
        device();
        let device = Device::new_rocm_with_stream(0).unwrap();
        let (dtype, cache_bytes) = (Some(DType::F16), Some(1 << 20));
        let options = LoadOptions { dtype, cache_bytes, no_graphs, mtp: true, ..LoadOptions::default() };
        let mut model = load_decoder(folder.path(), &device, options, &mut |_| ()).unwrap();
        let step = |from: usize, end: usize, logits, keeps: bool| {
            let mut step = Step::default();
            step.push(&tokens[..end], from, blocks[..end.div_ceil(BLOCK_SIZE)].to_vec(), logits, None);
            step.kept.extend(keeps.then(|| slot(&blocks, end)));
            step
        };
        model.step(&step(0, 30, 0, false)).unwrap();
        model.mtp_step(&step(0, 20, 0, false)).unwrap();
        // The fourth one reads the hidden state that the first one kept.
        let steps = [(10, true), (20, false), (21, false), (11, false), (10, true), (12, false)];
        let logits = steps.map(|(end, keeps)| {
            let logits = model.mtp_step(&step(end - 1, end, 1, keeps)).unwrap();
            logits.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        });
        (logits, model.mtp_graphs().map_or(0, DecodeGraphs::count))
    };
    let ((launched, none), (replayed, graphs)) = (decode(true), decode(false));
    assert_eq!((none, graphs), (0, 2));
    assert_eq!(launched, replayed);
}

/// Runs an ignored test in a separate process.
pub fn passes_with(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{test}: {text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn wrong_replays_are_replaced_by_launches() {
    if rocm_loader::driver().is_ok_and(|driver| !driver.is_software()) {
        println!("not applicable: only the software GPU can inject failures");
        return;
    }
    let run = |options: &str| {
        let variables = [
            ("CANDLE_ROCM_DRIVER", "emulator:gfx1100"),
            ("CANDLE_ROCM_EMULATOR", options),
            ("CANDLE_ROCM_GRAPHS", "check"),
        ];
        passes_with("graphs::stale_replays_change_nothing", &variables);
    };
    run("stale=1");
    run("stale=4");
}

#[test]
#[ignore = "run by wrong_replays_are_replaced_by_launches"]
fn stale_replays_change_nothing() {
    let (folder, _) = folder_of("llama");
    let (launched, _) = decode(folder.path(), DType::F32, None, true);
    let (replayed, graphs) = decode(folder.path(), DType::F32, None, false);
    assert_eq!(graphs, 0, "graphs are disabled");
    for (launched, replayed) in launched.iter().zip(&replayed) {
        assert!(!launched.len().is_power_of_two() || launched == replayed);
    }
}
