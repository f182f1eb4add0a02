//! Heads that predict further tokens, compared with the formula of `mtp.py`, and broken files.
use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadatum;
use candle_core::{DType, Device, Tensor};
use llm_engine::model::decoder::Decoder;
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::{BLOCK_SIZE, Step, StepModel};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::checkpoints::{checkpoint, data};
use super::configs::named;
use super::steps::{close, device, load_on_cpu_with, load_with, tolerance};
use super::{gguf, reference};

/// Checkpoints with a head, and those of which files may be GGUF.
const NAMES: [&str; 4] = ["deepseek-v3", "glm4-moe", "qwen3-next", "qwen3.5"];
const GGUF: [(&str, &str); 3] =
    [("glm4-moe", "glm4moe"), ("deepseek-v3", "deepseek2"), ("qwen3.5", "qwen35")];
/// Names of a module, and those of an appended layer.
const MODULE: [(&str, &str); 5] = [
    ("mtp.layers.0.", ""),
    ("mtp.fc.", "eh_proj."),
    ("mtp.pre_fc_norm_embedding.", "enorm."),
    ("mtp.pre_fc_norm_hidden.", "hnorm."),
    ("mtp.norm.", "shared_head.norm."),
];

fn options() -> LoadOptions {
    LoadOptions { mtp: true, ..LoadOptions::default() }
}

/// Returns the configuration and the weights of a checkpoint with its head.
fn with_head(name: &str) -> (Value, HashMap<String, Tensor>) {
    let (config, mut weights) = checkpoint(name);
    let head = data(&format!("{name}-mtp")).join("head.safetensors");
    let head = candle_core::safetensors::load(head, &Device::Cpu).unwrap();
    weights.extend(head.into_iter().map(|(name, x)| (name, x.to_dtype(DType::F32).unwrap())));
    (config, weights)
}

/// Writes a checkpoint with its head.
pub fn folder(name: &str) -> TempDir {
    let (folder, (config, weights)) = (tempfile::tempdir().unwrap(), with_head(name));
    reference::write(folder.path(), &config, &weights, 1);
    folder
}

/// Logits of a head after each position of a text, and after each of its drafts.
struct Expected {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    drafts: Vec<u32>,
    draft_logits: Vec<Vec<f32>>,
}

impl Expected {
    fn of(name: &str, index: usize) -> Self {
        let read = |name: &str| {
            candle_core::safetensors::load(data(name).join("expected.st"), &Device::Cpu).unwrap()
        };
        let (of_model, of_head) = (read(name), read(&format!("{name}-mtp")));
        let tokens = |x: &Tensor| x.to_dtype(DType::U32).unwrap().to_vec1().unwrap();
        Self {
            tokens: tokens(&of_model[&format!("tokens.{index}")]),
            logits: of_head[&format!("logits.{index}")].to_vec2().unwrap(),
            drafts: tokens(&of_head[&format!("drafts.{index}")]),
            draft_logits: of_head[&format!("draft_logits.{index}")].to_vec2().unwrap(),
        }
    }
}

