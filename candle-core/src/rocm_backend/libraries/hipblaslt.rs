//! Matrix products with bias, GELU and residual by hipBLASLt, in one call. Its heuristic is queried once for each shape.
//!
//! The library is optional. If it has no algorithm for a product or fails, rocBLAS and the built-in kernels are used; a
//! failure is logged once. The library is column-major: C = A B is computed as C' = B' A', with the right operand first.
use super::owned::{Failure, FailureLog, Owned};
use super::rocblas::WARM_UP;
use crate::rocm_backend::device::DeviceState;
use crate::rocm_backend::error::notes;
use crate::{DType, Result};
use hip_kernels::contract::DevicePtr;
use rocm_loader::hipblaslt::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Environment variable; `0` disables hipBLASLt, so that rocBLAS and the built-in kernels compute all products.
pub const LIBRARY_VARIABLE: &str = "CANDLE_ROCM_HIPBLASLT";

/// Maximum workspace in bytes, the value that AMD's frameworks use.
const WORKSPACE: usize = 32 << 20;
/// Maximum number of cached shapes; the cache is cleared when it is full.
const MAX_CACHED_SHAPES: usize = 2048;

/// Sizes of products of matrices (m, k) with the transpose of one matrix (n, k), in one dtype, and what is added. Results
/// are dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EpilogueProduct {
    pub(crate) dtype: DType,
    /// Number of left matrices.
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// True if left matrices are stored as their dense transposes (k, m); otherwise their rows have this stride.
    pub(crate) transposed: bool,
    pub(crate) x_stride: usize,
    /// Stride of the rows of (n, k).
    pub(crate) w_stride: usize,
    /// True if a bias of n elements is added.
    pub(crate) bias: bool,
    /// True if GELU, in its tanh approximation, is applied after the bias.
    pub(crate) gelu: bool,
    /// True if matrices (m, n) are added, before the bias.
    pub(crate) residual: bool,
}

impl EpilogueProduct {
    fn epilogue(&self) -> u32 {
        match (self.bias, self.gelu) {
            (false, false) => HIPBLASLT_EPILOGUE_DEFAULT,
            (true, false) => HIPBLASLT_EPILOGUE_BIAS,
            (false, true) => HIPBLASLT_EPILOGUE_GELU,
            (true, true) => HIPBLASLT_EPILOGUE_GELU_BIAS,
        }
    }
}

type Handle = Owned<hipblasLtHandle_t>;
type MatrixLayout = Owned<hipblasLtMatrixLayout_t>;

/// The heuristic's choice for a shape, with the descriptors of the call.
pub(crate) struct EpiloguePlan {
    product: Owned<hipblasLtMatmulDesc_t>,
    left: MatrixLayout,
    right: MatrixLayout,
    result: MatrixLayout,
    algorithm: hipblasLtMatmulAlgo_t,
    workspace: usize,
}

impl EpiloguePlan {
    /// Returns the size of the workspace in bytes.
    pub(crate) fn workspace(&self) -> usize {
        self.workspace
    }
}

/// The library of a device, and its choice for each shape.
#[derive(Default)]
struct BlasLt {
    known: HashMap<EpilogueProduct, Option<Arc<EpiloguePlan>>>,
    opened: Option<Option<Handle>>,
    failures: FailureLog,
}

fn checked(call: &'static str, status: hipblasStatus_t) -> std::result::Result<(), Failure> {
    match status {
        HIPBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(Failure(format!("{call}: status {status}{}", notes(None)))),
    }
}

fn data_type(dtype: DType) -> Option<hipDataType> {
    match dtype {
        DType::F32 => Some(HIP_R_32F),
        DType::F16 => Some(HIP_R_16F),
        DType::BF16 => Some(HIP_R_16BF),
        _ => None,
    }
}

/// Creates the layout of `batch` column-major matrices with a leading dimension, at a distance of `stride` elements.
fn layout(
    kind: hipDataType,
    [rows, columns, leading]: [usize; 3],
    (batch, stride): (usize, usize),
) -> std::result::Result<MatrixLayout, Failure> {
    let (rows, columns, leading) = (rows as u64, columns as u64, leading as i64);
    // SAFETY: the pointer is valid for writes.
    let create = |to| unsafe { hipblasLtMatrixLayoutCreate(to, kind, rows, columns, leading) };
    // SAFETY: the destroy function matches the create function.
    let layout =
        unsafe { Owned::new("hipblasLtMatrixLayoutCreate", create, hipblasLtMatrixLayoutDestroy, checked)? };
    if batch > 1 {
        let setter = ("hipblasLtMatrixLayoutSetAttribute", hipblasLtMatrixLayoutSetAttribute as _);
        set(&layout, setter, HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch as i32)?;
        set(&layout, setter, HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride as i64)?;
    }
    Ok(layout)
}

