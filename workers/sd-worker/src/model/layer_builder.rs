//! Linear layers with float or GGML-quantized weights.
use candle_core::quantized::QMatMul;
use candle_core::{D, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::fused_image::FusedLinear;

use super::weights::{Component, OnRead, Reader};

/// Linear layer with float or GGML-quantized weights.
#[derive(Debug)]
pub(super) enum Linear {
    /// Floats.
    Floats(candle_nn::Linear),
    /// Quantized matrix (out, in), and float bias (out).
    Blocks(QMatMul, Option<Tensor>),
}

impl Linear {
    /// Creates a layer from a float matrix (out, in) and a bias (out).
    pub fn new(matrix: Tensor, bias: Option<Tensor>) -> Self {
        Self::Floats(candle_nn::Linear::new(matrix, bias))
    }

    fn with_bias(self, bias: Tensor) -> Self {
        match self {
            Self::Floats(linear) => Self::new(linear.weight().clone(), Some(bias)),
            Self::Blocks(matrix, _) => Self::Blocks(matrix, Some(bias)),
        }
    }
}

impl Linear {
    /// Maps (.., in) to GELU, in its tanh approximation, of (.., out).
    pub fn forward_gelu(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Floats(linear) => {
                FusedLinear { x, weight: linear.weight(), bias: linear.bias(), gelu: true, residual: None }
                    .forward()
            }
            Self::Blocks(..) => self.forward(x)?.gelu(),
        }
    }

    /// Maps tensors, whose last dims together are (in), to (.., out).
    pub fn forward_parts(&self, parts: [&Tensor; 2]) -> Result<Tensor> {
        let Self::Floats(linear) = self else { return self.forward(&Tensor::cat(&parts, D::Minus1)?) };
        let widths = [parts[0].dim(D::Minus1)?, parts[1].dim(D::Minus1)?];
        let weights =
            [linear.weight().narrow(1, 0, widths[0])?, linear.weight().narrow(1, widths[0], widths[1])?];
        let first = FusedLinear { x: parts[0], weight: &weights[0], bias: None, gelu: false, residual: None };
        let (first, bias) = (first.forward()?, linear.bias());
        let residual = Some(&first);
        FusedLinear { x: parts[1], weight: &weights[1], bias, gelu: false, residual }.forward()
    }
}

impl Module for Linear {
    /// Maps (.., in) to (.., out) in the dtype of the input.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Floats(linear) => linear.forward(x),
            Self::Blocks(matrix, bias) => {
                let product = matrix.forward(&x.contiguous()?)?;
                match bias {
                    Some(bias) => product.broadcast_add(bias),
                    None => Ok(product),
                }
            }
        }
    }
}

/// Source of weights whose linear layers stay quantized if the file has them so.
#[derive(Clone)]
pub(super) struct LayerBuilder<'a> {
    weights: VarBuilder<'a>,
    reader: Option<Reader>,
}

impl<'a> LayerBuilder<'a> {
    /// Creates a source of floats, and of the quantized matrices of `reader`.
    pub fn new(weights: VarBuilder<'a>, reader: Option<Reader>) -> Self {
        Self { weights, reader }
    }

    /// Returns a source of the weights of a component. Floats are converted to `dtype` when they are loaded.
    pub fn open(weights: &Component, dtype: DType, device: &Device, on_read: OnRead) -> Self {
        let reader = weights.reader(on_read.clone());
        Self::new(weights.open(dtype, device, on_read), Some(reader))
    }

    /// Returns the dtype of float weights and states.
    pub fn dtype(&self) -> DType {
        self.weights.dtype()
    }

    /// Returns the device of the weights.
    pub fn device(&self) -> &Device {
        self.weights.device()
    }

    /// Returns the source of the weights whose names begin with `name` and a dot, after the names so far.
    pub fn pp(&self, name: impl ToString) -> Self {
        Self { weights: self.weights.pp(name), reader: self.reader.clone() }
    }

    /// Loads a weight as floats.
    ///
    /// # Errors
    /// The weight is missing or has another shape, or the file cannot be read.
    pub fn get(&self, shape: impl Into<Shape>, name: &str) -> Result<Tensor> {
        self.weights.get(shape, name)
    }

    /// Loads a linear layer with bias.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub fn linear(&self, inputs: usize, outputs: usize) -> Result<Linear> {
        let matrix = self.joined(&[self], inputs, outputs)?;
        Ok(matrix.with_bias(self.get(outputs, "bias")?))
    }

    /// Loads the matrices (outputs, inputs) of several layers as one, without bias. Matrices in different formats become
    /// floats.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub fn joined(&self, layers: &[&Self], inputs: usize, outputs: usize) -> Result<Linear> {
        if let Some(reader) = &self.reader {
            let names: Vec<String> =
                layers.iter().map(|layer| format!("{}.weight", layer.weights.prefix())).collect();
            if let Some(matrix) = reader.quantized(&names, (outputs, inputs), self.device())? {
                return Ok(Linear::Blocks(QMatMul::from_qtensor(matrix)?, None));
            }
        }
        let get = |layer: &&Self| layer.get((outputs, inputs), "weight");
        let matrices = layers.iter().map(get).collect::<Result<Vec<_>>>()?;
        Ok(Linear::new(
            if let [matrix] = &matrices[..] { matrix.clone() } else { Tensor::cat(&matrices, 0)? },
            None,
        ))
    }
}