/// Computes texts in chunks of all sizes, beside each other, and the head's positions and drafts. Then the same positions in
/// copied blocks.
fn check(model: &mut Decoder, name: &str, exact: f32) {
    let tolerance = if exact > 0.0 { exact } else { tolerance(1e-4) };
    let texts: Vec<Expected> = (0..2).map(|index| Expected::of(name, index)).collect();
    // Blocks that are not neighbours.
    let blocks = [vec![5, 1, 8], vec![2, 7, 0]];
    let mut done = [0; 2];
    for rows in [[7, 5], [20, 1], [1, 1], [12, 23]] {
        let mut step = Step::default();
        for (index, text) in texts.iter().enumerate() {
            let end = (done[index] + rows[index]).min(text.tokens.len());
            step.push(&text.tokens[..end], done[index], blocks[index].clone(), 0, None);
            step.states.extend(model.capacity().states.map(|_| index as u32));
            done[index] = end;
        }
        assert_eq!(model.step(&step).unwrap().dims(), [0, model.capacity().vocabulary]);
    }
    assert_eq!(done, [40, 30]);
    let mut most = 0f32;
    let mut compare = |got: Tensor, expected: &[&Vec<f32>], what: &str| {
        let got: Vec<Vec<f32>> = got.to_vec2().unwrap();
        assert_eq!(got.len(), expected.len(), "{what}");
        got.iter()
            .zip(expected)
            .for_each(|(got, expected)| most = most.max(close(got, expected, tolerance, what)));
    };
    let step = |blocks: &[Vec<u32>; 2], shares: [(usize, usize, usize); 2], keeps: bool| {
        let mut step = Step::default();
        for ((text, blocks), (from, end, logits)) in texts.iter().zip(blocks).zip(shares) {
            let tokens = [&text.tokens[1..], &text.drafts].concat();
            step.push(&tokens[..end], from, blocks.clone(), logits, None);
            if keeps {
                step.kept.resize(step.tokens.len() - 1, u32::MAX);
                step.kept.push(blocks[end / BLOCK_SIZE] * BLOCK_SIZE as u32 + (end % BLOCK_SIZE) as u32);
            }
        }
        step
    };
    let last = [39, 29];
    // Chunks, rows one by one and beside each other. The last ones keep their states.
    for (from, end) in [([0, 0], [17, 3]), ([17, 3], [18, 4]), ([18, 4], [19, 20]), ([19, 20], last)] {
        let shares = [0, 1].map(|index| (from[index], end[index], end[index] - from[index]));
        let expected: Vec<&Vec<f32>> =
            (0..2).flat_map(|index| &texts[index].logits[from[index]..end[index]]).collect();
        let logits = model.mtp_step(&step(&blocks, shares, end == last)).unwrap();
        compare(logits, &expected, &format!("{name}: positions {from:?} to {end:?}"));
    }
    for draft in 0..4 {
        let shares = last.map(|last| (last + draft, last + draft + 1, 1));
        let logits = model.mtp_step(&step(&blocks, shares, true)).unwrap();
        let expected = [&texts[0].draft_logits[draft], &texts[1].draft_logits[draft]];
        compare(logits, &expected, &format!("{name}: draft {draft}"));
    }
    // Hidden states are copied with their blocks. The last positions are computed again, with states of the model.
    model.copy_blocks(&[(5, 3), (1, 4), (8, 6)]).unwrap();
    let copied = [vec![3, 4, 6], blocks[1].clone()];
    let logits = model.mtp_step(&step(&copied, [(30, 39, 1), (28, 29, 1)], false)).unwrap();
    compare(logits, &[&texts[0].logits[38], &texts[1].logits[28]], &format!("{name}: copied blocks"));
    println!("{name}: worst {most}");
}

#[test]
fn logits_of_heads() {
    for name in NAMES {
        let folder = folder(name);
        check(&mut load_on_cpu_with(folder.path(), options()), name, 1e-4);
        if name == "glm4-moe" || name == "qwen3.5" {
            let options = LoadOptions { dtype: Some(device().1), ..options() };
            check(&mut load_with(folder.path(), options), name, 0.0);
        }
    }
}

#[test]
fn logits_of_heads_in_gguf() {
    for (name, arch) in GGUF {
        let (folder, (config, weights)) = (tempfile::tempdir().unwrap(), with_head(name));
        let layers = config["num_hidden_layers"].as_u64().unwrap() as u32;
        let renamed = |(name, tensor): (String, Tensor)| {
            let own = MODULE.iter().find_map(|(from, to)| Some((name.strip_prefix(from)?, to)));
            let own = own.map(|(rest, to)| format!("model.layers.{layers}.{to}{rest}"));
            (own.unwrap_or(name), tensor)
        };
        let weights = weights.into_iter().map(renamed).collect();
        let tensors = gguf::convert(arch, &config, &weights);
        let mut metadata = gguf::metadata(arch, &config);
        metadata.retain(|(key, _)| *key != format!("{arch}.block_count"));
        for (key, value) in [("block_count", layers + 1), ("nextn_predict_layers", 1)] {
            metadata.push((format!("{arch}.{key}"), Metadatum::U32(value)));
        }
        let path = gguf::write(folder.path(), &metadata, &tensors, GgmlDType::F32, &[]);
        check(&mut load_on_cpu_with(&path, options()), name, 1e-4);
    }
}

/// Published files also contain a vision model, and have other names for the layers of the text model.
#[test]
fn published_files_have_other_names() {
    let (folder, (mut config, weights)) = (tempfile::tempdir().unwrap(), with_head("qwen3.5"));
    let tied = config.as_object_mut().unwrap().remove("tie_word_embeddings").unwrap();
    let architectures = ["Qwen3_5ForConditionalGeneration"];
    let config = json!({"architectures": architectures, "text_config": config, "tie_word_embeddings": tied});
    let renamed = |(name, tensor): (String, Tensor)| match name.strip_prefix("model.") {
        Some(rest) => (format!("model.language_model.{rest}"), tensor),
        None => (name, tensor),
    };
    reference::write(folder.path(), &config, &weights.into_iter().map(renamed).collect(), 1);
    check(&mut load_on_cpu_with(folder.path(), options()), "qwen3.5", 1e-4);
}

