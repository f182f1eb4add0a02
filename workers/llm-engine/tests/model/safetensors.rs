//! All families, loaded from safetensors folders.
use candle_core::DType;
use llm_engine::model::LoadOptions;
use llm_engine::model::load_decoder;
use llm_engine::step::StepModel;

use super::checkpoints::check_bf16;
use super::configs::{cases, named};
use super::steps::{Runner, close, device, load, run, tolerance};
use super::{reference, steps};

#[test]
fn every_family_matches_candle_transformers() {
    for case in cases() {
        println!("{}", case.name);
        let folder = tempfile::tempdir().unwrap();
        let (mut model, weights) = reference::model(&case);
        reference::write(folder.path(), &case.config, &weights, 1);
        run(load(folder.path()), &mut model, 1e-4);
        check_bf16(case.name, (case.config, weights));
    }
}

/// Sharded files, tensor names of multimodal models, and newer configuration fields.
#[test]
fn shards_and_prefixed_names_are_found() {
    let case = named("gemma3");
    let folder = tempfile::tempdir().unwrap();
    let (mut model, weights) = reference::model(&case);
    let longer = |name: &String| name.replace("model.", "language_model.model.");
    let weights = weights.iter().map(|(name, tensor)| (longer(name), tensor.clone())).collect();
    let mut text = case.config.clone();
    text.as_object_mut().unwrap().remove("architectures");
    text["layer_types"] = serde_json::json!(["sliding_attention", "full_attention", "sliding_attention"]);
    text["sliding_window_pattern"] = serde_json::json!(null);
    let architectures = ["Gemma3ForConditionalGeneration"];
    let config = serde_json::json!({"architectures": architectures, "text_config": text});
    reference::write(folder.path(), &config, &weights, 3);
    run(load(folder.path()), &mut model, 1e-4);
}

#[test]
fn loading_reports_progress_and_respects_options() {
    let folder = tempfile::tempdir().unwrap();
    let case = named("llama");
    let (_, weights) = reference::model(&case);
    reference::write(folder.path(), &case.config, &weights, 2);
    let (device, dtype) = device();
    let block = 3 * 2 * 16 * 32 * dtype.size_in_bytes();
    let (cache_bytes, context) = (Some(block * 4 + 1), Some(40));
    let options = LoadOptions { dtype: Some(dtype), cache_bytes, context, ..LoadOptions::default() };
    let mut fractions = Vec::new();
    let model =
        load_decoder(folder.path(), &device, options.clone(), &mut |share| fractions.push(share)).unwrap();
    let capacity = model.capacity();
    assert_eq!((capacity.vocabulary, capacity.context, capacity.blocks), (64, 40, 4));
    assert!(fractions.windows(2).all(|pair| pair[0] <= pair[1]), "{fractions:?}");
    assert_eq!(fractions.last(), Some(&1.0));
    let options = LoadOptions { cache_bytes: Some(block - 1), ..options };
    let error = load_decoder(folder.path(), &device, options, &mut |_| ()).err().unwrap();
    assert!(error.to_string().contains("bytes is less than a block of"), "{error:#}");
}

/// The expected embedding is the mean of the prompt's hidden states, which an identity matrix as head makes
/// visible.
#[test]
fn embeddings_are_mean_states_and_do_not_use_the_cache() {
    for name in ["llama", "gemma2", "gemma3"] {
        let case = named(name);
        let folder = tempfile::tempdir().unwrap();
        let (_, mut weights) = reference::model(&case);
        reference::write(folder.path(), &case.config, &weights, 1);
        let mut runner = Runner::new(load(folder.path()), &[30, 9]);
        runner.step(&[(0, 20, true), (1, 8, true)]);
        let prompts: Vec<Vec<u32>> =
            runner.sequences.iter().map(|sequence| sequence.tokens.clone()).collect();
        let means = runner.model.embed(&prompts).unwrap();
        assert_eq!((means.dims(), means.dtype()), (&[2, 64][..], DType::F32));
        let means: Vec<Vec<f32>> = means.to_vec2().unwrap();
        // With the identity matrix as head, the logits are the hidden states.
        let unit = candle_core::Tensor::eye(64, DType::F32, &candle_core::Device::Cpu).unwrap();
        weights.insert("lm_head.weight".into(), unit);
        let mut config = case.config.clone();
        config["tie_word_embeddings"] = false.into();
        config["final_logit_softcapping"] = serde_json::Value::Null;
        reference::write(folder.path(), &config, &weights, 1);
        let mut states = Runner::new(load(folder.path()), &[30, 9]);
        for (index, mean) in means.iter().enumerate() {
            let rows = states.sequences[index].tokens.len();
            let mut sum = vec![0f32; 64];
            for _ in 0..rows {
                let state = &states.step(&[(index, 1, true)])[0];
                sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += value);
            }
            let expected: Vec<f32> = sum.into_iter().map(|sum| sum / rows as f32).collect();
            close(mean, &expected, tolerance(1e-4), name);
        }
    }
}

/// Loads the trained example model with its tokenizer.
#[test]
fn the_trained_model_loads_with_its_tokenizer() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny_llama/model");
    let (device, dtype) = device();
    let options = LoadOptions { dtype: Some(dtype), cache_bytes: Some(4 << 20), ..LoadOptions::default() };
    for (path, name) in [(path.clone(), "model"), (path.join("tiny-llama.q8_0.gguf"), "tiny-llama.q8_0")] {
        let loaded = llm_engine::model::load(&path, &device, options.clone(), &mut |_| ()).unwrap();
        let capacity = loaded.model.capacity();
        assert_eq!((capacity.vocabulary, capacity.context), (512, 512));
        assert_eq!(loaded.name, name);
        let cache = capacity.blocks * 2 * 2 * 16 * 256 * dtype.size_in_bytes();
        assert!(
            loaded.bytes > cache && loaded.bytes < cache + (8 << 20),
            "{} of which {cache}",
            loaded.bytes
        );
        let tokens = loaded.text.encode("a", false).unwrap();
        assert!(!tokens.is_empty() && tokens.iter().all(|token| *token < 512), "{tokens:?}");
    }
}

#[test]
fn a_sequence_is_independent_of_its_batch() {
    let folder = tempfile::tempdir().unwrap();
    let case = named("qwen3");
    let (_, weights) = reference::model(&case);
    reference::write(folder.path(), &case.config, &weights, 1);
    let lengths = [40, 17, 33, 25, 38, 29];
    let mut alone = Runner::new(steps::load(folder.path()), &lengths);
    let mut together = Runner::new(steps::load(folder.path()), &lengths);
    let mut expected = Vec::new();
    for (index, length) in lengths.into_iter().enumerate() {
        expected.push(alone.step(&[(index, length - 4, true)]).remove(0));
        (0..4).for_each(|_| expected.push(alone.step(&[(index, 1, true)]).remove(0)));
    }
    let prompts: Vec<_> =
        lengths.iter().enumerate().map(|(index, length)| (index, length - 4, true)).collect();
    let one: Vec<_> = (0..lengths.len()).map(|index| (index, 1, true)).collect();
    let steps: Vec<_> =
        [prompts, one.clone(), one.clone(), one.clone(), one].map(|step| together.step(&step)).into();
    for (at, expected) in expected.iter().enumerate() {
        close(&steps[at % 5][at / 5], expected, tolerance(1e-5), &format!("sequence {}", at / 5));
    }
}
