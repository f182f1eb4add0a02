//! cuDNN, and MIOpen's functions onto it. A handle of the one is a handle of the other; MIOpen's descriptors are
//! structures of ours, which keep cuDNN's.
pub(super) mod convolution;
mod descriptor;
pub(super) mod geometry;
pub(super) mod handle;
pub(super) mod tensor;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use rocm_rs::hip::bindings::hipStream_t;
use rocm_rs::miopen::ffi::{self as miopen, miopenHandle_t, miopenStatus_t};

use super::context::with_context;
use super::cuda::functions;
use super::library;
use crate::error::{LoadError, record_text};
use crate::forward::OnFailure as _;
use crate::library::Library;

/// `cudnnStatus_t`.
type Status = c_uint;
/// `cudnnDataType_t`.
type DataType = c_uint;
/// `cudnnMathType_t`.
type Math = c_uint;
/// Any of cuDNN's descriptors.
type Object = *mut c_void;

/// Narrow floats on tensor cores, summed in f32.
const TENSOR_OP_MATH: Math = 1;
/// No narrower than the tensors: without it f32 may be computed as TF32.
const FMA_MATH: Math = 3;
/// One more than the last.
const MATHS: Math = 4;

/// `cudnnConvolution*AlgoPerf_t`: an algorithm that is suggested.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Suggestion {
    algorithm: c_uint,
    status: Status,
    time: f32,
    memory: usize,
    determinism: c_uint,
    math: Math,
    reserved: [c_int; 3],
}

/// Which algorithms suit: the handle, two operands, the convolution, the result, and places for what is found. The
/// three directions have one shape of each kind of function.
type Suggest = unsafe extern "C" fn(
    miopenHandle_t,
    Object,
    Object,
    Object,
    Object,
    c_int,
    *mut c_int,
    *mut Suggestion,
) -> Status;
/// What an algorithm needs.
type Workspace =
    unsafe extern "C" fn(miopenHandle_t, Object, Object, Object, Object, c_uint, *mut usize) -> Status;
/// The convolution itself.
type Run = unsafe extern "C" fn(
    miopenHandle_t,
    *const c_void,
    Object,
    *const c_void,
    Object,
    *const c_void,
    Object,
    c_uint,
    *mut c_void,
    usize,
    *const c_void,
    Object,
    *mut c_void,
) -> Status;

functions! {
    /// libcudnn.
    Cudnn {
        create = "cudnnCreate": fn(*mut miopenHandle_t) -> Status;
        destroy = "cudnnDestroy": fn(miopenHandle_t) -> Status;
        set_stream = "cudnnSetStream": fn(miopenHandle_t, hipStream_t) -> Status;
        get_stream = "cudnnGetStream": fn(miopenHandle_t, *mut hipStream_t) -> Status;
        get_property = "cudnnGetProperty": fn(c_uint, *mut c_int) -> Status;
        status_name = "cudnnGetErrorString": fn(Status) -> *const c_char;

        create_tensor = "cudnnCreateTensorDescriptor": fn(*mut Object) -> Status;
        set_tensor = "cudnnSetTensorNdDescriptor":
            fn(Object, DataType, c_int, *const c_int, *const c_int) -> Status;
        destroy_tensor = "cudnnDestroyTensorDescriptor": fn(Object) -> Status;
        create_filter = "cudnnCreateFilterDescriptor": fn(*mut Object) -> Status;
        set_filter = "cudnnSetFilterNdDescriptor": fn(Object, DataType, c_uint, c_int, *const c_int) -> Status;
        destroy_filter = "cudnnDestroyFilterDescriptor": fn(Object) -> Status;
        create_convolution = "cudnnCreateConvolutionDescriptor": fn(*mut Object) -> Status;
        set_convolution = "cudnnSetConvolutionNdDescriptor":
            fn(Object, c_int, *const c_int, *const c_int, *const c_int, c_uint, DataType) -> Status;
        set_groups = "cudnnSetConvolutionGroupCount": fn(Object, c_int) -> Status;
        set_math = "cudnnSetConvolutionMathType": fn(Object, Math) -> Status;
        destroy_convolution = "cudnnDestroyConvolutionDescriptor": fn(Object) -> Status;

        suggest_forward = "cudnnGetConvolutionForwardAlgorithm_v7":
            fn(miopenHandle_t, Object, Object, Object, Object, c_int, *mut c_int, *mut Suggestion) -> Status;
        suggest_data = "cudnnGetConvolutionBackwardDataAlgorithm_v7":
            fn(miopenHandle_t, Object, Object, Object, Object, c_int, *mut c_int, *mut Suggestion) -> Status;
        suggest_weights = "cudnnGetConvolutionBackwardFilterAlgorithm_v7":
            fn(miopenHandle_t, Object, Object, Object, Object, c_int, *mut c_int, *mut Suggestion) -> Status;
        workspace_forward = "cudnnGetConvolutionForwardWorkspaceSize":
            fn(miopenHandle_t, Object, Object, Object, Object, c_uint, *mut usize) -> Status;
        workspace_data = "cudnnGetConvolutionBackwardDataWorkspaceSize":
            fn(miopenHandle_t, Object, Object, Object, Object, c_uint, *mut usize) -> Status;
        workspace_weights = "cudnnGetConvolutionBackwardFilterWorkspaceSize":
            fn(miopenHandle_t, Object, Object, Object, Object, c_uint, *mut usize) -> Status;
        run_forward = "cudnnConvolutionForward":
            fn(
                miopenHandle_t, *const c_void, Object, *const c_void, Object, *const c_void, Object, c_uint,
                *mut c_void, usize, *const c_void, Object, *mut c_void
            ) -> Status;
        run_data = "cudnnConvolutionBackwardData":
            fn(
                miopenHandle_t, *const c_void, Object, *const c_void, Object, *const c_void, Object, c_uint,
                *mut c_void, usize, *const c_void, Object, *mut c_void
            ) -> Status;
        run_weights = "cudnnConvolutionBackwardFilter":
            fn(
                miopenHandle_t, *const c_void, Object, *const c_void, Object, *const c_void, Object, c_uint,
                *mut c_void, usize, *const c_void, Object, *mut c_void
            ) -> Status;
    }
}

