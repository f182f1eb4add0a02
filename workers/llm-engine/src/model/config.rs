//! Sizes and options of a decoder, read from config.json or from equivalent GGUF metadata.
use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use candle_nn::ops::sigmoid;
use serde_json::Value;

use super::roles::Role;
use super::rope::{Rope, Scaling};

mod altup;
mod axes;
mod experts;
mod fields;
mod heads;
mod latent;
mod mtp;
mod recurrent;

pub use altup::AltUpConfig;
pub use axes::AxisSections;
pub use experts::{
    DEEPSEEK_NAMES, ERNIE_NAMES, ExpertGroups, ExpertNames, ExpertsConfig, GEMMA_NAMES, GPT_OSS_NAMES,
    GRANITE_NAMES, JAMBA_NAMES, MIXTRAL_NAMES, NEMOTRON_NAMES, Projections, QWEN_NAMES, Routing,
};
pub use fields::Fields;
pub use heads::HeadShape;
pub use latent::LatentConfig;
pub use recurrent::{
    Mamba1Config, Recurrence, RecurrentConfig, SelectiveConfig, SelectiveNames, SelectiveNorm,
};

/// Layout of a head that predicts further tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtpLayout {
    /// A layer after the others, whose block has the tensors of the head in addition. It repeats with the states before its
    /// last norm. Files of DeepSeek and GLM have it.
    Appended,
    /// A module of its own in safetensors. It repeats with the states after its last norm. Files of Qwen have it.
    Module,
}

/// Maximum context length. Positions are f32 where angles are computed, which is exact up to this number.
const MAX_CONTEXT: usize = 1 << 24;

/// Limit of the projections of [`Activation::ClampedSwiglu`].
const SWIGLU_LIMIT: f64 = 7.0;
/// Factor in the sigmoid of [`Activation::ClampedSwiglu`].
const SWIGLU_FACTOR: f64 = 1.702;

/// Activation function of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x sigmoid(x).
    Silu,
    /// GELU with the error function.
    Gelu,
    /// GELU, approximated with tanh.
    GeluTanh,
    /// max(x, 0)².
    SquaredRelu,
    /// Sigmoid linear unit of a gate of at most 7, with a factor of 1.702 in the sigmoid. The other projection is limited to
    /// -7 to 7 and increased by 1.
    ClampedSwiglu,
}

impl Activation {
    /// Applies the function to each element.
    pub fn forward(self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::SquaredRelu => x.relu()?.sqr(),
            Self::ClampedSwiglu => {
                let x = x.minimum(SWIGLU_LIMIT)?;
                &x * sigmoid(&(&x * SWIGLU_FACTOR)?)?
            }
        }
    }

    /// Multiplies the activation of a gate by another projection.
    pub fn gate(self, gate: &Tensor, up: &Tensor) -> candle_core::Result<Tensor> {
        let gate = self.forward(gate)?;
        match self {
            Self::ClampedSwiglu => gate * (up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)? + 1.0)?,
            Self::Silu | Self::Gelu | Self::GeluTanh | Self::SquaredRelu => gate * up,
        }
    }
}

/// Kind of a decoder's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMS norm.
    Rms,
    /// RMS norm that multiplies by 1 + weight.
    RmsPlusOne,
    /// Layer norm.
    Layer {
        /// If true, files contain biases.
        bias: bool,
    },
    /// Layer norm with biases that multiplies by 1 + weight.
    LayerPlusOne,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// Each head is normalized, with the same weights.
    Heads,
    /// All heads of a row are normalized together.
    Rows,
}

/// Norms of a layer: before and after attention, before and after feed-forward; `None` where absent.
pub type Norms = [Option<Role>; 4];

/// Layers with pre-norms only.
const PRE_NORMS: Norms = [Some(Role::AttentionNorm), None, Some(Role::MlpNorm), None];

/// Parts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerParts {
    /// Attention or recurrent states, and a feed-forward network.
    Both,
    /// Attention or recurrent states only.
    Attention,
    /// A feed-forward network only.
    FeedForward,
}

