//! The C functions with the prototypes of rocBLAS 4 and 5.
use super::handle::{self, internal};
use super::problem::{Operand, Place, Problem, Scalar};
use super::types::{DataType, Operation, Status, Types, status_name};
use super::{compute, element};
use crate::c_functions::c_functions;
use crate::runtime::{self, ErrorCode, HipError, runtime};
use half::f16;
use std::ffi::{CStr, c_char, c_void};

/// Text of `rocblas_get_version_string`: the version of the interface, marked as not AMD's library.
const VERSION: &CStr = c"4.4.0.software";

type Outcome = Result<(), Status>;

/// Runs a function's body and converts a panic to `InternalError`.
pub(super) fn answer(function: &str, body: impl FnOnce() -> Outcome) -> u32 {
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

c_functions! {
    /// Creates a handle on the current device, with its null stream and pointer mode host.
    fn rocblas_create_handle(handle: *mut *mut c_void) -> handle {
        if handle.is_null() {
            return Err(Status::InvalidHandle);
        }
        handle::create()?
    }

    /// Destroys a handle.
    fn rocblas_destroy_handle(handle: *mut c_void) {
        handle::destroy(handle)
    }

    /// Sets the stream for later work. It must belong to the handle's device.
    fn rocblas_set_stream(handle: *mut c_void, stream: *mut c_void) {
        let handle = handle::get(handle)?;
        handle::stream_on(handle.device, stream.addr()).ok_or(Status::InvalidValue)?;
        handle.change(|settings| settings.stream = stream.addr());
        Ok(())
    }

    /// Returns the handle's stream.
    fn rocblas_get_stream(handle: *mut c_void, stream: *mut *mut c_void) -> stream {
        std::ptr::without_provenance_mut(handle::get(handle)?.settings().stream)
    }

    /// Sets a workspace in device memory. Products need none here, so it is only checked.
    fn rocblas_set_workspace(handle: *mut c_void, addr: *mut c_void, size: usize) {
        let handle = handle::get(handle)?;
        if addr.is_null() {
            return Ok(());
        }
        let runtime = runtime().map_err(|_| Status::InternalError)?;
        runtime.check_range(handle.device, addr.addr(), size, "the workspace").map_err(|error| {
            runtime::note(&error);
            Status::InvalidPointer
        })
    }
}

/// Returns the name of a status.
pub unsafe extern "C" fn rocblas_status_to_string(status: u32) -> *const c_char {
    status_name(status).as_ptr()
}

c_functions! {
    /// Returns the size of [`rocblas_get_version_string`]'s text in bytes, including the terminator.
    fn rocblas_get_version_string_size(len: *mut usize) -> len {
        VERSION.to_bytes_with_nul().len()
    }

    /// Returns the version as text.
    fn rocblas_get_version_string(buf: *mut c_char, len: usize) {
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
    }
}

/// Defines the functions that set and return a mode of a handle, 0 or 1.
macro_rules! modes {
    ($($mode:ident: $set:ident, $get:ident, $what:literal;)*) => {
        c_functions! {$(
            #[doc = concat!("Sets ", $what, ".")]
            fn $set(handle: *mut c_void, mode: u32) {
                let handle = handle::get(handle)?;
                if mode > 1 {
                    return Err(Status::InvalidValue);
                }
                handle.change(|settings| settings.$mode = mode);
                Ok(())
            }

            #[doc = concat!("Returns ", $what, ".")]
            fn $get(handle: *mut c_void, mode: *mut u32) -> mode {
                handle::get(handle)?.settings().$mode
            }
        )*}
    };
}
modes! {
    pointer_mode: rocblas_set_pointer_mode, rocblas_get_pointer_mode,
        "whether alpha and beta are in host memory (0) or device memory (1)";
    atomics_mode: rocblas_set_atomics_mode, rocblas_get_atomics_mode,
        "whether atomic additions are allowed (1) or not (0), on which results never depend here";
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
        answer(self.function, || {
            let handle = handle::get(handle)?;
            let [op_a, op_b] = self.operations;
            let [m, n, k] = self.sizes;
            let [a, b, c, d] = self.matrices;
            let types = self.types?;
            let in_device_memory = handle.settings().pointer_mode == 1;
            let [alpha, beta] = self.factors.map(|pointer| match in_device_memory {
                _ if pointer.is_null() => Scalar::Missing,
                true => Scalar::Device(pointer.expose_provenance()),
                // SAFETY: the caller guarantees a value of the compute type.
                false => Scalar::Host(unsafe { element::read_scalar(types.scalar, pointer) }),
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
                gelu: false,
            };
            match problem.check() {
                Status::Continue => {
                    let stream = handle.stream()?;
                    let runtime = runtime().map_err(internal)?;
                    // SAFETY: the stream keeps live memory mapped while its work runs, and the runtime holds no
                    // references into it.
                    let work = move |memory: &_, threads| unsafe { compute::run(&problem, memory, threads) };
                    runtime.submit_host_work(&stream, work).map_err(internal)
                }
                Status::Success => Ok(()),
                status => Err(status),
            }
        })
    }
}

/// Returns a matrix of a strided batch.
fn strided<T>(pointer: *const T, ld: i32, stride: i64) -> Operand {
    Operand { place: Place::Strided { base: pointer.expose_provenance(), stride }, ld }
}

/// Returns the only matrix of a product.
fn single(pointer: *const c_void, ld: i32) -> Operand {
    strided(pointer, ld, 0)
}

/// Returns a matrix of a batch whose addresses are in an array in device memory.
fn listed(array: *const c_void, ld: i32) -> Operand {
    Operand { place: Place::Pointers { array: array.expose_provenance() }, ld }
}

/// Returns an argument that only functions for batches have, or the default.
macro_rules! given {
    (; $default:literal) => {
        $default
    };
    ($argument:ident; $default:literal) => {
        $argument
    };
}

/// Defines the functions that compute C = alpha * op(A) * op(B) + beta * C in one element type.
macro_rules! uniform_gemm {
    ($(
        $name:ident: $type:ty, $kind:ident
        $(, strides $stride_a:ident $stride_b:ident $stride_c:ident, batch $batch:ident)?;
    )*) => {$(
        #[doc = concat!("Computes C = alpha * op(A) * op(B) + beta * C in `", stringify!($type), "`.")]
        $(#[doc = concat!("Computes `", stringify!($batch), "` products.")])?
        pub unsafe extern "C" fn $name(
            handle: *mut c_void,
            transA: u32,
            transB: u32,
            m: i32,
            n: i32,
            k: i32,
            alpha: *const $type,
            A: *const $type,
            lda: i32,
            $($stride_a: i64,)?
            B: *const $type,
            ldb: i32,
            $($stride_b: i64,)?
            beta: *const $type,
            C: *mut $type,
            ldc: i32,
            $($stride_c: i64, $batch: i32,)?
        ) -> u32 {
            let a = strided(A, lda, given!($($stride_a)?; 0));
            let b = strided(B, ldb, given!($($stride_b)?; 0));
            let c = strided(C, ldc, given!($($stride_c)?; 0));
            let request = Request {
                function: stringify!($name),
                operations: [transA, transB],
                sizes: [m, n, k],
                types: Ok(Types::uniform(DataType::$kind)),
                factors: [alpha.cast(), beta.cast()],
                matrices: [a, b, c, c],
                batch: given!($($batch)?; 1),
            };
            // SAFETY: the caller's pointers.
            unsafe { request.submit(handle) }
        }
    )*};
}
uniform_gemm! {
    rocblas_sgemm: f32, F32;
    rocblas_sgemm_strided_batched: f32, F32, strides stride_a stride_b stride_c, batch batch_count;
    rocblas_dgemm: f64, F64;
    rocblas_dgemm_strided_batched: f64, F64, strides stride_a stride_b stride_c, batch batch_count;
    rocblas_hgemm: f16, F16;
    rocblas_hgemm_strided_batched: f16, F16, strides stride_a stride_b stride_c, batch batch_count;
}

/// Defines the functions that compute D = alpha * op(A) * op(B) + beta * C with the given element types. `algo`,
/// `solution_index` and `flags` select among AMD's kernels and have no effect here.
macro_rules! gemm_ex {
    ($(
        $(#[$attribute:meta])*
        $name:ident: $place:ident
        $(, strides $stride_a:ident $stride_b:ident $stride_c:ident $stride_d:ident)? $(, batch $batch:ident)?;
    )*) => {$(
        $(#[$attribute])*
        pub unsafe extern "C" fn $name(
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
            $($stride_a: i64,)?
            b: *const c_void,
            b_type: u32,
            ldb: i32,
            $($stride_b: i64,)?
            beta: *const c_void,
            c: *const c_void,
            c_type: u32,
            ldc: i32,
            $($stride_c: i64,)?
            d: *mut c_void,
            d_type: u32,
            ldd: i32,
            $($stride_d: i64,)?
            $($batch: i32,)?
            compute_type: u32,
            _algo: u32,
            _solution_index: i32,
            _flags: u32,
        ) -> u32 {
            let request = Request {
                function: stringify!($name),
                operations: [transA, transB],
                sizes: [m, n, k],
                types: types_of([a_type, b_type, c_type, d_type, compute_type]),
                factors: [alpha, beta],
                matrices: [
                    $place(a, lda $(, $stride_a)?),
                    $place(b, ldb $(, $stride_b)?),
                    $place(c, ldc $(, $stride_c)?),
                    $place(d, ldd $(, $stride_d)?),
                ],
                batch: given!($($batch)?; 1),
            };
            // SAFETY: the caller's pointers.
            unsafe { request.submit(handle) }
        }
    )*};
}
gemm_ex! {
    /// Computes D = alpha * op(A) * op(B) + beta * C with the given element types.
    rocblas_gemm_ex: single;
    /// Like [`rocblas_gemm_ex`], for a batch whose matrix addresses are in arrays in device memory.
    rocblas_gemm_batched_ex: listed, batch batch_count;
    /// Like [`rocblas_gemm_ex`], for a strided batch.
    rocblas_gemm_strided_batched_ex:
        strided, strides stride_a stride_b stride_c stride_d, batch batch_count;
}
