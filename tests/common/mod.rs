//! Helpers of the integration tests: one device per process, and a small BERT model with random weights.
#![allow(dead_code, unused_imports, reason = "each test binary uses only some of these items")]
mod calls;
mod gpu;
mod injected;
mod profiled;

pub use calls::{calls, count_calls};
pub use gpu::{Gpu, device, fallback_variable, gpu, on_software_gpu, select_devices};
pub use injected::Injected;
pub use profiled::run_profiled;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use candle_core::{DType, Device, Result};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config, HiddenAct};

/// Returns the configuration of a BERT model with a few thousand parameters.
pub fn config() -> Config {
    Config {
        vocab_size: 32,
        hidden_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 80,
        hidden_act: HiddenAct::Gelu,
        max_position_embeddings: 24,
        type_vocab_size: 2,
        ..Config::default()
    }
}

/// Writes config.json, tokenizer.json and model.safetensors with random weights into `folder`.
pub fn write_model(folder: &Path) -> Result<()> {
    let config = config();
    let vars = VarMap::new();
    BertModel::load(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu), &config)?;
    vars.save(folder.join("model.safetensors"))?;
    let words = "[UNK] [PAD] the a cat dog sleeps runs on under warm cold mat tree red blue fast slow";
    let vocab: Vec<String> =
        words.split(' ').enumerate().map(|(i, word)| format!("\"{word}\":{i}")).collect();
    let tokenizer = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
            "normalizer":{{"type":"Lowercase"}},"pre_tokenizer":{{"type":"Whitespace"}},"post_processor":null,
            "decoder":null,"model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"[UNK]"}}}}"#,
        vocab.join(",")
    );
    std::fs::write(folder.join("tokenizer.json"), tokenizer)?;
    let json = serde_json::json!({
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers, "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "max_position_embeddings": config.max_position_embeddings, "type_vocab_size": config.type_vocab_size,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 1,
        "position_embedding_type": "absolute", "use_cache": true, "model_type": "bert",
    });
    std::fs::write(folder.join("config.json"), json.to_string())?;
    Ok(())
}

/// Returns true if tests run on the software GPU.
pub fn is_software_gpu() -> bool {
    device().as_rocm_device().is_ok_and(|device| device.driver_name() == "emulator")
}

/// Runs the program `sentence_embeddings` with these arguments on the GPU that tests run on.
pub fn run_embeddings_example(args: &[&str], envs: &[(&str, &str)]) -> Output {
    let test = std::env::current_exe().expect("path of the test program");
    let folder: PathBuf = test.ancestors().nth(2).expect("target folder").into();
    Command::new(folder.join("sentence_embeddings"))
        .args(args)
        .envs(fallback_variable())
        .envs(envs.iter().copied())
        .output()
        .expect("sentence_embeddings is built by cargo build --workspace --bins")
}
