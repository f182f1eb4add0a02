//! hipBLASLt's functions on cuBLASLt. Handles and descriptors are cuBLASLt's own; the values of attributes, operations and
//! compute types and the size of an algorithm differ.
//!
//! Products have rocBLAS' precision: f32 is never computed as TF32, and partial sums stay in f32.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use rocm_driver_api::hipblaslt::*;
use rocm_driver_api::{Library, Table, table};
use rocm_rs::hip::bindings::hipStream_t;

use crate::cuda::functions;
use crate::library::CudaLibrary;
use crate::toolkit::{CUBLAS_ADVICE, Status, Toolkit, fail, search_by_version, text_of};

/// `cublasLtMatmulAlgo_t`.
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Heuristic {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_F32: c_uint = 68;
/// `CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK`, and the scheme that adds in the compute type.
const REDUCTION_SCHEMES: c_uint = 3;
static IN_COMPUTE_TYPE: u32 = 2;
/// Maximum number of results per heuristic call.
const MAX_RESULTS: usize = 16;

/// cuBLASLt's attribute numbers, indexed by hipBLASLt's.
const LAYOUT_ATTRIBUTES: [c_uint; 7] = [5, 6, 0, 1, 2, 3, 4];
const MATMUL_ATTRIBUTES: [c_uint; 5] = [3, 4, 7, 8, 26];
const PREFERENCE_ATTRIBUTES: [c_uint; 2] = [0, 1];

type Layout = hipblasLtMatrixLayout_t;
type Matmul = hipblasLtMatmulDesc_t;
type Preference = hipblasLtMatmulPreference_t;

functions! {
    /// The functions of libcublasLt.
    CublasLt {
        create = "cublasLtCreate": fn(*mut hipblasLtHandle_t) -> Status;
        destroy = "cublasLtDestroy": fn(hipblasLtHandle_t) -> Status;
        version = "cublasLtGetVersion": fn() -> usize;
        status_name = "cublasLtGetStatusName": fn(Status) -> *const c_char;
        status_string = "cublasLtGetStatusString": fn(Status) -> *const c_char;
        layout_create = "cublasLtMatrixLayoutCreate": fn(*mut Layout, c_uint, u64, u64, i64) -> Status;
        layout_destroy = "cublasLtMatrixLayoutDestroy": fn(Layout) -> Status;
        layout_set = "cublasLtMatrixLayoutSetAttribute": fn(Layout, c_uint, *const c_void, usize) -> Status;
        matmul_create = "cublasLtMatmulDescCreate": fn(*mut Matmul, c_uint, c_uint) -> Status;
        matmul_destroy = "cublasLtMatmulDescDestroy": fn(Matmul) -> Status;
        matmul_set = "cublasLtMatmulDescSetAttribute": fn(Matmul, c_uint, *const c_void, usize) -> Status;
        preference_create = "cublasLtMatmulPreferenceCreate": fn(*mut Preference) -> Status;
        preference_destroy = "cublasLtMatmulPreferenceDestroy": fn(Preference) -> Status;
        preference_set = "cublasLtMatmulPreferenceSetAttribute":
            fn(Preference, c_uint, *const c_void, usize) -> Status;
        heuristic = "cublasLtMatmulAlgoGetHeuristic":
            fn(
                hipblasLtHandle_t, Matmul, Layout, Layout, Layout, Layout, Preference, c_int, *mut Heuristic,
                *mut c_int
            ) -> Status;
        matmul = "cublasLtMatmul":
            fn(
                hipblasLtHandle_t, Matmul, *const c_void, *const c_void, Layout, *const c_void, Layout,
                *const c_void, *const c_void, Layout, *mut c_void, Layout, *const Algorithm, *mut c_void, usize,
                hipStream_t
            ) -> Status;
    }
}

/// libcublasLt with hipBLASLt's status codes.
pub(crate) static CUBLASLT: Toolkit<CublasLt> = Toolkit {
    library: CudaLibrary {
        serves: Library::HipBlasLt,
        name: "libcublasLt.so",
        advice: CUBLAS_ADVICE,
        search: || search_by_version("libcublasLt.so"),
        opened: OnceLock::new(),
    },
    status_of,
    internal_error: HIPBLAS_STATUS_INTERNAL_ERROR,
    failed,
};

#[cold]
fn failed(cublaslt: &CublasLt, call: &str, status: Status) -> hipblasStatus_t {
    // SAFETY: both take any integer and return static texts.
    let (name, text) =
        unsafe { (text_of((cublaslt.status_name)(status)), text_of((cublaslt.status_string)(status))) };
    fail(hipblas_of(status), format!("{call} returned {name} ({status}): {text}"))
}

/// Converts a `cublasStatus_t` to a `hipblasStatus_t`.
fn hipblas_of(status: Status) -> hipblasStatus_t {
    match status {
        0 => HIPBLAS_STATUS_SUCCESS,
        1 => HIPBLAS_STATUS_NOT_INITIALIZED,
        3 => HIPBLAS_STATUS_ALLOC_FAILED,
        7 => HIPBLAS_STATUS_INVALID_VALUE,
        8 => HIPBLAS_STATUS_ARCH_MISMATCH,
        11 => HIPBLAS_STATUS_MAPPING_ERROR,
        13 => HIPBLAS_STATUS_EXECUTION_FAILED,
        15 => HIPBLAS_STATUS_NOT_SUPPORTED,
        _ => HIPBLAS_STATUS_INTERNAL_ERROR,
    }
}

/// Returns cuBLASLt's number of an attribute.
fn attribute(numbers: &[c_uint], attribute: u32) -> Result<c_uint, hipblasStatus_t> {
    numbers.get(attribute as usize).copied().ok_or_else(|| {
        fail(
            HIPBLAS_STATUS_NOT_SUPPORTED,
            format!("the NVIDIA driver does not support attribute {attribute} of this descriptor"),
        )
    })
}

/// Defines functions that forward their arguments unchanged.
macro_rules! forwarded {
    ($($name:ident => $field:ident $call:literal ($($argument:ident: $type:ty),*);)*) => {
        $(pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> hipblasStatus_t {
            // SAFETY: the caller's handle, values and pointers.
            CUBLASLT.call($call, |cublaslt| unsafe { (cublaslt.$field)($($argument),*) })
        })*
    };
}

// Both libraries number the data types alike; AMD's own types begin at 1000.
forwarded! {
    hipblasLtCreate => create "cublasLtCreate" (handle: *mut hipblasLtHandle_t);
    hipblasLtDestroy => destroy "cublasLtDestroy" (handle: hipblasLtHandle_t);
    hipblasLtMatrixLayoutCreate => layout_create "cublasLtMatrixLayoutCreate"
        (matLayout: *mut Layout, type_: hipDataType, rows: u64, cols: u64, ld: i64);
    hipblasLtMatrixLayoutDestroy => layout_destroy "cublasLtMatrixLayoutDestroy" (matLayout: Layout);
    hipblasLtMatmulDescDestroy => matmul_destroy "cublasLtMatmulDescDestroy" (matmulDesc: Matmul);
    hipblasLtMatmulPreferenceDestroy =>
        preference_destroy "cublasLtMatmulPreferenceDestroy" (pref: Preference);
}

/// Returns cuBLASLt's version number: 130200 is 13.2.
pub(crate) unsafe extern "C" fn hipblasLtGetVersion(
    handle: hipblasLtHandle_t,
    version: *mut c_int,
) -> hipblasStatus_t {
    if handle.is_null() || version.is_null() {
        return fail(HIPBLAS_STATUS_INVALID_VALUE, "the handle or result pointer is null".to_owned());
    }
    CUBLASLT.call("cublasLtGetVersion", |cublaslt| {
        // SAFETY: the caller guarantees a valid pointer.
        unsafe { version.write((cublaslt.version)() as c_int) };
        0
    })
}

/// Defines functions that set an attribute whose values both libraries define alike.
macro_rules! set_attribute {
    ($($name:ident => $field:ident $call:literal $numbers:ident ($descriptor:ty, $attribute:ty);)*) => {
        $(pub(crate) unsafe extern "C" fn $name(
            descriptor: $descriptor, attr: $attribute, buf: *const c_void, sizeInBytes: usize,
        ) -> hipblasStatus_t {
            match attribute(&$numbers, attr) {
                // SAFETY: the caller's descriptor and value.
                Ok(attr) => CUBLASLT.call($call, |cublaslt| unsafe {
                    (cublaslt.$field)(descriptor, attr, buf, sizeInBytes)
                }),
                Err(status) => status,
            }
        })*
    };
}

set_attribute! {
    hipblasLtMatrixLayoutSetAttribute => layout_set "cublasLtMatrixLayoutSetAttribute"
        LAYOUT_ATTRIBUTES (Layout, hipblasLtMatrixLayoutAttribute_t);
    hipblasLtMatmulPreferenceSetAttribute => preference_set "cublasLtMatmulPreferenceSetAttribute"
        PREFERENCE_ATTRIBUTES (Preference, hipblasLtMatmulPreferenceAttributes_t);
}

pub(crate) unsafe extern "C" fn hipblasLtMatmulDescCreate(
    matmulDesc: *mut Matmul,
    computeType: hipblasComputeType_t,
    scaleType: hipDataType,
) -> hipblasStatus_t {
    if computeType != HIPBLAS_COMPUTE_32F {
        let reason = format!("the NVIDIA driver does not support products in compute type {computeType}");
        return fail(HIPBLAS_STATUS_NOT_SUPPORTED, reason);
    }
    // SAFETY: the caller guarantees a valid pointer.
    CUBLASLT.call("cublasLtMatmulDescCreate", |cublaslt| unsafe {
        (cublaslt.matmul_create)(matmulDesc, COMPUTE_F32, scaleType)
    })
}

pub(crate) unsafe extern "C" fn hipblasLtMatmulDescSetAttribute(
    matmulDesc: Matmul,
    attr: hipblasLtMatmulDescAttributes_t,
    buf: *const c_void,
    sizeInBytes: usize,
) -> hipblasStatus_t {
    let number = match attribute(&MATMUL_ATTRIBUTES, attr) {
        Ok(number) => number,
        Err(status) => return status,
    };
    let operation: u32;
    let mut from = buf;
    let is_operation = matches!(attr, HIPBLASLT_MATMUL_DESC_TRANSA | HIPBLASLT_MATMUL_DESC_TRANSB);
    if is_operation && !buf.is_null() && sizeInBytes == size_of::<u32>() {
        // SAFETY: the caller's value of 4 bytes.
        match unsafe { buf.cast::<u32>().read_unaligned() } {
            code @ HIPBLAS_OP_N..=HIPBLAS_OP_C => operation = code - HIPBLAS_OP_N,
            code => return fail(HIPBLAS_STATUS_INVALID_VALUE, format!("unknown hipblasOperation_t {code}")),
        }
        from = (&raw const operation).cast();
    }
    // SAFETY: the caller's descriptor and value, or the converted operation.
    CUBLASLT.call("cublasLtMatmulDescSetAttribute", |cublaslt| unsafe {
        (cublaslt.matmul_set)(matmulDesc, number, from, sizeInBytes)
    })
}

pub(crate) unsafe extern "C" fn hipblasLtMatmulPreferenceCreate(pref: *mut Preference) -> hipblasStatus_t {
    CUBLASLT.call("cublasLtMatmulPreferenceCreate", |cublaslt| {
        let schemes = (&raw const IN_COMPUTE_TYPE).cast();
        // SAFETY: the caller's pointer, read after it is written; a value of 4 bytes.
        unsafe {
            match (cublaslt.preference_create)(pref) {
                0 => (cublaslt.preference_set)(pref.read(), REDUCTION_SCHEMES, schemes, 4),
                status => status,
            }
        }
    })
}

/// The distinct algorithms that the heuristic has returned. hipBLASLt's algorithm structure is too small for cuBLASLt's, so
/// it holds an index into this list. An entry is written once and read without a lock.
static ALGORITHMS: [OnceLock<Algorithm>; 4096] = [const { OnceLock::new() }; 4096];
/// Held while an algorithm is added.
static ADDING: Mutex<()> = Mutex::new(());
/// First bytes of an encoded algorithm, before its index.
const MAGIC: [u8; 8] = *b"cublasLt";

/// Adds an algorithm to the list and encodes its index; `None` if the list is full.
fn encode(algorithm: Algorithm, max_workspace_bytes: usize) -> Option<hipblasLtMatmulAlgo_t> {
    let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
    let index = ALGORITHMS.iter().position(|entry| entry.get().is_none_or(|known| *known == algorithm))?;
    ALGORITHMS[index].get_or_init(|| algorithm);
    let mut data = [0; 16];
    data[..8].copy_from_slice(&MAGIC);
    data[8..].copy_from_slice(&(index as u64).to_le_bytes());
    Some(hipblasLtMatmulAlgo_t { data, max_workspace_bytes })
}

/// Returns the algorithm that [`encode`] encoded; `None` if it was not encoded by this process.
fn decode(algo: &hipblasLtMatmulAlgo_t) -> Option<&'static Algorithm> {
    let (magic, index) = algo.data.split_at(MAGIC.len());
    let index = u64::from_le_bytes(index.try_into().ok()?);
    ALGORITHMS.get(usize::try_from(index).ok().filter(|_| magic == MAGIC)?)?.get()
}

