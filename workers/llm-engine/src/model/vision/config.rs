//! Sizes and options of a vision encoder and its projector.
use anyhow::{Context, Result, bail, ensure};
use candle_core::DType;
use serde_json::Value;

use super::families::{self, VisionFamily};
use crate::model::config::Fields;
use crate::model::encoder::config::Activation;

/// Number of the largest pictures whose features are kept, since so many prompts are computed in turns.
pub(super) const KEPT_PICTURES: usize = 4;

/// Maximum number of layers, more than any encoder has.
const MAX_LAYERS: usize = 512;

/// Maximum width of states and of feed-forward layers, and maximum number of heads; larger than those of any encoder.
const MAX_WIDTH: usize = 1 << 20;

/// Maximum number of rows, and of columns, of a table of positions.
const MAX_TABLE_SIDE: usize = 1 << 14;

/// Sizes and options of a vision encoder.
#[derive(Clone, Debug)]
pub struct VisionConfig {
    /// Kind of the encoder.
    pub(super) family: &'static VisionFamily,
    /// Width of the states.
    pub(super) hidden: usize,
    /// Width inside the feed-forward layers.
    pub(super) intermediate: usize,
    /// Number of layers.
    pub(super) layers: usize,
    /// Number of heads.
    pub(super) heads: usize,
    /// Width and height of a patch in pixels.
    pub(super) patch: usize,
    /// Number of frames of a patch; a picture is repeated.
    pub(super) frames: usize,
    /// Number of patches in a row, and in a column, that become one token.
    pub(super) merge: usize,
    /// Activation of feed-forward layers.
    pub(super) activation: Activation,
    /// Base of the frequencies of rotary embeddings.
    pub(super) rope_theta: f64,
    /// Number of rows, and of columns, of the table of positions; 0 without one.
    pub(super) table_side: usize,
    /// Width and height of a window in tokens; `None` if all patches of a picture see each other in all layers.
    pub(super) window: Option<usize>,
    /// Layers in which all patches see each other, of an encoder with windows.
    pub(super) full_layers: Vec<usize>,
    /// Layers after which states are projected for the first layers of the decoder.
    pub(super) deepstack_layers: Vec<usize>,
    /// Epsilon of norms.
    pub(super) norm_eps: f64,
    /// Width of the decoder.
    pub(super) text_hidden: usize,
    /// Epsilon of the decoder's norms.
    pub(super) text_norm_eps: f64,
    /// If true, the tokens of a picture see each other in the decoder, also those after them.
    is_bidirectional: bool,
    /// If true, inputs and outputs of the projections of layers are limited.
    pub(super) has_limits: bool,
    /// If true, the means of patches are standardized before they are projected.
    pub(super) standardizes: bool,
    /// If true, the layers of the projector have biases.
    pub(super) projector_bias: bool,
    /// Token that stands for a feature in prompts.
    pub(super) token: u32,
    /// Padding token, whose per-layer inputs the rows of picture features get.
    pub(super) padding: u32,
}

impl VisionConfig {
    /// Reads the configuration of a model that reads pictures, whose decoder has this width and these norms; `None` if the
    /// model has no encoder that is supported.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields.
    pub fn from_json(config: &Value, text_hidden: usize, text_norm_eps: f64) -> Result<Option<Self>> {
        let vision = &config["vision_config"];
        if !vision.is_object() {
            return Ok(None);
        }
        let Some(family) = families::of_config(config) else {
            // The decoders of others of this type differ, too.
            ensure!(
                config["model_type"] != "llava",
                "the vision encoder {} is not supported; use one of the type pixtral",
                vision["model_type"]
            );
            return Ok(None);
        };
        Self::of_family(family, config, text_hidden, text_norm_eps).map(Some)
    }

