//! Layers of Mamba 1 and 2: a causal convolution, and a selective state space with recurrent states.
use candle_core::{D, Result, Tensor};
use candle_nn::recurrent::{CausalConv, SelectiveScan, Sequences};

use super::layers::{FusedWith, Linear, Norm, split_columns};

/// Causal convolution of each channel.
pub struct Convolution {
    /// Weights, f32 (channels, width).
    pub weight: Tensor,
    /// Biases, f32 (channels), if there are any.
    pub bias: Option<Tensor>,
}

impl Convolution {
    /// Maps (rows, channels) to SiLU of the results, and updates the last inputs of the sequences.
    fn forward(&self, x: &Tensor, states: &Tensor, sequences: Sequences) -> Result<Tensor> {
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        CausalConv { x, weight, bias, states, sequences }.forward()
    }
}

/// Weights of a layer of Mamba 2, without the output projection.
pub struct MambaMixer {
    /// Projection to C, B, x, gates and steps, in this order.
    pub input: Linear,
    /// Widths of C, B and x together, of gates and of steps.
    pub widths: [usize; 3],
    /// Convolution of C, B and x.
    pub conv: Convolution,
    /// Negative factor of the decays' exponents, f32 (heads).
    pub rate: Tensor,
    /// Summand of the steps' inputs, f32 (heads).
    pub dt_bias: Tensor,
    /// Factor of x in the results, f32 (heads).
    pub skip: Tensor,
    /// Minimum and maximum step.
    pub step_limits: [f32; 2],
    /// Norm of each group of heads and the weights that follow it, if there are several groups or the gates follow it. The
    /// output projection includes the norm of a single group otherwise.
    pub group_norm: Option<(Norm, Tensor)>,
    /// If true, the results are multiplied by the activated gates after the norm.
    pub gates_last: bool,
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
        let scan = SelectiveScan {
            qkv: &self.conv.forward(&qkv, inputs, sequences)?,
            a: &a,
            z: (!self.gates_last).then_some(&z),
            rate: &self.rate,
            dt_bias: &self.dt_bias,
            skip: &self.skip,
            step_limits: self.step_limits,
            states: matrices,
            sequences,
        };
        let out = scan.forward()?;
        let out = match &self.group_norm {
            Some((norm, weight)) => {
                let groups = out.reshape(((), norm.width()))?;
                norm.forward(&groups)?.reshape(out.dims())?.broadcast_mul(weight)?
            }
            None => out,
        };
        match self.gates_last {
            true => out * z.contiguous()?.silu()?,
            false => Ok(out),
        }
    }
}

/// Weights of a layer of Mamba 1, without the output projection.
pub struct Mamba1Mixer {
    /// Projection to x and gates, in this order.
    pub input: Linear,
    /// Width of each of these.
    pub values: usize,
    /// Convolution of x.
    pub conv: Convolution,
    /// Projection of x to C, B and the steps' inputs, in this order.
    pub selection: Linear,
    /// Widths of these.
    pub widths: [usize; 3],
    /// Norms of these.
    pub norms: [Norm; 3],
    /// Projection of the steps' inputs to the steps, without biases.
    pub step: Linear,
    /// Negative factors of the decays' exponents, f32 (heads, value width, key width).
    pub rate: Tensor,
    /// Biases of the steps, f32 (values).
    pub dt_bias: Tensor,
    /// Factors of x in the results, f32 (values).
    pub skip: Tensor,
}

impl Mamba1Mixer {
    /// Like [`MambaMixer::forward`].
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(
        &self,
        (x, with): (&Tensor, FusedWith),
        [inputs, matrices]: &[Tensor; 2],
        sequences: Sequences,
    ) -> Result<Tensor> {
        let [x, z] = split_columns(vec![self.input.forward_fused(x, with)?], [self.values; 2])?;
        let x = self.conv.forward(&x, inputs, sequences)?;
        let parts = split_columns(vec![self.selection.forward(&x)?], self.widths)?;
        let [of_c, of_b, of_steps] = &self.norms;
        let [c, b, steps] = parts;
        let normed = |norm: &Norm, x: Tensor| norm.forward(&x.contiguous()?);
        let qkv = Tensor::cat(&[normed(of_c, c)?, normed(of_b, b)?, x], D::Minus1)?;
        let norm = FusedWith { norm: Some(of_steps), ..FusedWith::default() };
        let scan = SelectiveScan {
            qkv: &qkv,
            a: &self.step.forward_fused(&steps.contiguous()?, norm)?,
            z: Some(&z),
            rate: &self.rate,
            dt_bias: &self.dt_bias,
            skip: &self.skip,
            step_limits: [0.0, f32::INFINITY],
            states: matrices,
            sequences,
        };
        scan.forward()
    }
}
