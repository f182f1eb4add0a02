//! Contents of config.json of a diffusion transformer.
use serde::Deserialize;
use serde_json::Value;

use super::super::version::Version;
use crate::{Error, Result};

/// Side of a token in cells of latents.
pub(super) const PATCH: usize = 2;
/// Maximum number of blocks of a kind.
const MAX_LAYERS: usize = 256;
/// Maximum width of tokens and of text embeddings.
const MAX_WIDTH: usize = 1 << 16;
/// Side in cells of the images that Flux was trained on, which its configuration lacks.
const FLUX_SIDE: usize = 128;

/// Configuration of a diffusion transformer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DitConfig {
    /// [`Version::Flux`], [`Version::Sd3`] or [`Version::Sd35`].
    pub version: Version,
    /// Number of channels of the latents.
    pub channels: usize,
    /// Number of blocks with separate weights for text and image.
    pub layers: usize,
    /// Number of blocks with shared weights, which follow (Flux).
    pub single_layers: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// Width of the text embeddings.
    pub text_width: usize,
    /// Width of the pooled text embedding.
    pub pooled_width: usize,
    /// True if the guidance scale is an input of the network (Flux dev).
    pub guidance: bool,
    /// Number of elements of a head that the text's index, the row and the column of a token rotate; zeros without rotary
    /// embedding.
    pub axes: [usize; 3],
    /// Side in tokens of the learned table of positions; 0 without one.
    pub position_side: usize,
    /// True if the heads of queries and keys have norms.
    pub head_norms: bool,
    /// Indices of blocks with a second attention, of the image alone.
    pub dual_layers: Vec<usize>,
    /// Height and width of the latents that it was trained on.
    pub sample_size: usize,
}

#[derive(Deserialize)]
#[serde(default, expecting = "a JSON object")]
struct Flux {
    patch_size: usize,
    in_channels: usize,
    num_layers: usize,
    num_single_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    joint_attention_dim: usize,
    pooled_projection_dim: usize,
    guidance_embeds: bool,
    axes_dims_rope: [usize; 3],
    out_channels: Option<usize>,
}

