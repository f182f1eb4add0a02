//! cuDNN's functions, and the error handling shared by MIOpen's functions.
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use rocm_driver_api::Library;
use rocm_driver_api::miopen::status_of;
use rocm_rs::hip::bindings::hipStream_t;
use rocm_rs::miopen::ffi::{self as miopen, miopenHandle_t, miopenStatus_t};

use crate::cuda::functions;
use crate::library::CudaLibrary;
use crate::toolkit::{Status, Toolkit, fail, search, text_of};

/// `cudnnDataType_t`.
pub(super) type DataType = c_uint;
/// `cudnnMathType_t`.
pub(super) type Math = c_uint;
/// Any of cuDNN's descriptors.
pub(super) type Object = *mut c_void;

/// Math type for narrow floats on tensor cores, summed in f32.
pub(super) const TENSOR_OP_MATH: Math = 1;
/// Math type that is no narrower than the tensors. Without it f32 may be computed as TF32.
pub(super) const FMA_MATH: Math = 3;
/// Number of math types.
pub(super) const MATH_TYPES: Math = 4;

/// `cudnnConvolution*AlgoPerf_t`: a suggested algorithm.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Suggestion {
    pub(super) algorithm: c_uint,
    pub(super) status: Status,
    pub(super) time: f32,
    pub(super) memory: usize,
    pub(super) determinism: c_uint,
    pub(super) math: Math,
    pub(super) reserved: [c_int; 3],
}

/// Prototype of the heuristics in all three directions: handle, two operands, convolution, result, maximum count, and
/// pointers to the count and the suggestions.
#[rustfmt::skip]
pub(super) type Suggest = unsafe extern "C" fn(
    miopenHandle_t, Object, Object, Object, Object, c_int, *mut c_int, *mut Suggestion,
) -> Status;
/// Prototype of the functions that return the workspace size of an algorithm.
#[rustfmt::skip]
pub(super) type Workspace = unsafe extern "C" fn(
    miopenHandle_t, Object, Object, Object, Object, c_uint, *mut usize,
) -> Status;
/// Prototype of the functions that run a convolution.
#[rustfmt::skip]
pub(super) type Run = unsafe extern "C" fn(
    miopenHandle_t, *const c_void, Object, *const c_void, Object, *const c_void, Object, c_uint, *mut c_void, usize,
    *const c_void, Object, *mut c_void,
) -> Status;

functions! {
    /// The functions of libcudnn.
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

        suggest_forward = "cudnnGetConvolutionForwardAlgorithm_v7": as Suggest;
        suggest_data = "cudnnGetConvolutionBackwardDataAlgorithm_v7": as Suggest;
        suggest_weights = "cudnnGetConvolutionBackwardFilterAlgorithm_v7": as Suggest;
        workspace_forward = "cudnnGetConvolutionForwardWorkspaceSize": as Workspace;
        workspace_data = "cudnnGetConvolutionBackwardDataWorkspaceSize": as Workspace;
        workspace_weights = "cudnnGetConvolutionBackwardFilterWorkspaceSize": as Workspace;
        run_forward = "cudnnConvolutionForward": as Run;
        run_data = "cudnnConvolutionBackwardData": as Run;
        run_weights = "cudnnConvolutionBackwardFilter": as Run;
    }
}

const ADVICE: &str = "Install cuDNN 9 or 8 (NVIDIA's packages: libcudnn9; PyPI: nvidia-cudnn-cu13 or nvidia-cudnn-cu12) \
                      with all its files, and set LD_LIBRARY_PATH to their folder, or CUDA_HOME to CUDA's folder if \
                      they are there";

/// libcudnn with MIOpen's status codes. It opens its other files when they are needed.
pub(crate) static CUDNN: Toolkit<Cudnn> = Toolkit {
    library: CudaLibrary {
        serves: Library::MiOpen,
        name: "libcudnn.so",
        advice: ADVICE,
        search: || search(&["libcudnn.so.9", "libcudnn.so.8"]),
        opened: OnceLock::new(),
    },
    status_of,
    internal_error: miopen::miopenStatus_t_miopenStatusInternalError,
    failed,
};

/// Calls cuDNN with a current context. `call` is the function's name for error messages.
#[inline]
pub(super) fn with_cudnn(
    call: &str,
    work: impl FnOnce(&'static Cudnn) -> Status,
) -> Result<(), miopenStatus_t> {
    match CUDNN.call(call, work) {
        0 => Ok(()),
        status => Err(status),
    }
}

#[cold]
pub(super) fn failed(cudnn: &Cudnn, call: &str, status: Status) -> miopenStatus_t {
    // SAFETY: takes any integer and returns a static text.
    let name = unsafe { text_of((cudnn.status_name)(status)) };
    let code = miopen_of(status);
    let advice = match code {
        miopen::miopenStatus_t_miopenStatusNotInitialized => format!(". {ADVICE}"),
        _ => String::new(),
    };
    fail(code, format!("{call} returned {name} ({status}){advice}"))
}

/// Converts cuDNN's status to MIOpen's. Numbers below 1000 are cuDNN 8's; those above are cuDNN 9's, grouped by kind.
fn miopen_of(status: Status) -> miopenStatus_t {
    match status {
        1 | 13 | 1000..=1999 => miopen::miopenStatus_t_miopenStatusNotInitialized,
        2 | 4003 | 4004 => miopen::miopenStatus_t_miopenStatusAllocFailed,
        3 | 5 | 2000..=2999 => miopen::miopenStatus_t_miopenStatusBadParm,
        6 | 9 | 11 | 3000..=3999 => miopen::miopenStatus_t_miopenStatusUnsupportedOp,
        _ => miopen::miopenStatus_t_miopenStatusInternalError,
    }
}

/// Records an invalid argument and returns the status for it.
#[cold]
pub(super) fn bad_param(reason: impl Into<String>) -> miopenStatus_t {
    fail(miopen::miopenStatus_t_miopenStatusBadParm, reason)
}

/// Records a feature of MIOpen that this driver lacks and returns the status for it.
#[cold]
pub(super) fn unsupported(reason: impl Into<String>) -> miopenStatus_t {
    fail(miopen::miopenStatus_t_miopenStatusUnsupportedOp, reason)
}

/// Converts a result to MIOpen's status.
pub(super) fn to_status(outcome: Result<(), miopenStatus_t>) -> miopenStatus_t {
    outcome.err().unwrap_or(miopen::miopenStatus_t_miopenStatusSuccess)
}

/// Writes a value through a pointer from the caller.
///
/// # Safety
/// `to` is null or valid for a write of `T`.
pub(super) unsafe fn write_to<T>(to: *mut T, value: T) -> Result<(), miopenStatus_t> {
    if to.is_null() {
        return Err(bad_param("a pointer to write to is null"));
    }
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { to.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_cudnn_8_and_9_are_converted() {
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
