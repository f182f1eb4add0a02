//! Contents of config.json of a UNet.
use serde::Deserialize;
use serde_json::Value;

use super::attention::Activation;
use crate::{Error, Result};

/// Side of the latents of Stable Diffusion 1, the smallest of all versions.
const MIN_SAMPLE_SIZE: usize = 64;
/// Maximum number of residual blocks per down block.
const MAX_LAYERS: usize = 64;
/// Types of the middle block, with and without attention.
const MID_BLOCKS: [&str; 2] = ["UNetMidBlock2DCrossAttn", "UNetMidBlock2D"];

/// A value shared by all blocks, or one value per block.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PerBlock {
    /// Value shared by all blocks.
    All(usize),
    /// One value per block.
    Each(Vec<usize>),
}

impl PerBlock {
    pub(super) fn of(&self, block: usize) -> Option<usize> {
        match self {
            Self::All(value) => Some(*value),
            Self::Each(values) => values.get(block).copied(),
        }
    }
}

/// Configuration of a UNet2DConditionModel.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct UNetConfig {
    /// Height and width of the latents that it was trained on.
    pub sample_size: usize,
    /// Number of input channels: 4 for latents, or 9 for inpainting (latents, mask, latents of the masked image).
    pub in_channels: usize,
    /// Number of output channels.
    pub out_channels: usize,
    /// Width of each block, starting at full resolution.
    pub block_out_channels: Vec<usize>,
    /// Type of each down block: CrossAttnDownBlock2D or DownBlock2D.
    pub down_block_types: Vec<String>,
    /// Type of each up block, starting at the lowest resolution: CrossAttnUpBlock2D or UpBlock2D.
    pub up_block_types: Vec<String>,
    /// Number of residual blocks per down block; up blocks have one more.
    pub layers_per_block: usize,
    /// Number of attention heads. The name is a historical mistake of diffusers.
    pub attention_head_dim: PerBlock,
    /// Number of transformer blocks after each residual block.
    pub transformer_layers_per_block: PerBlock,
    /// Width of the text embeddings.
    pub cross_attention_dim: usize,
    /// If true, projections before and after the transformer blocks are linear layers, otherwise convolutions.
    pub use_linear_projection: bool,
    /// Number of groups of the group norms.
    pub norm_num_groups: usize,
    /// Epsilon of the norms.
    pub norm_eps: f64,
    /// If true, cosines precede sines in the embedding of the timestep.
    pub flip_sin_to_cos: bool,
    /// Shift of the frequencies in the embedding of the timestep.
    pub freq_shift: f64,
    /// Padding of the downsampling convolutions.
    pub downsample_padding: usize,
    /// Type of the middle block: UNetMidBlock2DCrossAttn, or UNetMidBlock2D for one residual block without attention.
    pub mid_block_type: String,
    /// Divisor of the output of the middle block.
    pub mid_block_scale_factor: f64,
    /// Type of the additional embedding: "text_time" adds pooled prompt and image sizes (XL).
    pub addition_embed_type: Option<String>,
    /// Width of the embedding of each size (XL).
    pub addition_time_embed_dim: Option<usize>,
    /// Width of pooled prompt and embedded sizes together (XL).
    pub projection_class_embeddings_input_dim: Option<usize>,
    /// Activation of the feed-forward layers, not part of the file. Upstream uses [`Activation::GeluTanh`].
    #[serde(skip)]
    pub activation: Activation,
}

impl Default for UNetConfig {
    /// Returns the configuration of Stable Diffusion 1.5.
    fn default() -> Self {
        let types =
            |first: &str, rest: &str| (0..4).map(|i| if i == 0 { first } else { rest }.to_string()).collect();
        let mut down_block_types: Vec<String> = types("DownBlock2D", "CrossAttnDownBlock2D");
        down_block_types.reverse();
        Self {
            sample_size: 64,
            in_channels: 4,
            out_channels: 4,
            block_out_channels: vec![320, 640, 1280, 1280],
            down_block_types,
            up_block_types: types("UpBlock2D", "CrossAttnUpBlock2D"),
            layers_per_block: 2,
            attention_head_dim: PerBlock::All(8),
            transformer_layers_per_block: PerBlock::All(1),
            cross_attention_dim: 768,
            use_linear_projection: false,
            norm_num_groups: 32,
            norm_eps: 1e-5,
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            downsample_padding: 1,
            mid_block_type: MID_BLOCKS[0].to_owned(),
            mid_block_scale_factor: 1.0,
            addition_embed_type: None,
            addition_time_embed_dim: None,
            projection_class_embeddings_input_dim: None,
            activation: Activation::Gelu,
        }
    }
}

/// Returns keys that change the architecture, each with the values that are supported besides null.
fn supported() -> [(&'static str, Vec<Value>); 16] {
    let off = || vec![Value::Bool(false)];
    [
        ("act_fn", vec!["silu".into(), "swish".into()]),
        ("attention_type", vec!["default".into()]),
        ("center_input_sample", off()),
        ("class_embed_type", vec![]),
        ("conv_in_kernel", vec![3.into()]),
        ("conv_out_kernel", vec![3.into()]),
        ("dual_cross_attention", off()),
        ("encoder_hid_dim", vec![]),
        ("mid_block_only_cross_attention", off()),
        ("mid_block_type", MID_BLOCKS.map(Value::from).to_vec()),
        ("num_attention_heads", vec![]),
        ("num_class_embeds", vec![]),
        ("only_cross_attention", off()),
        ("resnet_time_scale_shift", vec!["default".into()]),
        ("reverse_transformer_layers_per_block", vec![]),
        ("time_cond_proj_dim", vec![]),
    ]
}

/// Returns true for versions of diffusers before 0.9, which may have written a wrong `sample_size`.
fn is_older_than_0_9(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) < (0, 9)
}

