//! The families of models, each a row of one table: how files name it, and how candle-transformers makes it.
use std::fs::File;
use std::io::BufReader;

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::{self, Content};
use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    gemma, gemma2, gemma3, llama, mistral, phi3, quantized_gemma3, quantized_llama, quantized_phi3,
    quantized_qwen2, quantized_qwen3, qwen2, qwen3,
};
use serde_json::Value;

use crate::limits::Limits;
use crate::model_files::{ModelFiles, reader};

/// A model with its caches: the logits after `tokens`, of which the first stands at `position`.
pub type Model = Box<dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor>>;

/// What a model of safetensors is made of.
pub struct Unquantized<'a> {
    pub config: Value,
    pub vars: VarBuilder<'a>,
    /// How long the text will be at most.
    pub positions: usize,
}

/// What a model of a GGUF file is made of.
pub struct Quantized<'a> {
    content: Content,
    reader: BufReader<File>,
    device: &'a Device,
}

/// A row of the table.
pub struct Family {
    pub name: &'static str,
    /// In `"architectures"` of config.json.
    pub architecture: &'static str,
    /// `"model_type"` of config.json.
    pub model_type: &'static str,
    /// `general.architecture` of GGUF. Mistral's files call themselves llama.
    pub gguf: Option<&'static str>,
    /// Used where config.json does not say: what transformers takes then, and candle-transformers insists on.
    pub defaults: &'static str,
    pub unquantized: fn(Unquantized) -> Result<Model>,
    pub quantized: Option<fn(Quantized) -> Result<Model>>,
}

pub const FAMILIES: &[Family] = &[
    Family {
        name: "Llama",
        architecture: "LlamaForCausalLM",
        model_type: "llama",
        gguf: Some("llama"),
        defaults: r#"{"max_position_embeddings": 2048}"#,
        unquantized: |from| {
            let (dtype, device) = (from.vars.dtype(), from.vars.device().clone());
            let config = parse::<llama::LlamaConfig>(from.config)?.into_config(device.is_rocm());
            let model = llama::Llama::load(from.vars, &config)?;
            let mut cache = llama::Cache::new(true, dtype, &config, &device)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position, &mut cache)))
        },
        quantized: Some(|mut from| {
            let mut model =
                quantized_llama::ModelWeights::from_gguf(from.content, &mut from.reader, from.device)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }),
    },
    Family {
        name: "Mistral",
        architecture: "MistralForCausalLM",
        model_type: "mistral",
        gguf: None,
        defaults: r#"{"rope_theta": 1e4, "num_key_value_heads": 8, "max_position_embeddings": 131072}"#,
        unquantized: |from| {
            let mut model = mistral::Model::new(&parse(from.config)?, from.vars)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        },
        quantized: None,
    },
    Family {
        name: "Qwen2",
        architecture: "Qwen2ForCausalLM",
        model_type: "qwen2",
        gguf: Some("qwen2"),
        // A window as wide as any context is none.
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": false, "sliding_window": 16777216,
            "max_window_layers": 28, "use_sliding_window": false, "max_position_embeddings": 32768}"#,
        unquantized: |from| {
            let mut model = qwen2::ModelForCausalLM::new(&parse(from.config)?, from.vars)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        },
        quantized: Some(|mut from| {
            let mut model =
                quantized_qwen2::ModelWeights::from_gguf(from.content, &mut from.reader, from.device)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }),
    },
    Family {
        name: "Qwen3",
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
        gguf: Some("qwen3"),
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false,
            "head_dim": 128, "max_window_layers": 28, "use_sliding_window": false, "max_position_embeddings": 32768}"#,
        unquantized: |from| {
            let mut model = qwen3::ModelForCausalLM::new(&parse(from.config)?, from.vars)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        },
        quantized: Some(|mut from| {
            let mut model =
                quantized_qwen3::ModelWeights::from_gguf(from.content, &mut from.reader, from.device)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }),
    },
    Family {
        name: "Phi3",
        architecture: "Phi3ForCausalLM",
        model_type: "phi3",
        gguf: Some("phi3"),
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "max_position_embeddings": 4096}"#,
        unquantized: |from| {
            let mut model = phi3::Model::new(&parse(from.config)?, from.vars)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        },
        quantized: Some(|mut from| {
            let mut model =
                quantized_phi3::ModelWeights::from_gguf(false, from.content, &mut from.reader, from.device)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }),
    },
    Family {
        name: "Gemma",
        architecture: "GemmaForCausalLM",
        model_type: "gemma",
        gguf: Some("gemma"),
        defaults: r#"{"rope_theta": 1e4, "attention_bias": false, "max_position_embeddings": 8192}"#,
        unquantized: |mut from| {
            // Published files have both names of the activation; candle-transformers takes one.
            if !from.config["hidden_activation"].is_null() {
                from.config["hidden_act"] = Value::Null;
            }
            let flash = from.vars.device().is_rocm();
            let mut model = gemma::Model::new(flash, &parse(from.config)?, from.vars)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        },
        quantized: None,
    },
    Family {
        name: "Gemma2",
        architecture: "Gemma2ForCausalLM",
        model_type: "gemma2",
        gguf: Some("gemma2"),
        defaults: r#"{"rope_theta": 1e4, "attention_bias": false, "max_position_embeddings": 8192}"#,
        unquantized: |from| {
            let mut model = gemma2::Model::new(false, &parse(from.config)?, from.vars)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        },
        quantized: None,
    },
    Family {
        name: "Gemma3",
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        gguf: Some("gemma3"),
        defaults: r#"{"rope_theta": 1e6, "rope_local_base_freq": 1e4, "attention_bias": false, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
            "sliding_window": 4096, "sliding_window_pattern": 6, "vocab_size": 262208,
            "max_position_embeddings": 131072}"#,
        unquantized: |mut from| {
            // Its caches are allocated for the whole context at once.
            from.config["max_position_embeddings"] = from.positions.into();
            // With several heads, its caches take values of one position at a time only.
            let at_once = from.config["num_key_value_heads"] == 1;
            let mut model = gemma3::Model::new(false, &parse(from.config)?, from.vars)?;
            Ok(Box::new(move |tokens, position| {
                let (mut first, last) = (0, tokens.dim(1)? - 1);
                while !at_once && first < last {
                    model.forward(&tokens.narrow(1, first, 1)?, position + first)?;
                    first += 1;
                }
                model.forward(&tokens.narrow(1, first, last + 1 - first)?, position + first)
            }))
        },
        quantized: Some(|mut from| {
            let mut model =
                quantized_gemma3::ModelWeights::from_gguf(from.content, &mut from.reader, from.device)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }),
    },
];

