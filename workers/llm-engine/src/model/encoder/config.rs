//! Sizes and options of an encoder, read from config.json or from GGUF metadata.
use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use candle_core::quantized::gguf_file::Content;
use serde_json::{Value, json};

use crate::model::config::Fields;
use crate::model::families::scalar;
use crate::model::files::{Description, ModelFiles};
use crate::model::rope::{Rope, Scaling};
use crate::model::sentence::{CLASSIFIER, Pooling, is_reranker, is_sigmoid, max_tokens};

/// Maximum number of layers, more than any model has.
const MAX_LAYERS: usize = 4096;

/// Transformers' defaults for fields that config.json omits.
const DEFAULTS: &str = r#"{"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    "pad_token_id": 0, "type_vocab_size": 2}"#;
const ROBERTA_DEFAULTS: &str = r#"{"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    "pad_token_id": 1, "type_vocab_size": 2}"#;

const MODERN_DEFAULTS: &str = r#"{"max_position_embeddings": 8192, "norm_eps": 1e-5, "hidden_activation": "gelu",
    "local_attention": 128, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    "classifier_pooling": "cls", "classifier_activation": "gelu"}"#;

/// Kind of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bert,
    /// Positions are numbered from that of the padding on.
    Roberta,
    /// Positions are rotations, and norms precede the blocks.
    Modern,
}

/// Prefixes of `"architectures"` and the corresponding `"model_type"`.
const FAMILIES: [(&str, &str, Kind); 5] = [
    ("Bert", "bert", Kind::Bert),
    ("Roberta", "roberta", Kind::Roberta),
    ("XLMRoberta", "xlm-roberta", Kind::Roberta),
    ("Camembert", "camembert", Kind::Roberta),
    ("ModernBert", "modernbert", Kind::Modern),
];
/// Values of `general.architecture` in GGUF metadata.
const GGUF_FAMILIES: [(&str, Kind); 2] = [("bert", Kind::Bert), ("modern-bert", Kind::Modern)];
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
    /// Returns the activation of a name in config.json.
    fn named(name: Option<&Value>) -> Result<Self> {
        Ok(match name.and_then(Value::as_str) {
            Some("gelu") => Self::Gelu,
            Some("gelu_new" | "gelu_pytorch_tanh") => Self::GeluTanh,
            Some("silu" | "swish") => Self::Silu,
            Some("relu") => Self::Relu,
            other => bail!("the activation {other:?} is not known; use gelu, gelu_new, silu or relu"),
        })
    }

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
    /// The prediction head of ModernBERT.
    Prediction {
        /// Pooling of the states.
        pooling: Pooling,
        /// If true, its linear layer has a bias.
        has_bias: bool,
        /// Activation before its norm.
        activation: Activation,
    },
}

/// Layers that have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Norms.
    pub norms: bool,
    /// Projections of attention.
    pub attention: bool,
    /// Feed-forward layers.
    pub mlp: bool,
}

