//! Linear layers, norms, embeddings and feed-forward layers, with float or GGML-quantized weights. Their
//! functions return an error if the device fails.
use candle_core::quantized::QMatMul;
#[cfg(feature = "rocm")]
use candle_core::rocm::{FusedProduct, GateActivation, ProductWeight};
use candle_core::{D, DType, Device, Error, Module, Result, Tensor, bail};
use candle_nn::fused::{HeadNorms, add_rms_norm};
use candle_nn::ops::{layer_norm, rms_norm, swiglu};

use super::config::Activation;

/// Matrix of a linear layer (out, in), in its stored format.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// Floats.
    Float(Tensor),
    /// GGML-quantized blocks.
    Quantized(QMatMul),
}

#[cfg(feature = "rocm")]
impl Matrix {
    /// Returns the operand of fused products.
    pub(super) fn weight(&self) -> ProductWeight<'_> {
        match self {
            Self::Float(weight) => weight.into(),
            Self::Quantized(matrix) => matrix.into(),
        }
    }
}

/// Operations that are computed together with the product of a linear layer.
#[derive(Clone, Copy, Default)]
pub struct FusedWith<'a> {
    /// Norm of the input.
    pub norm: Option<&'a Norm>,
    /// Activation of the gate, which is the first half of the output; the second half is multiplied by it.
    pub gate: Option<Activation>,
    /// Summand of the output.
    pub residual: Option<&'a Tensor>,
}

/// Linear layer with an optional bias.
#[derive(Clone, Debug)]
pub struct Linear {
    matrix: Matrix,
    /// Bias (out), in the data type of the states.
    bias: Option<Tensor>,
    /// Input feature of each column, u32 (in); `None` if the columns are in the order of the features.
    input_order: Option<Tensor>,
    /// Norm of the input that belongs to the layer, if there is one.
    input_norm: Option<Norm>,
    /// Data type of the output.
    dtype: DType,
}

impl Linear {
    /// Creates a layer whose outputs have type `dtype`.
    pub fn new(matrix: Matrix, bias: Option<Tensor>, dtype: DType) -> Self {
        Self { matrix, bias, input_order: None, input_norm: None, dtype }
    }

    /// Creates a layer of a float matrix whose outputs have type `dtype`.
    pub fn float(matrix: Tensor, bias: Option<Tensor>, dtype: DType) -> Self {
        Self::new(Matrix::Float(matrix), bias, dtype)
    }

    /// Returns the matrix.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Adds a bias (out).
    pub fn with_bias(self, bias: Tensor) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Sets the order of the columns: the input feature of each, u32 (in). `None` is the order of the features.
    pub fn with_input_order(self, input_order: Option<Tensor>) -> Self {
        Self { input_order, ..self }
    }

    /// Sets a norm that the layer applies to its input unless another norm is fused.
    pub fn with_input_norm(self, norm: Norm) -> Self {
        Self { input_norm: Some(norm), ..self }
    }

    /// Changes the data type of the output.
    pub fn with_output(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// Keeps a decoded copy of a quantized matrix on a GPU whose products of many rows read it, if it takes at most `max_bytes`.
    /// Returns its size in bytes, or 0 without a copy.
    pub fn keep_decoded(&self, max_bytes: usize) -> Result<usize> {
        #[cfg(feature = "rocm")]
        if let Matrix::Quantized(QMatMul::QTensor(tensor)) = &self.matrix
            && let Some(blocks) = tensor.rocm_storage()
        {
            return blocks.keep_decoded(tensor.shape(), self.dtype, max_bytes);
        }
        let _ = max_bytes;
        Ok(0)
    }

    /// Maps (rows, in) of any float type to (rows, out).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_fused(x, FusedWith::default())
    }

    /// Like [`Self::forward`], fused with other operations. On a ROCm device, few rows take one launch.
    pub fn forward_fused(&self, x: &Tensor, with: FusedWith) -> Result<Tensor> {
        let with = FusedWith { norm: with.norm.or(self.input_norm.as_ref()), ..with };
        if let Some(order) = &self.input_order {
            let x =
                with.norm.map_or(Ok(x.clone()), |norm| norm.forward(x))?.index_select(order, D::Minus1)?;
            let ordered = Self { input_order: None, input_norm: None, ..self.clone() };
            return ordered.forward_fused(&x, FusedWith { norm: None, ..with });
        }
        #[cfg(feature = "rocm")]
        if x.device().is_rocm() {
            // Products are only fused with RMS norms and common activations.
            if let Some(activation) = with.gate.filter(|activation| fused_activation(*activation).is_none()) {
                return gated(&self.forward_fused(x, FusedWith { gate: None, ..with })?, activation);
            }
            if let Some(norm) = with.norm.filter(|norm| !norm.is_rms()) {
                return self.forward_fused(&norm.forward(x)?, FusedWith { norm: None, ..with });
            }
            // Separate operations would round the product to the dtype of x.
            let is_separate = matches!(self.matrix, Matrix::Quantized(_)) && !self.is_fused(x)?;
            let x = if is_separate { &x.to_dtype(self.dtype)? } else { x };
            return self.product(x, with)?.forward();
        }
        self.forward_separately(x, with)
    }

