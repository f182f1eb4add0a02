//! Linear layers and embeddings with float or GGML-quantized weights.
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
#[cfg(feature = "rocm")]
use std::sync::atomic::Ordering::Relaxed;

use candle_core::quantized::QMatMul;
use candle_core::{D, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::fused_image::FusedLinear;
use candle_nn::{Init, VarBuilder, init};

use super::low_rank::{LayerPart, Slot};
use super::weights::{Component, OnRead, Reader};

/// Linear layer with float or GGML-quantized weights.
#[derive(Debug)]
pub(super) struct Linear {
    matrix: Matrix,
    /// Change of the weights by LoRA files, which is added to the output.
    change: Slot,
}

#[derive(Debug)]
enum Matrix {
    /// Floats.
    Floats(candle_nn::Linear),
    /// Quantized matrix (out, in), and float bias (out).
    Blocks(QMatMul, Option<Tensor>),
    /// Quantized matrices in different formats, whose outputs are concatenated, and float bias.
    Joined(Vec<QMatMul>, Option<Tensor>),
}

impl Matrix {
    fn with_bias(self, bias: Tensor) -> Self {
        match self {
            Self::Floats(linear) => Self::Floats(candle_nn::Linear::new(linear.weight().clone(), Some(bias))),
            Self::Blocks(matrix, _) => Self::Blocks(matrix, Some(bias)),
            Self::Joined(matrices, _) => Self::Joined(matrices, Some(bias)),
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (product, bias) = match self {
            Self::Floats(linear) => return linear.forward(x),
            Self::Blocks(matrix, bias) => (matrix.forward(&x.contiguous()?)?, bias),
            Self::Joined(matrices, bias) => {
                let x = x.contiguous()?;
                let parts = matrices.iter().map(|matrix| matrix.forward(&x)).collect::<Result<Vec<_>>>()?;
                (Tensor::cat(&parts, D::Minus1)?, bias)
            }
        };
        match bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }
}

impl From<Matrix> for Linear {
    fn from(matrix: Matrix) -> Self {
        Self { matrix, change: Slot::default() }
    }
}

impl Linear {
    /// Creates a layer from a float matrix (out, in) and a bias (out), which LoRA files do not change.
    pub fn new(matrix: Tensor, bias: Option<Tensor>) -> Self {
        Matrix::Floats(candle_nn::Linear::new(matrix, bias)).into()
    }

    fn with_bias(self, bias: Tensor) -> Self {
        Self { matrix: self.matrix.with_bias(bias), change: self.change }
    }

    /// Returns weight and bias if they are floats, and nothing is added to their output.
    pub fn floats(&self) -> Option<&candle_nn::Linear> {
        match &self.matrix {
            Matrix::Floats(linear) if self.change.get().is_none() => Some(linear),
            _ => None,
        }
    }

    /// Maps (.., in) to GELU, in its tanh approximation, of (.., out).
    pub fn forward_gelu(&self, x: &Tensor) -> Result<Tensor> {
        self.fused(x, true, None)
    }

    /// Maps (.., in) to (.., out), and adds `residual` (.., out).
    pub fn forward_plus(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.fused(x, false, Some(residual))
    }

    /// Maps a transposed tensor (.., in) to (.., out). Float weights read it without a copy.
    pub fn forward_transposed(&self, x: &Tensor) -> Result<Tensor> {
        self.fused(x, false, None)
    }

    fn fused(&self, x: &Tensor, gelu: bool, residual: Option<&Tensor>) -> Result<Tensor> {
        if let Some(linear) = self.floats() {
            return FusedLinear { x, weight: linear.weight(), bias: linear.bias(), gelu, residual }.forward();
        }
        let product = self.forward(x)?;
        let product = if gelu { product.gelu()? } else { product };
        match residual {
            Some(residual) => product + residual,
            None => Ok(product),
        }
    }

    /// Maps tensors, whose last dims together are (in), to (.., out).
    pub fn forward_parts(&self, parts: [&Tensor; 2]) -> Result<Tensor> {
        let Some(linear) = self.floats() else { return self.forward(&Tensor::cat(&parts, D::Minus1)?) };
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
        let product = self.matrix.forward(x)?;
        match self.change.get() {
            Some(change) => change.add_to(&product, x),
            None => Ok(product),
        }
    }
}

/// Table of embeddings with float or GGML-quantized weights.
#[derive(Debug)]
pub(super) enum Embedding {
    /// Floats (rows, width).
    Floats(Tensor),
    /// Quantized table, and the dtype of its embeddings.
    Blocks(QMatMul, DType),
}

impl Embedding {
    /// Maps tokens, u32 (count), to (count, width).
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        match self {
            Self::Floats(table) => table.index_select(tokens, 0),
            Self::Blocks(table, dtype) => table.embedding(tokens)?.to_dtype(*dtype),
        }
    }
}

/// Source of weights. Linear layers stay quantized if the file stores them quantized.
#[derive(Clone)]
pub(super) struct LayerBuilder<'a> {
    weights: VarBuilder<'a>,
    reader: Option<Reader>,
    /// If true, matrices of several layers are not concatenated, because only their names and shapes are recorded.
    is_recording: bool,
    /// Memory that is left for decoded copies of quantized matrices, in bytes.
    decoded_left: Arc<AtomicUsize>,
}

impl<'a> LayerBuilder<'a> {
    /// Creates a source of floats, and of the quantized matrices of `reader`.
    pub fn new(weights: VarBuilder<'a>, reader: Option<Reader>) -> Self {
        Self { weights, reader, is_recording: false, decoded_left: Arc::default() }
    }