impl Default for Flux {
    fn default() -> Self {
        Self {
            patch_size: 1,
            in_channels: 64,
            num_layers: 19,
            num_single_layers: 38,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            pooled_projection_dim: 768,
            guidance_embeds: false,
            axes_dims_rope: [16, 56, 56],
            out_channels: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(default, expecting = "a JSON object")]
struct Sd3 {
    sample_size: usize,
    patch_size: usize,
    in_channels: usize,
    num_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    joint_attention_dim: usize,
    caption_projection_dim: usize,
    pooled_projection_dim: usize,
    out_channels: usize,
    pos_embed_max_size: usize,
    dual_attention_layers: Vec<usize>,
    qk_norm: Option<String>,
}

impl Default for Sd3 {
    fn default() -> Self {
        Self {
            sample_size: 128,
            patch_size: 2,
            in_channels: 16,
            num_layers: 18,
            attention_head_dim: 64,
            num_attention_heads: 18,
            joint_attention_dim: 4096,
            caption_projection_dim: 1152,
            pooled_projection_dim: 2048,
            out_channels: 16,
            pos_embed_max_size: 96,
            dual_attention_layers: Vec::new(),
            qk_norm: None,
        }
    }
}

impl DitConfig {
    /// Reads the contents of config.json of a FluxTransformer2DModel or an SD3Transformer2DModel.
    ///
    /// # Errors
    /// A value is invalid, or the architecture is not supported.
    pub fn from_value(json: Value) -> Result<Self> {
        Self::parse(json).map_err(|what| Error::model(format!("the transformer's config.json: {what}")))
    }

    /// Like [`Self::from_value`], with a message without the name of a file.
    pub(super) fn parse(json: Value) -> std::result::Result<Self, String> {
        let config = match json["_class_name"].as_str() {
            Some("FluxTransformer2DModel") => serde_json::from_value(json).map(Self::of_flux),
            Some("SD3Transformer2DModel") => serde_json::from_value(json).map(Self::of_sd3),
            class => {
                let class = class.unwrap_or("no class");
                return Err(format!(
                    "{class} is not supported; supported are FluxTransformer2DModel and SD3Transformer2DModel"
                ));
            }
        };
        let config = config.map_err(|e| e.to_string())??;
        config.check()?;
        Ok(config)
    }

    fn of_flux(own: Flux) -> std::result::Result<Self, String> {
        let out = own.out_channels.unwrap_or(own.in_channels);
        if own.patch_size != 1 || !own.in_channels.is_multiple_of(PATCH * PATCH) || out != own.in_channels {
            return Err(format!(
                "patch_size = {}, in_channels = {} and out_channels = {out} are not supported; Flux for text to image has 1, \
                 64 and 64",
                own.patch_size, own.in_channels
            ));
        }
        let rotated = own.axes_dims_rope.iter().fold(0, |sum: usize, axis| sum.saturating_add(*axis));
        let width = own.attention_head_dim;
        if rotated != width || own.axes_dims_rope.iter().any(|axis| !axis.is_multiple_of(2)) {
            let axes = own.axes_dims_rope;
            return Err(format!("axes_dims_rope = {axes:?} must be even and make up a head of {width}"));
        }
        Ok(Self {
            version: Version::Flux,
            channels: own.in_channels / (PATCH * PATCH),
            layers: own.num_layers,
            single_layers: own.num_single_layers,
            heads: own.num_attention_heads,
            head_width: width,
            text_width: own.joint_attention_dim,
            pooled_width: own.pooled_projection_dim,
            guidance: own.guidance_embeds,
            axes: own.axes_dims_rope,
            position_side: 0,
            head_norms: true,
            dual_layers: Vec::new(),
            sample_size: FLUX_SIDE,
        })
    }

    fn of_sd3(own: Sd3) -> std::result::Result<Self, String> {
        let head_norms = match own.qk_norm.as_deref() {
            None => false,
            Some("rms_norm") => true,
            Some(other) => return Err(format!("qk_norm = {other:?} is not supported")),
        };
        let width = own.num_attention_heads.saturating_mul(own.attention_head_dim);
        if own.patch_size != PATCH
            || own.out_channels != own.in_channels
            || own.caption_projection_dim != width
        {
            return Err(format!(
                "patch_size = {}, out_channels = {} and caption_projection_dim = {} are not supported; expected {PATCH}, {} and \
                 {width}",
                own.patch_size, own.out_channels, own.caption_projection_dim, own.in_channels
            ));
        }
        if own.pos_embed_max_size == 0 || own.pos_embed_max_size.saturating_mul(PATCH) < own.sample_size {
            let (side, size) = (own.pos_embed_max_size, own.sample_size);
            return Err(format!("pos_embed_max_size = {side} is too small for sample_size = {size}"));
        }
        Ok(Self {
            version: if head_norms { Version::Sd35 } else { Version::Sd3 },
            channels: own.in_channels,
            layers: own.num_layers,
            single_layers: 0,
            heads: own.num_attention_heads,
            head_width: own.attention_head_dim,
            text_width: own.joint_attention_dim,
            pooled_width: own.pooled_projection_dim,
            guidance: false,
            axes: [0; 3],
            position_side: own.pos_embed_max_size,
            head_norms,
            dual_layers: own.dual_attention_layers,
            sample_size: own.sample_size,
        })
    }

    fn check(&self) -> std::result::Result<(), String> {
        let counts = [
            ("number of layers", self.layers, MAX_LAYERS),
            ("width of a head", self.head_width, MAX_WIDTH),
            ("number of attention heads", self.heads, MAX_WIDTH / self.head_width.max(1)),
            ("joint_attention_dim", self.text_width, MAX_WIDTH),
            ("pooled_projection_dim", self.pooled_width, MAX_WIDTH),
            ("number of channels", self.channels, MAX_WIDTH),
            ("sample_size", self.sample_size, MAX_WIDTH),
        ];
        for (name, value, most) in counts {
            if value == 0 || value > most {
                return Err(format!("the {name} is {value}, but must be 1 to {most}"));
            }
        }
        if self.single_layers > MAX_LAYERS || self.position_side > 4096 || !self.head_width.is_multiple_of(2)
        {
            return Err(format!(
                "{} single layers, {} positions per side and heads of width {} are not supported",
                self.single_layers, self.position_side, self.head_width
            ));
        }
        Ok(())
    }

    /// Returns the width of a token.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }
}
