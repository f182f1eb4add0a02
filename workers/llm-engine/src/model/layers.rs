//! Products, norms, embeddings and feed-forward layers, of weights that are floats or blocks.
use candle_core::quantized::QMatMul;
use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::ops::{rms_norm, swiglu};

use super::config::Activation;

/// A product with a matrix that stays as it is stored, and a bias.
#[derive(Clone, Debug)]
pub enum Linear {
    /// Of floats.
    Full(candle_nn::Linear),
    /// Of GGML's blocks.
    Quantized(QMatMul, Option<Tensor>),
}

impl Linear {
    /// (rows, in) to (rows, out).
    ///
    /// # Errors
    /// Where the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Full(linear) => linear.forward(x),
            Self::Quantized(matrix, None) => matrix.forward(x),
            Self::Quantized(matrix, Some(bias)) => matrix.forward(x)?.broadcast_add(bias),
        }
    }
}

/// A row for each token.
#[derive(Clone, Debug)]
pub enum Embedding {
    /// Of floats.
    Full(Tensor),
    /// Of GGML's blocks.
    Quantized {
        /// (vocabulary, width).
        matrix: QMatMul,
        /// Its rows.
        vocabulary: usize,
        /// Of the rows that come out.
        dtype: DType,
    },
}

impl Embedding {
    /// How many tokens there are.
    pub fn vocabulary(&self) -> Result<usize> {
        match self {
            Self::Full(rows) => rows.dim(0),
            Self::Quantized { vocabulary, .. } => Ok(*vocabulary),
        }
    }

    /// u32 (rows) to (rows, width).
    ///
    /// # Errors
    /// Where the device fails, or for a token that has no row.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        match self {
            Self::Full(rows) => rows.index_select(tokens, 0),
            Self::Quantized { matrix, dtype, .. } => matrix.embedding(tokens)?.to_dtype(*dtype),
        }
    }

    /// The product that makes logits of the same matrix.
    pub fn head(&self) -> Linear {
        match self {
            Self::Full(rows) => Linear::Full(candle_nn::Linear::new(rows.clone(), None)),
            Self::Quantized { matrix, .. } => Linear::Quantized(matrix.clone(), None),
        }
    }
}

/// x over the root of its mean square, times weights.
#[derive(Clone, Debug)]
pub struct Norm {
    weight: Tensor,
    eps: f32,
}

impl Norm {
    /// `weight` is f32 (width); states are `dtype`. With `plus_one`, 1 is added to the weights.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn new(weight: Tensor, plus_one: bool, eps: f64, dtype: DType) -> Result<Self> {
        let weight = if plus_one { (weight + 1.0)? } else { weight };
        Ok(Self { weight: weight.to_dtype(dtype)?, eps: eps as f32 })
    }

    /// The last dim is normed; x is contiguous.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.eps)
    }
}

/// Gate and up.
#[derive(Clone, Debug)]
pub enum GateUp {
    /// Behind each other.
    One(Linear),
    /// Stored as different types.
    Two(Linear, Linear),
}

/// down(activation(gate x) · up x).
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Gate and up.
    pub gate_up: GateUp,
    /// Back to the width of the state.
    pub down: Linear,
    /// Of the gate.
    pub activation: Activation,
}

impl Mlp {
    /// (rows, width) to (rows, width).
    ///
    /// # Errors
    /// Where the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (gate, up) = match &self.gate_up {
            GateUp::One(both) => {
                let both = both.forward(x)?;
                if self.activation == Activation::Silu {
                    return self.down.forward(&swiglu(&both)?);
                }
                let width = both.dim(D::Minus1)? / 2;
                (both.narrow(D::Minus1, 0, width)?, both.narrow(D::Minus1, width, width)?)
            }
            GateUp::Two(gate, up) => (gate.forward(x)?, up.forward(x)?),
        };
        let gate = match self.activation {
            Activation::Silu => gate.silu()?,
            Activation::GeluTanh => gate.gelu()?,
        };
        self.down.forward(&(gate * up)?)
    }
}

/// c tanh(x / c).
///
/// # Errors
/// Where the device fails.
pub fn capped(x: &Tensor, cap: f64) -> Result<Tensor> {
    (x / cap)?.tanh()? * cap
}