#[rustfmt::skip]
pub(crate) unsafe extern "C" fn hipblasLtMatmulAlgoGetHeuristic(
    handle: hipblasLtHandle_t, matmulDesc: Matmul, Adesc: Layout, Bdesc: Layout, Cdesc: Layout, Ddesc: Layout,
    pref: Preference, requestedAlgoCount: c_int, heuristicResultsArray: *mut hipblasLtMatmulHeuristicResult_t,
    returnAlgoCount: *mut c_int,
) -> hipblasStatus_t {
    if requestedAlgoCount < 1 || heuristicResultsArray.is_null() || returnAlgoCount.is_null() {
        return fail(HIPBLAS_STATUS_INVALID_VALUE, "the result array is null or has no entries".to_owned());
    }
    let (mut results, mut count) = ([Heuristic::default(); MAX_RESULTS], 0);
    let wanted = requestedAlgoCount.min(MAX_RESULTS as c_int);
    // SAFETY: the caller's handle and descriptors; the array holds as many results as requested.
    let status = CUBLASLT.call("cublasLtMatmulAlgoGetHeuristic", |cublaslt| unsafe {
        let status = (cublaslt.heuristic)(
            handle, matmulDesc, Adesc, Bdesc, Cdesc, Ddesc, pref, wanted, results.as_mut_ptr(), &mut count,
        );
        // hipBLASLt reports a missing kernel as zero results, not as a failure.
        if hipblas_of(status) == HIPBLAS_STATUS_NOT_SUPPORTED {
            count = 0;
            return 0;
        }
        status
    });
    if status != HIPBLAS_STATUS_SUCCESS {
        return status;
    }
    let usable = results[..count.clamp(0, wanted) as usize].iter().filter(|result| result.state == 0);
    let mut written = 0;
    for result in usable {
        let Some(algo) = encode(result.algorithm, result.workspace) else { break };
        let converted = hipblasLtMatmulHeuristicResult_t {
            algo,
            workspaceSize: result.workspace,
            state: HIPBLAS_STATUS_SUCCESS,
            wavesCount: result.waves,
            reserved: [0; 4],
        };
        // SAFETY: the caller's array holds as many results as requested.
        unsafe { heuristicResultsArray.add(written).write(converted) };
        written += 1;
    }
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { returnAlgoCount.write(written as c_int) };
    HIPBLAS_STATUS_SUCCESS
}

