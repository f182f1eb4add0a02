//! Reference for the example's text: candle-transformers' models on the CPU device.
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    gemma, gemma2, gemma3, llama, mistral, phi3, quantized_llama, quantized_phi3, quantized_qwen2,
    quantized_qwen3, qwen2, qwen3,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Computes the logits after a sequence of tokens, with an empty cache.
pub type Logits = Box<dyn FnOnce(&Tensor) -> candle_core::Result<Tensor>>;

/// Model family.
pub struct Family {
    pub name: &'static str,
    /// `"model_type"` of config.json.
    pub model_type: &'static str,
    /// `general.architecture` in GGUF, if the family has its own.
    pub gguf: Option<&'static str>,
    /// Fields of config.json that candle-transformers requires, as JSON.
    required_fields: &'static str,
    unquantized: fn(Value, VarBuilder) -> Result<Logits>,
    quantized: Option<fn(Content, &mut File) -> Result<Logits>>,
}

macro_rules! logits {
    ($model:expr) => {{
        let mut model = $model?;
        Ok(Box::new(move |tokens: &Tensor| model.forward(tokens, 0)))
    }};
}

pub const FAMILIES: &[Family] = &[
    Family {
        name: "Llama",
        model_type: "llama",
        gguf: Some("llama"),
        required_fields: "{}",
        unquantized: |config, vars| {
            let config = parse::<llama::LlamaConfig>(config)?.into_config(false);
            let model = llama::Llama::load(vars, &config)?;
            let mut cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
            Ok(Box::new(move |tokens| model.forward(tokens, 0, &mut cache)))
        },
        quantized: Some(|content, file| {
            logits!(quantized_llama::ModelWeights::from_gguf(content, file, &Device::Cpu))
        }),
    },
    Family {
        name: "Mistral",
        model_type: "mistral",
        gguf: None,
        required_fields: "{}",
        unquantized: |config, vars| logits!(mistral::Model::new(&parse(config)?, vars)),
        quantized: None,
    },
    Family {
        name: "Qwen2",
        model_type: "qwen2",
        gguf: Some("qwen2"),
        required_fields: r#"{"hidden_act": "silu", "sliding_window": 16777216,
            "max_window_layers": 28, "use_sliding_window": false}"#,
        unquantized: |config, vars| logits!(qwen2::ModelForCausalLM::new(&parse(config)?, vars)),
        quantized: Some(|content, file| {
            logits!(quantized_qwen2::ModelWeights::from_gguf(content, file, &Device::Cpu))
        }),
    },
    Family {
        name: "Qwen3",
        model_type: "qwen3",
        gguf: Some("qwen3"),
        required_fields: r#"{"hidden_act": "silu", "attention_bias": false,
            "max_window_layers": 28, "use_sliding_window": false}"#,
        unquantized: |config, vars| logits!(qwen3::ModelForCausalLM::new(&parse(config)?, vars)),
        quantized: Some(|content, file| {
            logits!(quantized_qwen3::ModelWeights::from_gguf(content, file, &Device::Cpu))
        }),
    },
    Family {
        name: "Phi3",
        model_type: "phi3",
        gguf: Some("phi3"),
        required_fields: r#"{"hidden_act": "silu"}"#,
        unquantized: |config, vars| logits!(phi3::Model::new(&parse(config)?, vars)),
        quantized: Some(|content, file| {
            logits!(quantized_phi3::ModelWeights::from_gguf(false, content, file, &Device::Cpu))
        }),
    },
    Family {
        name: "Gemma",
        model_type: "gemma",
        gguf: Some("gemma"),
        // Published files have both names of the activation; candle-transformers accepts only one.
        required_fields: r#"{"attention_bias": false, "hidden_act": null}"#,
        unquantized: |config, vars| logits!(gemma::Model::new(false, &parse(config)?, vars)),
        quantized: None,
    },
    Family {
        name: "Gemma2",
        model_type: "gemma2",
        gguf: Some("gemma2"),
        required_fields: r#"{"attention_bias": false}"#,
        unquantized: |config, vars| logits!(gemma2::Model::new(false, &parse(config)?, vars)),
        quantized: None,
    },
    // The quantized model in candle-transformers uses another activation.
    Family {
        name: "Gemma3",
        model_type: "gemma3_text",
        gguf: Some("gemma3"),
        required_fields: r#"{"attention_bias": false, "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 1e4}"#,
        unquantized: |config, vars| logits!(gemma3::Model::new(false, &parse(config)?, vars)),
        quantized: None,
    },
];

fn parse<T: DeserializeOwned>(config: Value) -> Result<T> {
    Ok(serde_json::from_value(config)?)
}

impl Family {
    /// Returns the family's name in `"architectures"` of config.json.
    pub fn architecture(&self) -> String {
        format!("{}ForCausalLM", self.name)
    }

    /// Returns true if candle-transformers supports the family's GGUF files correctly.
    pub fn has_quantized(&self) -> bool {
        self.quantized.is_some()
    }

    /// Builds the model of a config.json.
    pub fn model(&self, config: Value, vars: VarBuilder) -> Result<Logits> {
        (self.unquantized)(merged(config, serde_json::from_str(self.required_fields)?), vars)
    }

    /// Opens a folder with one safetensors file, or a GGUF file.
    fn open(&self, path: &Path) -> Result<Logits> {
        if let Some(quantized) = self.quantized.filter(|_| path.is_file()) {
            let mut file = File::open(path)?;
            return quantized(Content::read(&mut file)?, &mut file);
        }
        let config = serde_json::from_slice(&std::fs::read(path.join("config.json"))?)?;
        let tensors = candle_core::safetensors::load(path.join("model.safetensors"), &Device::Cpu)?;
        self.model(config, VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))
    }

    /// Returns the greedy continuation of `prompt` by `count` tokens, and each token's margin over the
    /// second-best one. For each token, a model with an empty cache processes the whole sequence.
    pub fn greedy(&self, path: &Path, prompt: &[u32], count: usize) -> Result<(Vec<u32>, Vec<f32>)> {
        let (mut tokens, mut margins) = (prompt.to_vec(), Vec::new());
        for _ in 0..count {
            let input = Tensor::new(&tokens[..], &Device::Cpu)?.unsqueeze(0)?;
            let logits = self.open(path)?(&input)?.flatten_all()?.to_vec1::<f32>()?;
            let mut places: Vec<usize> = (0..logits.len()).collect();
            places.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            let [best, second, ..] = places[..] else { anyhow::bail!("a vocabulary of one token") };
            tokens.push(u32::try_from(best).context("a token")?);
            margins.push(logits[best] - logits[second]);
        }
        Ok((tokens.split_off(prompt.len()), margins))
    }
}

/// Returns the family with this name.
pub fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.name == name).expect("a family of the table")
}

/// Returns `config` with the fields of `more` added or replaced.
pub fn merged(mut config: Value, more: Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}
