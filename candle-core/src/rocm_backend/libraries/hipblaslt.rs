//! hipBLASLt where it is installed: products with a bias in one call. Its heuristic is asked once for each shape.
//!
//! The library is optional. What it does not have, or fails at, is computed by rocBLAS and our kernels; a failure is
//! logged once. Row-major: C = A B is its C' = B' A', so the right side goes in first.
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

/// What the library may take to work in, as AMD's own frameworks give it.
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

/// What the heuristic chose for a shape, with its descriptors.
pub(crate) struct BiasedPlan {
    product: Descriptor,
    left: Descriptor,
    right: Descriptor,
    result: Descriptor,
    algorithm: hipblasLtMatmulAlgo_t,
    workspace: usize,
}

// SAFETY: descriptors may be used from any thread, one at a time; they are used under the device's mutex.
unsafe impl Send for BiasedPlan {}
// SAFETY: as above.
unsafe impl Sync for BiasedPlan {}

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
    warned: bool,
}

struct Handle(hipblasLtHandle_t);

// SAFETY: a handle may be used from any thread, one at a time; it lives under the device's mutex.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by hipblasLtCreate. A failure has nobody left to go to.
        let _ = unsafe { hipblasLtDestroy(self.0) };
    }
}

/// A descriptor, ended by the function of its kind.
enum Descriptor {
    Layout(hipblasLtMatrixLayout_t),
    Product(hipblasLtMatmulDesc_t),
    Preference(hipblasLtMatmulPreference_t),
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: each was made by the function that goes with its end. A failure has nobody left to go to.
        let _ = unsafe {
            match *self {
                Self::Layout(layout) => hipblasLtMatrixLayoutDestroy(layout),
                Self::Product(product) => hipblasLtMatmulDescDestroy(product),
                Self::Preference(preference) => hipblasLtMatmulPreferenceDestroy(preference),
            }
        };
    }
}

/// A call that failed.
struct Failure(String);

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

impl Descriptor {
    fn layout(kind: hipDataType, rows: usize, columns: usize) -> std::result::Result<Self, Failure> {
        let mut made = std::ptr::null_mut();
        // SAFETY: a place to write to.
        let status =
            unsafe { hipblasLtMatrixLayoutCreate(&mut made, kind, rows as u64, columns as u64, rows as i64) };
        checked("hipblasLtMatrixLayoutCreate", status)?;
        Ok(Self::Layout(made))
    }

    fn product() -> std::result::Result<Self, Failure> {
        let mut made = std::ptr::null_mut();
        // SAFETY: a place to write to.
        let status = unsafe { hipblasLtMatmulDescCreate(&mut made, HIPBLAS_COMPUTE_32F, HIP_R_32F) };
        checked("hipblasLtMatmulDescCreate", status)?;
        Ok(Self::Product(made))
    }

    fn preference() -> std::result::Result<Self, Failure> {
        let mut made = std::ptr::null_mut();
        // SAFETY: a place to write to.
        checked("hipblasLtMatmulPreferenceCreate", unsafe { hipblasLtMatmulPreferenceCreate(&mut made) })?;
        Ok(Self::Preference(made))
    }

    fn set<T>(&self, attribute: u32, value: T) -> std::result::Result<(), Failure> {
        let (from, size) = ((&raw const value).cast::<c_void>(), size_of::<T>());
        // SAFETY: a live descriptor, and a value that is read during the call.
        unsafe {
            match *self {
                Self::Layout(layout) => checked(
                    "hipblasLtMatrixLayoutSetAttribute",
                    hipblasLtMatrixLayoutSetAttribute(layout, attribute, from, size),
                ),
                Self::Product(product) => checked(
                    "hipblasLtMatmulDescSetAttribute",
                    hipblasLtMatmulDescSetAttribute(product, attribute, from, size),
                ),
                Self::Preference(preference) => checked(
                    "hipblasLtMatmulPreferenceSetAttribute",
                    hipblasLtMatmulPreferenceSetAttribute(preference, attribute, from, size),
                ),
            }
        }
    }
}

