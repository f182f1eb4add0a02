//! The C functions with the prototypes of rocBLAS 4 and 5.
use super::handle::{self, PointerMode};
use super::problem::{Operand, Place, Problem, Scalar};
use super::types::{DataType, Operation, Status, Types, status_name};
use super::{compute, element};
use crate::runtime::{self, ErrorCode, HipError, runtime};
use half::f16;
use std::ffi::{CStr, c_char, c_void};

/// Text of `rocblas_get_version_string`: the version of the interface, marked as not AMD's library.
const VERSION: &CStr = c"4.4.0.software";

type Outcome = Result<(), Status>;

/// Runs a function's body and converts a panic to `InternalError`.
pub(super) fn call(function: &str, body: impl FnOnce() -> Outcome) -> u32 {
    let outcome = runtime::catch_panic(|| runtime::called(function).map(|()| body()));
    let error = match outcome {
        Ok(Ok(Ok(()))) => return Status::Success as u32,
        Ok(Ok(Err(status))) => return status as u32,
        Ok(Err(error)) => error,
        Err(panic) => HipError::new(ErrorCode::Unknown, panic),
    };
    runtime::note(&HipError::new(error.code, format!("{function}: {}", error.detail)));
    Status::InternalError as u32
}

/// Writes a result through the caller's pointer.
///
/// # Safety
/// `place` must be null or valid for a write.
unsafe fn put<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(Status::InvalidPointer);
    }
    // SAFETY: the caller guarantees the pointer.
    unsafe { place.write(value) };
    Ok(())
}

/// Creates a handle on the current device, with its null stream and pointer mode host.
pub unsafe extern "C" fn rocblas_create_handle(handle: *mut *mut c_void) -> u32 {
    call("rocblas_create_handle", || {
        if handle.is_null() {
            return Err(Status::InvalidHandle);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(handle, handle::create()?) }
    })
}

/// Destroys a handle.
pub unsafe extern "C" fn rocblas_destroy_handle(handle: *mut c_void) -> u32 {
    call("rocblas_destroy_handle", || handle::destroy(handle))
}

/// Sets the stream for later work. It must belong to the handle's device.
pub unsafe extern "C" fn rocblas_set_stream(handle: *mut c_void, stream: *mut c_void) -> u32 {
    call("rocblas_set_stream", || {
        let handle = handle::get(handle)?;
        handle::stream_on(handle.device, stream.addr()).ok_or(Status::InvalidValue)?;
        handle.change(|settings| settings.stream = stream.addr());
        Ok(())
    })
}

/// Returns the handle's stream.
pub unsafe extern "C" fn rocblas_get_stream(handle: *mut c_void, stream: *mut *mut c_void) -> u32 {
    call("rocblas_get_stream", || {
        let settings = handle::get(handle)?.settings();
        // SAFETY: the caller's pointer.
        unsafe { put(stream, std::ptr::without_provenance_mut(settings.stream)) }
    })
}

/// Sets whether alpha and beta are in host memory (0) or device memory (1).
pub unsafe extern "C" fn rocblas_set_pointer_mode(handle: *mut c_void, pointer_mode: u32) -> u32 {
    call("rocblas_set_pointer_mode", || {
        let handle = handle::get(handle)?;
        let mode = match pointer_mode {
            0 => PointerMode::Host,
            1 => PointerMode::Device,
            _ => return Err(Status::InvalidValue),
        };
        handle.change(|settings| settings.pointer_mode = mode);
        Ok(())
    })
}

/// Returns whether alpha and beta are in host memory (0) or device memory (1).
pub unsafe extern "C" fn rocblas_get_pointer_mode(handle: *mut c_void, pointer_mode: *mut u32) -> u32 {
    call("rocblas_get_pointer_mode", || {
        let settings = handle::get(handle)?.settings();
        // SAFETY: the caller's pointer.
        unsafe { put(pointer_mode, settings.pointer_mode as u32) }
    })
}