/// Sizes and options of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Hidden size.
    pub hidden: usize,
    /// Width inside the feed-forward layers.
    pub intermediate: usize,
    /// Mixtures of experts, if there are layers with them.
    pub experts: Option<ExpertsConfig>,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads, which divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Heads of layers without a window, if they differ from the others'.
    pub full_heads: Option<HeadShape>,
    /// If true, layers without a window have no value projection: the keys, before their norm, are the values.
    pub keys_as_values: bool,
    /// If true, each head of values is normalized by an RMS norm without weights.
    pub value_norm: bool,
    /// Number of last layers that reuse the keys and values of an earlier layer, the last one with the same window.
    pub shared_layers: usize,
    /// If true, the layers that reuse keys and values have feed-forward layers of twice the width.
    pub wide_shared_layers: bool,
    /// Width of the inputs of each layer that depend on the token and its embedding, if there are any.
    pub layer_inputs: Option<usize>,
    /// If true, the states after each layer are multiplied by a number.
    pub layer_scales: bool,
    /// Streams of states, if there are several.
    pub altup: Option<AltUpConfig>,
    /// Widths of latent attention, if there is one. Then each head has keys and values of its own.
    pub latent: Option<LatentConfig>,
    /// Sizes of layers with recurrent states, if some have them, mostly instead of attention over a cache.
    pub recurrent: Option<RecurrentConfig>,
    /// Layout of a head that predicts further tokens, if files of the family may have one.
    pub mtp_layout: Option<MtpLayout>,
    /// If true, that head is loaded. Its layer follows the others.
    pub has_mtp: bool,
    /// If true, the query projection also has a gate for each element of the heads, whose sigmoid multiplies the output of
    /// attention. The gates of a head follow its queries.
    pub gated_attention: bool,
    /// Maximum number of positions of a sequence.
    pub context: usize,
    /// Parts of each layer.
    pub parts: Vec<LayerParts>,
    /// Number of keys that a query of each layer attends to, including its own; `None` means no limit.
    pub windows: Vec<Option<usize>>,
    /// Rotary parameters of layers without a window, and of all layers if `local_rope` is `None`.
    pub rope: Rope,
    /// Rotary parameters of layers with a window.
    pub local_rope: Option<Rope>,
    /// If true, rotary pairs are neighboring elements; otherwise they are elements of both halves.
    pub interleaved: bool,
    /// If true, the files have reordered the rows of queries and keys of a family whose rotary pairs are otherwise elements of
    /// both halves.
    pub reordered_heads: bool,
    /// If true, the rows of queries and keys are read in their original order from files that have reordered them: heads whose
    /// elements do not all rotate have other pairs than neighbors.
    pub restored_heads: bool,
    /// Axis whose position rotates each pair, in models that read pictures; `None` if there is one position.
    pub axes: Option<AxisSections>,
    /// Layers whose queries and keys are rotated.
    pub rotated: Vec<bool>,
    /// Epsilon that norms add to the mean square or the variance.
    pub norm_eps: f64,
    /// Kind of all norms.
    pub norm_kind: NormKind,
    /// Norms of each layer.
    pub norms: Norms,
    /// If true, attention and feed-forward layer have the same input, and both outputs are added to it.
    pub parallel: bool,
    /// RMS norms of queries and keys, if there are any.
    pub qk_norm: Option<QueryKeyNorm>,
    /// If true, the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// If true, the output projection of attention has a bias.
    pub output_bias: bool,
    /// If true, the projections of feed-forward layers have biases.
    pub mlp_bias: bool,
    /// If true, files store queries, keys and values as one matrix.
    pub fused_qkv: bool,
    /// If true, that matrix has the queries of each head of keys together with this head of keys and of values.
    pub grouped_qkv: bool,
    /// If true, files store gate and up as one matrix.
    pub fused_gate_up: bool,
    /// If true, feed-forward layers multiply the activation of a gate by another projection; otherwise they have only one
    /// projection before the activation.
    pub gated: bool,
    /// Activation of feed-forward layers.
    pub activation: Activation,
    /// Factor of embeddings.
    pub embedding_scale: Option<f64>,
    /// If true, the queries of each head also attend to a sink: a key with a score of its own and a value of zero.
    pub sinks: bool,
    /// Factor of attention scores.
    pub attention_scale: f32,
    /// Soft cap c of attention scores: each is replaced by c · tanh(score / c).
    pub attention_softcap: Option<f32>,
    /// Factor of logits.
    pub logit_scale: Option<f64>,
    /// Soft cap of logits.
    pub logit_softcap: Option<f64>,
    /// Factors of the outputs of projections, by which their matrices are multiplied.
    pub factors: Vec<(Role, f64)>,
    /// If true, the output head has a bias.
    pub head_bias: bool,
    /// If true, the embedding table is also the output head.
    pub tied_embeddings: bool,
    /// If true, tokens also see those after them, as in models that only compute embeddings.
    pub bidirectional: bool,
    /// Names of tensors in safetensors that differ from those of [`Role::names`].
    pub names: &'static [(Role, &'static str)],
}

