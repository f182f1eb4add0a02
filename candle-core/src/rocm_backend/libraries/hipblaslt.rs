//! hipBLASLt where it is installed: products with a bias in one call. Its heuristic is asked once for each shape.
//!
//! The library is optional. What it does not have, or fails at, is computed by rocBLAS and our kernels; a failure is
//! logged once. Row-major: C = A B is its C' = B' A', so the right side goes in first.
use super::owned::{Failure, FailureLog, Owned};
use crate::rocm_backend::device::DeviceState;
use crate::rocm_backend::error::notes;
use crate::{DType, Result};
use hip_kernels::contract::DevicePtr;
use rocm_loader::hipblaslt::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `0` leaves products to rocBLAS and our kernels.
pub const LIBRARY_VARIABLE: &str = "CANDLE_ROCM_HIPBLASLT";

/// Bytes of workspace that the library may take, as in AMD's own frameworks.
const WORKSPACE: usize = 32 << 20;
/// So many shapes are remembered; then all are forgotten.
const SHAPES: usize = 2048;

/// A product of dense rows (m, k) with the transpose of dense rows (n, k), plus a bias of n for each row, in one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BiasedProduct {
    pub(crate) dtype: DType,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

type Handle = Owned<hipblasLtHandle_t>;
type MatrixLayout = Owned<hipblasLtMatrixLayout_t>;

/// Choice of the heuristic for a shape, with its descriptors.
pub(crate) struct BiasedPlan {
    product: Owned<hipblasLtMatmulDesc_t>,
    left: MatrixLayout,
    right: MatrixLayout,
    result: MatrixLayout,
    algorithm: hipblasLtMatmulAlgo_t,
    workspace: usize,
}

impl BiasedPlan {
    /// Bytes of workspace.
    pub(crate) fn workspace(&self) -> usize {
        self.workspace
    }
}

