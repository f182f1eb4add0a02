//! Products of activations with a layer's weights, fused with the operations around them in a decoder layer.
//!
//! | file | subject |
//! |---|---|
//! | this file | the description of a product, its checks, and the choice of the implementation |
//! | `row` | one to four rows, in one launch |
//! | `experts` | few rows, each with the matrices of its experts |
//! | `grouped` | many rows, grouped by expert |
//! | `router` | the choice of the experts of each row |
//! | `composed` | the same result by separate operations, on any device and for any number of rows |
mod composed;
mod experts;
mod grouped;
mod router;
mod row;

pub use experts::FusedExperts;
pub use grouped::ExpertGroups;
pub use router::{Router, RouterFunction};

use crate::quantized::{QMatMul, QTensor};
use crate::rocm_backend::ops::few_rows::uses_row_kernel;
use crate::rocm_backend::ops::row_product::RowWeights;
use crate::{DType, Device, Error, Result, Shape, Tensor, D};

const OP: &str = "fused-product";

/// Weights of a [`FusedProduct`]: a matrix (n, k) with a row for each output.
#[derive(Clone, Copy)]
pub enum ProductWeight<'a> {
    /// f16, bf16 or f32.
    Float(&'a Tensor),
    /// Blocks in one of GGML's formats.
    Quantized(&'a QTensor),
}

impl ProductWeight<'_> {
    /// Returns the number of outputs and of inputs.
    ///
    /// # Errors
    /// If the weight is not a matrix.
    pub fn dims2(&self) -> Result<(usize, usize)> {
        match self {
            Self::Float(tensor) => tensor.dims2(),
            Self::Quantized(tensor) => tensor.shape().dims2(),
        }
    }

    /// Returns true if a [`FusedProduct`] of `rows` dense rows of `dtype` takes one launch. Otherwise norm and
    /// residual are faster in a separate launch, such as that of `candle_nn::fused::add_rms_norm`.
    ///
    /// # Errors
    /// If the weight is not a matrix.
    pub fn takes_one_launch(&self, rows: usize, dtype: DType) -> Result<bool> {
        let Device::Rocm(device) = self.device() else { return Ok(false) };
        let (_, k) = self.dims2()?;
        let weights = match self {
            Self::Float(weight) => (weight.dtype() == dtype).then_some(RowWeights::Floats),
            Self::Quantized(weight) => match weight.rocm_storage() {
                Some(storage) => storage.blocks(weight.shape().elem_count(), OP)?,
                None => None,
            }
            .map(|(format, _)| RowWeights::Blocks(format)),
        };
        Ok(weights.is_some_and(|weights| uses_row_kernel(&device, weights, dtype, rows, k)))
    }

    fn shape(&self) -> &Shape {
        match self {
            Self::Float(tensor) => tensor.shape(),
            Self::Quantized(tensor) => tensor.shape(),
        }
    }

    fn device(&self) -> Device {
        match self {
            Self::Float(tensor) => tensor.device().clone(),
            Self::Quantized(tensor) => tensor.device(),
        }
    }
}

impl<'a> From<&'a Tensor> for ProductWeight<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Float(tensor)
    }
}

impl<'a> From<&'a QTensor> for ProductWeight<'a> {
    fn from(tensor: &'a QTensor) -> Self {
        Self::Quantized(tensor)
    }
}

impl<'a> From<&'a QMatMul> for ProductWeight<'a> {
    fn from(matrix: &'a QMatMul) -> Self {
        match matrix {
            QMatMul::QTensor(tensor) => Self::Quantized(tensor),
            QMatMul::Tensor(tensor) | QMatMul::TensorF16(tensor) => Self::Float(tensor),
        }
    }
}

/// Activation of the gate in a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateActivation {
    /// x / (1 + exp(-x)).
    Silu,
    /// The approximation of GELU by tanh, as `Tensor::gelu` computes it.
    GeluTanh,
    /// x / (1 + exp(-1.702 x)) of a gate x of at most 7; the other projection is limited to -7 to 7, and 1 is added.
    ClampedSwiglu,
}

/// Product of rows of activations with weights, optionally with a norm of the rows before it, and with a bias, a gated
/// activation and a residual after it:
///
/// `out = gate(rms_norm(x) Wᵀ + bias) + residual`
///
/// One row takes one launch on a ROCm device, if all dtypes but those of weights and result are the same. So do two to four
/// rows of floats, and of formats with 32 weights per block, where that is faster
/// ([`ProductWeight::takes_one_launch`]). Rows for blocks may have up to 32,768 elements together. More rows, and what the
/// kernels do not support, are computed by separate operations, which define the result. The fused form rounds only its
/// result, while separate operations also round each intermediate result, so that their last bits differ. Sums are f32 in
/// both forms. Gradients are not tracked.
///
/// A decoder layer consists of four products:
///
/// ```no_run
/// # use candle_core::{quantized::QMatMul, rocm::{FusedProduct, GateActivation}, Result, Tensor};
/// # fn layer(x: &Tensor, norms: [&Tensor; 2], qkv: &Tensor, o: &QMatMul, gate_up: &Tensor, down: &Tensor,
/// #          attention: fn(Tensor) -> Tensor) -> Result<Tensor> {
/// let qkv = FusedProduct::new(x, qkv).rms_norm(norms[0], 1e-5).forward()?;
/// let x = FusedProduct::new(&attention(qkv), o).residual(x).forward()?;
/// let h = FusedProduct::new(&x, gate_up).rms_norm(norms[1], 1e-5).gated(GateActivation::Silu).forward()?;
/// FusedProduct::new(&h, down).residual(&x).forward()
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is computed before `forward` is called"]
pub struct FusedProduct<'a> {
    x: &'a Tensor,
    weight: ProductWeight<'a>,
    norm: Option<(&'a Tensor, f32)>,
    bias: Option<&'a Tensor>,
    gate: Option<GateActivation>,
    residual: Option<&'a Tensor>,
    is_constant: bool,
    dtype: DType,
}

