//! Products of a few rows with the matrices of their experts, each in one launch.
use super::row::{activation_code, dense, in_packs, is_float, weight_rows};
use super::{invalid, ExpertGroups, GateActivation, ProductWeight};
use crate::op::BackpropOp;
use crate::rocm_backend::ops::expert_rows::{has_expert_kernels, ExpertRows};
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result, Storage, Tensor};

const OP: &str = "fused-experts";

/// Products of rows with the matrices of their experts, each with the operations around it in a mixture of experts, in one
/// launch on a ROCm device. Only the chosen matrices are read, once for each product.
///
/// A feed-forward layer consists of two of them, whose experts are those that a [`Router`](super::Router) chose:
///
/// ```no_run
/// # use candle_core::{rocm::{FusedExperts, GateActivation}, Result, Tensor};
/// # fn layer(x: &Tensor, norm: &Tensor, gate_up: &Tensor, down: &Tensor, experts: &Tensor, weights: &Tensor)
/// #     -> Result<Option<Tensor>> {
/// let gate_up = FusedExperts::new(x, gate_up, experts).rms_norm(norm, 1e-5);
/// let Some(hidden) = gate_up.gated(GateActivation::Silu)? else { return Ok(None) };
/// FusedExperts::new(&hidden, down, experts).sum(weights, Some(x))
/// # }
/// ```
///
/// Sums are f32, and only results are rounded. Gradients are not tracked.
#[derive(Clone)]
#[must_use = "nothing is computed before `gated` or `sum` is called"]
pub struct FusedExperts<'a> {
    x: &'a Tensor,
    stack: ProductWeight<'a>,
    experts: &'a Tensor,
    norm: Option<(&'a Tensor, f32)>,
    bias: Option<&'a Tensor>,
    groups: Option<&'a ExpertGroups<'a>>,
    dtype: DType,
}

impl<'a> FusedExperts<'a> {
    /// Describes products of `x` of f16, bf16 or f32 with a stack of matrices (stack, n, k). `experts`, u32 (rows, used), are
    /// the numbers of the matrices.
    pub fn new(x: &'a Tensor, stack: impl Into<ProductWeight<'a>>, experts: &'a Tensor) -> Self {
        Self { x, stack: stack.into(), experts, norm: None, bias: None, groups: None, dtype: x.dtype() }
    }

    /// Normalizes each row of `x` first: x / sqrt(mean(x²) + eps) · weight, with a `weight` (k).
    pub fn rms_norm(mut self, weight: &'a Tensor, eps: f32) -> Self {
        self.norm = Some((weight, eps));
        self
    }

    /// Adds biases (stack, n), if they are present.
    pub fn bias(mut self, bias: impl Into<Option<&'a Tensor>>) -> Self {
        self.bias = bias.into();
        self
    }

    /// Computes the products in groups, each of which reads the matrix of its expert once; faster if there are more
    /// products than experts. Quantization of rows, products, and the operations after them then take separate
    /// launches, and a norm is not supported. The stack must meet [`ExpertGroups::are_supported`].
    pub fn grouped(mut self, groups: impl Into<Option<&'a ExpertGroups<'a>>>) -> Self {
        self.groups = groups.into();
        self
    }

    /// Sets the dtype of the result, f16, bf16 or f32; by default it is that of `x`.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Multiplies each row of `x` (rows, k) with the matrices of its experts, and returns activation(gate) · up, (rows · used,
    /// n / 2), where the first n / 2 outputs are the gate. Returns `None` if there are no kernels for these operands.
    ///
    /// # Errors
    /// If shapes do not match, or the device fails. An expert out of range is reported by the next call that waits for the
    /// device.
    pub fn gated(&self, activation: GateActivation) -> Result<Option<Tensor>> {
        let (rows, used) = self.experts.dims2()?;
        let (_, n, k) = self.stack.shape().dims3()?;
        self.check(rows, n)?;
        if n % 2 == 1 {
            return Err(invalid(format!(
                "{OP}: gate and up need an even number of outputs, the stack has {n}"
            )));
        }
        if let Some((weight, _)) = self.norm.filter(|(weight, _)| weight.dims() != [k]) {
            return Err(invalid(format!("{OP}: the norm has shape {:?}, expected [{k}]", weight.shape())));
        }
        if let (Some(groups), ProductWeight::Quantized(stack)) = (self.groups, self.stack) {
            if self.norm.is_some() {
                return Ok(None);
            }
            let products = groups.products(self.x, stack)?;
            return groups.gate(&products, self.bias, activation, self.dtype).map(Some);
        }
        let guard = self.x.storage();
        let Storage::Rocm(xs) = &*guard else { return Ok(None) };
        let norm = in_packs(xs, self.norm.map(|(weight, _)| weight), self.x.dtype())?;
        if norm.is_some() != self.norm.is_some() {
            return Ok(None);
        }
        let Some((products, dst)) = self.rows(xs, rows * used * n / 2, k)? else { return Ok(None) };
        let norm = norm.zip(self.norm.map(|(_, eps)| eps));
        let state = xs.device.state();
        state.stream.bind_and_flush()?;
        // SAFETY: shapes and alignment were checked, and each address against its buffer.
        unsafe { products.products(state, norm, activation_code(Some(activation)))? };
        Ok(Some(self.result(dst, (rows * used, n / 2))))
    }

