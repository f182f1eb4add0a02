//! What a decoder is made of: sizes and switches, read from config.json or what stands for it.
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::parts::Part;
use super::rope::{Rope, Scaling};

/// Positions are counted in f32 where angles are made, which has no odd numbers above this.
const LARGEST_CONTEXT: usize = 1 << 24;

/// The function between the two products of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x sigmoid(x).
    Silu,
    /// x times the normal distribution below x, approximated by tanh.
    GeluTanh,
}

/// Norms of a layer, each by the tensor that files have for it: before and behind attention, before and behind
/// feed-forward; `None` where there is none.
pub type Norms = [Option<Part>; 4];

/// Norms before attention and before feed-forward.
const NORMS_BEFORE: Norms = [Some(Part::AttentionNorm), None, Some(Part::MlpNorm), None];

/// A decoder's sizes and switches.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Width of the state.
    pub hidden: usize,
    /// Width between the products of a feed-forward layer.
    pub intermediate: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, which divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions that a sequence may have.
    pub context: usize,
    /// For each layer how many keys a query sees, its own among them; none sees all before it.
    pub windows: Vec<Option<usize>>,
    /// Angles of layers without a window, and of all if `local_rope` is none.
    pub rope: Rope,
    /// Angles of layers with a window.
    pub local_rope: Option<Rope>,
    /// Angles turn neighbours, not elements of both halves.
    pub interleaved: bool,
    /// Added to the mean square in norms.
    pub norm_eps: f64,
    /// Norms multiply by 1 + their weights.
    pub norm_plus_one: bool,
    /// Norms of each layer.
    pub norms: Norms,
    /// Queries and keys are normed, head by head.
    pub qk_norm: bool,
    /// The products that make queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The product behind attention has one.
    pub output_bias: bool,
    /// Products of feed-forward layers have biases.
    pub mlp_bias: bool,
    /// Files hold queries, keys and values as one matrix, and gate and up as one.
    pub fused: bool,
    /// Of feed-forward layers.
    pub activation: Activation,
    /// Embeddings are multiplied by it.
    pub embedding_scale: Option<f64>,
    /// Scores are.
    pub attention_scale: f32,
    /// With c, c tanh(score / c) takes the place of the score.
    pub attention_softcap: Option<f32>,
    /// Likewise of logits.
    pub logit_softcap: Option<f64>,
    /// The embedding's matrix also makes the logits.
    pub tied: bool,
}

/// Which layers have a window, if the model has one.
pub type Slides = Box<dyn Fn(usize) -> bool>;

/// A family of models: a row of [`FAMILIES`](super::families::FAMILIES).
pub struct Family {
    /// As people call it.
    pub name: &'static str,
    /// In `"architectures"` of config.json.
    pub architectures: &'static [&'static str],
    /// `"model_type"` of config.json.
    pub model_types: &'static [&'static str],
    /// `general.architecture` of GGUF. Mistral's files call themselves llama.
    pub gguf: Option<&'static str>,
    /// What transformers takes where config.json says nothing.
    pub defaults: &'static str,
    /// Which layers have a window.
    pub slides: fn(&Fields) -> Result<Slides>,
    /// What config.json does not say, because all of the family have it.
    pub switches: fn(&mut DecoderConfig, &Fields) -> Result<()>,
}

/// config.json with what its family takes where it says nothing.
pub struct Fields<'a> {
    config: &'a Value,
    defaults: Value,
}

impl Fields<'_> {
    /// None where there is null, and no default stands for what is not there at all.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let said = self.config.get(key).or_else(|| self.defaults.get(key));
        said.filter(|value| !value.is_null())
    }

    /// A whole number.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok());
        let read =
            |value: &Value| size(value).with_context(|| format!("{key:?} is no whole number: it is {value}"));
        self.value(key).map(read).transpose()
    }

    /// A whole number that has to be there, at least 1.
    pub fn needed(&self, key: &str) -> Result<usize> {
        let size = self.size(key)?.with_context(|| format!("{key:?} is missing"))?;
        ensure!(size > 0, "{key:?} is 0");
        Ok(size)
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let read =
            |value: &Value| value.as_f64().with_context(|| format!("{key:?} is no number: it is {value}"));
        self.value(key).map(read).transpose()
    }

    /// Whether it says true.
    pub fn flag(&self, key: &str) -> bool {
        self.value(key) == Some(&Value::Bool(true))
    }
}