/// Files whose family and sizes are known: what the prompt is checked against before the weights are read.
pub struct Recognized {
    pub family: &'static Family,
    pub limits: Limits,
    files: ModelFiles,
}

impl Recognized {
    pub fn of(mut files: ModelFiles) -> Result<Self> {
        let path = files.path().display().to_string();
        let family = match &files {
            ModelFiles::Safetensors { config, .. } => family_of_config(config),
            ModelFiles::Gguf { content, .. } => family_of_gguf(content),
        };
        let family = family.with_context(|| path.clone())?;
        let limits = match &mut files {
            ModelFiles::Safetensors { config, weights, .. } => {
                complete(config, family.defaults)?;
                Limits::of_config(config, weights)
            }
            ModelFiles::Gguf { content, .. } => Limits::of_gguf(family.gguf.unwrap_or_default(), content),
        };
        Ok(Self {
            family,
            limits: limits.with_context(|| format!("{path} cannot be a {}", family.name))?,
            files,
        })
    }

    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// What safetensors are converted to if the user does not say: what config.json says, f32 on the CPU.
    ///
    /// # Errors
    /// If the user does say, for a GGUF file.
    pub fn dtype(&self, asked: Option<DType>, device: &Device) -> Result<DType> {
        let ModelFiles::Safetensors { config, .. } = &self.files else {
            ensure!(asked.is_none(), "--dtype is for safetensors; a GGUF file's tensors keep their types");
            return Ok(DType::F32);
        };
        let said = [&config["torch_dtype"], &config["dtype"]].into_iter().find_map(Value::as_str);
        Ok(match (asked, said) {
            (Some(dtype), _) => dtype,
            (None, Some("bfloat16")) if !device.is_cpu() => DType::BF16,
            (None, Some("float16")) if !device.is_cpu() => DType::F16,
            _ => DType::F32,
        })
    }

    /// Reads the weights, for a text of at most `positions` tokens.
    pub fn load(self, dtype: DType, device: &Device, positions: usize) -> Result<Model> {
        let (family, path) = (self.family, self.files.path().display().to_string());
        let loaded = match self.files {
            ModelFiles::Safetensors { config, weights, .. } => {
                if family.name == "Llama" {
                    check_llama(&config, &weights).with_context(|| path.clone())?;
                }
                let vars = VarBuilder::from_backend(Box::new(weights), dtype, device.clone());
                (family.unquantized)(Unquantized { config, vars, positions })
            }
            ModelFiles::Gguf { path, mut content } => {
                let load = family.quantized.with_context(|| format!("no quantized {}", family.name))?;
                // Tables and Phi3's caches are made for the whole context at once.
                let key = format!("{}.context_length", family.gguf.unwrap_or_default());
                content.metadata.insert(key, gguf_file::Value::U32(u32::try_from(positions)?));
                load(Quantized { reader: reader(&path)?, content, device })
            }
        };
        loaded.with_context(|| format!("cannot make the {} of {path}", family.name))
    }
}