/// Rotary embeddings and windows of an encoder whose norms precede the blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryLayers {
    /// Parameters of the rotary tables: of layers without a window, and of layers with one.
    pub ropes: [Rope; 2],
    /// Rotary table and window of each layer. A window is the number of keys on each side that a query sees, with its own.
    pub layers: Vec<(usize, Option<usize>)>,
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
    /// Rotary embeddings, if they replace the table of positions.
    pub rotary: Option<RotaryLayers>,
    /// Layers that have biases.
    pub biases: Biases,
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
                let Some((classifier, kind)) = family(config) else { return Ok(None) };
                let mut found = Self::of_kind(kind, config, classifier).context("config.json")?;
                if let Some(limit) = max_tokens(files.path())? {
                    found.context = found.context.min(limit);
                }
                found.sigmoid = is_sigmoid(files, config)?;
                found
            }
            Description::Metadata(content) => match gguf_family(content) {
                Some((arch, kind)) => Self::from_metadata(content, arch, kind).context("the metadata")?,
                None => return Ok(None),
            },
        };
        ensure!(
            found.hidden.is_multiple_of(found.heads),
            "a width of {} is not divisible by {} heads",
            found.hidden,
            found.heads
        );
        ensure!(found.context > 0, "the context of the model is 0, but must be at least 1");
        Ok(Some(found))
    }

    fn of_kind(kind: Kind, config: &Value, classifier: bool) -> Result<Self> {
        let labels = match (config["id2label"].as_object(), config["num_labels"].as_u64()) {
            (Some(labels), _) => labels.len(),
            (None, labels) => labels.map_or(2, |labels| labels as usize),
        };
        ensure!(
            !classifier || labels == 1,
            "the classifier has {labels} labels; models that score texts have 1"
        );
        match kind {
            Kind::Modern => Self::modern(config, classifier),
            _ => Self::bert(config, classifier, kind == Kind::Roberta),
        }
    }

    fn bert(config: &Value, classifier: bool, is_roberta: bool) -> Result<Self> {
        let fields = Fields::new(config, if is_roberta { ROBERTA_DEFAULTS } else { DEFAULTS })?;
        let kind = fields.value("position_embedding_type").unwrap_or(&Value::Null);
        ensure!(kind.is_null() || kind == "absolute", "\"position_embedding_type\" {kind} is not supported");
        let positions = fields.required("max_position_embeddings")?;
        let padding = match is_roberta {
            true => Some(u32::try_from(fields.size("pad_token_id")?.unwrap_or(1))?),
            false => None,
        };
        Ok(Self {
            hidden: fields.required("hidden_size")?,
            intermediate: fields.required("intermediate_size")?,
            heads: fields.required("num_attention_heads")?,
            layers: layer_count(&fields)?,
            positions,
            context: positions.saturating_sub(padding.map_or(0, |padding| padding as usize + 1)),
            types: fields.size("type_vocab_size")?.unwrap_or(0),
            padding,
            rotary: None,
            biases: Biases { norms: true, attention: true, mlp: true },
            norm_eps: fields.number("layer_norm_eps")?.context("\"layer_norm_eps\" is missing")?,
            activation: Activation::named(fields.value("hidden_act"))?,
            classifier: match (classifier, is_roberta) {
                (false, _) => None,
                (true, false) => Some(ClassifierKind::Pooler),
                (true, true) => Some(ClassifierKind::Head),
            },
            sigmoid: true,
        })
    }

    fn modern(config: &Value, classifier: bool) -> Result<Self> {
        let fields = Fields::new(config, MODERN_DEFAULTS)?;
        let (hidden, heads) = (fields.required("hidden_size")?, fields.required("num_attention_heads")?);
        let (layers, context) = (layer_count(&fields)?, fields.required("max_position_embeddings")?);
        let width = hidden / heads;
        ensure!(width.is_multiple_of(2), "heads of {width} elements cannot rotate: elements rotate in pairs");
        let rope = |kind: &str, theta: &str| -> Result<Rope> {
            let own = &config["rope_parameters"][kind];
            let theta = own["rope_theta"].as_f64().map_or_else(|| fields.number(theta), |own| Ok(Some(own)));
            let scaling = Scaling::from_json(own, None, context, width / 2);
            Ok(Rope {
                theta: theta?.context("there is no base of the rotary embeddings")?,
                rotary_dim: width,
                scaling: scaling.context("\"rope_parameters\"")?,
            })
        };
        let ropes =
            [rope("full_attention", "global_rope_theta")?, rope("sliding_attention", "local_rope_theta")?];
        let period = fields.required("global_attn_every_n_layers")?;
        let is_local = match fields.value("layer_types").and_then(Value::as_array) {
            Some(kinds) => {
                let count = kinds.len();
                ensure!(
                    count == layers,
                    "\"layer_types\" has {count} entries, but the model has {layers} layers"
                );
                kinds.iter().map(|kind| kind == "sliding_attention").collect()
            }
            None => (0..layers).map(|layer| !layer.is_multiple_of(period)).collect::<Vec<_>>(),
        };
        // The number in config.json is that of the tokens on both sides together.
        let window = fields.size("local_attention")?.filter(|both| *both > 0).map(|both| both / 2 + 1);
        let local = |is_local: bool| if is_local { (1, window) } else { (0, None) };
        let pooling = match fields.value("classifier_pooling").and_then(Value::as_str) {
            Some("cls") => Pooling::Cls,
            Some("mean") => Pooling::Mean,
            other => bail!("\"classifier_pooling\" is {other:?}; use cls or mean"),
        };
        let prediction = ClassifierKind::Prediction {
            pooling,
            has_bias: fields.flag("classifier_bias"),
            activation: Activation::named(fields.value("classifier_activation"))?,
        };
        Ok(Self {
            hidden,
            intermediate: fields.required("intermediate_size")?,
            heads,
            layers,
            positions: 0,
            context,
            types: 0,
            padding: None,
            rotary: Some(RotaryLayers { ropes, layers: is_local.into_iter().map(local).collect() }),
            biases: Biases {
                norms: fields.flag("norm_bias"),
                attention: fields.flag("attention_bias"),
                mlp: fields.flag("mlp_bias"),
            },
            norm_eps: fields.number("norm_eps")?.context("\"norm_eps\" is missing")?,
            activation: Activation::named(fields.value("hidden_activation"))?,
            classifier: classifier.then_some(prediction),
            sigmoid: true,
        })
    }

    fn from_metadata(content: &Content, arch: &str, kind: Kind) -> Result<Self> {
        const FIELDS: [(&str, &str); 12] = [
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("block_count", "num_hidden_layers"),
            ("context_length", "max_position_embeddings"),
            ("attention.layer_norm_epsilon", "layer_norm_eps"),
            ("attention.layer_norm_epsilon", "norm_eps"),
            ("attention.sliding_window", "local_attention"),
            ("attention.sliding_window_pattern", "global_attn_every_n_layers"),
            ("rope.freq_base", "global_rope_theta"),
            ("rope.freq_base_swa", "local_rope_theta"),
            ("hidden_activation", "hidden_activation"),
        ];
        // llama.cpp pools the states of ModernBERT's classifiers by their mean, and has no window without its size.
        let mut config = json!({"num_labels": 1, "classifier_pooling": "mean", "local_attention": 0});
        for (key, name) in FIELDS {
            if let Some(value) = content.metadata.get(&format!("{arch}.{key}")).and_then(scalar) {
                config[name] = value;
            }
        }
        let has = |tensor: &str| json!(content.tensor_infos.contains_key(tensor));
        config["classifier_bias"] = has("cls.bias");
        config["norm_bias"] = has("output_norm.bias");
        config["attention_bias"] = has("blk.0.attn_output.bias");
        config["mlp_bias"] = has("blk.0.ffn_down.bias");
        // Converters omit the rows of the table of positions that RoBERTa never uses.
        let mut found = Self::of_kind(kind, &config, is_reranker(content))?;
        let types = content.tensor_infos.get("token_types.weight");
        found.types = types.and_then(|types| types.shape.dims().first().copied()).unwrap_or(0);
        Ok(found)
    }
}

