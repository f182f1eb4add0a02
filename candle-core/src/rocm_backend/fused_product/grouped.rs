//! Products of many rows with the matrices of their experts, grouped by expert.
use super::row::{activation_code, dense, is_float};
use super::{invalid, GateActivation, ProductWeight};
use crate::op::BackpropOp;
use crate::quantized::QTensor;
use crate::quantized_rocm::grouped::{grouped_products, has_grouped_kernel, Grouped};
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::ops::row_product::float_code;
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Device, Result, Shape, Storage, Tensor};
use hip_kernels::contract::{
    CombineProducts, DevicePtr, GateProducts, GroupProducts, KernelOf, BLOCK, QFEW_SIDE, ROUTE_EXPERTS,
};

const OP: &str = "grouped-experts";
/// Maximum number of products, so that every GPU accepts one workgroup in y for each.
const MAX_PRODUCTS: usize = 65535;

/// Products of rows with their experts, ordered by expert, so that the matrix of each is read once for up to 16 of them.
pub struct ExpertGroups<'a> {
    experts: &'a Tensor,
    order: Tensor,
    tiles: Tensor,
    stack: usize,
}

impl<'a> ExpertGroups<'a> {
    /// Returns true if products of `rows` rows with `used` experts each can be grouped for a stack of blocks (stack, n, k).
    ///
    /// # Errors
    /// If the weight is not a stack.
    pub fn are_supported(weight: ProductWeight, rows: usize, used: usize) -> Result<bool> {
        let (stack, _, k) = weight.shape().dims3()?;
        let (Device::Rocm(device), ProductWeight::Quantized(weight)) = (weight.device(), weight) else {
            return Ok(false);
        };
        let blocks = match weight.rocm_storage() {
            Some(storage) => storage.blocks(weight.shape().elem_count(), OP)?,
            None => None,
        };
        let has_kernel = blocks.is_some_and(|(format, _)| has_grouped_kernel(format, k, &device));
        Ok(has_kernel && (1..=ROUTE_EXPERTS).contains(&stack) && (1..=MAX_PRODUCTS).contains(&(rows * used)))
    }

    /// Groups the products with `experts`, u32 (rows, used), of a stack of `stack` matrices, in one launch.
    ///
    /// # Errors
    /// If `experts` is not a dense tensor of u32 on a ROCm device, or memory runs out. An expert out of range is reported by the
    /// next call that waits for the device.
    pub fn new(experts: &'a Tensor, stack: usize) -> Result<Self> {
        let (rows, used) = experts.dims2()?;
        let count = rows * used;
        let guard = experts.storage();
        let at = match &*guard {
            Storage::Rocm(storage) => dense(storage, Some(experts), DType::U32)?.map(|at| (storage, at)),
            _ => None,
        };
        let Some((storage, at)) =
            at.filter(|_| stack <= ROUTE_EXPERTS && (1..=MAX_PRODUCTS).contains(&count))
        else {
            return Err(invalid(format!(
                "{OP}: {count} products with {stack} experts cannot be grouped; up to {MAX_PRODUCTS} products with dense \
                 experts of u32 on a ROCm device, of up to {ROUTE_EXPERTS}, are supported"
            )));
        };
        // Each expert may have one tile that is not full.
        let max_tiles = count.min(stack + count / QFEW_SIDE);
        // SAFETY: the kernel writes every element.
        let alloc = |elements| unsafe { RocmStorage::alloc(&storage.device, DType::U32, elements, OP) };
        let (order, tiles) = (alloc(count)?, alloc(3 * max_tiles)?);
        let arguments = GroupProducts {
            experts: at,
            order: order.slice.ptr(),
            tiles: tiles.slice.ptr(),
            count: count as u32,
            stack: stack as u32,
            max_tiles: max_tiles as u32,
        };
        let config = LaunchConfig::for_rows(OP, 1, BLOCK as u32)?;
        // SAFETY: the sizes were checked; the kernel checks each expert.
        unsafe { storage.device.launch(found(GroupProducts::kernel())?, config, &arguments)? };
        Ok(Self { experts, order: tensor(order, count), tiles: tensor(tiles, (max_tiles, 3)), stack })
    }

    /// Returns the products (products, n), f32, of rows of `x` with a stack of blocks. `x` has a row for each row of the
    /// experts, or for each product.
    pub(super) fn products(&self, x: &Tensor, stack: &QTensor) -> Result<Tensor> {
        let (dims, count) = (stack.shape().dims3()?, self.order.elem_count());
        let Some(storage) = stack.rocm_storage() else {
            return Err(invalid(format!("{OP}: the stack is not on a ROCm device")));
        };
        let m = x.dim(0)?;
        if dims.0 != self.stack || m == 0 || count % m != 0 {
            return Err(invalid(format!(
                "{OP}: {count} products with {} experts were grouped, got {m} rows and a stack of {dims:?}",
                self.stack
            )));
        }
        let (guard, order, tiles) = (x.storage(), self.order.storage(), self.tiles.storage());
        let Storage::Rocm(xs) = &*guard else {
            return Err(invalid(format!("{OP}: activations are not on a ROCm device")));
        };
        let Storage::Rocm(order) = &*order else { return Err(invalid(format!("{OP}: internal error"))) };
        let Storage::Rocm(tiles) = &*tiles else { return Err(invalid(format!("{OP}: internal error"))) };
        let grouped = Grouped {
            order: order.slice.ptr(),
            tiles: (tiles.slice.ptr(), self.tiles.dim(0)?),
            products: count,
            rows_per_activation: count / m,
        };
        // SAFETY: `new` has grouped the products, of which each row of activations has the same number.
        let dst = unsafe { grouped_products(storage, dims, (xs, x.layout(), m), &grouped)? };
        Ok(tensor(dst, (count, dims.1)))
    }