/// Predicate of the layer index: true for layers with a window, if the model has one.
pub type WindowPredicate = Box<dyn Fn(usize) -> bool>;

/// Function that reads the sizes and options of mixtures of experts.
pub type ReadExperts = fn(&Fields) -> Result<ExpertsConfig>;

/// A model family: a row of the tables in [`families`](super::families).
pub struct Family {
    /// Display name.
    pub name: &'static str,
    /// Names in `"architectures"` of config.json.
    pub architectures: &'static [&'static str],
    /// Names in `"model_type"` of config.json.
    pub model_types: &'static [&'static str],
    /// Name in `general.architecture` of GGUF. Mistral's files use `llama`.
    pub gguf: Option<&'static str>,
    /// JSON object of transformers' defaults for fields that config.json omits.
    pub defaults: &'static str,
    /// Returns the predicate for layers with a window.
    pub windowed_layers: fn(&Fields) -> Result<WindowPredicate>,
    /// Reads the sizes and options of mixtures of experts; `None` for dense families.
    pub experts: Option<ReadExperts>,
    /// Sets options that all models of the family share and config.json does not contain.
    pub configure: fn(&mut DecoderConfig, &Fields) -> Result<()>,
}

impl DecoderConfig {
    /// Reads a config.json, or GGUF metadata converted to its fields.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields, and for unsupported options.
    pub fn from_json(family: &Family, config: &Value) -> Result<Self> {
        let fields = Fields::new(config, family.defaults)?;
        let (hidden, heads) = (fields.required("hidden_size")?, fields.required("num_attention_heads")?);
        let kv_heads = fields.size("num_key_value_heads")?.unwrap_or(heads);
        ensure!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} heads cannot share {kv_heads} heads of keys and values: the first number must be a multiple of the second"
        );
        let head_dim = match fields.size("head_dim")? {
            Some(width) => width,
            None => {
                ensure!(
                    hidden.is_multiple_of(heads),
                    "a width of {hidden} is not divisible by {heads} heads"
                );
                hidden / heads
            }
        };
        let share = match rope_parameters(&fields).and_then(|all| all["partial_rotary_factor"].as_f64()) {
            Some(share) => share,
            None => fields.number("partial_rotary_factor")?.unwrap_or(1.0),
        };
        let full_heads =
            HeadShape::of_full_attention(&fields, heads, HeadShape { kv_heads, width: head_dim })?;
        let width = full_heads.map_or(head_dim, |heads| heads.width);
        let is_proportional =
            rope_parameters(&fields).is_some_and(|parameters| parameters["rope_type"] == "proportional");
        let rotary_dim = match is_proportional {
            // Pairs consist of elements of both halves of the head; those that do not rotate have a frequency of 0.
            true => width,
            false => (width as f64 * share).round() as usize,
        };
        ensure!(
            (2..=width).contains(&rotary_dim) && rotary_dim.is_multiple_of(2),
            "heads of {width} elements cannot rotate {rotary_dim} of them: elements rotate in pairs, at least one"
        );
        let context = fields.required("max_position_embeddings")?;
        let rope = rope(&fields, rotary_dim, context)?;
        let context = context.max(rope.scaling.extended_context());
        ensure!(
            context <= MAX_CONTEXT,
            "a context of {context} positions exceeds the limit of {MAX_CONTEXT}"
        );
        let attention_bias = fields.flag("attention_bias");
        // Gemma's published files have "hidden_act": "gelu", which transformers ignores.
        let activation = fields.value("hidden_activation").or(fields.default_value("hidden_activation"));
        let activation = activation.or_else(|| fields.value("hidden_act"));
        // Limits the number of layers, which the experts' configuration allocates.
        let windows = windows(&fields, family)?;
        let rotated = vec![true; windows.len()];
        let parts = vec![LayerParts::Both; windows.len()];
        let mut decoder = Self {
            hidden,
            intermediate: intermediate(&fields)?,
            experts: family.experts.map(|read| read(&fields)).transpose()?,
            heads,
            kv_heads,
            head_dim,
            full_heads,
            keys_as_values: false,
            value_norm: false,
            shared_layers: 0,
            wide_shared_layers: false,
            layer_inputs: None,
            layer_scales: false,
            altup: None,
            latent: None,
            recurrent: None,
            mtp_layout: None,
            has_mtp: false,
            gated_attention: false,
            context,
            parts,
            windows,
            rope,
            local_rope: None,
            interleaved: fields.flag("interleaved"),
            reordered_heads: fields.flag("interleaved"),
            restored_heads: false,
            axes: {
                let both = [fields.value("rope_scaling"), rope_parameters(&fields)];
                let parameters = both.into_iter().flatten().find(|all| !all["mrope_section"].is_null());
                let read = |all| AxisSections::from_json(all, rotary_dim / 2);
                parameters.map(read).transpose()?.flatten()
            },
            rotated,
            norm_eps: norm_eps(&fields)?,
            norm_kind: NormKind::Rms,
            norms: PRE_NORMS,
            parallel: false,
            qk_norm: None,
            qkv_bias: attention_bias || fields.flag("qkv_bias"),
            output_bias: attention_bias,
            mlp_bias: fields.flag("mlp_bias"),
            fused_qkv: false,
            grouped_qkv: false,
            fused_gate_up: false,
            gated: true,
            activation: match activation.and_then(Value::as_str) {
                None | Some("silu" | "swish") => Activation::Silu,
                Some("gelu") => Activation::Gelu,
                Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
                Some("relu2") => Activation::SquaredRelu,
                Some(other) => {
                    bail!("the activation {other:?} is not known; use silu, gelu, gelu_pytorch_tanh or relu2")
                }
            },
            embedding_scale: None,
            sinks: false,
            attention_scale: (head_dim as f64).powf(-0.5) as f32,
            attention_softcap: fields.number("attn_logit_softcapping")?.map(|cap| cap as f32),
            logit_scale: None,
            logit_softcap: fields.number("final_logit_softcapping")?,
            factors: Vec::new(),
            head_bias: fields.flag("lm_head_bias"),
            tied_embeddings: fields.flag("tie_word_embeddings"),
            bidirectional: fields.flag("use_bidirectional_attention"),
            names: &[],
        };
        (family.configure)(&mut decoder, &fields)?;
        ensure!(
            decoder.recurrent.is_none() || !decoder.bidirectional,
            "\"use_bidirectional_attention\" is true, which layers with recurrent states do not support"
        );
        Ok(decoder)
    }

    /// Returns the sizes of the recurrent states of a layer that has them.
    pub fn recurrent_of(&self, layer: usize) -> Option<&RecurrentConfig> {
        self.recurrent.as_ref().filter(|recurrent| recurrent.layers[layer])
    }

    /// Returns true if a layer has recurrent states instead of a cache.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.recurrent_of(layer).is_some_and(|recurrent| !recurrent.has_parallel_attention())
    }

    /// Returns true if adapters are supported. They are not applied to layers that have both a dense network and experts, or
    /// inputs of their own: those of models with norms of values.
    pub fn takes_adapters(&self) -> bool {
        self.recurrent.is_none() && self.has_equal_layers() && !self.value_norm && !self.grouped_qkv
    }
}

