//! Sizes and options of an encoder, read from config.json or from GGUF metadata.
use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use candle_core::quantized::gguf_file::Content;
use serde_json::{Value, json};

use crate::model::config::Fields;
use crate::model::files::{Description, ModelFiles};
use crate::model::sentence::{CLASSIFIER, is_reranker, is_sigmoid, max_tokens};

/// Maximum number of layers, more than any model has.
const MAX_LAYERS: usize = 4096;

/// Transformers' defaults for fields that config.json omits.
const DEFAULTS: &str = r#"{"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    "pad_token_id": 0, "type_vocab_size": 2}"#;
const ROBERTA_DEFAULTS: &str = r#"{"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    "pad_token_id": 1, "type_vocab_size": 2}"#;

/// Prefixes of `"architectures"` and the corresponding `"model_type"`; true for those with RoBERTa's positions.
const FAMILIES: [(&str, &str, bool); 4] = [
    ("Bert", "bert", false),
    ("Roberta", "roberta", true),
    ("XLMRoberta", "xlm-roberta", true),
    ("Camembert", "camembert", true),
];
const SUFFIXES: [&str; 3] = ["Model", "ForMaskedLM", CLASSIFIER];

/// Activation function of the feed-forward layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU with the error function.
    Gelu,
    /// GELU, approximated with tanh.
    GeluTanh,
    /// x sigmoid(x).
    Silu,
    /// max(x, 0).
    Relu,
}

impl Activation {
    /// Applies it to each element.
    pub fn forward(self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::Silu => x.silu(),
            Self::Relu => x.relu(),
        }
    }
}

/// Head that scores a pair of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassifierKind {
    /// The pooler and the classifier of BERT.
    Pooler,
    /// The classification head of RoBERTa.
    Head,
    /// The classifier of a GGUF file.
    Gguf,
}

/// Sizes and options of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// Hidden size.
    pub hidden: usize,
    /// Width inside the feed-forward layers.
    pub intermediate: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of rows of the table of positions.
    pub positions: usize,
    /// Maximum number of tokens of a text.
    pub context: usize,
    /// Number of segment types; 0 if there is no table of them.
    pub types: usize,
    /// Token that has its own position in RoBERTa. Other tokens count from the position after it.
    pub padding: Option<u32>,
    /// Epsilon that norms add to the variance.
    pub norm_eps: f64,
    /// Activation of the feed-forward layers.
    pub activation: Activation,
    /// Head of a classifier; `None` for embeddings.
    pub classifier: Option<ClassifierKind>,
    /// If true, scores are sigmoids of the logits.
    pub sigmoid: bool,
}

impl EncoderConfig {
    /// Reads the configuration of a model's files. Returns `None` if the model is not an encoder.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields, and for unsupported options.
    pub fn of(files: &ModelFiles) -> Result<Option<Self>> {
        let found = match &files.description {
            Description::Config(config) => {
                let Some((classifier, is_roberta)) = family(config) else { return Ok(None) };
                let mut found = Self::from_json(config, classifier, is_roberta).context("config.json")?;
                if let Some(limit) = max_tokens(files.path())? {
                    found.context = found.context.min(limit);
                }
                found.sigmoid = is_sigmoid(files, config)?;
                found
            }
            Description::Metadata(content) => match is_bert(content) {
                true => Self::from_metadata(content).context("the metadata")?,
                false => return Ok(None),
            },
        };
        ensure!(
            found.hidden.is_multiple_of(found.heads),
            "a width of {} is not divisible by {} heads",
            found.hidden,
            found.heads
        );
        ensure!(found.layers <= MAX_LAYERS, "{} layers exceed the limit of {MAX_LAYERS}", found.layers);
        ensure!(found.context > 0, "the context of the model is 0, but must be at least 1");
        Ok(Some(found))
    }

