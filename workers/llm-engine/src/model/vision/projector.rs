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
    /// Factor of the averages, which are computed in f32, and what standardizes them: summands and factors, f32 (width).
    scale: Option<(f64, Option<[Tensor; 2]>)>,
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
            scale: None,
            token_norm: None,
            merger: None,
            layers,
        };
        let names = &config.family.projector_names;
        let [norm, merger] = [names.norm, names.merger].map(Option::unwrap_or_default);
        Ok(match config.family.projector {
            ProjectorKind::Qwen2 | ProjectorKind::Qwen3 => {
                let norm = load_norm(weights, &full_name(weights, norm)?, hidden, config, dtype)?;
                let layers = layers(weights, names.layers, &[merged, merged, text], true)?;
                Self { patch_norm: Some(norm), ..plain(layers) }
            }
            ProjectorKind::Gemma3 => {
                let norm = weights.vector_named(&(full_name(weights, norm)? + ".weight"), hidden)?;
                let norm = Norm::rms(norm, !config.family.is_mmproj, config.norm_eps, dtype)?;
                let name = names.layers.first().copied().unwrap_or_default();
                let name = weights.prefix_of(name).unwrap_or_default() + name;
                let matrix = weights.floats_named(&name, &[hidden, text])?.t()?.contiguous()?;
                let layers = vec![Linear::float(matrix.to_dtype(dtype)?, None, dtype)];
                Self { averages: true, token_norm: Some(norm), ..plain(layers) }
            }
            ProjectorKind::Gemma4 => {
                let standard = match config.standardizes {
                    true => {
                        let tower = match config.family.is_mmproj {
                            true => "v.".to_owned(),
                            false => weights.prefix_of(&config.anchor()).unwrap_or_default(),
                        };
                        let mut vector = |part: &str| weights.vector_named(&format!("{tower}{part}"), hidden);
                        Some([vector("std_bias")?, vector("std_scale")?])
                    }
                    false => None,
                };
                let token_norm = Some(weights.unweighted_norm(hidden, config.norm_eps)?);
                let layers = layers(weights, names.layers, &[hidden, text], false)?;
                let scale = Some(((hidden as f64).sqrt(), standard));
                Self { averages: true, scale, token_norm, ..plain(layers) }
            }
            ProjectorKind::Idefics3 => plain(layers(weights, names.layers, &[merged, text], false)?),
            ProjectorKind::Pixtral | ProjectorKind::Mistral3 => {
                let layers = layers(weights, names.layers, &[hidden, text, text], config.projector_bias)?;
                if config.family.projector == ProjectorKind::Pixtral {
                    return Ok(plain(layers));
                }
                let norm = weights.vector_named(&(full_name(weights, norm)? + ".weight"), hidden)?;
                let norm = Norm::rms(norm, false, config.text_norm_eps, dtype)?;
                let name = full_name(weights, merger)? + ".weight";
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
        let (list, parts) = config.family.projector_names.deepstack;
        // llama.cpp's files have the number of the layer.
        let number = if config.family.is_mmproj { config.deepstack_layers[index] } else { index };
        let [norm, first, second] = parts.map(|part| format!("{list}{number}.{part}"));
        let norm = load_norm(weights, &full_name(weights, &norm)?, merged, config, dtype)?;
        let layers = layers(weights, &[&first, &second], &[merged, merged, config.text_hidden], true)?;
        let (patch_norm, token_norm) = (None, Some(norm));
        Ok(Self { patches, patch_norm, averages: false, scale: None, token_norm, merger: None, layers })
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
        if let Some((scale, standard)) = &self.scale {
            let dtype = x.dtype();
            x = (x.to_dtype(DType::F32)? * *scale)?;
            if let Some([bias, factor]) = standard {
                x = x.broadcast_sub(bias)?.broadcast_mul(factor)?;
            }
            x = x.to_dtype(dtype)?;
        }
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

/// Returns the full name of a module, of which names of safetensors are only the end.
fn full_name(weights: &Weights, name: &str) -> Result<String> {
    let prefix = weights.prefix_of(&format!("{name}.weight"));
    Ok(prefix.with_context(|| format!("there is no tensor '{name}.weight'"))? + name)
}

/// Loads layers, given the widths before, between and after them.
fn layers(weights: &mut Weights, names: &[&str], widths: &[usize], has_bias: bool) -> Result<Vec<Linear>> {
    let layer = |(name, widths): (&&str, &[usize])| {
        weights.linear_named(&[full_name(weights, name)?], widths[1], widths[0], has_bias)
    };
    names.iter().zip(widths.windows(2)).map(layer).collect()
}
