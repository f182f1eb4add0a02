//! Layers of Mamba 2: a causal convolution, and a selective state space with a recurrent state for each head.
use candle_core::{Result, Tensor};
use candle_nn::recurrent::{CausalConv, SelectiveScan, Sequences};

use super::layers::{FusedWith, Linear, Norm, split_columns};

/// Weights of a layer of Mamba 2, without the output projection.
pub struct MambaMixer {
    /// Projection to C, B, x, gates and steps, in this order.
    pub input: Linear,
    /// Widths of C, B and x together, of gates and of steps.
    pub widths: [usize; 3],
    /// Weights of the convolution, f32 (channels, width).
    pub conv: Tensor,
    /// Biases of the convolution, f32 (channels), if there are any.
    pub conv_bias: Option<Tensor>,
    /// Negative factor of the decays' exponents, f32 (heads).
    pub rate: Tensor,
    /// Summand of the steps' inputs, f32 (heads).
    pub dt_bias: Tensor,
    /// Factor of x in the results, f32 (heads).
    pub skip: Tensor,
    /// Minimum and maximum step.
    pub step_limits: [f32; 2],
    /// Norm of each group of heads and the weights that follow it, if there are several groups. The output projection includes
    /// the norm of a single group.
    pub group_norm: Option<(Norm, Tensor)>,
}

impl MambaMixer {
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
        let [qkv, z, a] = split_columns(vec![self.input.forward_fused(x, with)?], self.widths)?;
        let conv = CausalConv {
            x: &qkv,
            weight: &self.conv,
            bias: self.conv_bias.as_ref(),
            states: inputs,
            sequences,
        };
        let scan = SelectiveScan {
            qkv: &conv.forward()?,
            a: &a,
            z: Some(&z),
            rate: &self.rate,
            dt_bias: &self.dt_bias,
            skip: &self.skip,
            step_limits: self.step_limits,
            states: matrices,
            sequences,
        };
        let out = scan.forward()?;
        match &self.group_norm {
            Some((norm, weight)) => {
                let groups = out.reshape(((), norm.width()))?;
                norm.forward(&groups)?.reshape(out.dims())?.broadcast_mul(weight)
            }
            None => Ok(out),
        }
    }
}
