//! Products of single rows of activations with the matrices of their experts, with the operations around them in a decoder
//! layer.
use super::row_product::{float_code, lanes, shares, RowWeights, LANES, MAX_QUANTIZED_ELEMENTS};
use crate::error::bail;
use crate::rocm_backend::device::{DeviceState, LaunchConfig};
use crate::rocm_backend::ops::quantized_row::lds_activation_bytes;
use crate::rocm_backend::storage::element;
use crate::rocm_backend::RocmError;
use crate::{DType, Result};
use hip_kernels::contract::{
    DevicePtr, ExpertRow, ExpertSum, QuantizedExpertRow, QuantizedExpertSum, ACTIVATION_NONE, ROUTE_USED,
    ROW_PRODUCT_BLOCK,
};

/// The name of the operation in errors.
const OP: &str = "expert-rows";
/// Maximum number of products or sums of a launch, which every GPU accepts as workgroups in y.
const MAX_GRID_Y: usize = 65535;

/// Stack of matrices, and the rows that are multiplied with them.
pub(crate) struct ExpertRows {
    pub(crate) weights: RowWeights,
    /// Matrices (stack, n, k), aligned to packs.
    pub(crate) matrices: DevicePtr,
    pub(crate) stack: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Rows of activations, aligned to packs.
    pub(crate) x: DevicePtr,
    /// Dtype of activations, norm and bias: f16, bf16 or f32.
    pub(crate) dtype: DType,
    /// Expert of each product, as u32.
    pub(crate) experts: DevicePtr,
    /// Biases (stack, n).
    pub(crate) bias: Option<DevicePtr>,
    /// Results.
    pub(crate) out: DevicePtr,
    pub(crate) out_dtype: DType,
    /// Number of rows, and of experts of each of them.
    pub(crate) rows: usize,
    pub(crate) used: usize,
}

/// Returns true if the kernels multiply `rows` rows with the matrices of `used` experts each, in workgroups that hold `held`
/// activations.
pub(crate) fn has_expert_kernels(weights: RowWeights, rows: usize, used: usize, held: usize) -> bool {
    let fits = match weights {
        RowWeights::Floats => true,
        RowWeights::Blocks(_) => held <= MAX_QUANTIZED_ELEMENTS,
    };
    fits && (1..=ROUTE_USED).contains(&used) && (1..=MAX_GRID_Y / used).contains(&rows)
}

impl ExpertRows {
    /// Enqueues the products of rows with the matrices of their experts, `used` for each row in turn. With `norm`, weights and
    /// epsilon of an RMS norm, rows are normalized first. With an activation, matrices are gate and up, and results have half
    /// as many columns. The GPU is bound.
    ///
    /// # Errors
    /// If a size is too large for a launch, or HIP fails.
    ///
    /// # Safety
    /// Each pointer must cover the given sizes, and [`has_expert_kernels`] must be true.
    pub(crate) unsafe fn products(
        &self,
        device: &DeviceState,
        norm: Option<(DevicePtr, f32)>,
        activation: usize,
    ) -> Result<()> {
        let lanes = lanes(self.weights, 1, self.k, self.dtype);
        let gated = if activation == ACTIVATION_NONE { 1 } else { 2 };
        let products = self.rows * self.used;
        let multiprocessors = (device.multiprocessors() / products).max(1);
        let (results, grid) = shares(self.n / gated, gated * (lanes / LANES).max(1), multiprocessors);
        let (norm, eps) = norm.unwrap_or((DevicePtr::NULL, 0.0));
        let config = self.config(grid, products, self.k)?;
        macro_rules! launch {
            ($family:ident, $kernel:expr) => {{
                let Some(kernel) = $kernel else { bail!("{OP}: no kernel for {:?}", self.dtype) };
                let arguments = $family {
                    x: self.x,
                    norm,
                    bias: self.bias.unwrap_or(DevicePtr::NULL),
                    weights: self.matrices,
                    experts: self.experts,
                    out: self.out,
                    n: self.n as u32,
                    stack: self.stack as u32,
                    rows_per_activation: self.used as u32,
                    k: self.k as u32,
                    results: results as u32,
                    lanes: lanes as u32,
                    dtype: float_code(self.dtype)?,
                    out_dtype: float_code(self.out_dtype)?,
                    activation: activation as u32,
                    eps,
                };
                // SAFETY: guaranteed by the caller; the kernel checks each expert.
                unsafe { device.launch_now(kernel, config, &arguments) }
            }};
        }
        match self.weights {
            RowWeights::Floats => launch!(ExpertRow, element(self.dtype).and_then(ExpertRow::kernel)),
            RowWeights::Blocks(format) => launch!(QuantizedExpertRow, QuantizedExpertRow::kernel(format)),
        }
    }

