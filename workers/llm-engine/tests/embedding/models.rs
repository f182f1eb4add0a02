//! All architectures, poolings, scores and file formats.
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use llm_engine::model::{LoadOptions, Loaded, load};
use llm_engine::step::{Step, Tasks};
use serde_json::Value;

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embedding/data").join(name)
}

pub fn device() -> Device {
    #[cfg(feature = "rocm-emulator")]
    {
        crate::gpu::rocm()
    }
    #[cfg(not(feature = "rocm-emulator"))]
    Device::Cpu
}

pub fn open(path: &Path, device: &Device, dtype: Option<DType>) -> Loaded {
    let options = LoadOptions { dtype, cache_bytes: Some(1 << 20), ..LoadOptions::default() };
    load(path, device, options, &mut |_| ()).unwrap()
}

pub fn expected(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path.join("expected.json")).unwrap()).unwrap()
}

pub fn list<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Returns 1 minus the cosine of the angle.
pub fn distance(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    1.0 - dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

/// Embeds all texts in one batch and one by one, and compares them. Returns the vectors of the batch.
fn check(model: &mut Loaded, expected: &Value, tolerance: f64, what: &str) -> Vec<Vec<f32>> {
    let limit = model.model.capacity().context;
    let texts: Vec<String> = list(&expected["texts"]);
    let vectors: Vec<Vec<f32>> = list(&expected["vectors"]);
    let tokens: Vec<Vec<u32>> =
        texts.iter().map(|text| model.text.encode_truncated(text, limit).unwrap()).collect();
    for (tokens, count) in tokens.iter().zip(list::<usize>(&expected["tokens"])) {
        assert_eq!(tokens.len(), count.min(limit), "{what}");
    }
    let batch: Vec<Vec<f32>> = model.model.embed(&tokens).unwrap().to_vec2().unwrap();
    let mut worst = 0f64;
    for (index, expected) in vectors.iter().enumerate() {
        let alone = model.model.embed(&tokens[index..=index]).unwrap().to_vec2().unwrap();
        for vector in [&batch[index], &alone[0]] {
            let off = distance(vector, expected);
            assert!(off <= tolerance, "{what}: {:?} is {off} off: {vector:?}", texts[index]);
            worst = worst.max(off);
        }
    }
    println!("{what}: 1 - cos is at most {worst:.1e}");
    batch
}

/// Copies a model's files and then those of a variant of it.
fn merged(base: &str, variant: &str) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            match entry.path().is_dir() {
                true => copy(&entry.path(), &to),
                false => assert!(fs::copy(entry.path(), to).is_ok()),
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    [base, variant].into_iter().for_each(|name| copy(&data(name), folder.path()));
    folder
}

#[test]
fn vectors_equal_sentence_transformers() {
    for name in ["bert", "xlm-roberta", "modernbert", "qwen3", "gemma3"] {
        for (device, dtype, tolerance) in
            [(Device::Cpu, DType::F32, 1e-6), (device(), DType::F32, 1e-6), (device(), DType::F16, 1e-3)]
        {
            if dtype == DType::F16 && device.is_cpu() {
                continue;
            }
            let path = data(name);
            let mut model = open(&path, &device, Some(dtype));
            let what = format!("{name} in {dtype:?} on {:?}", device.location());
            let vectors = check(&mut model, &expected(&path), tolerance, &what);
            for vector in &vectors {
                let length: f32 = vector.iter().map(|value| value * value).sum();
                assert!((length - 1.0).abs() < 1e-4, "{what}: {length}");
            }
            let tasks = Tasks { generate: false, embed: true, classify: false, width: Some(32) };
            assert_eq!(model.model.tasks(), tasks);
            assert_eq!(model.model.capacity().context, 64);
            assert!(model.model.step(&Step::default()).is_err());
        }
    }
}

/// Without a module `Normalize`, vectors also have the reference's length.
#[test]
fn all_poolings_and_linear_layers_are_computed() {
    for (variant, width) in [("bert-cls", 32), ("bert-modes", 24)] {
        let folder = merged("bert", variant);
        let mut model = open(folder.path(), &device(), Some(DType::F32));
        assert_eq!(model.model.tasks().width, Some(width));
        let expected = expected(folder.path());
        let vectors = check(&mut model, &expected, 1e-6, variant);
        for (vector, expected) in vectors.iter().zip(list::<Vec<f32>>(&expected["vectors"])) {
            let off = vector.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(off < 1e-4, "{variant}: {off}");
        }
    }
}

/// A folder without modules.json has the mean, as in sentence-transformers.
#[test]
fn the_default_is_the_mean() {
    let folder = merged("bert", "bert-cls");
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    let mut model = open(folder.path(), &device(), Some(DType::F32));
    check(&mut model, &expected(&data("bert")), 1e-6, "bert without modules");
}

#[test]
fn gguf_files_name_the_pooling() {
    for device in [Device::Cpu, device()] {
        let mut model = open(&data("bert.gguf"), &device, Some(DType::F32));
        check(&mut model, &expected(&data("bert")), 1e-6, "bert.gguf");
        let mut model = open(&data("bert-cls-q8_0.gguf"), &device, None);
        check(&mut model, &expected(&data("bert-cls")), 5e-3, "bert-cls-q8_0.gguf");
        let mut model = open(&data("modernbert.gguf"), &device, Some(DType::F32));
        check(&mut model, &expected(&data("modernbert")), 1e-6, "modernbert.gguf");
    }
}

#[test]
fn scores_equal_sentence_transformers() {
    for name in ["bert-reranker", "xlm-roberta-reranker", "modernbert-reranker", "modernbert-cls-reranker"] {
        let path = data(name);
        for device in [Device::Cpu, device()] {
            let mut model = open(&path, &device, Some(DType::F32));
            assert_eq!(model.model.tasks(), score_task());
            let (expected, limit) = (expected(&path), model.model.capacity().context);
            let query = expected["query"].as_str().unwrap();
            let texts: Vec<String> = list(&expected["texts"]);
            let pair = |text: &String| model.text.encode_pair(query, text, Some(limit)).unwrap();
            let (tokens, seconds): (Vec<_>, Vec<_>) = texts.iter().map(pair).unzip();
            assert!(tokens.iter().all(|tokens| tokens.len() <= limit));
            let scores: Vec<Vec<f32>> = model.model.classify(&tokens, &seconds).unwrap().to_vec2().unwrap();
            for ((score, expected), text) in scores.iter().zip(list::<f32>(&expected["scores"])).zip(&texts) {
                assert!((score[0] - expected).abs() < 1e-4, "{name} {text:?}: {score:?}, not {expected}");
            }
            assert!(model.model.embed(&tokens).is_err());
        }
    }
}

fn score_task() -> Tasks {
    Tasks { generate: false, embed: false, classify: true, width: None }
}

/// Scores `texts` in one batch.
fn scores(
    model: &mut Loaded,
    instruction: Option<&str>,
    query: &str,
    texts: &[String],
) -> (Vec<usize>, Vec<f32>) {
    let limit = Some(model.model.capacity().context);
    let pair = |text: &String| model.text.encode_instructed_pair(instruction, query, text, limit).unwrap();
    let (tokens, seconds): (Vec<_>, Vec<_>) = texts.iter().map(pair).unzip();
    let rows: Vec<Vec<f32>> = model.model.classify(&tokens, &seconds).unwrap().to_vec2().unwrap();
    (tokens.iter().map(Vec::len).collect(), rows.into_iter().flatten().collect())
}

fn assert_close(scores: &[f32], expected: &[f32], what: &str) {
    assert_eq!(scores.len(), expected.len(), "{what}");
    let worst = scores.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0f32, f32::max);
    assert!(worst < 1e-4, "{what}: {scores:?} instead of {expected:?}");
}