    /// Multiplies `x` (rows · used, k), a row for each expert of each row, with their matrices, and returns the sums of the
    /// products times `weights`, f32 (rows, used), and a `residual` (rows, n), if there is one. Products are added in the
    /// order of the experts. Returns `None` if there are no kernels for these operands.
    ///
    /// # Errors
    /// As for [`Self::gated`].
    pub fn sum(&self, weights: &Tensor, residual: Option<&Tensor>) -> Result<Option<Tensor>> {
        let (rows, used) = self.experts.dims2()?;
        let (_, n, k) = self.stack.shape().dims3()?;
        self.check(rows * used, n)?;
        let residual_dims = residual.map_or([rows, n].to_vec(), |residual| residual.dims().to_vec());
        if weights.dims() != [rows, used] || residual_dims != [rows, n] || self.norm.is_some() {
            return Err(invalid(format!(
                "{OP}: a sum of {rows} rows of {n} needs weights of shape [{rows}, {used}], no norm, and a residual of \
                 shape [{rows}, {n}], got {:?} and {residual_dims:?}",
                weights.shape()
            )));
        }
        if let (Some(groups), ProductWeight::Quantized(stack)) = (self.groups, self.stack) {
            let products = groups.products(self.x, stack)?;
            return groups.combine(&products, [self.bias, residual], weights, self.dtype).map(Some);
        }
        let guard = self.x.storage();
        let Storage::Rocm(xs) = &*guard else { return Ok(None) };
        let residual_dtype = residual.map_or(self.dtype, Tensor::dtype);
        let summand = dense(xs, residual.filter(|_| is_float(residual_dtype)), residual_dtype)?;
        let Some(factors) = dense(xs, Some(weights), DType::F32)? else { return Ok(None) };
        if summand.is_some() != residual.is_some() {
            return Ok(None);
        }
        let Some((products, dst)) = self.rows(xs, rows * n, used * k)? else { return Ok(None) };
        let state = xs.device.state();
        state.stream.bind_and_flush()?;
        // SAFETY: shapes and alignment were checked, and each address against its buffer.
        unsafe { products.sums(state, factors, summand.map(|at| (at, residual_dtype)))? };
        Ok(Some(self.result(dst, (rows, n))))
    }

    fn check(&self, x_rows: usize, n: usize) -> Result<()> {
        let (stack, _, k) = self.stack.shape().dims3()?;
        if self.x.dims() != [x_rows, k] {
            return Err(invalid(format!(
                "{OP}: x has shape {:?}; experts of shape {:?} and a stack of shape {:?} need [{x_rows}, {k}]",
                self.x.shape(),
                self.experts.shape(),
                self.stack.shape()
            )));
        }
        if let Some(bias) = self.bias.filter(|bias| bias.dims() != [stack, n]) {
            return Err(invalid(format!(
                "{OP}: the bias has shape {:?}, expected [{stack}, {n}]",
                bias.shape()
            )));
        }
        Ok(())
    }

    /// Returns the operands of a launch whose workgroups hold `held` activations, and its result of `elements` elements.
    fn rows(
        &self,
        xs: &RocmStorage,
        elements: usize,
        held: usize,
    ) -> Result<Option<(ExpertRows, RocmStorage)>> {
        let (dtype, (rows, used)) = (self.x.dtype(), self.experts.dims2()?);
        let (stack, n, k) = self.stack.shape().dims3()?;
        if elements * k == 0 || stack == 0 || !is_float(dtype) || !is_float(self.dtype) {
            return Ok(None);
        }
        let (Some(x), Some(matrices), Some(experts)) = (
            in_packs(xs, Some(self.x), dtype)?,
            weight_rows(xs, self.stack, dtype, k)?,
            dense(xs, Some(self.experts), DType::U32)?,
        ) else {
            return Ok(None);
        };
        let bias = dense(xs, self.bias, dtype)?;
        if bias.is_some() != self.bias.is_some() || !has_expert_kernels(matrices.weights, rows, used, held) {
            return Ok(None);
        }
        // SAFETY: every element is written by the kernel.
        let dst = unsafe { RocmStorage::alloc(&xs.device, self.dtype, elements, OP)? };
        let (out, out_dtype) = (dst.slice.ptr(), self.dtype);
        let (weights, matrices) = (matrices.weights, matrices.at);
        let rows = ExpertRows {
            weights,
            matrices,
            stack,
            n,
            k,
            x,
            dtype,
            experts,
            bias,
            out,
            out_dtype,
            rows,
            used,
        };
        Ok(Some((rows, dst)))
    }

    fn result(&self, dst: RocmStorage, dims: (usize, usize)) -> Tensor {
        crate::tensor::from_storage(Storage::Rocm(dst), dims, BackpropOp::none(), false)
    }
}