    /// Enqueues the sums of the products of `used` rows each with the matrices of their experts, times `factors`, f32 (rows,
    /// used), in their order. `summand` (rows, n) of a float dtype is added. The GPU is bound.
    ///
    /// # Errors
    /// If a size is too large for a launch, or HIP fails.
    ///
    /// # Safety
    /// As for [`Self::products`].
    pub(crate) unsafe fn sums(
        &self,
        device: &DeviceState,
        factors: DevicePtr,
        summand: Option<(DevicePtr, DType)>,
    ) -> Result<()> {
        let held = self.used.next_power_of_two();
        let lanes =
            lanes(self.weights, 1, self.k, self.dtype).next_power_of_two().min(ROW_PRODUCT_BLOCK / held);
        let multiprocessors = (device.multiprocessors() / self.rows).max(1);
        let (results, grid) = shares(self.n, held * (lanes / LANES).max(1), multiprocessors);
        let (summand, summand_dtype) = summand.unwrap_or((DevicePtr::NULL, self.out_dtype));
        let config = self.config(grid, self.rows, self.used * self.k)?;
        macro_rules! launch {
            ($family:ident, $kernel:expr) => {{
                let Some(kernel) = $kernel else { bail!("{OP}: no kernel for {:?}", self.dtype) };
                let arguments = $family {
                    x: self.x,
                    bias: self.bias.unwrap_or(DevicePtr::NULL),
                    summand,
                    weights: self.matrices,
                    experts: self.experts,
                    factors,
                    out: self.out,
                    n: self.n as u32,
                    stack: self.stack as u32,
                    used: self.used as u32,
                    k: self.k as u32,
                    results: results as u32,
                    lanes: lanes as u32,
                    dtype: float_code(self.dtype)?,
                    summand_dtype: float_code(summand_dtype)?,
                    out_dtype: float_code(self.out_dtype)?,
                };
                // SAFETY: guaranteed by the caller; the kernel checks each expert.
                unsafe { device.launch_now(kernel, config, &arguments) }
            }};
        }
        match self.weights {
            RowWeights::Floats => launch!(ExpertSum, element(self.dtype).and_then(ExpertSum::kernel)),
            RowWeights::Blocks(format) => launch!(QuantizedExpertSum, QuantizedExpertSum::kernel(format)),
        }
    }

    /// Returns the configuration of a launch whose workgroups hold `elements` elements of activations.
    fn config(&self, x: usize, y: usize, elements: usize) -> Result<LaunchConfig> {
        let (limit, largest) = ((1 << 31) - 1, self.n.max(self.k).max(self.stack));
        if largest > limit {
            return Err(RocmError::TooManyElements { op: OP, elements: largest, limit }.into());
        }
        let lds_bytes = match self.weights {
            RowWeights::Floats => 0,
            RowWeights::Blocks(_) => lds_activation_bytes(1, elements) as u32,
        };
        Ok(LaunchConfig { grid: (x as u32, y as u32, 1), block: (ROW_PRODUCT_BLOCK as u32, 1, 1), lds_bytes })
    }
}
