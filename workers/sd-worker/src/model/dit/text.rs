//! Embeddings of prompts for diffusion transformers. Prompts are plain text, without weights of words.
use candle_core::{D, IndexOp, Tensor};

use super::super::t5::T5;
use super::super::text_encoder::{TextEncoder, Texts};
use super::super::version::Version;
use super::Dit;
use crate::{Check, Result};

/// Number of tokens of a prompt for the T5 encoder of Flux, and of Stable Diffusion 3.
pub(in super::super) fn length(version: Version) -> usize {
    if version == Version::Flux { 512 } else { 256 }
}

/// Text encoders of a diffusion transformer.
pub(in super::super) struct Encoders<'a> {
    /// One CLIP encoder for Flux, two for Stable Diffusion 3.
    pub clip: &'a [TextEncoder],
    /// `None` for Stable Diffusion 3 without T5.
    pub t5: Option<&'a T5>,
}

impl Encoders<'_> {
    /// Encodes prompts in the dtype of the network.
    ///
    /// # Errors
    /// A prompt cannot be tokenized, or the device or `check`, which is called between parts, fails.
    pub fn encode(&self, dit: &Dit, prompts: &[&str], check: Check) -> Result<Texts> {
        let is_flux = dit.config().version == Version::Flux;
        let (mut hidden, mut pooled) = (Vec::new(), Vec::new());
        for text in self.clip {
            let mut all = Vec::new();
            for prompt in prompts {
                all.push(text.tokenizer.encode(prompt)?);
            }
            let ends: Vec<usize> = all.iter().map(|prompt| prompt.end).collect();
            let tokens: Vec<&[u32]> = all.iter().map(|prompt| prompt.tokens.as_slice()).collect();
            let encoded = text.clip.forward(&Tensor::new(tokens, &dit.device)?, &ends)?;
            pooled.push(match encoded.pooled {
                Some(pooled) => pooled,
                None => {
                    let rows = ends.iter().enumerate().map(|(i, end)| encoded.last.i((i, *end)));
                    Tensor::stack(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?
                }
            });
            hidden.push(encoded.penultimate);
        }
        let width = dit.config().text_width;
        let long = match self.t5 {
            Some(t5) => t5.encode(prompts, check)?.to_dtype(dit.dtype)?,
            None => {
                let shape = (prompts.len(), length(dit.config().version), width);
                Tensor::zeros(shape, dit.dtype, &dit.device)?
            }
        };
        let context = match is_flux {
            true => long,
            false => {
                let short = Tensor::cat(&hidden, D::Minus1)?;
                let missing = width.saturating_sub(short.dim(D::Minus1)?);
                Tensor::cat(&[&short.pad_with_zeros(D::Minus1, 0, missing)?, &long], 1)?
            }
        };
        Ok(Texts { context, pooled: Some(Tensor::cat(&pooled, D::Minus1)?) })
    }

    /// Returns true if a prompt is longer than the longest text encoder.
    ///
    /// # Errors
    /// The prompt cannot be tokenized.
    pub fn truncates(&self, prompt: &str) -> Result<bool> {
        match (self.t5, self.clip) {
            (Some(t5), _) => Ok(t5.tokenizer.encode(prompt)?.1),
            (None, [text, ..]) => Ok(text.tokenizer.encode(prompt)?.truncated),
            (None, []) => Ok(false),
        }
    }
}