/// cuDNN, opened at the first call.
fn library() -> Result<&'static Cudnn, miopenStatus_t> {
    static CUDNN: OnceLock<Result<Cudnn, LoadError>> = OnceLock::new();
    let open = || {
        let opened = library::cudnn()?;
        Cudnn::of(opened).map_err(|symbol| library::without(library::CUDNN, &opened.path, symbol))
    };
    CUDNN.get_or_init(open).as_ref().map_err(|error| miopenStatus_t::on_failure(Library::MiOpen, error))
}

/// Calls cuDNN with a context. `call` names the function.
#[inline]
fn with_cudnn(call: &str, work: impl FnOnce(&'static Cudnn) -> Status) -> Result<(), miopenStatus_t> {
    let cudnn = library()?;
    let mut status = 0;
    let code = with_context(call, |_| {
        status = work(cudnn);
        0
    });
    match (code, status) {
        (0, 0) => Ok(()),
        (0, status) => Err(failed(cudnn, call, status)),
        _ => Err(miopen::miopenStatus_t_miopenStatusInternalError),
    }
}

#[cold]
fn failed(cudnn: &Cudnn, call: &str, status: Status) -> miopenStatus_t {
    // SAFETY: takes any integer.
    let name = unsafe { (cudnn.status_name)(status) };
    let name = match name.is_null() {
        true => "an unknown status".into(),
        // SAFETY: cuDNN's own text, which is never freed.
        false => unsafe { CStr::from_ptr(name) }.to_string_lossy(),
    };
    let code = miopen_of(status);
    let advice = match code {
        miopen::miopenStatus_t_miopenStatusNotInitialized => format!(". {}", library::CUDNN_ADVICE),
        _ => String::new(),
    };
    refused(code, format!("{call} returned {name} ({status}){advice}"))
}

/// MIOpen's status for cuDNN's: below 1000 those of cuDNN 8, above those of cuDNN 9, by kinds.
fn miopen_of(status: Status) -> miopenStatus_t {
    match status {
        1 | 13 | 1000..=1999 => miopen::miopenStatus_t_miopenStatusNotInitialized,
        2 | 4003 | 4004 => miopen::miopenStatus_t_miopenStatusAllocFailed,
        3 | 5 | 2000..=2999 => miopen::miopenStatus_t_miopenStatusBadParm,
        6 | 9 | 11 | 3000..=3999 => miopen::miopenStatus_t_miopenStatusUnsupportedOp,
        _ => miopen::miopenStatus_t_miopenStatusInternalError,
    }
}

/// What a function returns that was not passed on, with the reason.
#[cold]
fn refused(status: miopenStatus_t, reason: impl Into<String>) -> miopenStatus_t {
    record_text(reason.into());
    status
}

/// The same for what no library could take.
#[cold]
fn bad(reason: impl Into<String>) -> miopenStatus_t {
    refused(miopen::miopenStatus_t_miopenStatusBadParm, reason)
}

/// The same for what MIOpen has and this driver has not.
#[cold]
fn unsupported(reason: impl Into<String>) -> miopenStatus_t {
    refused(miopen::miopenStatus_t_miopenStatusUnsupportedOp, reason)
}

/// What goes out to a caller in C.
fn told(outcome: Result<(), miopenStatus_t>) -> miopenStatus_t {
    outcome.err().unwrap_or(miopen::miopenStatus_t_miopenStatusSuccess)
}

/// Writes through a pointer of the caller's.
///
/// # Safety
/// `to` is null or a place for one `T`.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), miopenStatus_t> {
    if to.is_null() {
        return Err(bad("a pointer to write to is null"));
    }
    // SAFETY: the caller's place.
    unsafe { to.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_statuses_have_their_kind() {
        let same = |code, statuses: &[Status]| {
            for status in statuses {
                assert_eq!(miopen_of(*status), code, "{status}");
            }
        };
        same(miopen::miopenStatus_t_miopenStatusNotInitialized, &[1, 1001, 1008]);
        same(miopen::miopenStatus_t_miopenStatusAllocFailed, &[2, 4003, 4004]);
        same(miopen::miopenStatus_t_miopenStatusBadParm, &[3, 2000, 2008]);
        same(miopen::miopenStatus_t_miopenStatusUnsupportedOp, &[9, 3000, 3003]);
        same(miopen::miopenStatus_t_miopenStatusInternalError, &[4, 8, 4000, 5000]);
    }

    #[test]
    fn a_suggestion_has_the_size_of_cudnns_structure() {
        assert_eq!((size_of::<Suggestion>(), std::mem::offset_of!(Suggestion, math)), (48, 28));
    }
}
