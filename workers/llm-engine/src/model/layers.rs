//! Linear layers, norms, embeddings and feed-forward layers, with float or GGML-quantized weights. Their
//! functions return an error if the device fails.
use candle_core::quantized::QMatMul;
use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::ops::{rms_norm, swiglu};

use super::config::Activation;

/// Linear layer with an optional bias. The weight stays in its stored format.
#[derive(Clone, Debug)]
pub enum Linear {
    /// Float weight.
    Float(candle_nn::Linear),
    /// GGML-quantized weight.
    Quantized(QMatMul, Option<Tensor>),
}

impl Linear {
    /// Maps (rows, in) to (rows, out).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Float(linear) => linear.forward(x),
            Self::Quantized(matrix, None) => matrix.forward(x),
            Self::Quantized(matrix, Some(bias)) => matrix.forward(x)?.broadcast_add(bias),
        }
    }
}

/// Embedding table with a row for each token.
#[derive(Clone, Debug)]
pub enum Embedding {
    /// Float table.
    Float(Tensor),
    /// GGML-quantized table.
    Quantized {
        /// Table (vocabulary, width).
        matrix: QMatMul,
        /// Number of rows.
        vocabulary: usize,
        /// Data type of the output.
        dtype: DType,
    },
}

impl Embedding {
    /// Returns the number of tokens.
    pub fn vocabulary(&self) -> Result<usize> {
        match self {
            Self::Float(rows) => rows.dim(0),
            Self::Quantized { vocabulary, .. } => Ok(*vocabulary),
        }
    }

    /// Maps u32 tokens (rows) to (rows, width).
    ///
    /// # Errors
    /// Returns an error if the device fails or a token is outside the table.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        match self {
            Self::Float(rows) => rows.index_select(tokens, 0),
            Self::Quantized { matrix, dtype, .. } => matrix.embedding(tokens)?.to_dtype(*dtype),
        }
    }

    /// Returns an output projection that shares this table.
    pub fn head(&self) -> Linear {
        match self {
            Self::Float(rows) => Linear::Float(candle_nn::Linear::new(rows.clone(), None)),
            Self::Quantized { matrix, .. } => Linear::Quantized(matrix.clone(), None),
        }
    }
}

/// RMS norm: x / sqrt(mean(x²) + eps) · weight.
#[derive(Clone, Debug)]
pub struct Norm {
    weight: Tensor,
    eps: f32,
}

impl Norm {
    /// Creates a norm of states of type `dtype` from f32 weights (width), plus 1 if `plus_one`.
    pub fn new(weight: Tensor, plus_one: bool, eps: f64, dtype: DType) -> Result<Self> {
        let weight = if plus_one { (weight + 1.0)? } else { weight };
        Ok(Self { weight: weight.to_dtype(dtype)?, eps: eps as f32 })
    }

    /// Normalizes the last dimension of `x`, which must be contiguous.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.eps)
    }
}

/// Gate and up projections.
#[derive(Clone, Debug)]
pub enum GateUp {
    /// One fused projection.
    Fused(Linear),
    /// Two projections, whose weights are stored in different formats.
    Separate(Linear, Linear),
}

/// Gated feed-forward layer: down(activation(gate x) · up x).
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Gate and up projections.
    pub gate_up: GateUp,
    /// Down projection to the hidden size.
    pub down: Linear,
    /// Activation of the gate.
    pub activation: Activation,
}

impl Mlp {
    /// Maps (rows, width) to (rows, width).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (gate, up) = match &self.gate_up {
            GateUp::Fused(both) => {
                let both = both.forward(x)?;
                if self.activation == Activation::Silu {
                    return self.down.forward(&swiglu(&both)?);
                }
                let width = both.dim(D::Minus1)? / 2;
                (both.narrow(D::Minus1, 0, width)?, both.narrow(D::Minus1, width, width)?)
            }
            GateUp::Separate(gate, up) => (gate.forward(x)?, up.forward(x)?),
        };
        let gate = match self.activation {
            Activation::Silu => gate.silu()?,
            Activation::GeluTanh => gate.gelu()?,
        };
        self.down.forward(&(gate * up)?)
    }
}

/// Applies a soft cap: c · tanh(x / c).
pub fn softcap(x: &Tensor, cap: f64) -> Result<Tensor> {
    (x / cap)?.tanh()? * cap
}