    /// Returns true if a product of these states takes one launch together with a norm and a residual. Otherwise norm and
    /// residual are faster in a launch of their own.
    pub fn is_fused(&self, states: &Tensor) -> Result<bool> {
        if self.input_order.is_some() {
            return Ok(false);
        }
        #[cfg(feature = "rocm")]
        return self.weight().takes_one_launch(states.dim(0)?, states.dtype());
        #[cfg(not(feature = "rocm"))]
        Ok(false)
    }

    #[cfg(feature = "rocm")]
    fn weight(&self) -> ProductWeight<'_> {
        self.matrix.weight()
    }

    #[cfg(feature = "rocm")]
    fn product<'a>(&'a self, x: &'a Tensor, with: FusedWith<'a>) -> Result<FusedProduct<'a>> {
        let gate = with.gate.and_then(fused_activation);
        let product = FusedProduct::new(x, self.weight()).bias(self.bias.as_ref()).gated(gate);
        // No step writes the weights of a model.
        let product = product.residual(with.residual).dtype(self.dtype).constant_weight();
        Ok(match with.norm {
            Some(norm) => product.rms_norm(&norm.weight, norm.eps),
            None => product,
        })
    }

    fn forward_separately(&self, x: &Tensor, with: FusedWith) -> Result<Tensor> {
        let x = with.norm.map_or(Ok(x.clone()), |norm| norm.forward(x))?;
        let mut y = match &self.matrix {
            Matrix::Float(weight) => {
                let bias = self.bias.as_ref().map(|bias| bias.to_dtype(weight.dtype())).transpose()?;
                candle_nn::Linear::new(weight.clone(), bias).forward(&x.to_dtype(weight.dtype())?)?
            }
            Matrix::Quantized(matrix) => {
                let product = matrix.forward(&x.to_dtype(self.dtype)?)?;
                match &self.bias {
                    Some(bias) => product.broadcast_add(&bias.to_dtype(product.dtype())?)?,
                    None => product,
                }
            }
        };
        if let Some(activation) = with.gate {
            y = gated(&y, activation)?;
        }
        y = y.to_dtype(self.dtype)?;
        with.residual.map_or(Ok(y.clone()), |residual| residual + y)
    }
}

/// Returns the activation in fused products, if they have it.
#[cfg(feature = "rocm")]
pub(super) fn fused_activation(activation: Activation) -> Option<GateActivation> {
    match activation {
        Activation::Silu => Some(GateActivation::Silu),
        Activation::GeluTanh => Some(GateActivation::GeluTanh),
        Activation::ClampedSwiglu => Some(GateActivation::ClampedSwiglu),
        Activation::Gelu | Activation::SquaredRelu => None,
    }
}

/// Returns activation(gate) · up of rows that consist of a gate and up.
pub(super) fn gated(both: &Tensor, activation: Activation) -> Result<Tensor> {
    if activation == Activation::Silu {
        return swiglu(both);
    }
    let width = both.dim(D::Minus1)? / 2;
    activation.gate(&both.narrow(D::Minus1, 0, width)?, &both.narrow(D::Minus1, width, width)?)
}

/// Residual stream between two blocks of a decoder, and its norm if it was computed together with the sum.
#[derive(Clone, Debug)]
pub struct ResidualStream {
    /// Sum of all outputs so far, (rows, width).
    pub sum: Tensor,
    normed: Option<Tensor>,
}

impl ResidualStream {
    /// Creates a stream before a block with the norm `next`. Layer norms are computed at once, since products are not fused
    /// with them.
    pub fn new(sum: Tensor, next: Option<&Norm>) -> Result<Self> {
        let next = next.filter(|norm| !norm.is_rms());
        let normed = next.map(|norm| norm.forward(&sum)).transpose()?;
        Ok(Self { sum, normed })
    }