    /// Like [`Self::from_json`], for an encoder of a known kind.
    pub(super) fn of_family(
        family: &'static VisionFamily,
        config: &Value,
        text_hidden: usize,
        text_norm_eps: f64,
    ) -> Result<Self> {
        let vision = &config["vision_config"];
        let fields = Fields::new(vision, family.defaults)?;
        let first = |names: [&str; 2]| -> Result<usize> {
            let [name, other] = names;
            if fields.value(name).is_some() { fields.required(name) } else { fields.required(other) }
        };
        let (hidden, patch) = (fields.required("hidden_size")?, fields.required("patch_size")?);
        let intermediate = fields.required("intermediate_size")?;
        let layers = first(["num_hidden_layers", "depth"])?;
        ensure!(layers <= MAX_LAYERS, "{layers} layers exceed the limit of {MAX_LAYERS}");
        let heads = first(["num_attention_heads", "num_heads"])?;
        for (name, size) in
            [("hidden_size", hidden), ("intermediate_size", intermediate), ("num_attention_heads", heads)]
        {
            ensure!(size <= MAX_WIDTH, "{name:?} is {size}, but must be at most {MAX_WIDTH}");
        }
        ensure!(
            hidden.is_multiple_of(4 * heads),
            "\"hidden_size\" is {hidden}, but must be a multiple of 4 times the {heads} heads"
        );
        ensure!(patch <= 256, "\"patch_size\" is {patch}, but must be at most 256");
        let outer = Fields::new(config, "{}")?;
        let image = fields.size("image_size")?.unwrap_or(0);
        let side = match (fields.size("position_embedding_size")?, fields.size("num_position_embeddings")?) {
            (Some(side), _) => side,
            (None, Some(positions)) => positions.isqrt(),
            (None, None) => image / patch,
        };
        let merge = match family.merge {
            families::MergeFrom::Encoder => fields.required("spatial_merge_size")?,
            families::MergeFrom::Model(field, default) => outer.size(field)?.unwrap_or(default),
            families::MergeFrom::Pooling => fields.required("pooling_kernel_size")?,
            families::MergeFrom::TokensPerImage => {
                let tokens = outer.size("mm_tokens_per_image")?.unwrap_or(256).isqrt();
                ensure!(
                    tokens > 0 && side.is_multiple_of(tokens),
                    "{side} x {side} patches cannot become {tokens} x {tokens} tokens: \"mm_tokens_per_image\" must be the \
                     square of a divisor of {side}"
                );
                side / tokens
            }
        };
        ensure!(
            (1..=64).contains(&merge),
            "{merge} x {merge} patches in a token are not supported; use 1 to 64"
        );
        if family.names.table.is_some() {
            ensure!(
                (1..=MAX_TABLE_SIDE).contains(&side),
                "the table of positions has {side} rows, which \"image_size\" and \"patch_size\" or \
                 \"num_position_embeddings\" determine, but must have 1 to {MAX_TABLE_SIDE}"
            );
        }
        if family.positions == families::Positions::Table {
            ensure!(
                side.is_multiple_of(merge),
                "{side} x {side} patches cannot be merged {merge} x {merge} to a token: \"image_size\" / \"patch_size\" must \
                 be a multiple of {merge}"
            );
        }
        let window = match fields.size("window_size")?.filter(|_| family.has_windows) {
            Some(pixels) => {
                let tokens = pixels / merge / patch;
                ensure!(
                    tokens > 0,
                    "\"window_size\" is {pixels}, less than a token of {} pixels",
                    merge * patch
                );
                Some(tokens)
            }
            None => None,
        };
        let list = |name: &str| -> Result<Vec<usize>> {
            let Some(list) = fields.value(name) else { return Ok(Vec::new()) };
            let list: Vec<usize> = serde_json::from_value(list.clone())
                .with_context(|| format!("{name:?} is not a list of layers"))?;
            match list.iter().find(|layer| **layer >= layers) {
                Some(outside) => bail!("{name:?} has {outside}, but must have less than the {layers} layers"),
                None => Ok(list),
            }
        };
        let deepstack_layers = list("deepstack_visual_indexes")?;
        ensure!(
            deepstack_layers.is_sorted_by(|one, next| one < next),
            "\"deepstack_visual_indexes\" must be in ascending order"
        );
        for (field, expected) in [("num_key_value_heads", heads), ("head_dim", hidden / heads)] {
            let own = fields.size(field)?.filter(|_| family.names.further_norms.is_some());
            ensure!(
                own.is_none_or(|own| own == expected),
                "{field:?} is {}, but only {expected} is supported, which follows from the {heads} heads of states of {hidden} \
                 elements",
                own.unwrap_or(0)
            );
        }
        let activation = fields.value("hidden_act").or(fields.value("hidden_activation"));
        let activation = match activation.unwrap_or(&Value::Null) {
            Value::String(name) if name == "silu" => Activation::Silu,
            Value::String(name) if name == "gelu_pytorch_tanh" => Activation::GeluTanh,
            Value::String(name) if name == "gelu" => Activation::Gelu,
            other => bail!("\"hidden_act\" is {other}; use silu, gelu or gelu_pytorch_tanh"),
        };
        let token = match outer.size("image_token_id")? {
            Some(token) => Some(token),
            None => outer.size("image_token_index")?,
        };
        let token = token.and_then(|token| u32::try_from(token).ok());
        let layer = outer.value("vision_feature_layer").and_then(Value::as_i64);
        let selected = layer.is_none_or(|layer| layer == -1);
        ensure!(
            selected,
            "\"vision_feature_layer\" is not -1, but only the last layer's features are supported"
        );
        if let Some(activation) = outer.value("projector_hidden_act") {
            ensure!(
                activation == "gelu",
                "\"projector_hidden_act\" is {activation}, but only \"gelu\" is supported"
            );
        }
        let text = Fields::new(&config["text_config"], "{}")?;
        let padding = match family.projector {
            families::ProjectorKind::Gemma4 => text.size("pad_token_id")?.unwrap_or(0),
            _ => 0,
        };
        let theta = vision["rope_parameters"]["rope_theta"].as_f64();
        Ok(Self {
            family,
            hidden,
            intermediate,
            layers,
            heads,
            patch,
            frames: if family.has_frames { fields.required("temporal_patch_size")? } else { 1 },
            merge,
            activation,
            rope_theta: theta.or(fields.number("rope_theta")?).unwrap_or(1e4),
            table_side: side,
            window,
            full_layers: list("fullatt_block_indexes")?,
            deepstack_layers,
            norm_eps: match fields.number("layer_norm_eps")? {
                Some(eps) => eps,
                None => fields.number("rms_norm_eps")?.unwrap_or(family.norm_eps),
            },
            is_bidirectional: family.is_bidirectional
                && (family.projector != families::ProjectorKind::Gemma4
                    || config["text_config"]["use_bidirectional_attention"] == "vision"),
            has_limits: fields.flag("use_clipped_linears"),
            standardizes: fields.flag("standardize"),
            text_hidden,
            text_norm_eps,
            projector_bias: config["multimodal_projector_bias"] != false,
            token: token.context("\"image_token_id\" is missing")?,
            padding: u32::try_from(padding).context("\"pad_token_id\"")?,
        })
    }