    /// Creates a source for [`super::required::required`]. Layers cannot be used.
    pub fn recording(weights: VarBuilder<'a>) -> Self {
        Self { is_recording: true, ..Self::new(weights, None) }
    }

    /// Keeps decoded copies of quantized matrices, in the order in which they are loaded, as long as bytes are `left`. Products of
    /// many rows read them instead of decoding blocks.
    pub fn with_decoded(self, left: Arc<AtomicUsize>) -> Self {
        Self { decoded_left: left, ..self }
    }

    /// Returns a source of layers whose inputs have few rows, whose products read the blocks.
    pub fn of_few_rows(self) -> Self {
        self.with_decoded(Arc::default())
    }

    /// Returns a source of the weights of a component. Floats are converted to `dtype` when they are loaded.
    pub fn open(weights: &Component, dtype: DType, device: &Device, on_read: OnRead) -> Self {
        let reader = weights.reader(on_read.clone());
        Self::new(weights.open(dtype, device, on_read), Some(reader))
    }

    /// Returns the source of all weights as floats.
    pub fn floats(&self) -> &VarBuilder<'a> {
        &self.weights
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
        Self { weights: self.weights.pp(name), ..self.clone() }
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
        let bound = 1.0 / (inputs as f64).sqrt();
        let bias = Init::Uniform { lo: -bound, up: bound };
        Ok(self.matrix(inputs, outputs)?.with_bias(self.weights.get_with_hints(outputs, "bias", bias)?))
    }

    /// Loads a linear layer without bias.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub fn matrix(&self, inputs: usize, outputs: usize) -> Result<Linear> {
        self.joined(&[self], inputs, outputs)
    }

    /// Loads a table of embeddings.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub fn embedding(&self, rows: usize, width: usize) -> Result<Embedding> {
        match self.quantized(&[self], (rows, width))? {
            Some(table) => Ok(Embedding::Blocks(table, self.dtype())),
            None => Ok(Embedding::Floats(self.get((rows, width), "weight")?)),
        }
    }

    /// Loads the matrices (outputs, inputs) of several layers as one, without bias. Matrices become floats if not all are
    /// quantized.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub fn joined(&self, layers: &[&Self], inputs: usize, outputs: usize) -> Result<Linear> {
        let linear = Linear::from(self.joined_matrix(layers, inputs, outputs)?);
        if let Some(reader) = &self.reader {
            for (i, layer) in layers.iter().enumerate() {
                let part = LayerPart {
                    slot: linear.change.clone(),
                    first_row: i * outputs,
                    shape: (outputs, inputs),
                    layer_rows: layers.len() * outputs,
                    dtype: self.dtype(),
                    device: self.device().clone(),
                };
                reader.add_layer(layer.weight_name(), part);
            }
        }
        Ok(linear)
    }

    fn joined_matrix(&self, layers: &[&Self], inputs: usize, outputs: usize) -> Result<Matrix> {
        if let Some(matrix) = self.quantized(layers, (outputs, inputs))? {
            self.keep_decoded(&matrix)?;
            return Ok(Matrix::Blocks(matrix, None));
        }
        let is_quantized = |layer: &&Self| {
            self.reader.as_ref().is_some_and(|reader| reader.has_blocks(&layer.weight_name()))
        };
        if layers.iter().all(is_quantized) {
            let quantized = |layer: &&Self| self.quantized(&[layer], (outputs, inputs)).transpose();
            let matrices = layers.iter().filter_map(quantized).collect::<Result<Vec<_>>>()?;
            matrices.iter().try_for_each(|matrix| self.keep_decoded(matrix))?;
            return Ok(Matrix::Joined(matrices, None));
        }
        let get = |layer: &&Self| {
            layer.weights.get_with_hints((outputs, inputs), "weight", init::DEFAULT_KAIMING_NORMAL)
        };
        let matrices = layers.iter().map(get).collect::<Result<Vec<_>>>()?;
        let matrix = match &matrices[..] {
            [matrix] => matrix.clone(),
            [matrix, ..] if self.is_recording => matrix.clone(),
            _ => Tensor::cat(&matrices, 0)?,
        };
        Ok(Matrix::Floats(candle_nn::Linear::new(matrix, None)))
    }

    /// Keeps a decoded copy of a matrix if the GPU reads it and there is memory for it.
    fn keep_decoded(&self, matrix: &QMatMul) -> Result<()> {
        #[cfg(feature = "rocm")]
        if let QMatMul::QTensor(tensor) = matrix
            && let Some(blocks) = tensor.rocm_storage()
        {
            let left = self.decoded_left.load(Relaxed);
            match blocks.keep_decoded(tensor.shape(), self.dtype(), left) {
                Ok(kept) => {
                    self.decoded_left.fetch_sub(kept, Relaxed);
                }
                // Other programs may have taken the memory. The model does not need copies.
                Err(error) if model_thread::is_out_of_memory(&error) => self.decoded_left.store(0, Relaxed),
                Err(error) => return Err(error),
            }
        }
        let _ = (matrix, &self.decoded_left);
        Ok(())
    }

    fn weight_name(&self) -> String {
        format!("{}.weight", self.weights.prefix())
    }

    /// Loads the rows of several matrices of this shape as one, if they are quantized in one format.
    fn quantized(&self, layers: &[&Self], shape: (usize, usize)) -> Result<Option<QMatMul>> {
        let Some(reader) = &self.reader else { return Ok(None) };
        let names: Vec<String> = layers.iter().map(|layer| layer.weight_name()).collect();
        let matrix = reader.quantized(&names, shape, self.device())?;
        matrix.map(QMatMul::from_qtensor).transpose()
    }
}