    /// Adds the output of a block, `linear` of `x` and then `post_norm` if there is one. `next` is the norm of the next
    /// block. `change` adds to the output before the norms.
    pub fn add(
        &self,
        linear: &Linear,
        x: &Tensor,
        [post_norm, next]: [Option<&Norm>; 2],
        change: impl FnOnce(Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        if post_norm.is_none() && linear.is_fused(&self.sum)? {
            let with = FusedWith { residual: Some(&self.sum), ..FusedWith::default() };
            return Self::new(change(linear.forward_fused(x, with)?)?, next);
        }
        self.add_output(&change(linear.forward(x)?)?, post_norm, next)
    }

    /// Like [`Self::add`], for the output of a block whose last product was computed separately.
    pub fn add_output(&self, out: &Tensor, post_norm: Option<&Norm>, next: Option<&Norm>) -> Result<Self> {
        if let Some(next) = next.filter(|norm| norm.is_rms())
            && post_norm.is_none_or(Norm::is_rms)
        {
            let post_norm = post_norm.map(|norm| &norm.weight);
            let (sum, normed) = add_rms_norm(out, &self.sum, post_norm, &next.weight, next.eps)?;
            return Ok(Self { sum, normed: Some(normed) });
        }
        let out = post_norm.map_or(Ok(out.clone()), |norm| norm.forward(out))?;
        Self::new((&self.sum + out)?, next)
    }

    /// Selects rows.
    pub fn select(&self, rows: &Tensor) -> Result<Self> {
        let normed = self.normed.as_ref().map(|normed| normed.index_select(rows, 0)).transpose()?;
        Ok(Self { sum: self.sum.index_select(rows, 0)?, normed })
    }

    /// Returns the input of the next block's products, and the norm that they apply to it.
    pub fn input<'a>(&'a self, norm: Option<&'a Norm>) -> (&'a Tensor, FusedWith<'a>) {
        match &self.normed {
            Some(normed) => (normed, FusedWith::default()),
            None => (&self.sum, FusedWith { norm, ..FusedWith::default() }),
        }
    }

    /// Returns the normalized states.
    pub fn into_normed(self, norm: &Norm) -> Result<Tensor> {
        self.normed.map_or_else(|| norm.forward(&self.sum), Ok)
    }
}

/// Query, key and value projections.
#[derive(Clone, Debug)]
pub struct QueryKeyValue {
    /// Products whose concatenated outputs are queries, keys and values; several if their formats differ.
    pub products: Vec<Linear>,
    /// Widths of queries, keys and values. A layer that attends to the keys and values of another has only queries.
    pub widths: [usize; 3],
    /// If true, the values are the keys before their norm, and the products do not compute them.
    pub keys_as_values: bool,
    /// Width of the gates of attention's output, which follow the values; `None` without gates.
    pub gates: Option<usize>,
    /// Concatenated biases, which are added when the outputs are written to the cache.
    pub bias: Option<Tensor>,
}

impl QueryKeyValue {
    /// Maps (rows, in) to the outputs of the products, (rows, out) each.
    pub fn outputs(&self, (x, with): (&Tensor, FusedWith)) -> Result<Vec<Tensor>> {
        self.products.iter().map(|product| product.forward_fused(x, with)).collect()
    }

    /// Returns queries, keys and values without biases, (rows, width) each, and gates, from the outputs of the products. Their
    /// rows may be strided.
    pub fn split(&self, outputs: Vec<Tensor>) -> Result<([Tensor; 3], Option<Tensor>)> {
        let [q, k, v] = self.widths;
        if k == 0 {
            let [queries] = split_columns(outputs, [q])?;
            // Keys and values of this width are not written.
            let unwritten = queries.narrow(D::Minus1, 0, v)?;
            return Ok(([queries, unwritten.clone(), unwritten], None));
        }
        if self.keys_as_values {
            let [q, k] = split_columns(outputs, [q, k])?;
            return Ok(([q, k.clone(), k], None));
        }
        Ok(match self.gates {
            Some(gates) => {
                let [q, k, v, gates] = split_columns(outputs, [q, k, v, gates])?;
                ([q, k, v], Some(gates))
            }
            None => (split_columns(outputs, [q, k, v])?, None),
        })
    }
}

/// Returns parts of the concatenated columns of tensors, each of which is a part of one tensor. Their rows may be strided.
pub(super) fn split_columns<const N: usize>(outputs: Vec<Tensor>, widths: [usize; N]) -> Result<[Tensor; N]> {
    let mut outputs = outputs.into_iter();
    let (mut current, mut start) = (None, 0);
    let next = |width: usize| {
        let Some(whole) = current.take().or_else(|| outputs.next()) else {
            bail!("internal error: the projections are narrower than the heads")
        };
        let part = whole.narrow(D::Minus1, start, width)?;
        start += width;
        match start < whole.dim(D::Minus1)? {
            true => current = Some(whole),
            false => start = 0,
        }
        Ok(part)
    };
    let parts = widths.into_iter().map(next).collect::<Result<Vec<_>>>()?;
    parts.try_into().map_err(|_| Error::Msg("internal error: wrong number of projections".to_owned()))
}