    fn from_json(config: &Value, classifier: bool, is_roberta: bool) -> Result<Self> {
        let fields = Fields::new(config, if is_roberta { ROBERTA_DEFAULTS } else { DEFAULTS })?;
        let kind = fields.value("position_embedding_type").unwrap_or(&Value::Null);
        ensure!(kind.is_null() || kind == "absolute", "\"position_embedding_type\" {kind} is not supported");
        let positions = fields.required("max_position_embeddings")?;
        let padding = match is_roberta {
            true => Some(u32::try_from(fields.size("pad_token_id")?.unwrap_or(1))?),
            false => None,
        };
        let labels = match (fields.value("id2label").and_then(Value::as_object), fields.size("num_labels")?) {
            (Some(labels), _) => labels.len(),
            (None, labels) => labels.unwrap_or(2),
        };
        ensure!(
            !classifier || labels == 1,
            "the classifier has {labels} labels; models that score texts have 1"
        );
        let name = fields.value("hidden_act").and_then(Value::as_str);
        Ok(Self {
            hidden: fields.required("hidden_size")?,
            intermediate: fields.required("intermediate_size")?,
            heads: fields.required("num_attention_heads")?,
            layers: fields.required("num_hidden_layers")?,
            positions,
            context: positions.saturating_sub(padding.map_or(0, |padding| padding as usize + 1)),
            types: fields.size("type_vocab_size")?.unwrap_or(0),
            padding,
            norm_eps: fields.number("layer_norm_eps")?.context("\"layer_norm_eps\" is missing")?,
            activation: match name {
                Some("gelu") => Activation::Gelu,
                Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
                Some("silu" | "swish") => Activation::Silu,
                Some("relu") => Activation::Relu,
                other => bail!("the activation {other:?} is not known; use gelu, gelu_new, silu or relu"),
            },
            classifier: match (classifier, is_roberta) {
                (false, _) => None,
                (true, false) => Some(ClassifierKind::Pooler),
                (true, true) => Some(ClassifierKind::Head),
            },
            sigmoid: true,
        })
    }

    fn from_metadata(content: &Content) -> Result<Self> {
        const SIZES: [(&str, &str); 5] = [
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("block_count", "num_hidden_layers"),
            ("context_length", "max_position_embeddings"),
        ];
        let get = |key: &str| content.metadata.get(&format!("bert.{key}"));
        let mut config = json!({"num_labels": 1});
        for (key, name) in SIZES {
            if let Some(size) = get(key).and_then(|size| size.to_u64().ok()) {
                config[name] = size.into();
            }
        }
        if let Some(eps) = get("attention.layer_norm_epsilon").and_then(|eps| eps.to_f32().ok()) {
            config["layer_norm_eps"] = f64::from(eps).into();
        }
        // Converters omit the rows of the table of positions that RoBERTa never uses.
        let mut found = Self::from_json(&config, false, false)?;
        let types = content.tensor_infos.get("token_types.weight");
        found.types = types.and_then(|types| types.shape.dims().first().copied()).unwrap_or(0);
        if is_reranker(content) {
            found.classifier = Some(ClassifierKind::Gguf);
        }
        Ok(found)
    }
}

fn is_bert(content: &Content) -> bool {
    let arch = content.metadata.get("general.architecture").and_then(|arch| arch.to_string().ok());
    arch.is_some_and(|arch| arch == "bert")
}

/// Returns true for a classifier, and true for RoBERTa's positions, from a config.json; `None` for other models.
fn family(config: &Value) -> Option<(bool, bool)> {
    let names = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in names.clone() {
        for suffix in SUFFIXES {
            let base = name.strip_suffix(suffix);
            if let Some((.., is_roberta)) = FAMILIES.iter().find(|(known, ..)| base == Some(known)) {
                return Some((suffix == CLASSIFIER, *is_roberta));
            }
        }
    }
    let kind = config["model_type"].as_str().filter(|_| names.clone().next().is_none());
    let (.., is_roberta) = FAMILIES.iter().find(|(_, known, _)| kind == Some(known))?;
    Some((false, *is_roberta))
}
