//! Feed-forward layers with a dense network and experts, whose normalized outputs are added.
use anyhow::Result;
use candle_core::Tensor;
use candle_nn::fused::add_rms_norm;

use crate::model::config::{DecoderConfig, ExpertsConfig};
use crate::model::experts::Experts;
use crate::model::layers::{FusedWith, Mlp, Norm};
use crate::model::roles::Role;
use crate::model::weights::Weights;

/// A dense network and experts.
pub(super) struct DenseAndExperts {
    dense: Mlp,
    experts: Experts,
    dense_norm: Norm,
    experts_norm: Norm,
    experts_post_norm: Norm,
}

impl DenseAndExperts {
    /// Loads the experts and the norms of layer number `index`.
    pub(super) fn load(
        config: &DecoderConfig,
        experts: &ExpertsConfig,
        dense: Mlp,
        weights: &mut Weights,
        index: usize,
    ) -> Result<Self> {
        let (hidden, kind) = (config.hidden, (config.norm_kind, config.norm_eps));
        let (router_norm, factors) = weights.router_factors(index, experts, hidden, config.norm_eps)?;
        let experts = weights.experts(index, experts, hidden, config.activation)?;
        let experts = Experts { router_norm: Some(router_norm), factors: Some(factors), ..experts };
        let mut norm = |role| weights.norm(Some(index), role, hidden, kind);
        Ok(Self {
            dense,
            experts,
            dense_norm: norm(Role::DensePostNorm)?,
            experts_norm: norm(Role::ExpertsNorm)?,
            experts_post_norm: norm(Role::ExpertsPostNorm)?,
        })
    }

    /// Computes the output, normalized by `post_norm`. The dense network reads `input`, the experts the states (rows, width)
    /// of which it is the norm.
    pub(super) fn forward(
        &self,
        input: (&Tensor, FusedWith),
        states: &Tensor,
        post_norm: &Norm,
    ) -> candle_core::Result<Tensor> {
        let dense = self.dense.down.forward(&self.dense.inner(input)?)?;
        let dense = self.dense_norm.forward(&dense)?;
        let with = FusedWith { norm: Some(&self.experts_norm), ..FusedWith::default() };
        let experts = self.experts.forward((states, with), None, &[])?;
        let experts_norm = Some(&self.experts_post_norm.weight);
        Ok(add_rms_norm(&experts, &dense, experts_norm, &post_norm.weight, post_norm.eps)?.1)
    }
}
