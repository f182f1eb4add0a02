//! Alternating updates (AltUp): several streams of states. Each layer predicts all streams, computes one of them, and corrects
//! the others by how far its prediction was off (Baykal et al., "Alternating Updates for Efficient Transformers", 2023).
use anyhow::Result;
use candle_core::{D, DType, Tensor};

use crate::model::config::{Activation, AltUpConfig, DecoderConfig, NormKind};
use crate::model::layers::{FusedWith, GateUp, Linear, Mlp, Norm};
use crate::model::part::TensorRows;
use crate::model::roles::Role;
use crate::model::weights::Weights;

/// Minimum mean square by which a stream is divided.
const MIN_MEAN_SQUARE: f64 = 1e-5;

/// Projections from an embedding to the other streams, and from these back to one.
pub(super) struct Streams {
    config: AltUpConfig,
    projections: Vec<Linear>,
    merging: Vec<Linear>,
}

impl Streams {
    /// Loads the projections of a model with several streams.
    pub(super) fn load(config: &DecoderConfig, weights: &mut Weights) -> Result<Option<Self>> {
        let Some(altup) = &config.altup else { return Ok(None) };
        let mut load = |role| weights.square_matrices(role, altup.streams - 1, config.hidden);
        let projections = load(Role::StreamProjections)?;
        let merging = load(Role::StreamMerging)?;
        Ok(Some(Self { config: altup.clone(), projections, merging }))
    }

    /// Maps embeddings (rows, width) to streams (rows, streams, width) of the same magnitude.
    pub(super) fn split(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let target = magnitude(x)?;
        let mut streams = vec![x.clone()];
        for projection in &self.projections {
            streams.push(with_magnitude(&projection.forward(x)?, &target)?);
        }
        Tensor::stack(&streams, 1)
    }

    /// Maps streams (rows, streams, width) to the mean of their projections, (rows, width).
    pub(super) fn merge(&self, streams: &Tensor) -> candle_core::Result<Tensor> {
        let stream = |index: usize| streams.narrow(1, index, 1)?.squeeze(1)?.contiguous();
        let mut sum = stream(0)?;
        let target = magnitude(&sum)?;
        for (index, projection) in self.merging.iter().enumerate() {
            sum = (sum + with_magnitude(&projection.forward(&stream(index + 1)?)?, &target)?)?;
        }
        sum / self.config.streams as f64
    }
}

/// Returns the root of the mean square of each row, f32 (rows, 1).
fn magnitude(x: &Tensor) -> candle_core::Result<Tensor> {
    x.to_dtype(DType::F32)?.sqr()?.mean_keepdim(D::Minus1)?.sqrt()
}

/// Multiplies each row so that the root of its mean square is `target` (rows, 1).
fn with_magnitude(x: &Tensor, target: &Tensor) -> candle_core::Result<Tensor> {
    let exact = x.to_dtype(DType::F32)?;
    // The maximum of it and a number, which a captured step cannot upload.
    let current =
        ((exact.sqr()?.mean_keepdim(D::Minus1)? - MIN_MEAN_SQUARE)?.relu()? + MIN_MEAN_SQUARE)?.sqrt()?;
    exact.broadcast_mul(&target.div(&current)?)?.to_dtype(x.dtype())
}

/// Prediction and correction of the streams by a layer, and its learned residual layer.
pub(super) struct StreamLayer {
    streams: usize,
    active: usize,
    router_norm: Norm,
    router: Linear,
    prediction: Linear,
    correction: Linear,
    /// Factors of the states that the layer's input gates (width).
    scale: Option<Tensor>,
    residual: [Linear; 2],
    residual_norm: Norm,
    gate_limit: Option<f64>,
}

impl StreamLayer {
    /// Loads the projections of layer number `index`.
    pub(super) fn load(config: &DecoderConfig, weights: &mut Weights, index: usize) -> Result<Option<Self>> {
        let Some(altup) = &config.altup else { return Ok(None) };
        let AltUpConfig { streams, active, scaled, residual_rank, ref gate_limits } = *altup;
        let (at, hidden) = (Some(index), config.hidden);
        let kind = (NormKind::Rms, config.norm_eps);
        let mut linear = |role, [rows, width]: [usize; 2]| {
            weights.linear(at, &[TensorRows::whole(role, rows)], width, false)
        };
        let router = linear(Role::StreamRouter, [streams, hidden])?;
        let prediction = linear(Role::StreamPrediction, [streams * streams, streams])?;
        let correction = linear(Role::StreamCorrection, [streams, streams])?;
        let residual = [
            linear(Role::ResidualDown, [residual_rank, hidden])?,
            linear(Role::ResidualUp, [hidden, residual_rank])?,
        ];
        // With coefficients of 0, streams stay as they are, and all are corrected by the same difference.
        let identity = |at: usize| (at.is_multiple_of(streams + 1)) as u32 as f32;
        let prediction =
            prediction.with_bias(weights.states((0..streams * streams).map(identity).collect())?);
        let correction = correction.with_bias(weights.states(vec![1.0; streams])?);
        let scale = match scaled {
            true => Some(weights.vector(at, Role::StreamScale, hidden)?),
            false => None,
        };
        Ok(Some(Self {
            streams,
            active,
            router_norm: weights
                .norm(at, Role::StreamRouterNorm, hidden, kind)?
                .scaled(1.0 / hidden as f64)?,
            router,
            prediction,
            correction,
            scale,
            residual,
            residual_norm: weights.norm(at, Role::ResidualNorm, hidden, kind)?,
            gate_limit: gate_limits[index],
        }))
    }

