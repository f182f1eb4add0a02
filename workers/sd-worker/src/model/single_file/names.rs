//! Maps names of weights in diffusers and transformers to their names in original checkpoints.
use super::super::unet_config::UNetConfig;
use super::super::weights::View;

/// Prefix of a name in the network, and in original checkpoints.
type Table = &'static [(&'static str, &'static str)];

const UNET_ENDS: Table = &[
    ("time_embedding.linear_1.", "time_embed.0."),
    ("time_embedding.linear_2.", "time_embed.2."),
    ("add_embedding.linear_1.", "label_emb.0.0."),
    ("add_embedding.linear_2.", "label_emb.0.2."),
    ("conv_in.", "input_blocks.0.0."),
    ("conv_norm_out.", "out.0."),
    ("conv_out.", "out.2."),
    ("mid_block.attentions.0.", "middle_block.1."),
];
const UNET_RESNET: Table = &[
    ("norm1.", "in_layers.0."),
    ("conv1.", "in_layers.2."),
    ("time_emb_proj.", "emb_layers.1."),
    ("norm2.", "out_layers.0."),
    ("conv2.", "out_layers.3."),
    ("conv_shortcut.", "skip_connection."),
];
const VAE_ENDS: Table = &[
    ("mid_block.resnets.0.", "mid.block_1."),
    ("mid_block.resnets.1.", "mid.block_2."),
    ("mid_block.attentions.0.group_norm.", "mid.attn_1.norm."),
    ("mid_block.attentions.0.to_q.", "mid.attn_1.q."),
    ("mid_block.attentions.0.to_k.", "mid.attn_1.k."),
    ("mid_block.attentions.0.to_v.", "mid.attn_1.v."),
    ("mid_block.attentions.0.to_out.0.", "mid.attn_1.proj_out."),
    ("conv_norm_out.", "norm_out."),
];
const OPEN_CLIP: Table = &[
    ("embeddings.token_embedding.", "token_embedding."),
    ("embeddings.position_embedding.weight", "positional_embedding"),
    ("final_layer_norm.", "ln_final."),
];
const OPEN_CLIP_LAYER: Table = &[
    ("layer_norm1.", "ln_1."),
    ("layer_norm2.", "ln_2."),
    ("mlp.fc1.", "mlp.c_fc."),
    ("mlp.fc2.", "mlp.c_proj."),
    ("self_attn.out_proj.", "attn.out_proj."),
];

fn replace(name: &str, table: Table) -> Option<String> {
    table.iter().find_map(|(own, original)| Some(format!("{original}{}", name.strip_prefix(own)?)))
}