/// Sets whether atomic additions are allowed (1) or not (0). Results never depend on it here.
pub unsafe extern "C" fn rocblas_set_atomics_mode(handle: *mut c_void, atomics_mode: u32) -> u32 {
    call("rocblas_set_atomics_mode", || {
        let handle = handle::get(handle)?;
        if atomics_mode > 1 {
            return Err(Status::InvalidValue);
        }
        handle.change(|settings| settings.atomics_mode = atomics_mode);
        Ok(())
    })
}

/// Returns whether atomic additions are allowed.
pub unsafe extern "C" fn rocblas_get_atomics_mode(handle: *mut c_void, atomics_mode: *mut u32) -> u32 {
    call("rocblas_get_atomics_mode", || {
        let settings = handle::get(handle)?.settings();
        // SAFETY: the caller's pointer.
        unsafe { put(atomics_mode, settings.atomics_mode) }
    })
}

/// Sets a workspace in device memory. Products need none here, so it is only checked.
pub unsafe extern "C" fn rocblas_set_workspace(handle: *mut c_void, addr: *mut c_void, size: usize) -> u32 {
    call("rocblas_set_workspace", || {
        let handle = handle::get(handle)?;
        if addr.is_null() {
            return Ok(());
        }
        let runtime = runtime().map_err(|_| Status::InternalError)?;
        runtime.check_range(handle.device, addr.addr(), size, "the workspace").map_err(|error| {
            runtime::note(&error);
            Status::InvalidPointer
        })
    })
}

/// Returns the name of a status.
pub unsafe extern "C" fn rocblas_status_to_string(status: u32) -> *const c_char {
    status_name(status).as_ptr()
}

/// Returns the size of [`rocblas_get_version_string`]'s text in bytes, including the terminator.
pub unsafe extern "C" fn rocblas_get_version_string_size(len: *mut usize) -> u32 {
    // SAFETY: the caller's pointer.
    call("rocblas_get_version_string_size", || unsafe { put(len, VERSION.to_bytes_with_nul().len()) })
}

/// Returns the version as text.
pub unsafe extern "C" fn rocblas_get_version_string(buf: *mut c_char, len: usize) -> u32 {
    call("rocblas_get_version_string", || {
        let text = VERSION.to_bytes_with_nul();
        if buf.is_null() {
            return Err(Status::InvalidPointer);
        }
        if len < text.len() {
            return Err(Status::InvalidSize);
        }
        // SAFETY: the caller guarantees `len` bytes, and the text fits.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), buf, text.len()) };
        Ok(())
    })
}

/// The unchecked arguments of a gemm function.
struct Request {
    function: &'static str,
    operations: [u32; 2],
    sizes: [i32; 3],
    types: Result<Types, Status>,
    /// alpha and beta.
    factors: [*const c_void; 2],
    /// A, B, C and D.
    matrices: [Operand; 4],
    batch: i32,
}

/// Converts the `rocblas_datatype` codes of A, B, C, D and of the computation.
fn types_of(codes: [u32; 5]) -> Result<Types, Status> {
    let [a, b, c, d, compute] = codes.map(DataType::new);
    Types::new(a?, b?, c?, d?, compute?)
}

impl Request {
    /// Checks the request and enqueues it on the handle's stream.
    ///
    /// # Safety
    /// In pointer mode host, alpha and beta must be null or point to a value of the compute type.
    unsafe fn submit(self, handle: *mut c_void) -> u32 {
        call(self.function, || {
            let handle = handle::get(handle)?;
            let [op_a, op_b] = self.operations;
            let [m, n, k] = self.sizes;
            let [a, b, c, d] = self.matrices;
            let types = self.types?;
            let mode = handle.settings().pointer_mode;
            let [alpha, beta] = self.factors.map(|pointer| match mode {
                _ if pointer.is_null() => Scalar::Missing,
                PointerMode::Device => Scalar::Device(pointer.expose_provenance()),
                // SAFETY: the caller guarantees a value of the compute type.
                PointerMode::Host => Scalar::Host(unsafe { element::read_scalar(types.scalar, pointer) }),
            });
            let problem = Problem {
                function: self.function,
                types,
                op_a: Operation::new(op_a)?,
                op_b: Operation::new(op_b)?,
                m,
                n,
                k,
                alpha,
                beta,
                a,
                b,
                c,
                d,
                batch: self.batch,
                bias: None,
            };
            match problem.check() {
                Status::Continue => enqueue(&handle, problem),
                Status::Success => Ok(()),
                status => Err(status),
            }
        })
    }
}

