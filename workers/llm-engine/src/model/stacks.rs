//! Stacks of experts' matrices on a ROCm device.
use candle_core::quantized::QMatMul;
use candle_core::rocm::{ExpertGroups, FusedExperts};
use candle_core::{D, DType, Result, Tensor};
use candle_nn::moe::{moe_gemm, moe_gemm_gguf};

use super::adapter;
use super::config::Activation;
use super::layers::{FusedWith, Matrix, fused_activation, gated};

/// Size of the copies of matrices that are multiplied together, in bytes, if there is no kernel for their data type.
const MAX_COPY_BYTES: usize = 64 << 20;
/// Alignment of rows of matrices that the kernel for floats requires, in bytes.
const ROW_ALIGNMENT: usize = 16;

/// Stacked matrices of all experts of a layer.
pub struct ExpertStacks {
    /// Stacks (experts, out, in) of gate and up, whose rows are joined if they are stored in one format, or of up only.
    pub gate_up: Vec<Matrix>,
    /// Stack of down.
    pub down: Matrix,
    /// Biases of gate and up, joined, and of down, (experts, out) each.
    pub biases: Option<[Tensor; 2]>,
    /// Activation of the gate, or of up if there is none.
    pub activation: Activation,
    /// If true, up is multiplied by the activation of a gate.
    pub is_gated: bool,
    /// Numbers from 0 to the number of chosen experts, u32: the order of a single row's products.
    pub order: Tensor,
    /// Number of experts.
    pub experts: usize,
}

/// Products of rows with the matrices of their experts.
struct Products<'a> {
    /// Expert of each product, sorted if there are several rows.
    experts: &'a Tensor,
    /// Index of each product among those of all rows in turn.
    order: &'a Tensor,
    /// Number of products of a row.
    used: usize,
}

impl ExpertStacks {
    /// Returns true if the kernels for single rows are the fastest for `used` experts of each row of `x`, since experts are
    /// rarely chosen by several rows, which would then read their matrices several times.
    pub fn is_fused(&self, x: &Tensor, used: usize) -> Result<bool> {
        let (rows, dtype) = (x.dim(0)?, x.dtype());
        let [gate_up] = &self.gate_up[..] else { return Ok(false) };
        let fits = |matrix: &Matrix| match matrix {
            Matrix::Float(stack) | Matrix::Quantized(QMatMul::Tensor(stack) | QMatMul::TensorF16(stack)) => {
                let bytes = stack.dims().last().map_or(0, |columns| columns * dtype.size_in_bytes());
                stack.dtype() == dtype && bytes.is_multiple_of(ROW_ALIGNMENT)
            }
            Matrix::Quantized(QMatMul::QTensor(_)) => true,
        };
        let fits = fits(gate_up) && fits(&self.down);
        let has_activation = self.is_gated && fused_activation(self.activation).is_some();
        Ok(fits && has_activation && rows * used <= self.experts.max(used))
    }

