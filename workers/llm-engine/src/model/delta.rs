//! Linear attention by the gated delta rule, which Qwen3-Next introduced: a causal convolution of queries, keys and values,
//! and a recurrent state for each head.
use candle_core::{Result, Tensor};
use candle_nn::recurrent::{CausalConv, GatedDelta, Sequences};

use super::layers::{FusedWith, Linear, split_columns};

/// Weights of linear attention, without the output projection.
pub struct DeltaAttention {
    /// Products whose concatenated outputs have the widths below; several if their formats differ.
    pub products: Vec<Linear>,
    /// Widths of queries, keys and values together, of the norm's gates, of learning rates and of decays.
    pub widths: [usize; 4],
    /// Weights of the convolution, f32 (channels, width).
    pub conv: Tensor,
    /// Negative factor of the decays' exponents, f32 (value heads).
    pub rate: Tensor,
    /// Summand of the decays' inputs, f32 (value heads).
    pub dt_bias: Tensor,
    /// Weight of the norm of each head, in the data type of the states.
    pub norm: Tensor,
    /// Epsilon of the norm.
    pub eps: f32,
}

impl DeltaAttention {
    /// Maps (rows, in) to the input of the output projection. Updates the recurrent states of the layer: last inputs of
    /// the convolution and matrices of the heads.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(
        &self,
        (x, with): (&Tensor, FusedWith),
        [inputs, matrices]: &[Tensor; 2],
        sequences: Sequences,
    ) -> Result<Tensor> {
        let outputs = self.products.iter().map(|product| product.forward_fused(x, with));
        let [qkv, z, b, a] = split_columns(outputs.collect::<Result<Vec<_>>>()?, self.widths)?;
        let conv = CausalConv { x: &qkv, weight: &self.conv, bias: None, states: inputs, sequences };
        let delta = GatedDelta {
            qkv: &conv.forward()?,
            a: &a,
            b: &b,
            z: &z,
            rate: &self.rate,
            dt_bias: &self.dt_bias,
            norm: &self.norm,
            eps: self.eps,
            states: matrices,
            sequences,
        };
        delta.forward()
    }
}