/// Enqueues a checked problem on the handle's stream.
fn enqueue(handle: &handle::Handle, problem: Problem) -> Outcome {
    let stream = handle.stream()?;
    let internal = |error: HipError| {
        runtime::note(&error);
        Status::InternalError
    };
    let runtime = runtime().map_err(internal)?;
    let device = runtime.device(handle.device).map_err(internal)?;
    let work = Box::new(move || {
        let memory = device.address_space(&runtime.memory);
        // SAFETY: the stream keeps live memory mapped while its work runs, and the runtime holds no references into it.
        unsafe { compute::run(&problem, &memory, runtime.options.threads) }
    });
    runtime.submit_host_work(&stream, work).map_err(internal)
}

/// Returns a matrix of a strided batch.
fn strided<T>(pointer: *const T, ld: i32, stride: i64) -> Operand {
    Operand { place: Place::Strided { base: pointer.expose_provenance(), stride }, ld }
}

/// Returns a matrix of a batch whose addresses are in an array in device memory.
fn listed(array: *const c_void, ld: i32) -> Operand {
    Operand { place: Place::Pointers { array: array.expose_provenance() }, ld }
}

/// Defines the functions that compute C = alpha * op(A) * op(B) + beta * C in one element type.
macro_rules! uniform_gemm {
    ($single:ident, $batched:ident, $type:ty, $kind:expr) => {
        #[doc = concat!("Computes C = alpha * op(A) * op(B) + beta * C in `", stringify!($type), "`.")]
        pub unsafe extern "C" fn $single(
            handle: *mut c_void,
            transA: u32,
            transB: u32,
            m: i32,
            n: i32,
            k: i32,
            alpha: *const $type,
            A: *const $type,
            lda: i32,
            B: *const $type,
            ldb: i32,
            beta: *const $type,
            C: *mut $type,
            ldc: i32,
        ) -> u32 {
            let c = strided(C, ldc, 0);
            let request = Request {
                function: stringify!($single),
                operations: [transA, transB],
                sizes: [m, n, k],
                types: Ok(Types::uniform($kind)),
                factors: [alpha.cast(), beta.cast()],
                matrices: [strided(A, lda, 0), strided(B, ldb, 0), c, c],
                batch: 1,
            };
            // SAFETY: the caller's pointers.
            unsafe { request.submit(handle) }
        }

        #[doc = concat!("Computes a batch of C = alpha * op(A) * op(B) + beta * C in `", stringify!($type), "`.")]
        pub unsafe extern "C" fn $batched(
            handle: *mut c_void,
            transA: u32,
            transB: u32,
            m: i32,
            n: i32,
            k: i32,
            alpha: *const $type,
            A: *const $type,
            lda: i32,
            stride_a: i64,
            B: *const $type,
            ldb: i32,
            stride_b: i64,
            beta: *const $type,
            C: *mut $type,
            ldc: i32,
            stride_c: i64,
            batch_count: i32,
        ) -> u32 {
            let c = strided(C, ldc, stride_c);
            let request = Request {
                function: stringify!($batched),
                operations: [transA, transB],
                sizes: [m, n, k],
                types: Ok(Types::uniform($kind)),
                factors: [alpha.cast(), beta.cast()],
                matrices: [strided(A, lda, stride_a), strided(B, ldb, stride_b), c, c],
                batch: batch_count,
            };
            // SAFETY: the caller's pointers.
            unsafe { request.submit(handle) }
        }
    };
}
uniform_gemm!(rocblas_sgemm, rocblas_sgemm_strided_batched, f32, DataType::F32);
uniform_gemm!(rocblas_dgemm, rocblas_dgemm_strided_batched, f64, DataType::F64);
uniform_gemm!(rocblas_hgemm, rocblas_hgemm_strided_batched, f16, DataType::F16);