/// Reads the width inside the feed-forward layers. Some families have a list with an equal width for each layer.
fn intermediate(fields: &Fields) -> Result<usize> {
    let key = "intermediate_size";
    if let (None, Some(factor)) = (fields.value(key), fields.size("ffn_factor")?) {
        let own = fields.value("ffn_hidden_size").map(|_| fields.required("ffn_hidden_size"));
        return own.unwrap_or_else(|| Ok(fields.required("hidden_size")?.saturating_mul(factor)));
    }
    let Some(list) = fields.value(key).and_then(Value::as_array) else { return fields.required(key) };
    let widths: Option<Vec<u64>> = list.iter().map(Value::as_u64).collect();
    let widths = widths.with_context(|| format!("{key:?} is not a list of whole numbers"))?;
    ensure!(
        widths.windows(2).all(|pair| pair[0] == pair[1]),
        "{key:?} has different widths, which are not supported"
    );
    let width = widths.first().filter(|width| **width > 0).with_context(|| format!("{key:?} is 0"))?;
    Ok(*width as usize)
}

/// Reads the epsilon of norms, whose name depends on the family.
fn norm_eps(fields: &Fields) -> Result<f64> {
    for key in ["rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon"] {
        if let Some(eps) = fields.number(key)? {
            return Ok(eps);
        }
    }
    bail!("\"rms_norm_eps\" is missing")
}

