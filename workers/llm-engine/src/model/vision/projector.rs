//! Merging of patches to tokens, and their projection to the width of the decoder.
use anyhow::{Context, Result};
use candle_core::{DType, Tensor};

use super::config::VisionConfig;
use super::families::ProjectorKind;
use super::layers::load_norm;
use crate::model::layers::{Linear, Norm};
use crate::model::weights::Weights;

/// Projection of states to features.
pub(super) struct Projector {
    /// Number of patches of a token.
    patches: usize,
    /// Norm of each patch.
    patch_norm: Option<Norm>,
    /// If true, the patches of a token are averaged; otherwise they are concatenated.
    averages: bool,
    /// Norm of each token.
    token_norm: Option<Norm>,
    /// Layer before the others, without an activation.
    merger: Option<Linear>,
    /// Layers with GELU between them.
    layers: Vec<Linear>,
}

impl Projector {
    pub(super) fn load(config: &VisionConfig, weights: &mut Weights, dtype: DType) -> Result<Self> {
        let (hidden, text) = (config.hidden, config.text_hidden);
        let patches = config.merge * config.merge;
        let merged = hidden * patches;
        let plain = |layers| Self {
            patches,
            patch_norm: None,
            averages: false,
            token_norm: None,
            merger: None,
            layers,
        };
        let prefix = |weights: &Weights, anchor: &str| {
            weights.prefix_of(anchor).with_context(|| format!("there is no tensor '{anchor}'"))
        };
        Ok(match config.family.projector {
            ProjectorKind::Qwen2 | ProjectorKind::Qwen3 => {
                let is_old = config.family.projector == ProjectorKind::Qwen2;
                let (norm, layers) = match is_old {
                    true => ("ln_q", ["mlp.0", "mlp.2"]),
                    false => ("norm", ["linear_fc1", "linear_fc2"]),
                };
                let prefix = prefix(weights, &format!("merger.{norm}.weight"))? + "merger.";
                let norm = load_norm(weights, &format!("{prefix}{norm}"), hidden, config, dtype)?;
                let layers = two_layers(weights, &prefix, layers, [merged, merged, text], true)?;
                Self { patch_norm: Some(norm), ..plain(layers) }
            }
            ProjectorKind::Gemma3 => {
                let anchor = "multi_modal_projector.mm_soft_emb_norm.weight";
                let prefix = prefix(weights, anchor)?;
                let norm = weights.vector_named(&format!("{prefix}{anchor}"), hidden)?;
                let norm = Norm::rms(norm, true, config.norm_eps, dtype)?;
                let name = format!("{prefix}multi_modal_projector.mm_input_projection_weight");
                let matrix = weights.floats_named(&name, &[hidden, text])?.t()?.contiguous()?;
                let layers = vec![Linear::float(matrix.to_dtype(dtype)?, None, dtype)];
                Self { averages: true, token_norm: Some(norm), ..plain(layers) }
            }
            ProjectorKind::Idefics3 => {
                let name = "modality_projection.proj";
                let prefix = prefix(weights, &format!("{name}.weight"))?;
                plain(vec![weights.linear_named(&[format!("{prefix}{name}")], text, merged, false)?])
            }
            ProjectorKind::Pixtral | ProjectorKind::Mistral3 => {
                let prefix =
                    prefix(weights, "multi_modal_projector.linear_1.weight")? + "multi_modal_projector.";
                let names = ["linear_1", "linear_2"];
                let layers =
                    two_layers(weights, &prefix, names, [hidden, text, text], config.projector_bias)?;
                if config.family.projector == ProjectorKind::Pixtral {
                    return Ok(plain(layers));
                }
                let norm = weights.vector_named(&format!("{prefix}norm.weight"), hidden)?;
                let norm = Norm::rms(norm, false, config.text_norm_eps, dtype)?;
                let name = format!("{prefix}patch_merger.merging_layer.weight");
                // Files have the patches of each element together.
                let matrix = weights.floats_named(&name, &[hidden, merged])?;
                let matrix = matrix.reshape((hidden, hidden, patches))?.transpose(1, 2)?;
                let matrix = matrix.reshape((hidden, merged))?.to_dtype(dtype)?;
                let merger = Some(Linear::float(matrix, None, dtype));
                Self { patch_norm: Some(norm), merger, ..plain(layers) }
            }
        })
    }

    /// Loads the projector number `index` of the states after earlier layers.
    pub(super) fn load_deepstack(
        config: &VisionConfig,
        weights: &mut Weights,
        index: usize,
        dtype: DType,
    ) -> Result<Self> {
        let patches = config.merge * config.merge;
        let merged = config.hidden * patches;
        let name = format!("deepstack_merger_list.{index}.");
        let prefix = weights.prefix_of(&format!("{name}norm.weight"));
        let prefix = prefix.with_context(|| format!("there is no tensor '{name}norm.weight'"))? + &name;
        let norm = load_norm(weights, &format!("{prefix}norm"), merged, config, dtype)?;
        let (names, widths) = (["linear_fc1", "linear_fc2"], [merged, merged, config.text_hidden]);
        let layers = two_layers(weights, &prefix, names, widths, true)?;
        let (patch_norm, token_norm) = (None, Some(norm));
        Ok(Self { patches, patch_norm, averages: false, token_norm, merger: None, layers })
    }

    /// Maps states (patches, width) to features (tokens, width of the decoder).
    pub(super) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let x = match &self.patch_norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        let tokens = x.dim(0)? / self.patches;
        let mut x = match self.averages {
            true => x.reshape((tokens, self.patches, ()))?.mean(1)?,
            false => x.reshape((tokens, ()))?,
        };
        if let Some(norm) = &self.token_norm {
            x = norm.forward(&x)?;
        }
        if let Some(merger) = &self.merger {
            x = merger.forward(&x)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            x = if index > 0 { x.gelu_erf()? } else { x };
            x = layer.forward(&x)?;
        }
        Ok(x)
    }
}

/// Loads two layers, given the widths before, between and after them.
fn two_layers(
    weights: &mut Weights,
    prefix: &str,
    names: [&str; 2],
    [before, between, after]: [usize; 3],
    has_bias: bool,
) -> Result<Vec<Linear>> {
    let mut layer =
        |name: &str, rows, width| weights.linear_named(&[format!("{prefix}{name}")], rows, width, has_bias);
    Ok(vec![layer(names[0], between, before)?, layer(names[1], after, between)?])
}
