//! Parts of layers with recurrent states.
use anyhow::Result;
use candle_core::Tensor;
use candle_nn::recurrent::Sequences;

use super::config::{DecoderConfig, Recurrence, RecurrentConfig};
use super::delta::DeltaAttention;
use super::layers::{FusedWith, Linear};
use super::mamba::{Mamba1Mixer, MambaMixer};
use super::roles::Role;
use super::weights::Weights;

/// Computation of a layer with recurrent states, without its output projection.
pub enum Mixer {
    /// Linear attention by the gated delta rule.
    Delta(DeltaAttention),
    /// Mamba 2.
    Mamba(MambaMixer),
    /// Mamba 1.
    Mamba1(Mamba1Mixer),
}

impl Mixer {
    /// Loads the mixer of a layer, and its output projection.
    ///
    /// # Errors
    /// Returns an error that names the file and the invalid tensor.
    pub fn load(
        config: &DecoderConfig,
        sizes: &RecurrentConfig,
        weights: &mut Weights,
        layer: usize,
    ) -> Result<(Self, Linear)> {
        let hidden = config.hidden;
        Ok(match &sizes.kind {
            Recurrence::GatedDelta { is_grouped } => {
                let delta = weights.delta_attention(layer, (sizes, *is_grouped), hidden, config.norm_eps)?;
                (Self::Delta(delta), weights.delta_output(layer, sizes, hidden)?)
            }
            Recurrence::Selective(options) => {
                let mamba = weights.mamba_mixer(layer, (sizes, options), hidden)?;
                (Self::Mamba(mamba), weights.mamba_output(layer, (sizes, options), hidden)?)
            }
            Recurrence::Mamba1(options) => {
                let mamba = weights.mamba1_mixer(layer, (sizes, options), hidden)?;
                let (shape, bias) = ([hidden, sizes.values()], options.projection_bias);
                (Self::Mamba1(mamba), weights.linear_of_columns(Some(layer), Role::MambaOutput, shape, bias)?)
            }
        })
    }

    /// Maps (rows, in) to the input of the output projection, and updates the recurrent states of the layer.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(
        &self,
        input: (&Tensor, FusedWith),
        states: &[Tensor; 2],
        sequences: Sequences,
    ) -> candle_core::Result<Tensor> {
        match self {
            Self::Delta(delta) => delta.forward(input, states, sequences),
            Self::Mamba(mamba) => mamba.forward(input, states, sequences),
            Self::Mamba1(mamba) => mamba.forward(input, states, sequences),
        }
    }
}