/// The score is the probability of one token among two after a prompt.
#[test]
fn decoders_score_by_two_tokens() {
    let folder = merged("qwen3", "qwen3-reranker");
    let expected = expected(folder.path());
    let (query, texts) = (expected["query"].as_str().unwrap(), list::<String>(&expected["texts"]));
    for path in [folder.path(), &data("qwen3-reranker.gguf")] {
        for device in [Device::Cpu, device()] {
            let mut model = open(path, &device, Some(DType::F32));
            let what = path.display().to_string();
            assert_eq!((model.model.tasks(), model.model.capacity().context), (score_task(), 192), "{what}");
            let (tokens, found) = scores(&mut model, None, query, &texts);
            assert_eq!(tokens, list::<usize>(&expected["tokens"]), "{what}");
            assert_close(&found, &list::<f32>(&expected["scores"]), &what);
            assert_eq!(model.text.has_pair_template(), path.is_dir());
            if path.is_dir() {
                let instruction = expected["instruction"].as_str();
                let (_, found) = scores(&mut model, instruction, query, &texts);
                assert_close(&found, &list::<f32>(&expected["instructed"]), &what);
            }
            assert!(model.model.embed(&[vec![1]]).is_err() && model.model.step(&Step::default()).is_err());
        }
    }
}

