//! Configuration of a ControlNet.
use serde_json::{Value, json};

use super::super::unet_config::{PerBlock, UNetConfig};
use super::super::weights::Component;

/// Class of the configurations.
const CLASS: &str = "ControlNetModel";
/// Number of channels of an image.
pub(super) const IMAGE_CHANNELS: usize = 3;

/// Configuration of a ControlNetModel.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct ControlNetConfig {
    /// Configuration of the first half of the UNet that it is a copy of.
    pub unet: UNetConfig,
    /// Widths of the hint network, which halves width and height between them.
    pub hint_widths: Vec<usize>,
    /// If true, the network takes images with blue as their first channel.
    pub is_bgr: bool,
    /// If true, residuals are averaged over the image and affect only the prediction for the prompt.
    pub averages: bool,
}

impl ControlNetConfig {
    /// Reads the contents of config.json.
    ///
    /// # Errors
    /// Returns a message if the file describes another class, or an architecture that is not supported.
    pub fn from_value(mut json: Value) -> Result<Self, String> {
        let class = json["_class_name"].as_str().unwrap_or("no class");
        if class != CLASS {
            return Err(format!("describes {class}, but a {CLASS} is required"));
        }
        for (key, value) in
            [("encoder_hid_dim_type", Value::Null), ("conditioning_channels", json!(IMAGE_CHANNELS))]
        {
            let own = &json[key];
            if !own.is_null() && *own != value {
                return Err(format!("{key} = {own} is not supported"));
            }
        }
        let order = &json["controlnet_conditioning_channel_order"];
        let is_bgr = match order.as_str().unwrap_or("rgb") {
            "rgb" if order.is_null() || order.is_string() => false,
            "bgr" => true,
            _ => return Err(format!("controlnet_conditioning_channel_order = {order} is not supported")),
        };
        let averages = match &json["global_pool_conditions"] {
            Value::Null => false,
            Value::Bool(averages) => *averages,
            other => return Err(format!("global_pool_conditions = {other} is not supported")),
        };
        let hint_widths = match &json["conditioning_embedding_out_channels"] {
            Value::Null => vec![16, 32, 96, 256],
            widths => serde_json::from_value(widths.clone())
                .map_err(|e| format!("conditioning_embedding_out_channels: {e}"))?,
        };
        // A ControlNet has no second half.
        json["up_block_types"] = up_blocks(json["down_block_types"].as_array().map_or(4, Vec::len)).into();
        json["out_channels"] = json["in_channels"].clone();
        Ok(Self { unet: UNetConfig::from_value(json)?, hint_widths, is_bgr, averages })
    }

    /// Derives the configuration from the shapes of weights. Numbers of heads are those of `unet`, because no shape shows
    /// them.
    ///
    /// # Errors
    /// Returns a message if the ControlNet is for another network, or the architecture is not supported.
    pub fn from_shapes(weights: &Component, unet: &UNetConfig) -> Result<Self, String> {
        let dim = |name: &str, axis: usize| weights.shape(name)?.get(axis).copied();
        let numbered =
            |name: &dyn Fn(usize) -> String| (0..).map_while(|i| dim(&name(i), 0)).collect::<Vec<_>>();
        check_skips(&numbered(&|i| format!("controlnet_down_blocks.{i}.weight")), unet)?;
        let blocks = unet.block_out_channels.len();
        let transformers = |block: &str| -> usize {
            numbered(&|i| format!("{block}.attentions.0.transformer_blocks.{i}.norm1.weight")).len()
        };
        let down: Vec<usize> = (0..blocks).map(|i| transformers(&format!("down_blocks.{i}"))).collect();
        let mid = transformers("mid_block");
        let mut depths: Vec<usize> = down.iter().map(|depth| *depth.max(&1)).collect();
        if let (Some(depth), Some(0)) = (depths.last_mut(), down.last()) {
            *depth = mid.max(1);
        }
        let attentions = down.iter().enumerate().filter(|(_, depth)| **depth > 0);
        let attentions = attentions.map(|(i, _)| format!("down_blocks.{i}"));
        let attention = attentions.chain((mid > 0).then(|| "mid_block".to_owned())).next();
        let in_attention =
            |name: &str| attention.as_ref().map(|block| format!("{block}.attentions.0.{name}"));
        let context = in_attention("transformer_blocks.0.attn2.to_k.weight").and_then(|name| dim(&name, 1));
        let projection = in_attention("proj_in.weight").and_then(|name| weights.shape(&name));
        let added = dim("add_embedding.linear_1.weight", 1);
        let kind = |depth: &usize| if *depth > 0 { "CrossAttnDownBlock2D" } else { "DownBlock2D" };
        let config = UNetConfig {
            in_channels: dim("conv_in.weight", 1).unwrap_or(unet.in_channels),
            down_block_types: down.iter().map(|depth| kind(depth).to_owned()).collect(),
            up_block_types: up_blocks(blocks),
            transformer_layers_per_block: PerBlock::Each(depths),
            cross_attention_dim: context.unwrap_or(unet.cross_attention_dim),
            use_linear_projection: projection.map_or(unet.use_linear_projection, |shape| shape.len() == 2),
            addition_embed_type: added.map(|_| "text_time".to_owned()),
            addition_time_embed_dim: unet.addition_time_embed_dim.or(added),
            projection_class_embeddings_input_dim: added,
            ..unet.clone()
        };
        let config = config.with_mid_attention(mid > 0);
        config.check()?;
        let first = dim("controlnet_cond_embedding.conv_in.weight", 0).unwrap_or(0);
        let others = numbered(&|i| format!("controlnet_cond_embedding.blocks.{}.weight", 2 * i + 1));
        let hint_widths = [vec![first], others].concat();
        Ok(Self { unet: config, hint_widths, is_bgr: false, averages: false })
    }

    /// Checks that the ControlNet can control a UNet whose latents have `channels` channels, and one cell for each square
    /// of `factor` pixels.
    ///
    /// # Errors
    /// Returns a message with the first difference.
    pub fn check_fits(&self, unet: &UNetConfig, channels: usize, factor: usize) -> Result<(), String> {
        let own = &self.unet;
        check_skips(&own.skip_widths(), unet)?;
        let differ = |what: &str, own: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug| {
            Err(format!("is for another network: it has {what} {own:?}, but the model has {expected:?}"))
        };
        if own.cross_attention_dim != unet.cross_attention_dim {
            return differ("text embeddings of width", &own.cross_attention_dim, &unet.cross_attention_dim);
        }
        if own.added_widths() != unet.added_widths() {
            return differ("additional embeddings of XL", &own.added_widths(), &unet.added_widths());
        }
        if own.in_channels != channels {
            return differ("latent channels", &own.in_channels, &channels);
        }
        let scale = 1usize.checked_shl(self.hint_widths.len().saturating_sub(1) as u32);
        if self.hint_widths.contains(&0) || scale != Some(factor) {
            let widths = &self.hint_widths;
            return Err(format!(
                "is for another network: its hint network has widths {widths:?}, but images are {factor} times larger \
                 than latents"
            ));
        }
        Ok(())
    }
}

fn check_skips(own: &[usize], unet: &UNetConfig) -> Result<(), String> {
    let expected = unet.skip_widths();
    if own == expected {
        return Ok(());
    }
    Err(format!(
        "is for another network: its layers have widths {own:?}, but those of the model {expected:?}"
    ))
}

fn up_blocks(count: usize) -> Vec<String> {
    vec!["UpBlock2D".to_owned(); count]
}
