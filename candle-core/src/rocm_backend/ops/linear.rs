//! A linear layer with a bias in one call to hipBLASLt.
use crate::backend::BackendDevice;
use crate::op::BackpropOp;
use crate::rocm_backend::libraries::BiasedProduct;
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result, Storage, Tensor};
use hip_kernels::contract::PRODUCT_ROWS;

const OP: &str = "linear";

/// Computes `x` (..., k) times the transpose of `weight` (n, k) plus `bias` (n), rounded once. Returns `None` if the caller
/// must compute it otherwise: on other devices, if gradients are tracked, for few rows, which other kernels compute
/// faster, for tensors that are not dense, and if hipBLASLt is missing or has no kernel.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Option<Tensor>> {
    let (Some((&k, outer)), [n, w_k], [b_n]) = (x.dims().split_last(), weight.dims(), bias.dims()) else {
        return Ok(None);
    };
    let m: usize = outer.iter().product();
    let (n, dtype) = (*n, x.dtype());
    let matches = weight.dtype() == dtype && bias.dtype() == dtype && *w_k == k && *b_n == n;
    let dense = x.is_contiguous() && weight.is_contiguous() && bias.is_contiguous();
    let tracked = x.track_op() || weight.track_op() || bias.track_op();
    let narrow = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
    if outer.is_empty() || m <= PRODUCT_ROWS || n * k == 0 || !matches || !dense || tracked || !narrow {
        return Ok(None);
    }
    let (xs, ws, bs) = (x.storage(), weight.storage(), bias.storage());
    let (Storage::Rocm(xs), Storage::Rocm(ws), Storage::Rocm(bs)) = (&*xs, &*ws, &*bs) else {
        return Ok(None);
    };
    let shape = BiasedProduct { dtype, m, n, k };
    let same = [ws, bs].iter().all(|other| xs.device.same_device(&other.device));
    let state = xs.device.state();
    let plan = if same { state.biased_product(&shape)? } else { None };
    let Some(plan) = plan else { return Ok(None) };
    // SAFETY: the product writes every element; if it fails, the buffer is not used.
    let dst = unsafe { RocmStorage::alloc(&xs.device, dtype, m * n, OP)? };
    // SAFETY: only the library accesses the workspace.
    let workspace = unsafe { RocmStorage::alloc(&xs.device, DType::U8, plan.workspace(), OP)? };
    let pointers = [
        xs.ptr(x.layout(), OP)?,
        ws.ptr(weight.layout(), OP)?,
        bs.ptr(bias.layout(), OP)?,
        dst.slice.ptr(),
        workspace.slice.ptr(),
    ];
    // SAFETY: operands and result are dense and match the shape, and the workspace has the size of the plan.
    if !unsafe { state.multiply_with_bias(&shape, &plan, pointers)? } {
        return Ok(None);
    }
    let mut dims = outer.to_vec();
    dims.push(n);
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), dims, BackpropOp::none(), false)))
}