fn windows(fields: &Fields, family: &Family) -> Result<Vec<Option<usize>>> {
    let layers = fields.required("num_hidden_layers")?;
    // Rejected early, because layers are allocated before their tensors are looked up.
    ensure!(layers <= 4096, "{layers} layers exceed the limit of 4096, more than any model has");
    // Converters to GGUF write 0 for models without a window.
    let window = fields.size("sliding_window")?.filter(|window| *window > 0);
    if let Some(types) = fields.value("layer_types").and_then(Value::as_array) {
        ensure!(types.len() == layers, "\"layer_types\" has {} entries for {layers} layers", types.len());
        let has = |names: &[&str]| names.iter().any(|name| fields.value(name).is_some());
        let has_mamba = has(&["mamba_n_heads", "mamba_num_heads", "mamba_dt_rank"]);
        let has_states = has_mamba || has(&["linear_num_value_heads"]);
        let window = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("linear_attention") if has_states => Ok(None),
            Some("mamba" | "attention" | "mlp" | "moe") if has_mamba => Ok(None),
            Some("sliding_attention") => window
                .map(Some)
                .context("\"layer_types\" has sliding_attention, but \"sliding_window\" is missing"),
            _ => bail!("\"layer_types\" has {kind}; use full_attention or sliding_attention"),
        };
        return types.iter().map(window).collect();
    }
    let windowed_layers = (family.windowed_layers)(fields)?;
    Ok((0..layers).map(|layer| window.filter(|_| windowed_layers(layer))).collect())
}

/// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`, which contains both, possibly by kind of
/// layer.
fn rope(fields: &Fields, rotary_dim: usize, context: usize) -> Result<Rope> {
    let parameters = rope_parameters(fields);
    let scaling = fields.value("rope_scaling").or(parameters);
    let theta = match parameters.and_then(|parameters| parameters["rope_theta"].as_f64()) {
        Some(theta) => theta,
        None => fields.number("rope_theta")?.context("\"rope_theta\" is missing")?,
    };
    let original = fields.size("original_max_position_embeddings")?;
    let scaling = match scaling {
        Some(scaling) => {
            Scaling::from_json(scaling, original, context, rotary_dim / 2).context("\"rope_scaling\"")?
        }
        None => Scaling::None,
    };
    Ok(Rope { theta, rotary_dim, scaling })
}

/// Returns the `rope_parameters` of layers without a window.
fn rope_parameters<'a>(fields: &'a Fields) -> Option<&'a Value> {
    fields.value("rope_parameters").map(|all| all.get("full_attention").unwrap_or(all))
}