/// A head changes no logits of the model.
#[test]
fn logits_of_the_model_are_the_same() {
    for name in NAMES {
        let folder = folder(name);
        let logits = |mtp| {
            let mut model = load_on_cpu_with(folder.path(), LoadOptions { mtp, ..options() });
            let mut step = Step::default();
            step.push(&Expected::of(name, 0).tokens, 0, vec![3, 1, 2], 5, None);
            step.states.extend(model.capacity().states.map(|_| 0));
            model.step(&step).unwrap().to_vec2::<f32>().unwrap()
        };
        for (with, without) in logits(true).iter().zip(&logits(false)) {
            close(with, without, 1e-6, name);
        }
    }
}

/// The cache has the keys and values of the head's layer, and the hidden states.
#[test]
fn the_cache_includes_the_head() {
    for (name, layers, row) in
        [("glm4-moe", 2, 2 * 16), ("qwen3.5", 1, 2 * 32), ("deepseek-v3", 3, 2 * 2 * 48)]
    {
        let folder = folder(name);
        let load = |mtp, cache_dtype| {
            let options = LoadOptions { mtp, cache_bytes: Some(1 << 20), cache_dtype, ..options() };
            load_decoder(folder.path(), &Device::Cpu, options, &mut |_| ()).unwrap()
        };
        let bytes = |model: &Decoder| model.cache().bytes() / (model.cache().blocks() + 1);
        let (with, without) = (load(true, None), load(false, None));
        assert_eq!(bytes(&without), 4 * BLOCK_SIZE * layers * row, "{name}");
        assert_eq!(bytes(&with), 4 * BLOCK_SIZE * ((layers + 1) * row + 32), "{name}");
        let states = without.capacity().states.map_or(0, |_| 1 << 19);
        let blocks = |model: &Decoder| ((1 << 20) - states) / bytes(model);
        if states == 0 {
            assert_eq!(with.capacity().blocks, blocks(&with), "{name}");
            assert_eq!(without.capacity().blocks, blocks(&without), "{name}");
        }
    }
}

/// Returns the error of loading a checkpoint.
fn error(path: &Path) -> String {
    let error = load_decoder(path, &Device::Cpu, options(), &mut |_| ()).err().unwrap();
    format!("{error:#}")
}

#[test]
fn broken_heads_are_rejected() {
    for name in NAMES {
        let (config, weights) = with_head(name);
        let (_, own) = checkpoint(name);
        let mut of_head: Vec<&String> = weights.keys().filter(|name| !own.contains_key(*name)).collect();
        of_head.sort();
        for tensor in of_head {
            let folder = tempfile::tempdir().unwrap();
            let mut others = weights.clone();
            others.remove(tensor);
            reference::write(folder.path(), &config, &others, 1);
            let missing = error(folder.path());
            assert!(
                missing.contains(tensor) && missing.contains(folder.path().to_str().unwrap()),
                "{missing}"
            );
            let input = tensor.ends_with("eh_proj.weight") || tensor == "mtp.fc.weight";
            assert_eq!(missing.contains("no head that predicts further tokens (MTP)"), input, "{missing}");
        }
        let input = weights.keys().find(|name| name.ends_with("eh_proj.weight") || *name == "mtp.fc.weight");
        let mut others = weights.clone();
        others.insert(input.unwrap().clone(), Tensor::zeros((32, 32), DType::F32, &Device::Cpu).unwrap());
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), &config, &others, 1);
        let wrong = error(folder.path());
        assert!(wrong.contains(input.unwrap()) && wrong.contains("[32, 64]"), "{wrong}");
        // Without the head, the model is loaded as before.
        load_on_cpu_with(folder.path(), LoadOptions::default());
    }
    let (folder, case) = (tempfile::tempdir().unwrap(), named("llama"));
    reference::write(folder.path(), &case.config, &reference::model(&case).1, 1);
    let other = error(folder.path());
    assert!(other.contains("requires a model of DeepSeek V3, GLM-4.5, Qwen3-Next or Qwen3.5"), "{other}");
}

#[test]
fn wrong_steps_are_rejected() {
    let folder = folder("glm4-moe");
    let mut model = load_on_cpu_with(folder.path(), options());
    let mut step = Step::default();
    step.push(&[1, 2, 3], 0, vec![0], 1, None);
    step.kept = vec![u32::MAX, u32::MAX, 1 << 20];
    assert!(model.mtp_step(&step).unwrap_err().to_string().contains("slot 1048576 that keeps a state"));
    step.kept = Vec::new();
    step.tokens[0] = 1000;
    assert!(model.mtp_step(&step).unwrap_err().to_string().contains("token 1000"));
    let mut plain = load_on_cpu_with(folder.path(), LoadOptions::default());
    step.tokens[0] = 0;
    assert!(plain.mtp_step(&step).unwrap_err().to_string().contains("no MTP head"));
    assert!(model.has_mtp() && !plain.has_mtp());
}
