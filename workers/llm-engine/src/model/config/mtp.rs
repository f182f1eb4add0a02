//! Heads that predict further tokens (multi-token prediction, MTP).
use anyhow::{Context, Result, ensure};

use super::{DecoderConfig, LayerParts};

impl DecoderConfig {
    /// Returns the number of layers, without that of a head.
    pub fn layer_count(&self) -> usize {
        self.windows.len() - usize::from(self.has_mtp)
    }

    /// Adds the layer of the head that predicts further tokens.
    ///
    /// # Errors
    /// Returns an error if the family has no such heads.
    pub fn add_mtp(&mut self) -> Result<()> {
        self.mtp_layout.context(
            "speculation with MTP requires a model of DeepSeek V3, GLM-4.5, Qwen3-Next or Qwen3.5; use the method ngram or \
             draft_model in --speculative-config",
        )?;
        ensure!(!self.has_mtp, "internal error: a second MTP head");
        self.has_mtp = true;
        self.windows.push(None);
        self.parts.push(LayerParts::Both);
        self.rotated.push(true);
        self.experts.iter_mut().for_each(|experts| experts.dense_layers.push(false));
        self.recurrent.iter_mut().for_each(|recurrent| recurrent.layers.push(false));
        Ok(())
    }
}