/// Computes D = alpha * op(A) * op(B) + beta * C with the given element types. `algo`, `solution_index` and `flags` select
/// among AMD's kernels and have no effect here.
pub unsafe extern "C" fn rocblas_gemm_ex(
    handle: *mut c_void,
    transA: u32,
    transB: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const c_void,
    a: *const c_void,
    a_type: u32,
    lda: i32,
    b: *const c_void,
    b_type: u32,
    ldb: i32,
    beta: *const c_void,
    c: *const c_void,
    c_type: u32,
    ldc: i32,
    d: *mut c_void,
    d_type: u32,
    ldd: i32,
    compute_type: u32,
    _algo: u32,
    _solution_index: i32,
    _flags: u32,
) -> u32 {
    let request = Request {
        function: "rocblas_gemm_ex",
        operations: [transA, transB],
        sizes: [m, n, k],
        types: types_of([a_type, b_type, c_type, d_type, compute_type]),
        factors: [alpha, beta],
        matrices: [strided(a, lda, 0), strided(b, ldb, 0), strided(c, ldc, 0), strided(d, ldd, 0)],
        batch: 1,
    };
    // SAFETY: the caller's pointers.
    unsafe { request.submit(handle) }
}

/// Like [`rocblas_gemm_ex`], for a batch whose matrix addresses are in arrays in device memory.
pub unsafe extern "C" fn rocblas_gemm_batched_ex(
    handle: *mut c_void,
    transA: u32,
    transB: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const c_void,
    a: *const c_void,
    a_type: u32,
    lda: i32,
    b: *const c_void,
    b_type: u32,
    ldb: i32,
    beta: *const c_void,
    c: *const c_void,
    c_type: u32,
    ldc: i32,
    d: *mut c_void,
    d_type: u32,
    ldd: i32,
    batch_count: i32,
    compute_type: u32,
    _algo: u32,
    _solution_index: i32,
    _flags: u32,
) -> u32 {
    let request = Request {
        function: "rocblas_gemm_batched_ex",
        operations: [transA, transB],
        sizes: [m, n, k],
        types: types_of([a_type, b_type, c_type, d_type, compute_type]),
        factors: [alpha, beta],
        matrices: [listed(a, lda), listed(b, ldb), listed(c, ldc), listed(d, ldd)],
        batch: batch_count,
    };
    // SAFETY: the caller's pointers.
    unsafe { request.submit(handle) }
}

/// Like [`rocblas_gemm_ex`], for a strided batch.
pub unsafe extern "C" fn rocblas_gemm_strided_batched_ex(
    handle: *mut c_void,
    transA: u32,
    transB: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const c_void,
    a: *const c_void,
    a_type: u32,
    lda: i32,
    stride_a: i64,
    b: *const c_void,
    b_type: u32,
    ldb: i32,
    stride_b: i64,
    beta: *const c_void,
    c: *const c_void,
    c_type: u32,
    ldc: i32,
    stride_c: i64,
    d: *mut c_void,
    d_type: u32,
    ldd: i32,
    stride_d: i64,
    batch_count: i32,
    compute_type: u32,
    _algo: u32,
    _solution_index: i32,
    _flags: u32,
) -> u32 {
    let request = Request {
        function: "rocblas_gemm_strided_batched_ex",
        operations: [transA, transB],
        sizes: [m, n, k],
        types: types_of([a_type, b_type, c_type, d_type, compute_type]),
        factors: [alpha, beta],
        matrices: [
            strided(a, lda, stride_a),
            strided(b, ldb, stride_b),
            strided(c, ldc, stride_c),
            strided(d, ldd, stride_d),
        ],
        batch: batch_count,
    };
    // SAFETY: the caller's pointers.
    unsafe { request.submit(handle) }
}