impl<'a> FusedProduct<'a> {
    /// Describes the product of `x` (..., k) of f16, bf16 or f32 with a matrix (n, k). A `&Tensor`, a `&QTensor` and a
    /// `&QMatMul` convert to a weight.
    pub fn new(x: &'a Tensor, weight: impl Into<ProductWeight<'a>>) -> Self {
        let (weight, dtype) = (weight.into(), x.dtype());
        Self { x, weight, norm: None, bias: None, gate: None, residual: None, is_constant: false, dtype }
    }

    /// Normalizes each row of `x` first: x / sqrt(mean(x²) + eps) · weight, with a `weight` (k).
    pub fn rms_norm(mut self, weight: &'a Tensor, eps: f32) -> Self {
        self.norm = Some((weight, eps));
        self
    }

    /// Adds a bias (n), if it is present.
    pub fn bias(mut self, bias: impl Into<Option<&'a Tensor>>) -> Self {
        self.bias = bias.into();
        self
    }

    /// Computes activation(gate) · up, where the first n / 2 outputs are the gate and the others are up. The result has
    /// n / 2 columns.
    pub fn gated(mut self, activation: impl Into<Option<GateActivation>>) -> Self {
        self.gate = activation.into();
        self
    }

    /// Adds a tensor with the shape of the result, if it is present, after the gate.
    pub fn residual(mut self, residual: impl Into<Option<&'a Tensor>>) -> Self {
        self.residual = residual.into();
        self
    }

    /// Declares that no captured graph that contains this product writes the weight. In a graph, a product of one to four rows may then
    /// begin to read the weight before the operations before it have finished, on GPUs that can do so. By default it waits
    /// for them.
    ///
    /// The weight may be written before the graph is replayed, and between replays, by operations on the device's stream.
    pub fn constant_weight(mut self) -> Self {
        self.is_constant = true;
        self
    }

    /// Sets the dtype of the result, f16, bf16 or f32; by default it is that of `x`.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Computes the product.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match, or the device fails.
    pub fn forward(&self) -> Result<Tensor> {
        self.check()?;
        match self.row()? {
            Some(result) => Ok(result),
            None => self.composed(),
        }
    }

    /// Returns the number of columns of the result.
    fn columns(&self) -> Result<usize> {
        let (n, _) = self.weight.dims2()?;
        Ok(if self.gate.is_some() { n / 2 } else { n })
    }

    fn check(&self) -> Result<()> {
        let (n, k) = self.weight.dims2()?;
        if self.x.rank() == 0 || self.x.dim(D::Minus1)? != k {
            return Err(invalid(format!(
                "{OP}: x has shape {:?}; a weight of shape ({n}, {k}) needs rows of {k}",
                self.x.shape()
            )));
        }
        if self.gate.is_some() && n % 2 == 1 {
            return Err(invalid(format!(
                "{OP}: a gated product needs an even number of outputs, the weight has {n}"
            )));
        }
        let columns = self.columns()?;
        let mut result = self.x.dims().to_vec();
        result.pop();
        result.push(columns);
        let parts = [
            ("the norm's weight", self.norm.map(|(weight, _)| weight), &[k][..]),
            ("the bias", self.bias, &[n]),
            ("the residual", self.residual, &result),
        ];
        let device = self.x.device();
        if !device.same_device(&self.weight.device()) {
            return Err(invalid(format!(
                "{OP}: x is on {:?}, the weight on {:?}",
                device.location(),
                self.weight.device().location()
            )));
        }
        for (name, part, dims) in parts {
            let Some(part) = part else { continue };
            if part.dims() != dims {
                return Err(invalid(format!("{OP}: {name} has shape {:?}, expected {dims:?}", part.shape())));
            }
            if !device.same_device(part.device()) {
                return Err(invalid(format!(
                    "{OP}: x is on {:?}, {name} on {:?}",
                    device.location(),
                    part.device().location()
                )));
            }
        }
        for (name, dtype) in [("x", self.x.dtype()), ("the result", self.dtype)] {
            if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
                return Err(invalid(format!("{OP}: {name} is {dtype:?}, expected f16, bf16 or f32")));
            }
        }
        Ok(())
    }
}

fn invalid(message: String) -> Error {
    Error::Msg(message).bt()
}