/// Returns the number of layers.
fn layer_count(fields: &Fields) -> Result<usize> {
    let layers = fields.required("num_hidden_layers")?;
    ensure!(layers <= MAX_LAYERS, "{layers} layers exceed the limit of {MAX_LAYERS}");
    Ok(layers)
}

/// Returns the architecture of a GGUF file and its kind; `None` for other models.
fn gguf_family(content: &Content) -> Option<(&'static str, Kind)> {
    let arch = content.metadata.get("general.architecture").and_then(|arch| arch.to_string().ok())?;
    GGUF_FAMILIES.into_iter().find(|(known, _)| arch == known)
}

/// Returns true for a classifier, and the kind of the encoder, from a config.json; `None` for other models.
fn family(config: &Value) -> Option<(bool, Kind)> {
    let names = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in names.clone() {
        for suffix in SUFFIXES {
            let base = name.strip_suffix(suffix);
            if let Some((.., kind)) = FAMILIES.iter().find(|(known, ..)| base == Some(known)) {
                return Some((suffix == CLASSIFIER, *kind));
            }
        }
    }
    let kind = config["model_type"].as_str().filter(|_| names.clone().next().is_none());
    let (.., kind) = FAMILIES.iter().find(|(_, known, _)| kind == Some(known))?;
    Some((false, *kind))
}
