//! Linear layers, norms, embeddings and feed-forward layers, with float or GGML-quantized weights. Their
//! functions return an error if the device fails.
use candle_core::quantized::QMatMul;
use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::fused::{HeadNorms, add_rms_norm};
use candle_nn::ops::{rms_norm, swiglu};

use super::config::Activation;

/// Matrix of a linear layer (out, in), in its stored format.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// Floats.
    Float(Tensor),
    /// GGML-quantized blocks.
    Quantized(QMatMul),
}

/// Linear layer with an optional bias.
#[derive(Clone, Debug)]
pub struct Linear {
    matrix: Matrix,
    /// Bias (out), in the data type of the states.
    bias: Option<Tensor>,
    /// Data type of the states, which is that of the output.
    dtype: DType,
}

impl Linear {
    /// Creates a layer for states of type `dtype`.
    pub fn new(matrix: Matrix, bias: Option<Tensor>, dtype: DType) -> Self {
        Self { matrix, bias, dtype }
    }

    /// Maps (rows, in) of any float type to (rows, out).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = || self.bias.clone();
        match &self.matrix {
            Matrix::Float(weight) if weight.dtype() == self.dtype => {
                candle_nn::Linear::new(weight.clone(), bias()).forward(&x.to_dtype(self.dtype)?)
            }
            Matrix::Float(weight) => {
                let product = x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?.to_dtype(self.dtype)?;
                bias().map_or(Ok(product.clone()), |bias| product.broadcast_add(&bias))
            }
            Matrix::Quantized(matrix) => {
                let product = matrix.forward(&x.to_dtype(self.dtype)?)?;
                bias().map_or(Ok(product.clone()), |bias| product.broadcast_add(&bias))
            }
        }
    }
}

/// Query, key and value projections.
#[derive(Clone, Debug)]
pub struct QueryKeyValue {
    /// Products whose concatenated outputs are queries, keys and values; several if their formats differ.
    pub products: Vec<Linear>,
    /// Widths of queries, keys and values.
    pub widths: [usize; 3],
    /// Concatenated biases, which are added when the outputs are written to the cache.
    pub bias: Option<Tensor>,
}

impl QueryKeyValue {
    /// Maps (rows, in) to queries, keys and values without biases, (rows, width) each, whose rows may be strided.
    pub fn forward(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let products = self.products.iter().map(|product| product.forward(x)).collect::<Result<Vec<_>>>()?;
        let mut products = products.into_iter();
        let (mut current, mut start) = (None, 0);
        let [q, k, v] = self.widths.map(|width| {
            let whole = match current.take().or_else(|| products.next()) {
                Some(whole) => whole,
                None => candle_core::bail!("internal error: the projections are narrower than the heads"),
            };
            let part = whole.narrow(D::Minus1, start, width)?;
            start += width;
            if start < whole.dim(D::Minus1)? {
                current = Some(whole);
            } else {
                start = 0;
            }
            Ok(part)
        });
        Ok([q?, k?, v?])
    }
}

/// Embedding table with a row for each token.
#[derive(Clone, Debug)]
pub enum Embedding {
    /// Float table (vocabulary, width).
    Float(Tensor),
    /// GGML-quantized table with this number of rows.
    Quantized(QMatMul, usize),
}

impl Embedding {
    /// Returns the number of tokens.
    pub fn vocabulary(&self) -> Result<usize> {
        match self {
            Self::Float(rows) => rows.dim(0),
            Self::Quantized(_, vocabulary) => Ok(*vocabulary),
        }
    }

    /// Maps u32 tokens (rows) to (rows, width) of type `dtype`.
    ///
    /// # Errors
    /// Returns an error if the device fails or a token is outside the table.
    pub fn forward(&self, tokens: &Tensor, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Float(rows) => rows.index_select(tokens, 0)?.to_dtype(dtype),
            Self::Quantized(matrix, _) => matrix.embedding(tokens)?.to_dtype(dtype),
        }
    }

    /// Returns an output projection of states of type `dtype` that shares this table.
    pub fn head(&self, dtype: DType) -> Linear {
        let matrix = match self {
            Self::Float(rows) => Matrix::Float(rows.clone()),
            Self::Quantized(matrix, _) => Matrix::Quantized(matrix.clone()),
        };
        Linear::new(matrix, None, dtype)
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

/// Norms of the heads of queries and keys.
#[derive(Clone, Debug)]
pub struct QueryKeyNorms {
    /// Norm of queries.
    pub query: Norm,
    /// Norm of keys.
    pub key: Norm,
}

impl QueryKeyNorms {
    /// Returns the arguments of the fused operation.
    pub fn head_norms(&self) -> HeadNorms<'_> {
        HeadNorms { query: &self.query.weight, key: &self.key.weight, eps: self.query.eps }
    }
}

/// Adds `x`, normalized by `post_norm` if there is one, to the residual. Returns the sum, and its norm by `next` if
/// there is one.
pub fn add_residual(
    x: &Tensor,
    post_norm: Option<&Norm>,
    residual: &Tensor,
    next: Option<&Norm>,
) -> Result<(Tensor, Tensor)> {
    if let Some(next) = next {
        let post_norm = post_norm.map(|norm| &norm.weight);
        return add_rms_norm(x, residual, post_norm, &next.weight, next.eps);
    }
    let sum = match post_norm {
        Some(norm) => (residual + norm.forward(x)?)?,
        None => (residual + x)?,
    };
    Ok((sum.clone(), sum))
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