#[rustfmt::skip]
pub(crate) unsafe extern "C" fn hipblasLtMatmul(
    handle: hipblasLtHandle_t, matmulDesc: Matmul, alpha: *const c_void, A: *const c_void, Adesc: Layout,
    B: *const c_void, Bdesc: Layout, beta: *const c_void, C: *const c_void, Cdesc: Layout, D: *mut c_void,
    Ddesc: Layout, algo: *const hipblasLtMatmulAlgo_t, workspace: *mut c_void, workspaceSizeInBytes: usize,
    stream: hipStream_t,
) -> hipblasStatus_t {
    // SAFETY: the caller's algorithm is null or valid.
    let algorithm = match unsafe { algo.as_ref() }.map(decode) {
        None => std::ptr::null(),
        Some(Some(algorithm)) => std::ptr::from_ref(algorithm),
        Some(None) => {
            let reason = "the algorithm was not returned by the heuristic".to_owned();
            return fail(HIPBLAS_STATUS_INVALID_VALUE, reason);
        }
    };
    // SAFETY: the caller's handle, descriptors, factors, matrices and workspace.
    CUBLASLT.call("cublasLtMatmul", |cublaslt| unsafe {
        (cublaslt.matmul)(
            handle, matmulDesc, alpha, A, Adesc, B, Bdesc, beta, C, Cdesc, D, Ddesc, algorithm, workspace,
            workspaceSizeInBytes, stream,
        )
    })
}

pub(crate) const TABLE: Table = {
    use crate::hipblaslt as functions;
    rocm_driver_api::hipblaslt_functions!(table functions)
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_algorithm_is_decoded_unchanged() {
        let (one, other) = ([1, 2, 3, 4, 5, 6, 7, 8], [9; 8]);
        let encoded = [one, other, one].map(|algorithm| encode(algorithm, 64).expect("the list is not full"));
        assert_eq!(encoded[0], encoded[2], "each is stored once");
        assert_eq!(encoded[0].max_workspace_bytes, 64);
        assert_eq!((decode(&encoded[0]), decode(&encoded[1])), (Some(&one), Some(&other)));
        let mut wrong = encoded[0];
        wrong.data[15] = 1;
        assert_eq!((decode(&wrong), decode(&hipblasLtMatmulAlgo_t::default())), (None, None));
    }

    #[test]
    fn heuristic_results_have_the_c_layout() {
        assert_eq!((size_of::<Heuristic>(), std::mem::offset_of!(Heuristic, workspace)), (96, 64));
        assert_eq!(std::mem::offset_of!(Heuristic, reserved), 80);
    }
}