fn family_of_config(config: &Value) -> Result<&'static Family> {
    let named = |name: &str| FAMILIES.iter().find(|family| family.architecture == name);
    let architectures = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let by_type = || FAMILIES.iter().find(|family| config["model_type"] == family.model_type);
    let known = || FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", ");
    match (architectures.clone().next(), architectures.clone().find_map(named)) {
        (_, Some(family)) => Ok(family),
        (None, None) => by_type().with_context(|| {
            format!(
                "config.json names no known architecture: model_type is {}; known are {}",
                config["model_type"],
                known()
            )
        }),
        (Some(name), None) => bail!("the architecture {name:?} is not known; known are {}", known()),
    }
}

fn family_of_gguf(content: &Content) -> Result<&'static Family> {
    let value =
        content.metadata.get("general.architecture").context("the metadata lacks general.architecture")?;
    let name = value.to_string().context("the metadata general.architecture")?;
    let known = || {
        let loadable = FAMILIES.iter().filter(|family| family.quantized.is_some());
        loadable.filter_map(|family| family.gguf).collect::<Vec<_>>().join(", ")
    };
    match FAMILIES.iter().find(|family| family.gguf == Some(name)) {
        Some(family) if family.quantized.is_some() => Ok(family),
        Some(family) => bail!(
            "candle-transformers has no quantized {}: use its safetensors; GGUF files can be {}",
            family.name,
            known()
        ),
        None => bail!("the architecture {name:?} is not known; GGUF files can be {}", known()),
    }
}

fn parse<T: serde::de::DeserializeOwned>(config: Value) -> Result<T> {
    serde_json::from_value(config).context("config.json")
}

/// Fills in what config.json leaves out or writes in the newer way.
pub fn complete(config: &mut Value, defaults: &str) -> Result<()> {
    let defaults: Value = serde_json::from_str(defaults)?;
    let rope = config["rope_parameters"].clone();
    let config = config.as_object_mut().context("config.json is no object")?;
    // The device says whether there is flash attention; ends of text are read by us, also where they are several.
    for key in ["use_flash_attn", "bos_token_id", "eos_token_id"] {
        config.remove(key);
    }
    let theta = rope.get("rope_theta").map(|theta| ("rope_theta", theta));
    let defaults = defaults.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value));
    for (key, value) in theta.into_iter().chain(defaults) {
        let said = config.entry(key).or_insert(Value::Null);
        if said.is_null() {
            *said = value.clone();
        }
    }
    Ok(())
}

/// What candle-transformers' Llama panics on or passes over in silence.
fn check_llama(config: &Value, weights: &MmapedSafetensors) -> Result<()> {
    for key in ["attention_bias", "mlp_bias"] {
        ensure!(config[key] != true, "config.json: candle-transformers' Llama has no {key:?}");
    }
    let number = |key: &str| config[key].as_u64().unwrap_or_default() as usize;
    let (hidden, inner, heads) =
        (number("hidden_size"), number("intermediate_size"), number("num_attention_heads"));
    let kv_heads =
        if config["num_key_value_heads"].is_null() { heads } else { number("num_key_value_heads") };
    let kv = hidden / heads * kv_heads;
    let tensors: [(&str, &[usize]); 9] = [
        ("self_attn.q_proj", &[hidden, hidden]),
        ("self_attn.k_proj", &[kv, hidden]),
        ("self_attn.v_proj", &[kv, hidden]),
        ("self_attn.o_proj", &[hidden, hidden]),
        ("mlp.gate_proj", &[inner, hidden]),
        ("mlp.up_proj", &[inner, hidden]),
        ("mlp.down_proj", &[hidden, inner]),
        ("input_layernorm", &[hidden]),
        ("post_attention_layernorm", &[hidden]),
    ];
    for layer in 0..number("num_hidden_layers") {
        for (name, shape) in tensors {
            let name = format!("model.layers.{layer}.{name}.weight");
            let found = weights.get(&name).with_context(|| format!("there is no tensor '{name}'"))?;
            ensure!(
                found.shape() == shape,
                "tensor '{name}' has the shape {:?}, config.json says {shape:?}",
                found.shape()
            );
        }
    }
    Ok(())
}