/// Sets an attribute of a descriptor with the setter for its type.
fn set<D: Copy, T>(
    descriptor: &Owned<D>,
    (name, set): (&'static str, unsafe extern "C" fn(D, u32, *const c_void, usize) -> u32),
    attribute: u32,
    value: T,
) -> std::result::Result<(), Failure> {
    // SAFETY: the descriptor is valid, and the value is only read during the call.
    checked(name, unsafe { set(descriptor.raw, attribute, (&raw const value).cast(), size_of::<T>()) })
}

impl EpiloguePlan {
    fn set<T>(&self, attribute: u32, value: T) -> std::result::Result<(), Failure> {
        let name = "hipblasLtMatmulDescSetAttribute";
        set(&self.product, (name, hipblasLtMatmulDescSetAttribute), attribute, value)
    }

    /// Returns the heuristic's first choice; `None` if it finds no algorithm.
    fn of(handle: &Handle, shape: &EpilogueProduct) -> std::result::Result<Option<Arc<Self>>, Failure> {
        let Some(kind) = data_type(shape.dtype) else { return Ok(None) };
        let EpilogueProduct { batch, m, n, k, transposed, x_stride, w_stride, .. } = *shape;
        // SAFETY: the pointer is valid for writes.
        let create = |to| unsafe { hipblasLtMatmulDescCreate(to, HIPBLAS_COMPUTE_32F, HIP_R_32F) };
        // SAFETY: the destroy function matches the create function.
        let product =
            unsafe { Owned::new("hipblasLtMatmulDescCreate", create, hipblasLtMatmulDescDestroy, checked)? };
        let x_sizes = if transposed { [m, k, m] } else { [k, m, x_stride] };
        let x_batch = (batch, if transposed { m * k } else { m * x_stride });
        let left = layout(kind, [k, n, w_stride], (batch, 0))?;
        let (right, result) = (layout(kind, x_sizes, x_batch)?, layout(kind, [n, m, n], (batch, m * n))?);
        let (algorithm, workspace) = (hipblasLtMatmulAlgo_t::default(), 0);
        let mut plan = Self { product, left, right, result, algorithm, workspace };
        plan.set(HIPBLASLT_MATMUL_DESC_TRANSA, HIPBLAS_OP_T)?;
        plan.set(HIPBLASLT_MATMUL_DESC_TRANSB, if transposed { HIPBLAS_OP_T } else { HIPBLAS_OP_N })?;
        plan.set(HIPBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue())?;
        if shape.bias {
            plan.set(HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, kind)?;
        }
        // SAFETY: the pointer is valid for writes.
        let create = |to| unsafe { hipblasLtMatmulPreferenceCreate(to) };
        let (name, destroy) = ("hipblasLtMatmulPreferenceCreate", hipblasLtMatmulPreferenceDestroy);
        // SAFETY: the destroy function matches the create function.
        let preference = unsafe { Owned::new(name, create, destroy, checked)? };
        let setter = ("hipblasLtMatmulPreferenceSetAttribute", hipblasLtMatmulPreferenceSetAttribute as _);
        set(&preference, setter, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE as u64)?;
        let mut found = hipblasLtMatmulHeuristicResult_t::default();
        let mut count = 0;
        let [a, b, c] = [&plan.left, &plan.right, &plan.result].map(|layout| layout.raw);
        let (desc, wanted) = (plan.product.raw, preference.raw);
        // SAFETY: handle and descriptors are valid, and there is space for one result.
        let status = unsafe {
            hipblasLtMatmulAlgoGetHeuristic(handle.raw, desc, a, b, c, c, wanted, 1, &mut found, &mut count)
        };
        checked("hipblasLtMatmulAlgoGetHeuristic", status)?;
        if count < 1 || found.workspaceSize > WORKSPACE {
            return Ok(None);
        }
        (plan.algorithm, plan.workspace) = (found.algo, found.workspaceSize);
        Ok(Some(Arc::new(plan)))
    }
}

fn blaslt(device: &Arc<DeviceState>) -> MutexGuard<'_, BlasLt> {
    device.attachment::<Mutex<BlasLt>>().lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceState {
    /// Returns hipBLASLt's choice for a product; `None` if the library or an algorithm is missing.
    ///
    /// # Errors
    /// If the choice is not known yet and the calling thread captures a graph.
    pub(crate) fn epilogue_product(
        self: &Arc<Self>,
        shape: &EpilogueProduct,
    ) -> Result<Option<Arc<EpiloguePlan>>> {
        if data_type(shape.dtype).is_none() {
            return Ok(None);
        }
        let mut lt = blaslt(self);
        if let Some(known) = lt.known.get(shape) {
            return Ok(known.clone());
        }
        self.stream.refuse_capture(|| "choosing an algorithm of hipBLASLt".to_string(), WARM_UP)?;
        let plan = lt.query(self, shape);
        if lt.known.len() >= MAX_CACHED_SHAPES {
            lt.known.clear();
        }
        lt.known.insert(*shape, plan.clone());
        Ok(plan)
    }

    /// Enqueues a product. If the library fails, returns `false` and does not use it for this shape again.
    ///
    /// # Safety
    /// All pointers that the shape requires must be valid on this device for its sizes and for the workspace of the plan.
    pub(crate) unsafe fn multiply_with_epilogue(
        self: &Arc<Self>,
        shape: &EpilogueProduct,
        plan: &EpiloguePlan,
        [x, w, bias, residual, out, workspace]: [DevicePtr; 6],
    ) -> Result<bool> {
        let mut lt = blaslt(self);
        self.stream.bind_and_flush()?;
        let Some(Some(handle)) = &lt.opened else { return Ok(false) };
        let run = || {
            if shape.bias {
                plan.set(HIPBLASLT_MATMUL_DESC_BIAS_POINTER, bias.0)?;
            }
            let [a, b, c] = [&plan.left, &plan.right, &plan.result].map(|layout| layout.raw);
            let (one, beta) = (1f32, if shape.residual { 1f32 } else { 0.0 });
            let summand = if shape.residual { residual } else { out };
            // SAFETY: handle and descriptors are valid, the factors are only read during the call, and the caller
            // guarantees the memory.
            let status = unsafe {
                hipblasLtMatmul(
                    handle.raw,
                    plan.product.raw,
                    (&raw const one).cast(),
                    w.0.cast_const().cast(),
                    a,
                    x.0.cast_const().cast(),
                    b,
                    (&raw const beta).cast(),
                    summand.0.cast_const().cast(),
                    c,
                    out.0.cast(),
                    c,
                    &plan.algorithm,
                    workspace.0.cast(),
                    plan.workspace,
                    self.stream.raw(),
                )
            };
            checked("hipblasLtMatmul", status)
        };
        let outcome = run();
        if let Err(failure) = outcome {
            let _ = rocm_rs::hip::get_last_error();
            lt.log(self, &failure);
            lt.known.insert(*shape, None);
            return Ok(false);
        }
        Ok(true)
    }
}

impl BlasLt {
    fn query(&mut self, device: &DeviceState, shape: &EpilogueProduct) -> Option<Arc<EpiloguePlan>> {
        if self.opened.is_none() {
            let opened = open(device);
            self.opened = Some(opened.unwrap_or_else(|failure| {
                let _ = rocm_rs::hip::get_last_error();
                // No warning, because the library is optional.
                tracing::debug!("products on {}: {}", device.label(), failure.0);
                None
            }));
        }
        let Some(Some(handle)) = &self.opened else { return None };
        EpiloguePlan::of(handle, shape).unwrap_or_else(|failure| {
            let _ = rocm_rs::hip::get_last_error();
            self.log(device, &failure);
            None
        })
    }

    fn log(&mut self, device: &DeviceState, failure: &Failure) {
        let text = format_args!("{failure}; rocBLAS is used instead");
        self.failures.add("products", device.label(), text);
    }
}

fn open(device: &DeviceState) -> std::result::Result<Option<Handle>, Failure> {
    if std::env::var_os(LIBRARY_VARIABLE).is_some_and(|value| value == "0") {
        return Ok(None);
    }
    device.stream.bind().map_err(|error| Failure(error.to_string()))?;
    // SAFETY: the pointer is valid for writes.
    let create = |to| unsafe { hipblasLtCreate(to) };
    // SAFETY: the destroy function matches the create function.
    unsafe { Owned::new("hipblasLtCreate", create, hipblasLtDestroy, checked).map(Some) }
}
