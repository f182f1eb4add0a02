//! Linear layers in one call to hipBLASLt, with a bias, an activation and a residual.
use crate::backend::BackendDevice;
use crate::op::BackpropOp;
use crate::rocm_backend::libraries::EpilogueProduct;
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result, Shape, Storage, Tensor};
use hip_kernels::contract::{DevicePtr, PRODUCT_ROWS};

const OP: &str = "linear";

/// Operations that [`linear_with`] applies to a product.
#[derive(Clone, Copy, Default)]
pub struct LinearEpilogue<'a> {
    /// Bias (n).
    pub bias: Option<&'a Tensor>,
    /// If true, GELU in its tanh approximation is applied after the bias.
    pub gelu: bool,
    /// Tensor of the shape of the result. Excludes `gelu`.
    pub residual: Option<&'a Tensor>,
}

/// Computes `x` (..., k) times the transpose of `weight` (n, k) plus `bias` (n), rounded once. Returns `None` if the caller
/// must compute it otherwise: on other devices, if gradients are tracked, for few rows, which other kernels compute
/// faster, for tensors that are not dense, and if hipBLASLt is missing or has no kernel.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Option<Tensor>> {
    match x.is_contiguous() && weight.is_contiguous() {
        true => linear_with(x, weight, LinearEpilogue { bias: Some(bias), ..Default::default() }),
        false => Ok(None),
    }
}

/// Left matrices of a product.
struct Rows {
    batch: usize,
    m: usize,
    stride: usize,
    transposed: bool,
}

impl Rows {
    /// Returns the matrices of `x`: dense rows at an equal distance, or transposes of dense matrices.
    fn of(x: &Tensor) -> Option<Self> {
        let (&k, outer) = x.dims().split_last()?;
        let m = outer.iter().product();
        if x.is_contiguous() {
            return Some(Self { batch: 1, m, stride: k, transposed: false });
        }
        match (x.dims(), x.stride()) {
            (&[m, k], &[stride, 1]) if stride >= k => Some(Self { batch: 1, m, stride, transposed: false }),
            (&[batch, m, k], &[outer, 1, stride]) if stride == m && (batch == 1 || outer == m * k) => {
                Some(Self { batch, m, stride, transposed: true })
            }
            _ => None,
        }
    }
}

/// Computes `x` (..., k) times the transpose of `weight` (n, k), with an epilogue, rounded once. `x` is dense, a matrix of
/// dense rows, or (batch, m, k) with dense columns; the rows of `weight` are dense. Returns `None` in the cases of [`linear`].
///
/// # Errors
/// If there is not enough memory for the result.
pub fn linear_with(x: &Tensor, weight: &Tensor, epilogue: LinearEpilogue) -> Result<Option<Tensor>> {
    let LinearEpilogue { bias, gelu, residual } = epilogue;
    let (Some((&k, outer)), &[n, w_k], &[w_stride, w_column]) =
        (x.dims().split_last(), weight.dims(), weight.stride())
    else {
        return Ok(None);
    };
    let Some(rows) = Rows::of(x) else { return Ok(None) };
    let dtype = x.dtype();
    let mut dims = outer.to_vec();
    dims.push(n);
    let others = [Some(weight), bias, residual].into_iter().flatten();
    let tracked = x.track_op() || others.clone().any(|other| other.track_op());
    let matches = others.clone().all(|other| other.dtype() == dtype)
        && w_k == k
        && (w_column == 1 || k == 1)
        && w_stride >= k
        && bias.is_none_or(|bias| bias.dims() == [n] && bias.is_contiguous())
        && residual.is_none_or(|x| x.dims() == dims && x.is_contiguous() && !gelu);
    let narrow = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
    if outer.is_empty() || rows.m <= PRODUCT_ROWS || n * k * rows.batch == 0 || !matches || tracked || !narrow
    {
        return Ok(None);
    }
    let storages = [Some(x), Some(weight), bias, residual].map(|x| x.map(|x| (x.storage(), x.layout())));
    let [Some((first, _)), ..] = &storages else { return Ok(None) };
    let Storage::Rocm(xs) = &**first else { return Ok(None) };
    let mut pointers = [DevicePtr::NULL; 4];
    for (operand, pointer) in storages.iter().zip(&mut pointers) {
        let Some((storage, layout)) = operand else { continue };
        match &**storage {
            Storage::Rocm(storage) if xs.device.same_device(&storage.device) => {
                *pointer = storage.ptr(layout, OP)?;
            }
            _ => return Ok(None),
        }
    }
    let Rows { batch, m, stride: x_stride, transposed } = rows;
    let (bias, residual) = (bias.is_some(), residual.is_some());
    let shape =
        EpilogueProduct { dtype, batch, m, n, k, transposed, x_stride, w_stride, bias, gelu, residual };
    let state = xs.device.state();
    let Some(plan) = state.epilogue_product(&shape)? else { return Ok(None) };
    // SAFETY: the product writes every element; if it fails, the buffer is not used.
    let dst = unsafe { RocmStorage::alloc(&xs.device, dtype, batch * m * n, OP)? };
    // SAFETY: only the library accesses the workspace.
    let workspace = unsafe { RocmStorage::alloc(&xs.device, DType::U8, plan.workspace(), OP)? };
    let [x, w, bias, residual] = pointers;
    let pointers = [x, w, bias, residual, dst.slice.ptr(), workspace.slice.ptr()];
    // SAFETY: operands and result match the shape, and the workspace has the size of the plan.
    if !unsafe { state.multiply_with_epilogue(&shape, &plan, pointers)? } {
        return Ok(None);
    }
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), Shape::from(dims), BackpropOp::none(), false)))
}