impl UNetConfig {
    /// Parses config.json.
    ///
    /// # Errors
    /// The text is not valid JSON, or the architecture is not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let bad = |what: String| Error::model(format!("the UNet's config.json: {what}"));
        let json = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        Self::from_value(json).map_err(bad)
    }

    /// Reads the contents of config.json.
    ///
    /// # Errors
    /// Returns a message if a value is invalid or the architecture is not supported.
    pub(super) fn from_value(mut json: Value) -> std::result::Result<Self, String> {
        for (key, values) in supported() {
            let value = &json[key];
            if !value.is_null() && !values.contains(value) {
                return Err(format!("{key} = {value} is not supported"));
            }
        }
        if let Value::Object(keys) = &mut json {
            keys.retain(|_, value| !value.is_null());
        }
        let old = is_older_than_0_9(json["_diffusers_version"].as_str().unwrap_or("0.9"));
        let mut config: Self = serde_json::from_value(json).map_err(|e| e.to_string())?;
        if old && config.sample_size < MIN_SAMPLE_SIZE {
            let size = config.sample_size;
            tracing::warn!("the UNet's config.json: sample_size {size} raised to {MIN_SAMPLE_SIZE}");
            config.sample_size = MIN_SAMPLE_SIZE;
        }
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let blocks = self.block_out_channels.len();
        if blocks == 0 || self.down_block_types.len() != blocks || self.up_block_types.len() != blocks {
            return Err(format!("{blocks} widths require {blocks} down blocks and {blocks} up blocks"));
        }
        if !(1..=MAX_LAYERS).contains(&self.layers_per_block) {
            return Err(format!("layers_per_block = {} must be 1 to {MAX_LAYERS}", self.layers_per_block));
        }
        for name in self.down_block_types.iter().chain(&self.up_block_types) {
            if !["CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"]
                .contains(&name.as_str())
            {
                return Err(format!("block {name} is not supported"));
            }
        }
        for (block, width) in self.block_out_channels.iter().enumerate() {
            let heads = self.attention_head_dim.of(block).unwrap_or(0);
            let depth = self.transformer_layers_per_block.of(block);
            if heads == 0 || width % heads != 0 || width % self.norm_num_groups.max(1) != 0 || depth.is_none()
            {
                return Err(format!(
                    "block {block}: width {width} must be a multiple of {heads} heads and {} groups, and the depth must be given",
                    self.norm_num_groups
                ));
            }
        }
        match self.addition_embed_type.as_deref() {
            None => Ok(()),
            Some("text_time") if self.added_widths().is_some() => Ok(()),
            Some(kind) => {
                Err(format!("addition_embed_type {kind:?} is not supported, or its widths are missing"))
            }
        }
    }

    /// Returns the widths of XL's additional embedding: of each size, and of all sizes with the pooled prompt.
    pub(super) fn added_widths(&self) -> Option<(usize, usize)> {
        self.addition_embed_type.as_ref()?;
        Some((self.addition_time_embed_dim?, self.projection_class_embeddings_input_dim?))
    }

    /// Returns the number of sizes and scores in the additional embedding of a UNet with pooled prompts of this width: 6 for XL,
    /// and 5 for its refiner.
    pub(super) fn added_numbers(&self, pooled: usize) -> Option<usize> {
        let (width, all) = self.added_widths()?;
        let rest = all.checked_sub(pooled)?;
        (width > 0 && rest.is_multiple_of(width)).then(|| rest / width)
    }

    /// Returns true if the middle block has a transformer between two residual blocks.
    pub(super) fn has_mid_attention(&self) -> bool {
        self.mid_block_type == MID_BLOCKS[0]
    }

    /// Returns a configuration whose middle block has a transformer or not.
    pub(super) fn with_mid_attention(self, has_attention: bool) -> Self {
        Self { mid_block_type: MID_BLOCKS[usize::from(!has_attention)].to_owned(), ..self }
    }

    /// Returns the width of the embedding of the timestep.
    pub(super) fn time_width(&self) -> usize {
        4 * self.block_out_channels.first().copied().unwrap_or(0)
    }

    /// Returns the widths of the skip connections between the halves, in the order of the first half.
    pub(super) fn skip_widths(&self) -> Vec<usize> {
        let widths = &self.block_out_channels;
        let mut skips = vec![widths.first().copied().unwrap_or(0)];
        for (block, width) in widths.iter().enumerate() {
            let downsampler = usize::from(block + 1 < widths.len());
            skips.extend(std::iter::repeat_n(*width, self.layers_per_block + downsampler));
        }
        skips
    }

    pub(super) fn heads(&self, block: usize) -> usize {
        self.attention_head_dim.of(block).unwrap_or(1)
    }

    pub(super) fn depth(&self, block: usize) -> usize {
        self.transformer_layers_per_block.of(block).unwrap_or(1)
    }
}