    /// Returns activation(gate) · up of products (products, n) with gate and up, after adding a bias (stack, n) of `dtype`.
    pub(super) fn gate(
        &self,
        products: &Tensor,
        bias: Option<&Tensor>,
        activation: GateActivation,
        dtype: DType,
    ) -> Result<Tensor> {
        let (count, n) = products.dims2()?;
        let (guard, experts) = (products.storage(), self.experts);
        let Storage::Rocm(storage) = &*guard else { return Err(invalid(format!("{OP}: internal error"))) };
        // SAFETY: the kernel writes every element.
        let dst = unsafe { RocmStorage::alloc(&storage.device, dtype, count * n / 2, OP)? };
        let arguments = GateProducts {
            products: self.operand(storage, Some(products), DType::F32)?,
            bias: self.operand(storage, bias, dtype)?,
            experts: self.operand(storage, Some(experts), DType::U32)?,
            out: dst.slice.ptr(),
            width: (n / 2) as u32,
            stack: self.stack as u32,
            dtype: float_code(DType::F32)?,
            out_dtype: float_code(dtype)?,
            activation: activation_code(Some(activation)) as u32,
        };
        let config = LaunchConfig::for_grid(OP, ((n / 2).div_ceil(BLOCK), count, 1), BLOCK as u32)?;
        // SAFETY: the shapes were checked, and each address against its buffer.
        unsafe { storage.device.launch(found(GateProducts::kernel())?, config, &arguments)? };
        Ok(tensor(dst, (count, n / 2)))
    }

    /// Returns the sums of products (products, n) times `weights` (rows, used), after adding a bias (stack, n), and a residual
    /// (rows, n).
    pub(super) fn combine(
        &self,
        products: &Tensor,
        [bias, residual]: [Option<&Tensor>; 2],
        weights: &Tensor,
        dtype: DType,
    ) -> Result<Tensor> {
        let ((rows, used), n) = (weights.dims2()?, products.dim(1)?);
        let guard = products.storage();
        let Storage::Rocm(storage) = &*guard else { return Err(invalid(format!("{OP}: internal error"))) };
        let [bias_dtype, summand_dtype] = [bias, residual].map(|part| part.map_or(dtype, Tensor::dtype));
        if ![bias_dtype, summand_dtype, dtype].into_iter().all(is_float) {
            return Err(unsupported_dtype(OP, bias_dtype));
        }
        // SAFETY: the kernel writes every element.
        let dst = unsafe { RocmStorage::alloc(&storage.device, dtype, rows * n, OP)? };
        let arguments = CombineProducts {
            products: self.operand(storage, Some(products), DType::F32)?,
            bias: self.operand(storage, bias, bias_dtype)?,
            summand: self.operand(storage, residual, summand_dtype)?,
            experts: self.operand(storage, Some(self.experts), DType::U32)?,
            factors: self.operand(storage, Some(weights), DType::F32)?,
            out: dst.slice.ptr(),
            n: n as u32,
            stack: self.stack as u32,
            used: used as u32,
            dtype: float_code(DType::F32)?,
            bias_dtype: float_code(bias_dtype)?,
            summand_dtype: float_code(summand_dtype)?,
            out_dtype: float_code(dtype)?,
        };
        let config = LaunchConfig::for_grid(OP, (n.div_ceil(BLOCK), rows, 1), BLOCK as u32)?;
        // SAFETY: the shapes were checked, and each address against its buffer.
        unsafe { storage.device.launch(found(CombineProducts::kernel())?, config, &arguments)? };
        Ok(tensor(dst, (rows, n)))
    }

    fn operand(&self, storage: &RocmStorage, part: Option<&Tensor>, dtype: DType) -> Result<DevicePtr> {
        let Some(part) = part else { return Ok(DevicePtr::NULL) };
        dense(storage, Some(part), dtype)?.ok_or_else(|| {
            invalid(format!(
                "{OP}: expected a dense operand of {dtype:?}, got {:?} of shape {:?}; make it contiguous",
                part.dtype(),
                part.shape()
            ))
        })
    }
}

fn found<F>(kernel: Option<KernelOf<F>>) -> Result<KernelOf<F>> {
    kernel.ok_or_else(|| unsupported_dtype(OP, DType::F32))
}

fn tensor(storage: RocmStorage, dims: impl Into<Shape>) -> Tensor {
    crate::tensor::from_storage(Storage::Rocm(storage), dims, BackpropOp::none(), false)
}