    /// Returns the ending of the name of a tensor that every model with the encoder has.
    pub fn anchor(&self) -> String {
        format!("{}.weight", self.family.names.patch)
    }

    /// Returns true if the tokens of a picture see each other in the decoder, also those after them.
    pub fn is_bidirectional(&self) -> bool {
        self.is_bidirectional
    }

    /// Returns the number of layers of the decoder to whose outputs features are added.
    pub fn deepstack_count(&self) -> usize {
        self.deepstack_layers.len()
    }

    /// Returns the token that stands for a feature in prompts.
    pub fn token(&self) -> u32 {
        self.token
    }

    /// Returns the size of the features of a picture of so many tokens, in bytes.
    pub fn feature_bytes(&self, tokens: usize, dtype: DType) -> usize {
        let features = (1 + self.deepstack_layers.len()).saturating_mul(tokens);
        features.saturating_mul(self.text_hidden).saturating_mul(dtype.size_in_bytes())
    }

    /// Returns the memory that encoding a picture of so many tokens takes at most, and that of the features that are kept,
    /// in bytes.
    pub fn reserved_bytes(&self, tokens: usize, dtype: DType) -> usize {
        let patches = tokens.saturating_mul(self.merge * self.merge);
        // States, residuals, queries, keys and values, the output of attention, and what is inside of the feed-forward layer.
        let states = patches.saturating_mul(8 * self.hidden + 3 * self.intermediate);
        let pixels = patches.saturating_mul(3 * self.patch * self.patch);
        states
            .saturating_mul(dtype.size_in_bytes())
            .saturating_add(pixels.saturating_mul(2 * size_of::<f32>()))
            .saturating_add(KEPT_PICTURES.saturating_mul(self.feature_bytes(tokens, dtype)))
    }
}