impl DecoderConfig {
    /// What a config.json says, or the metadata of a GGUF file written like one.
    ///
    /// # Errors
    /// Fields that are missing, of the wrong type or do not fit each other, and what no decoder here can do.
    pub fn of(family: &Family, config: &Value) -> Result<Self> {
        let defaults = serde_json::from_str(family.defaults)?;
        let fields = Fields { config, defaults };
        let (hidden, heads) = (fields.needed("hidden_size")?, fields.needed("num_attention_heads")?);
        let kv_heads = fields.size("num_key_value_heads")?.unwrap_or(heads);
        ensure!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} heads cannot share {kv_heads} heads of keys and values"
        );
        let head_dim = match fields.size("head_dim")? {
            Some(width) => width,
            None => {
                ensure!(
                    hidden.is_multiple_of(heads),
                    "a width of {hidden} does not divide into {heads} heads"
                );
                hidden / heads
            }
        };
        let share = match rope_parameters(&fields).and_then(|all| all["partial_rotary_factor"].as_f64()) {
            Some(share) => share,
            None => fields.number("partial_rotary_factor")?.unwrap_or(1.0),
        };
        let turned = (head_dim as f64 * share).round() as usize;
        ensure!(
            (2..=head_dim).contains(&turned) && turned.is_multiple_of(2),
            "of heads of {head_dim} elements {turned} cannot be turned in pairs"
        );
        let context = fields.needed("max_position_embeddings")?;
        let rope = rope(&fields, turned, context)?;
        let context = context.max(rope.scaling.reach());
        ensure!(
            context <= LARGEST_CONTEXT,
            "a context of {context} positions is more than {LARGEST_CONTEXT}"
        );
        let attention_bias = fields.flag("attention_bias");
        // Gemma's published files have "hidden_act": "gelu", which transformers does not use.
        let activation = fields.value("hidden_activation").or(fields.defaults.get("hidden_activation"));
        let activation = activation.or_else(|| fields.value("hidden_act"));
        let mut decoder = Self {
            hidden,
            intermediate: fields.needed("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            context,
            windows: windows(&fields, family)?,
            rope,
            local_rope: None,
            interleaved: fields.flag("interleaved"),
            norm_eps: fields.number("rms_norm_eps")?.context("\"rms_norm_eps\" is missing")?,
            norm_plus_one: false,
            norms: NORMS_BEFORE,
            qk_norm: false,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: fields.flag("mlp_bias"),
            fused: false,
            activation: match activation.and_then(Value::as_str) {
                None | Some("silu" | "swish") => Activation::Silu,
                Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
                Some(other) => bail!("the activation {other:?} is not known: silu and gelu_pytorch_tanh are"),
            },
            embedding_scale: None,
            attention_scale: (head_dim as f64).powf(-0.5) as f32,
            attention_softcap: fields.number("attn_logit_softcapping")?.map(|cap| cap as f32),
            logit_softcap: fields.number("final_logit_softcapping")?,
            tied: fields.flag("tie_word_embeddings"),
        };
        (family.switches)(&mut decoder, &fields)?;
        Ok(decoder)
    }

    /// Elements of a position's keys in one layer, and of its values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

fn windows(fields: &Fields, family: &Family) -> Result<Vec<Option<usize>>> {
    let layers = fields.needed("num_hidden_layers")?;
    // More would be allocated for before any of their tensors is looked for.
    ensure!(layers <= 4096, "{layers} layers are more than any model has");
    // Converters to GGUF write 0 where there is none.
    let window = fields.size("sliding_window")?.filter(|window| *window > 0);
    if let Some(types) = fields.value("layer_types").and_then(Value::as_array) {
        ensure!(types.len() == layers, "\"layer_types\" are {}, the layers {layers}", types.len());
        let window = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => {
                window.map(Some).context("\"layer_types\" slide without a \"sliding_window\"")
            }
            _ => bail!("\"layer_types\" has {kind}; full_attention and sliding_attention are known"),
        };
        return types.iter().map(window).collect();
    }
    let slides = (family.slides)(fields)?;
    Ok((0..layers).map(|layer| window.filter(|_| slides(layer))).collect())
}

/// Of `rope_theta` and `rope_scaling`, or of `rope_parameters`, which has both, some of them for each kind of layer.
fn rope(fields: &Fields, turned: usize, context: usize) -> Result<Rope> {
    let parameters = rope_parameters(fields);
    let scaling = fields.value("rope_scaling").or(parameters);
    let theta = match parameters.and_then(|parameters| parameters["rope_theta"].as_f64()) {
        Some(theta) => theta,
        None => fields.number("rope_theta")?.context("\"rope_theta\" is missing")?,
    };
    let original = fields.size("original_max_position_embeddings")?;
    let scaling = match scaling {
        Some(scaling) => Scaling::of(scaling, original, context, turned / 2).context("\"rope_scaling\"")?,
        None => Scaling::None,
    };
    Ok(Rope { theta, turned, scaling })
}

/// Those of layers without a window.
fn rope_parameters<'a>(fields: &'a Fields) -> Option<&'a Value> {
    fields.value("rope_parameters").map(|all| all.get("full_attention").unwrap_or(all))
}
