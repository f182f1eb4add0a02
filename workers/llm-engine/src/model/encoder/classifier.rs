//! Head of a cross-encoder, which scores a pair of texts.
use anyhow::Result;
use candle_core::{DType, Tensor};

use super::config::{Activation, ClassifierKind, EncoderConfig};
use super::layers::load_norm;
use super::names::Names;
use crate::model::layers::{Linear, Norm};
use crate::model::pooling::EmbeddingHead;
use crate::model::sentence::Pooling;
use crate::model::weights::Weights;

/// Scores the pooled states of a text: out(activation(dense(x))), with a norm before the output if there is one.
pub struct Classifier {
    pooling: EmbeddingHead,
    dense: Linear,
    /// Activation and norm of a prediction head; others have tanh.
    prediction: Option<(Activation, Norm)>,
    out: Linear,
    sigmoid: bool,
}

impl Classifier {
    /// Loads the head. States have type `dtype`.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has the wrong shape.
    pub fn load(
        weights: &mut Weights,
        names: &Names,
        config: &EncoderConfig,
        kind: ClassifierKind,
        dtype: DType,
    ) -> Result<Self> {
        let hidden = config.hidden;
        let (dense, out) = match kind {
            ClassifierKind::Pooler => (names.part(("pooler.dense", "cls")), ("classifier", "cls.output")),
            ClassifierKind::Head => {
                (names.head(("classifier.dense", "cls")), ("classifier.out_proj", "cls.output"))
            }
            ClassifierKind::Prediction { .. } => {
                (names.head(("head.dense", "cls")), ("classifier", "cls.output"))
            }
        };
        let (pooling, has_bias, prediction) = match kind {
            ClassifierKind::Prediction { pooling, has_bias, activation } => {
                let norm = load_norm(weights, &names.head(("head.norm", "cls.norm")), config, dtype)?;
                (pooling, has_bias, Some((activation, norm)))
            }
            _ => (Pooling::Cls, true, None),
        };
        Ok(Self {
            pooling: EmbeddingHead::pooled(pooling, hidden),
            dense: weights.linear_named(&[dense], hidden, hidden, has_bias)?,
            prediction,
            out: weights.linear_named(&[names.head(out)], 1, hidden, true)?,
            sigmoid: config.sigmoid,
        })
    }

    /// Returns the pooling of the states.
    pub fn pooling(&self) -> &EmbeddingHead {
        &self.pooling
    }

    /// Maps pooled states (texts, hidden) to f32 scores (texts, 1).
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(&self, states: &Tensor) -> candle_core::Result<Tensor> {
        let dense = self.dense.forward(states)?;
        let inner = match &self.prediction {
            Some((activation, norm)) => norm.forward(&activation.forward(&dense)?)?,
            None => dense.tanh()?,
        };
        let scores = self.out.forward(&inner)?.to_dtype(DType::F32)?;
        if self.sigmoid { candle_nn::ops::sigmoid(&scores) } else { Ok(scores) }
    }
}
