//! Head of a cross-encoder, which scores a pair of texts.
use anyhow::Result;
use candle_core::Tensor;

use super::config::{ClassifierKind, EncoderConfig};
use super::names::Names;
use crate::model::layers::Linear;
use crate::model::weights::Weights;

/// Scores the state of the first token: out(tanh(dense(x))).
pub struct Classifier {
    dense: Linear,
    out: Linear,
    sigmoid: bool,
}

impl Classifier {
    /// Loads the head.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has the wrong shape.
    pub fn load(
        weights: &mut Weights,
        names: &Names,
        config: &EncoderConfig,
        kind: ClassifierKind,
    ) -> Result<Self> {
        let (dense, out) = match kind {
            ClassifierKind::Pooler => (names.part(("pooler.dense", "")), "classifier"),
            ClassifierKind::Head => ("classifier.dense".to_owned(), "classifier.out_proj"),
            ClassifierKind::Gguf => ("cls".to_owned(), "cls.output"),
        };
        Ok(Self {
            dense: weights.linear_named(&[dense], config.hidden, config.hidden, true)?,
            out: weights.linear_named(&[out.to_owned()], 1, config.hidden, true)?,
            sigmoid: config.sigmoid,
        })
    }

    /// Maps states (texts, hidden) to f32 scores (texts, 1).
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(&self, states: &Tensor) -> candle_core::Result<Tensor> {
        let scores = self.out.forward(&self.dense.forward(states)?.tanh()?)?;
        let scores = scores.to_dtype(candle_core::DType::F32)?;
        if self.sigmoid { candle_nn::ops::sigmoid(&scores) } else { Ok(scores) }
    }
}