/// Splits `12.rest` into the number and the rest.
fn number(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Names of the weights of a UNet.
#[derive(Debug, Clone)]
pub(in super::super) struct UNetNames {
    /// Number of residual blocks per down block.
    pub layers: usize,
    /// For each up block, whether it has transformers.
    pub up_attention: Vec<bool>,
}

impl UNetNames {
    /// Returns the names for a configuration.
    pub fn of(config: &UNetConfig) -> Self {
        let up_attention = config.up_block_types.iter().map(|kind| kind.starts_with("CrossAttn")).collect();
        Self { layers: config.layers_per_block, up_attention }
    }

    /// Returns the original name of a weight, if the network has one of this kind.
    pub fn original(&self, name: &str) -> Option<String> {
        if let Some(found) = replace(name, UNET_ENDS) {
            return Some(found);
        }
        if let Some(rest) = name.strip_prefix("mid_block.resnets.") {
            let (i, rest) = number(rest)?;
            return Some(format!("middle_block.{}.{}", 2 * i, replace(rest, UNET_RESNET)?));
        }
        let (blocks, first, rest) = match name.strip_prefix("down_blocks.") {
            Some(rest) => ("input_blocks", 1, rest),
            None => ("output_blocks", 0, name.strip_prefix("up_blocks.")?),
        };
        let (block, rest) = number(rest)?;
        let start = first + block * (self.layers + 1);
        if let Some(rest) = rest.strip_prefix("resnets.") {
            let (i, rest) = number(rest)?;
            return Some(format!("{blocks}.{}.0.{}", start + i, replace(rest, UNET_RESNET)?));
        }
        if let Some(rest) = rest.strip_prefix("attentions.") {
            let (i, rest) = number(rest)?;
            return Some(format!("{blocks}.{}.1.{rest}", start + i));
        }
        let last = start + self.layers;
        if let Some(rest) = rest.strip_prefix("downsamplers.0.conv.") {
            return Some(format!("{blocks}.{last}.0.op.{rest}"));
        }
        let module = 1 + usize::from(*self.up_attention.get(block)?);
        let rest = rest.strip_prefix("upsamplers.0.conv.")?;
        Some(format!("{blocks}.{last}.{module}.conv.{rest}"))
    }

    /// Returns the original name of a weight of a ControlNet for such a UNet, if it has one of this kind. Its hint network
    /// has `convolutions` convolutions between the first and the last.
    pub fn controlnet(&self, name: &str, convolutions: usize) -> Option<String> {
        if let Some(rest) = name.strip_prefix("controlnet_cond_embedding.") {
            let (layer, rest) = match rest.split_once('.')? {
                ("conv_in", rest) => (0, rest),
                ("conv_out", rest) => (convolutions + 1, rest),
                ("blocks", rest) => number(rest).map(|(i, rest)| (i + 1, rest))?,
                _ => return None,
            };
            // Activations lie between the convolutions.
            return Some(format!("input_hint_block.{}.{rest}", 2 * layer));
        }
        if let Some(rest) = name.strip_prefix("controlnet_down_blocks.") {
            let (i, rest) = number(rest)?;
            return Some(format!("zero_convs.{i}.0.{rest}"));
        }
        match name.strip_prefix("controlnet_mid_block.") {
            Some(rest) => Some(format!("middle_block_out.0.{rest}")),
            None => self.original(name),
        }
    }
}

/// Returns the original name of a weight of a VAE with this number of blocks.
pub(super) fn vae(name: &str, blocks: usize) -> Option<String> {
    let Some((half, rest)) = name.split_once('.').filter(|(half, _)| ["encoder", "decoder"].contains(half))
    else {
        return Some(name.to_owned());
    };
    if let Some(found) = replace(rest, VAE_ENDS) {
        return Some(format!("{half}.{found}"));
    }
    let Some((kind, rest)) = ["down", "up"]
        .into_iter()
        .find_map(|kind| Some((kind, rest.strip_prefix(kind)?.strip_prefix("_blocks.")?)))
    else {
        return Some(name.to_owned());
    };
    let (block, rest) = number(rest)?;
    // The original counts up blocks from the highest resolution.
    let block = if kind == "up" { blocks.checked_sub(block + 1)? } else { block };
    let rest = match rest.strip_prefix("resnets.") {
        Some(rest) => format!("block.{}", rest.replace("conv_shortcut", "nin_shortcut")),
        None => rest.replace("samplers.0.", "sample."),
    };
    Some(format!("{half}.{kind}.{block}.{rest}"))
}

/// Returns the original name of a weight of OpenCLIP's text encoder, and the part of it.
pub(super) fn open_clip(name: &str) -> Option<(String, View)> {
    if name == "text_projection.weight" {
        return Some(("text_projection".to_owned(), View::Transposed));
    }
    let name = name.strip_prefix("text_model.")?;
    if let Some(found) = replace(name, OPEN_CLIP) {
        return Some((found, View::Whole));
    }
    let (layer, rest) = number(name.strip_prefix("encoder.layers.")?)?;
    let layer = format!("transformer.resblocks.{layer}.");
    if let Some(found) = replace(rest, OPEN_CLIP_LAYER) {
        return Some((layer + &found, View::Whole));
    }
    let (part, kind) = rest.strip_prefix("self_attn.")?.split_once("_proj.")?;
    let third = ["q", "k", "v"].iter().position(|own| *own == part)?;
    Some((format!("{layer}attn.in_proj_{kind}"), View::Rows { from: third, count: 1, of: 3 }))
}

/// Names of empty tensors that describe a model: one that predicts v, and one whose last noise level has no signal.
pub(super) const MARKS: [&str; 2] = ["v_pred", "ztsnr"];

/// Returns true for tensors of checkpoints that the networks do not use.
pub(in super::super) fn is_ignored(name: &str) -> bool {
    let parts = ["position_ids", "logit_scale", "attn_mask", "text_projection", "model_ema.", ".loss."];
    MARKS.contains(&name) || name.starts_with("loss.") || parts.iter().any(|part| name.contains(part))
}

/// Returns the original name, or else the name itself, of a whole tensor.
pub(super) fn whole(original: Option<String>, name: &str) -> (String, View) {
    (original.unwrap_or_else(|| name.to_owned()), View::Whole)
}