    /// Returns the coefficients of a projection of the router's output for states (rows, width).
    fn coefficients(&self, states: &Tensor, projection: &Linear) -> candle_core::Result<Tensor> {
        let with = FusedWith { norm: Some(&self.router_norm), ..FusedWith::default() };
        projection.forward(&self.router.forward_fused(states, with)?.tanh()?)
    }

    /// Returns the active stream, (rows, width).
    pub(super) fn active(&self, streams: &Tensor) -> candle_core::Result<Tensor> {
        streams.narrow(1, self.active, 1)?.squeeze(1)?.contiguous()
    }

    /// Predicts the streams (rows, streams, width) after the layer.
    pub(super) fn predict(&self, streams: &Tensor) -> candle_core::Result<Tensor> {
        let coefficients = self.coefficients(&self.active(streams)?, &self.prediction)?;
        coefficients.reshape(((), self.streams, self.streams))?.matmul(streams)
    }

    /// Corrects predictions by the computed states of the active stream.
    pub(super) fn correct(&self, predictions: &Tensor, computed: &Tensor) -> candle_core::Result<Tensor> {
        let coefficients = self.coefficients(computed, &self.correction)?.unsqueeze(2)?;
        let off = computed.sub(&predictions.narrow(1, self.active, 1)?.squeeze(1)?)?.unsqueeze(1)?;
        coefficients.broadcast_mul(&off)? + predictions
    }

    /// Maps the normalized states to the output of the learned residual layer.
    pub(super) fn residual(&self, normed: &Tensor) -> candle_core::Result<Tensor> {
        let [down, up] = &self.residual;
        normed + self.residual_norm.forward(&up.forward(&down.forward(normed)?)?)?
    }

    /// Returns the states of corrected streams that gate the layer's input, (rows, width).
    pub(super) fn gating(&self, corrected: &Tensor) -> candle_core::Result<Tensor> {
        let states = self.active(corrected)?;
        match &self.scale {
            Some(scale) => states.broadcast_mul(&scale.to_dtype(states.dtype())?),
            None => Ok(states),
        }
    }

    /// Adds a layer's input (rows, width) to all streams but the first.
    pub(super) fn add_input(&self, streams: &Tensor, input: &Tensor) -> candle_core::Result<Tensor> {
        let others = streams.narrow(1, 1, self.streams - 1)?.broadcast_add(&input.unsqueeze(1)?)?;
        Tensor::cat(&[&streams.narrow(1, 0, 1)?, &others], 1)
    }

    /// Computes the input of the down projection. Gates below a limit become 0.
    pub(super) fn inner(&self, mlp: &Mlp, x: &Tensor) -> candle_core::Result<Tensor> {
        let Some(limit) = self.gate_limit else { return mlp.inner((x, FusedWith::default())) };
        let (gate, up) = match &mlp.gate_up {
            GateUp::Fused(both) => {
                let both = both.forward(x)?;
                let width = both.dim(D::Minus1)? / 2;
                (both.narrow(D::Minus1, 0, width)?, both.narrow(D::Minus1, width, width)?)
            }
            GateUp::Separate(gate, up) => (gate.forward(x)?, up.forward(x)?),
            GateUp::UpOnly(_) => candle_core::bail!("internal error: a limit of gates without gates"),
        };
        let gate = gate.to_dtype(DType::F32)?;
        let mean = gate.mean_keepdim(D::Minus1)?;
        let centered = gate.broadcast_sub(&mean)?;
        let deviation = (centered.sqr()?.mean_keepdim(D::Minus1)?.sqrt()? * limit)?;
        let gate = centered.broadcast_sub(&deviation)?.relu()?.to_dtype(up.dtype())?;
        Activation::GeluTanh.gate(&gate, &up)
    }
}