    /// Returns true if the products of rows with `used` experts each can be grouped by expert.
    fn is_grouped(&self, rows: usize, used: usize) -> Result<bool> {
        for stack in self.gate_up.iter().chain([&self.down]) {
            if !ExpertGroups::are_supported(stack.weight(), rows, used)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Maps (rows, width) to the sums of the outputs of `experts` (rows, used) with `weights`, and `residual`, if there is
    /// one. Takes two launches if [`Self::is_fused`], and otherwise groups the products by expert. Returns `None` if there are
    /// no kernels for the operands.
    pub fn fused(
        &self,
        (x, with): (&Tensor, FusedWith),
        [experts, weights]: [&Tensor; 2],
        residual: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let activation = fused_activation(self.activation).filter(|_| self.is_gated);
        let ([gate_up], Some(activation)) = (&self.gate_up[..], activation) else { return Ok(None) };
        let [gate_up_bias, down_bias] = match &self.biases {
            Some(biases) => biases.each_ref().map(Some),
            None => [None, None],
        };
        let (rows, used) = experts.dims2()?;
        let groups = match self.is_fused(x, used)? {
            true => None,
            false if with.norm.is_none() && self.is_grouped(rows, used)? => {
                Some(ExpertGroups::new(experts, self.experts)?)
            }
            false => return Ok(None),
        };
        let x = &x.contiguous()?;
        let mut products =
            FusedExperts::new(x, gate_up.weight(), experts).bias(gate_up_bias).grouped(groups.as_ref());
        if let Some(norm) = with.norm {
            products = products.rms_norm(&norm.weight, norm.eps);
        }
        let Some(hidden) = products.gated(activation)? else { return Ok(None) };
        let sums =
            FusedExperts::new(&hidden, self.down.weight(), experts).bias(down_bias).grouped(groups.as_ref());
        sums.sum(weights, residual)
    }

    /// Maps (rows, width) to the sums of the outputs of `experts` (rows, used) with `weights`. An adapter, if there is one,
    /// changes all rows.
    pub fn forward(
        &self,
        x: &Tensor,
        [experts, weights]: [&Tensor; 2],
        adapter: Option<adapter::ExpertStacks>,
    ) -> Result<Tensor> {
        let (rows, used) = experts.dims2()?;
        let flat = experts.flatten_all()?;
        // Neighboring products of one expert read its matrix once.
        let (sorted, order) = match rows {
            1 => (flat.clone(), self.order.clone()),
            _ => flat.sort_last_dim(true)?,
        };
        let products = Products { experts: &sorted, order: &order, used };
        let mut outs = Vec::with_capacity(self.gate_up.len());
        for stack in &self.gate_up {
            outs.push(products.multiply(x, stack, None)?);
        }
        let both = match &outs[..] {
            [both] => both.clone(),
            outs => Tensor::cat(outs, D::Minus1)?,
        };
        let both = match &self.biases {
            Some([bias, _]) => (both + bias.index_select(&flat, 0)?)?,
            None => both,
        };
        let adapter = adapter.map(adapter::ExpertStacks::matrices);
        let both = match adapter {
            Some([gate_up, _]) => (both + products.low_rank(x, gate_up, None, &weights.ones_like()?)?)?,
            None => both,
        };
        let hidden = match self.is_gated {
            true => gated(&both, self.activation)?,
            false => self.activation.forward(&both)?,
        };
        let out = products.multiply(&hidden, &self.down, Some(weights))?;
        let out = match adapter {
            Some([_, down]) => {
                let ones = weights.ones_like()?;
                (out + products.low_rank(&hidden, down, Some(&ones), weights)?)?
            }
            None => out,
        };
        let out = match &self.biases {
            Some([_, bias]) => {
                let weights = weights.reshape((rows * used, 1))?.to_dtype(bias.dtype())?;
                (out + bias.index_select(&flat, 0)?.broadcast_mul(&weights)?)?
            }
            None => out,
        };
        match used {
            1 => Ok(out),
            _ => out.reshape((rows, used, ()))?.sum(1),
        }
    }
}

impl Products<'_> {
    /// Multiplies rows with a stack. With `factors`, `x` has a row for each product, which is multiplied by its factor.
    fn multiply(&self, x: &Tensor, stack: &Matrix, factors: Option<&Tensor>) -> Result<Tensor> {
        let dtype = x.dtype();
        let factors = factors.cloned();
        let out = match stack {
            Matrix::Quantized(QMatMul::QTensor(stack)) => {
                let x = x.to_dtype(DType::F32)?;
                moe_gemm_gguf(&x, stack, &factors, self.order, self.experts, self.used, false, DType::F32)?
            }
            Matrix::Float(stack) | Matrix::Quantized(QMatMul::Tensor(stack) | QMatMul::TensorF16(stack)) => {
                let x = x.to_dtype(stack.dtype())?;
                let bytes = stack.dim(D::Minus1)? * stack.dtype().size_in_bytes();
                match stack.dtype() {
                    DType::F16 | DType::BF16 if bytes.is_multiple_of(ROW_ALIGNMENT) => {
                        moe_gemm(&x, stack, &factors, self.order, self.experts, self.used, false)?
                    }
                    _ => self.with_copies(&x, stack, factors.as_ref())?,
                }
            }
        };
        out.to_dtype(dtype)
    }

    /// Multiplies rows with the stacks A and B of an adapter. `ones` are given if `x` has a row for each product.
    fn low_rank(
        &self,
        x: &Tensor,
        [down, up]: [&Matrix; 2],
        ones: Option<&Tensor>,
        factors: &Tensor,
    ) -> Result<Tensor> {
        self.multiply(&self.multiply(x, down, ones)?, up, Some(factors))
    }

    /// Multiplies with copies of the chosen matrices, for data types without a kernel.
    fn with_copies(&self, x: &Tensor, stack: &Tensor, factors: Option<&Tensor>) -> Result<Tensor> {
        let (_, n, k) = stack.dims3()?;
        let count = self.order.elem_count();
        let x = match factors {
            Some(_) => x.clone(),
            None => x.unsqueeze(1)?.broadcast_as((count / self.used, self.used, k))?.reshape((count, k))?,
        };
        let sorted = x.index_select(self.order, 0)?;
        let max_matrices = (MAX_COPY_BYTES / (n * k * stack.dtype().size_in_bytes()).max(1)).max(1);
        let mut outs = Vec::with_capacity(count.div_ceil(max_matrices));
        for start in (0..count).step_by(max_matrices) {
            let rows = max_matrices.min(count - start);
            let matrices = stack.index_select(&self.experts.narrow(0, start, rows)?, 0)?;
            outs.push(sorted.narrow(0, start, rows)?.unsqueeze(1)?.matmul(&matrices.t()?)?.squeeze(1)?);
        }
        let out = Tensor::cat(&outs, 0)?;
        // The order is a permutation, so that sorting it returns the inverse.
        let out = out.index_select(&self.order.arg_sort_last_dim(true)?, 0)?;
        match factors {
            Some(factors) => out.broadcast_mul(&factors.reshape((count, 1))?.to_dtype(out.dtype())?),
            None => Ok(out),
        }
    }
}