impl BiasedPlan {
    /// The heuristic's first choice; `None` if it has nothing.
    fn of(handle: &Handle, shape: &BiasedProduct) -> std::result::Result<Option<Arc<Self>>, Failure> {
        let Some(kind) = data_type(shape.dtype) else { return Ok(None) };
        let BiasedProduct { m, n, k, .. } = *shape;
        let product = Descriptor::product()?;
        product.set(HIPBLASLT_MATMUL_DESC_TRANSA, HIPBLAS_OP_T)?;
        product.set(HIPBLASLT_MATMUL_DESC_TRANSB, HIPBLAS_OP_N)?;
        product.set(HIPBLASLT_MATMUL_DESC_EPILOGUE, HIPBLASLT_EPILOGUE_BIAS)?;
        product.set(HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, kind)?;
        let (left, right) = (Descriptor::layout(kind, k, n)?, Descriptor::layout(kind, k, m)?);
        let result = Descriptor::layout(kind, n, m)?;
        let preference = Descriptor::preference()?;
        preference.set(HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE as u64)?;
        let mut found = hipblasLtMatmulHeuristicResult_t::default();
        let mut count = 0;
        let (
            Descriptor::Product(desc),
            Descriptor::Layout(a),
            Descriptor::Layout(b),
            Descriptor::Layout(c),
            Descriptor::Preference(wanted),
        ) = (&product, &left, &right, &result, &preference)
        else {
            return Ok(None);
        };
        // SAFETY: live handle and descriptors, and room for one answer.
        let status = unsafe {
            hipblasLtMatmulAlgoGetHeuristic(
                handle.0, *desc, *a, *b, *c, *c, *wanted, 1, &mut found, &mut count,
            )
        };
        checked("hipblasLtMatmulAlgoGetHeuristic", status)?;
        if count < 1 || found.workspaceSize > WORKSPACE {
            return Ok(None);
        }
        let (algorithm, workspace) = (found.algo, found.workspaceSize);
        Ok(Some(Arc::new(Self { product, left, right, result, algorithm, workspace })))
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
            plan.product.set(HIPBLASLT_MATMUL_DESC_BIAS_POINTER, bias.0)?;
            let (
                Descriptor::Product(desc),
                Descriptor::Layout(a),
                Descriptor::Layout(b),
                Descriptor::Layout(c),
            ) = (&plan.product, &plan.left, &plan.right, &plan.result)
            else {
                return Ok(());
            };
            let (one, zero) = (1f32, 0f32);
            // SAFETY: live handle and descriptors; factors are read during the call; the memory is the caller's.
            let status = unsafe {
                hipblasLtMatmul(
                    handle.0,
                    *desc,
                    (&raw const one).cast(),
                    w.0.cast_const().cast(),
                    *a,
                    x.0.cast_const().cast(),
                    *b,
                    (&raw const zero).cast(),
                    out.0.cast_const().cast(),
                    *c,
                    out.0.cast(),
                    *c,
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
            lt.say(self, &failure);
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
            self.say(device, &failure);
            None
        })
    }

    /// Logs a failure: the first as a warning, since others will be alike.
    fn say(&mut self, device: &DeviceState, failure: &Failure) {
        let (label, text) = (device.label(), &failure.0);
        match std::mem::replace(&mut self.warned, true) {
            false => tracing::warn!("products on {label}: {text}; rocBLAS computes instead"),
            true => tracing::debug!("products on {label}: {text}; rocBLAS computes instead"),
        }
    }
}

fn open(device: &DeviceState) -> std::result::Result<Option<Handle>, Failure> {
    if std::env::var_os(LIBRARY_VARIABLE).is_some_and(|value| value == "0") {
        return Ok(None);
    }
    device.stream.bind().map_err(|error| Failure(error.to_string()))?;
    let mut handle = std::ptr::null_mut();
    // SAFETY: a place to write to.
    checked("hipblasLtCreate", unsafe { hipblasLtCreate(&mut handle) })?;
    Ok(Some(Handle(handle)))
}