#[test]
fn decoders_with_a_classifier_have_one_label() {
    let folder = merged("qwen3", "qwen3-reranker");
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    let file = folder.path().join("config.json");
    let config = fs::read_to_string(&file).unwrap();
    let config = config.replace("Qwen3ForCausalLM", "Qwen3ForSequenceClassification");
    for (labels, name) in [("", "2 labels"), (r#""id2label": {"0": "LABEL_0"},"#, "score.weight")] {
        fs::write(&file, config.replacen('{', &format!("{{{labels}"), 1)).unwrap();
        let error = load(folder.path(), &Device::Cpu, LoadOptions::default(), &mut |_| ()).err().unwrap();
        assert!(format!("{error:#}").contains(name), "{name}: {error:#}");
    }
}

/// GGUF files of classifiers contain no activation, and SentencePiece drops white space that the folder's tokenizer keeps.
#[test]
fn scores_of_gguf_files_equal_those_of_folders() {
    for name in ["bert-reranker", "xlm-roberta-reranker", "modernbert-reranker"] {
        let expected = expected(&data(name));
        let is_logit = name != "xlm-roberta-reranker";
        let (texts, wanted): (Vec<String>, Vec<f32>) = list::<String>(&expected["texts"])
            .into_iter()
            .zip(list::<f32>(&expected["scores"]))
            .filter(|(text, _)| is_logit || text.trim() == text)
            .map(|(text, score)| (text, if is_logit { 1.0 / (1.0 + (-score).exp()) } else { score }))
            .unzip();
        assert!(texts.len() >= 5);
        for device in [Device::Cpu, device()] {
            let mut model = open(&data(&format!("{name}.gguf")), &device, Some(DType::F32));
            assert_eq!((model.model.tasks(), model.model.capacity().context), (score_task(), 64), "{name}");
            let (_, found) = scores(&mut model, None, expected["query"].as_str().unwrap(), &texts);
            assert_close(&found, &wanted, name);
        }
    }
}

/// 64 rows with at most 32 rows per part are a layer per part.
#[test]
fn parts_of_a_decoder_give_the_same_vectors() {
    for name in ["qwen3", "gemma3"] {
        let mut model = open(&data(name), &device(), Some(DType::F32)).model;
        let prompts = [vec![5; 40], (0..24).collect()];
        let whole: Vec<Vec<f32>> = model.embed(&prompts).unwrap().to_vec2().unwrap();
        for (max_rows, parts) in [(32, 2), (1, 2), (64, 1), (usize::MAX, 1)] {
            let mut work = None;
            for part in 1..=parts {
                let vectors = model.embed_part(&prompts, max_rows, &mut work).unwrap();
                assert_eq!((vectors.is_some(), work.is_none()), (part == parts, part == parts));
                assert!(vectors.is_none_or(|vectors| vectors.to_vec2::<f32>().unwrap() == whole), "{name}");
            }
        }
    }
}

#[test]
fn invalid_prompts_are_rejected() {
    let mut model = open(&data("bert"), &device(), None).model;
    let vocabulary = model.capacity().vocabulary as u32;
    for wrong in [vec![], vec![vocabulary], vec![1; 65]] {
        assert!(model.embed(&[vec![1], wrong]).is_err());
    }
    assert_eq!(model.embed(&[]).unwrap().dims(), [0, 32]);
    assert!(model.classify(&[vec![1]], &[1]).is_err());
    assert!(model.check().is_ok());
}

#[test]
fn unsupported_encoders_are_rejected_by_name() {
    rejected(
        "bert",
        &[
            ("\"gelu\"", "\"tanh\"", "tanh"),
            ("\"num_attention_heads\": 4", "\"num_attention_heads\": 5", "5 heads"),
            ("\"hidden_size\": 32", "\"hidden_size\": 64", "word_embeddings"),
            ("BertModel", "BertForSequenceClassification", "2 labels"),
            ("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 65", "64 positions"),
        ],
    );
    rejected(
        "modernbert",
        &[
            ("\"gelu\"", "\"tanh\"", "tanh"),
            ("\"hidden_size\": 32", "\"hidden_size\": 36", "heads of 9 elements cannot rotate"),
            (
                "\"intermediate_size\": 64",
                "\"intermediate_size\": 63",
                "layers.0.mlp.Wi.weight' has shape [128, 32]",
            ),
            ("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "layers.4.attn.Wqkv.weight"),
            ("\"norm_bias\": false", "\"norm_bias\": true", "embeddings.norm.bias"),
            ("\"global_attn_every_n_layers\": 3", "\"layer_types\": [\"full_attention\"]", "1 entries"),
            ("\"classifier_pooling\": \"cls\"", "\"classifier_pooling\": \"max\"", "use cls or mean"),
            ("ModernBertModel", "ModernBertForSequenceClassification", "2 labels"),
        ],
    );
}

/// Checks that replacing a text in a model's config.json results in an error.
fn rejected(model: &str, changes: &[(&str, &str, &str)]) {
    let folder = merged(model, model);
    let file = folder.path().join("config.json");
    let config = fs::read_to_string(&file).unwrap();
    for (from, to, name) in changes {
        assert!(config.contains(from), "{from}");
        fs::write(&file, config.replace(from, to)).unwrap();
        let error = load(folder.path(), &Device::Cpu, LoadOptions::default(), &mut |_| ()).err().unwrap();
        assert!(format!("{error:#}").contains(name), "{name}: {error:#}");
    }
}