/// The library of a device, and what it chose for each shape.
#[derive(Default)]
struct BlasLt {
    known: HashMap<BiasedProduct, Option<Arc<BiasedPlan>>>,
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

/// The descriptor of a dense matrix.
fn layout(kind: hipDataType, rows: usize, columns: usize) -> std::result::Result<MatrixLayout, Failure> {
    let (rows, columns, leading) = (rows as u64, columns as u64, rows as i64);
    // SAFETY: a place to write to.
    let create = |to| unsafe { hipblasLtMatrixLayoutCreate(to, kind, rows, columns, leading) };
    // SAFETY: the two belong together.
    unsafe { Owned::new("hipblasLtMatrixLayoutCreate", create, hipblasLtMatrixLayoutDestroy, checked) }
}

/// Sets an attribute of a descriptor by the function of its kind.
fn set<D: Copy, T>(
    descriptor: &Owned<D>,
    (name, set): (&'static str, unsafe extern "C" fn(D, u32, *const c_void, usize) -> u32),
    attribute: u32,
    value: T,
) -> std::result::Result<(), Failure> {
    // SAFETY: a live descriptor, and a value that is read during the call.
    checked(name, unsafe { set(descriptor.raw, attribute, (&raw const value).cast(), size_of::<T>()) })
}

impl BiasedPlan {
    fn set<T>(&self, attribute: u32, value: T) -> std::result::Result<(), Failure> {
        let name = "hipblasLtMatmulDescSetAttribute";
        set(&self.product, (name, hipblasLtMatmulDescSetAttribute), attribute, value)
    }

    /// The heuristic's first choice; `None` if it has nothing.
    fn of(handle: &Handle, shape: &BiasedProduct) -> std::result::Result<Option<Arc<Self>>, Failure> {
        let Some(kind) = data_type(shape.dtype) else { return Ok(None) };
        let BiasedProduct { m, n, k, .. } = *shape;
        // SAFETY: a place to write to.
        let create = |to| unsafe { hipblasLtMatmulDescCreate(to, HIPBLAS_COMPUTE_32F, HIP_R_32F) };
        // SAFETY: the two belong together.
        let product =
            unsafe { Owned::new("hipblasLtMatmulDescCreate", create, hipblasLtMatmulDescDestroy, checked)? };
        let (left, right, result) = (layout(kind, k, n)?, layout(kind, k, m)?, layout(kind, n, m)?);
        let (algorithm, workspace) = (hipblasLtMatmulAlgo_t::default(), 0);
        let mut plan = Self { product, left, right, result, algorithm, workspace };
        plan.set(HIPBLASLT_MATMUL_DESC_TRANSA, HIPBLAS_OP_T)?;
        plan.set(HIPBLASLT_MATMUL_DESC_TRANSB, HIPBLAS_OP_N)?;
        plan.set(HIPBLASLT_MATMUL_DESC_EPILOGUE, HIPBLASLT_EPILOGUE_BIAS)?;
        plan.set(HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, kind)?;
        // SAFETY: a place to write to.
        let create = |to| unsafe { hipblasLtMatmulPreferenceCreate(to) };
        let (name, destroy) = ("hipblasLtMatmulPreferenceCreate", hipblasLtMatmulPreferenceDestroy);
        // SAFETY: the two belong together.
        let preference = unsafe { Owned::new(name, create, destroy, checked)? };
        let setter = ("hipblasLtMatmulPreferenceSetAttribute", hipblasLtMatmulPreferenceSetAttribute as _);
        set(&preference, setter, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE as u64)?;
        let mut found = hipblasLtMatmulHeuristicResult_t::default();
        let mut count = 0;
        let [a, b, c] = [&plan.left, &plan.right, &plan.result].map(|layout| layout.raw);
        let (desc, wanted) = (plan.product.raw, preference.raw);
        // SAFETY: live handle and descriptors, and room for one answer.
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
    /// hipBLASLt's choice for a product with a bias; `None` where there is no library, or it has none.
    pub(crate) fn biased_product(self: &Arc<Self>, shape: &BiasedProduct) -> Option<Arc<BiasedPlan>> {
        data_type(shape.dtype)?;
        let mut lt = blaslt(self);
        if let Some(known) = lt.known.get(shape) {
            return known.clone();
        }
        let plan = lt.ask(self, shape);
        if lt.known.len() >= SHAPES {
            lt.known.clear();
        }
        lt.known.insert(*shape, plan.clone());
        plan
    }

    /// Enqueues a product with a bias; `false`, and never again for this shape, if the library fails.
    ///
    /// # Safety
    /// All memory is live on this device and of the shape's sizes, the workspace as large as the plan says.
    pub(crate) unsafe fn multiply_with_bias(
        self: &Arc<Self>,
        shape: &BiasedProduct,
        plan: &BiasedPlan,
        [x, w, bias, out, workspace]: [DevicePtr; 5],
    ) -> Result<bool> {
        let mut lt = blaslt(self);
        self.stream.begin()?;
        let Some(Some(handle)) = &lt.opened else { return Ok(false) };
        let run = || {
            plan.set(HIPBLASLT_MATMUL_DESC_BIAS_POINTER, bias.0)?;
            let [a, b, c] = [&plan.left, &plan.right, &plan.result].map(|layout| layout.raw);
            let (one, zero) = (1f32, 0f32);
            // SAFETY: live handle and descriptors; factors are read during the call; the memory is the caller's.
            let status = unsafe {
                hipblasLtMatmul(
                    handle.raw,
                    plan.product.raw,
                    (&raw const one).cast(),
                    w.0.cast_const().cast(),
                    a,
                    x.0.cast_const().cast(),
                    b,
                    (&raw const zero).cast(),
                    out.0.cast_const().cast(),
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
    fn ask(&mut self, device: &DeviceState, shape: &BiasedProduct) -> Option<Arc<BiasedPlan>> {
        if self.opened.is_none() {
            let opened = open(device);
            self.opened = Some(opened.unwrap_or_else(|failure| {
                let _ = rocm_rs::hip::get_last_error();
                // Optional: that it is not there is worth no warning.
                tracing::debug!("products on {}: {}", device.label(), failure.0);
                None
            }));
        }
        let Some(Some(handle)) = &self.opened else { return None };
        BiasedPlan::of(handle, shape).unwrap_or_else(|failure| {
            let _ = rocm_rs::hip::get_last_error();
            self.log(device, &failure);
            None
        })
    }

    fn log(&mut self, device: &DeviceState, failure: &Failure) {
        let text = format_args!("{failure}; rocBLAS computes instead");
        self.failures.add("products", device.label(), text);
    }
}

fn open(device: &DeviceState) -> std::result::Result<Option<Handle>, Failure> {
    if std::env::var_os(LIBRARY_VARIABLE).is_some_and(|value| value == "0") {
        return Ok(None);
    }
    device.stream.bind().map_err(|error| Failure(error.to_string()))?;
    // SAFETY: a place to write to.
    let create = |to| unsafe { hipblasLtCreate(to) };
    // SAFETY: the two belong together.
    unsafe { Owned::new("hipblasLtCreate", create, hipblasLtDestroy, checked).map(Some) }
}