/// Returns `all` (rows, width) with the rows of these indices, u32, replaced by those of `changed`.
pub(super) fn replace_rows(all: &Tensor, indices: &Tensor, changed: &Tensor) -> Result<Tensor> {
    let indices = indices.unsqueeze(1)?.broadcast_as(changed.shape())?.contiguous()?;
    all.scatter(&indices, changed, 0)
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

    /// Returns an output projection with outputs of type `dtype` that shares this table.
    pub fn head(&self, dtype: DType) -> Linear {
        let matrix = match self {
            Self::Float(rows) => Matrix::Float(rows.clone()),
            Self::Quantized(matrix, _) => Matrix::Quantized(matrix.clone()),
        };
        Linear::new(matrix, None, dtype)
    }
}

/// RMS norm: x / sqrt(mean(x²) + eps) · weight, or layer norm: (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias.
#[derive(Clone, Debug)]
pub struct Norm {
    pub(super) weight: Tensor,
    /// Bias of a layer norm; `None` for RMS norms.
    bias: Option<Tensor>,
    pub(super) eps: f32,
}

impl Norm {
    /// Creates an RMS norm of states of type `dtype` from f32 weights (width), plus 1 if `plus_one`.
    pub fn rms(weight: Tensor, plus_one: bool, eps: f64, dtype: DType) -> Result<Self> {
        let weight = if plus_one { (weight + 1.0)? } else { weight };
        Ok(Self { weight: weight.to_dtype(dtype)?, bias: None, eps: eps as f32 })
    }

    /// Creates a layer norm of states of type `dtype` from f32 weights (width) and biases.
    pub fn layer(weight: Tensor, bias: Option<Tensor>, eps: f64, dtype: DType) -> Result<Self> {
        let bias = bias.map_or_else(|| weight.zeros_like(), Ok)?.to_dtype(dtype)?;
        Ok(Self { weight: weight.to_dtype(dtype)?, bias: Some(bias), eps: eps as f32 })
    }

    /// Creates an RMS norm without weights.
    pub fn unweighted(width: usize, eps: f64, dtype: DType, device: &Device) -> Result<Self> {
        Self::rms(Tensor::ones(width, DType::F32, device)?, false, eps, dtype)
    }

    /// Multiplies the weights by a factor.
    pub fn scaled(self, factor: f64) -> Result<Self> {
        let weight = (self.weight.to_dtype(DType::F32)? * factor)?.to_dtype(self.weight.dtype())?;
        Ok(Self { weight, ..self })
    }

    /// Returns the width of the rows that it normalizes.
    pub fn width(&self) -> usize {
        self.weight.elem_count()
    }

    /// Returns true if it is an RMS norm.
    pub fn is_rms(&self) -> bool {
        self.bias.is_none()
    }

    /// Normalizes the last dimension of `x`, which must be contiguous.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => layer_norm(x, &self.weight, bias, self.eps),
            None => rms_norm(x, &self.weight, self.eps),
        }
    }
}

/// RMS norms of queries and keys.
#[derive(Clone, Debug)]
pub struct QueryKeyNorms {
    /// Norm of queries.
    pub query: Norm,
    /// Norm of keys.
    pub key: Norm,
}

impl QueryKeyNorms {
    /// Returns the arguments of the fused operation, which normalizes each head.
    pub fn head_norms(&self) -> HeadNorms<'_> {
        HeadNorms { query: &self.query.weight, key: &self.key.weight, eps: self.query.eps }
    }
}

/// Projections before the activation of a feed-forward layer.
#[derive(Clone, Debug)]
pub enum GateUp {
    /// One fused projection.
    Fused(Linear),
    /// Two projections, whose weights are stored in different formats.
    Separate(Linear, Linear),
    /// Up projection, without a gate.
    UpOnly(Linear),
}

/// Feed-forward layer: down(activation(gate x) · up x), or down(activation(up x)).
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Projections before the activation.
    pub gate_up: GateUp,
    /// Down projection to the hidden size.
    pub down: Linear,
    /// Activation.
    pub activation: Activation,
}

impl Mlp {
    /// Maps (rows, width) to the input of the down projection, (rows, intermediate).
    pub fn inner(&self, (x, with): (&Tensor, FusedWith)) -> Result<Tensor> {
        match &self.gate_up {
            GateUp::Fused(both) => both.forward_fused(x, FusedWith { gate: Some(self.activation), ..with }),
            GateUp::Separate(gate, up) => {
                let gate = gate.forward_fused(x, with)?;
                let up = up.forward_fused(x, with)?;
                self.activation.gate(&gate, &up)
            }
            GateUp::UpOnly(up) => self.activation.forward(&up.forward_fused(x, with)?),
        }
    }
}

/// Applies a soft cap: c · tanh(x / c).
pub fn softcap(x: &Tensor, cap: f64) -> Result<Tensor> {
    (x / cap)?.tanh()? * cap
}
