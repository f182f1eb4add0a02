//! Tests of rocBLAS through its C functions: handles, settings, stream order, and faults that are reported when the host
//! waits for the stream.
use rocm_emulator::{api, rocblas};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

const NONE: u32 = 111;
const TRANSPOSE: u32 = 112;
const F16: u32 = 150;
const F32: u32 = 151;
const SUCCESS: u32 = 0;

/// A stream and a rocBLAS handle that uses it.
struct Gpu {
    stream: *mut c_void,
    handle: *mut c_void,
}

impl Gpu {
    fn new() -> Self {
        rocm_emulator::configure(&["gfx1100"]).unwrap();
        let (mut stream, mut handle) = (null_mut(), null_mut());
        // SAFETY: both are written to live variables.
        unsafe {
            assert_eq!(api::hipStreamCreateWithFlags(&mut stream, 1), SUCCESS);
            assert_eq!(rocblas::rocblas_create_handle(&mut handle), SUCCESS);
            assert_eq!(rocblas::rocblas_set_stream(handle, stream), SUCCESS);
        }
        Self { stream, handle }
    }

    fn upload<T: Copy>(&self, values: &[T]) -> *mut T {
        let mut place = null_mut();
        let bytes = size_of_val(values);
        // SAFETY: the values are live, and the allocation has their size.
        unsafe {
            assert_eq!(api::hipMalloc(&mut place, bytes), SUCCESS);
            assert_eq!(api::hipMemcpy(place, values.as_ptr().cast(), bytes, 1), SUCCESS);
        }
        place.cast()
    }

    fn download<T: Copy + Default>(&self, place: *const T, len: usize) -> Vec<T> {
        let mut values = vec![T::default(); len];
        // SAFETY: the vector holds the copied bytes.
        unsafe {
            assert_eq!(
                api::hipMemcpy(values.as_mut_ptr().cast(), place.cast(), len * size_of::<T>(), 2),
                SUCCESS
            )
        };
        values
    }

    fn synchronize(&self) -> u32 {
        // SAFETY: handles may be anything.
        unsafe { api::hipStreamSynchronize(self.stream) }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: handles may be anything.
        unsafe {
            assert_eq!(rocblas::rocblas_destroy_handle(self.handle), SUCCESS);
            assert_eq!(api::hipStreamDestroy(self.stream), SUCCESS);
        }
    }
}

#[test]
fn products_run_in_stream_order() {
    let gpu = Gpu::new();
    // Column-major: A is [1 3; 2 4], its transpose [1 2; 3 4].
    let a = gpu.upload(&[1f32, 2.0, 3.0, 4.0]);
    let b = gpu.upload(&[1f32, 0.0, 0.0, 1.0]);
    let c = gpu.upload(&[f32::NAN; 4]);
    let d = gpu.upload(&[0f32; 4]);
    let (one, zero) = (1f32, 0f32);
    // SAFETY: all addresses are allocations of four floats.
    unsafe {
        let h = gpu.handle;
        assert_eq!(
            rocblas::rocblas_sgemm(h, TRANSPOSE, NONE, 2, 2, 2, &one, a, 2, b, 2, &zero, c, 2),
            SUCCESS
        );
        // Uses the first product's result without waiting for it.
        assert_eq!(rocblas::rocblas_sgemm(h, NONE, NONE, 2, 2, 2, &one, a, 2, c, 2, &zero, d, 2), SUCCESS);
    }
    assert_eq!(gpu.synchronize(), SUCCESS);
    assert_eq!(gpu.download(c, 4), [1.0, 3.0, 2.0, 4.0]);
    // [1 3; 2 4] * [1 2; 3 4] = [10 14; 14 20]
    assert_eq!(gpu.download(d, 4), [10.0, 14.0, 14.0, 20.0]);
}

#[test]
fn typed_batches_read_scalars_from_the_device() {
    let gpu = Gpu::new();
    let half = |value: f32| half::f16::from_f32(value);
    let a = gpu.upload(&[1.0, 2.0, 3.0, 4.0].map(half));
    let b = gpu.upload(&[5.0, 6.0].map(half));
    let c = gpu.upload(&[100.0, 200.0].map(half));
    let scalars = gpu.upload(&[2f32, 1.0]);
    // SAFETY: two dot products of two elements each; all addresses are allocations that hold them.
    unsafe {
        assert_eq!(rocblas::rocblas_set_pointer_mode(gpu.handle, 1), SUCCESS);
        let status = rocblas::rocblas_gemm_strided_batched_ex(
            gpu.handle,
            NONE,
            NONE,
            1,
            1,
            2,
            scalars.cast(),
            a.cast(),
            F16,
            1,
            2,
            b.cast(),
            F16,
            2,
            0,
            scalars.add(1).cast(),
            c.cast(),
            F16,
            1,
            1,
            c.cast(),
            F16,
            1,
            1,
            2,
            F32,
            0,
            0,
            0,
        );
        assert_eq!(status, SUCCESS);
    }
    assert_eq!(gpu.synchronize(), SUCCESS);
    // 100 + 2 * (1*5 + 2*6), 200 + 2 * (3*5 + 4*6)
    assert_eq!(gpu.download(c, 2), [134.0, 278.0].map(half));
}

#[test]
fn a_freed_matrix_is_a_fault_and_the_device_keeps_working() {
    let gpu = Gpu::new();
    let a = gpu.upload(&[3f32]);
    let b = gpu.upload(&[4f32]);
    let c = gpu.upload(&[0f32]);
    let gone = gpu.upload(&[0f32]);
    let (one, zero) = (1f32, 0f32);
    // SAFETY: the runtime checks the address of the freed matrix.
    unsafe {
        assert_eq!(api::hipFree(gone.cast()), SUCCESS);
        let h = gpu.handle;
        assert_eq!(rocblas::rocblas_sgemm(h, NONE, NONE, 1, 1, 1, &one, gone, 1, b, 1, &zero, c, 1), SUCCESS);
        assert_eq!(gpu.synchronize(), 700);
        let text = rocm_emulator::last_error().unwrap_or_default();
        assert!(text.contains("rocblas_sgemm") && text.contains("matrix A"), "{text}");
        assert_eq!(gpu.synchronize(), SUCCESS, "the fault is reported once");
        assert_eq!(rocblas::rocblas_sgemm(h, NONE, NONE, 1, 1, 1, &one, a, 1, b, 1, &zero, c, 1), SUCCESS);
    }
    assert_eq!(gpu.synchronize(), SUCCESS);
    assert_eq!(gpu.download(c, 1), [12.0]);
}

#[test]
fn handles_keep_their_settings() {
    let gpu = Gpu::new();
    // SAFETY: results go to live variables; handles may be anything.
    unsafe {
        let (mut stream, mut mode, mut atomics) = (null_mut(), 9, 9);
        assert_eq!(rocblas::rocblas_get_stream(gpu.handle, &mut stream), SUCCESS);
        assert_eq!(stream, gpu.stream);
        assert_eq!(rocblas::rocblas_get_pointer_mode(gpu.handle, &mut mode), SUCCESS);
        assert_eq!(mode, 0);
        assert_eq!(rocblas::rocblas_set_atomics_mode(gpu.handle, 0), SUCCESS);
        assert_eq!(rocblas::rocblas_get_atomics_mode(gpu.handle, &mut atomics), SUCCESS);
        assert_eq!(atomics, 0);
        assert_eq!(rocblas::rocblas_set_pointer_mode(gpu.handle, 2), 11, "invalid_value");
        assert_eq!(rocblas::rocblas_set_stream(gpu.handle, gpu.handle), 11, "a handle is not a stream");
        assert_eq!(rocblas::rocblas_set_workspace(gpu.handle, null_mut(), 0), SUCCESS);
        assert_eq!(rocblas::rocblas_set_workspace(gpu.handle, 64 as *mut c_void, 8), 3, "invalid_pointer");
        for stale in [null_mut(), gpu.stream] {
            assert_eq!(rocblas::rocblas_get_pointer_mode(stale, &mut mode), 1, "invalid_handle");
        }
        assert_eq!(rocblas::rocblas_create_handle(null_mut()), 1);
        assert_eq!(rocblas::rocblas_destroy_handle(null_mut()), 1);
    }
}

#[test]
fn invalid_arguments_are_reported_by_the_call() {
    let gpu = Gpu::new();
    let h = gpu.handle;
    let a = gpu.upload(&[1f32; 4]);
    let one = 1f32;
    // SAFETY: nothing is computed; the scalars are live.
    unsafe {
        let sgemm = |ta, m, lda, at: *const f32| {
            rocblas::rocblas_sgemm(h, ta, NONE, m, 2, 2, &one, at, lda, a, 2, &one, a, 2)
        };
        assert_eq!(sgemm(99, 2, 2, a), 11, "invalid_value");
        assert_eq!(sgemm(NONE, -1, 2, a), 4, "invalid_size");
        assert_eq!(sgemm(NONE, 2, 1, a), 4, "invalid_size");
        assert_eq!(sgemm(NONE, 2, 2, null()), 3, "invalid_pointer");
        assert_eq!(sgemm(NONE, 0, 2, null()), SUCCESS, "the product is empty");
        let complex = 154;
        let status = rocblas::rocblas_gemm_ex(
            h,
            NONE,
            NONE,
            1,
            1,
            1,
            (&raw const one).cast(),
            a.cast(),
            complex,
            1,
            a.cast(),
            complex,
            1,
            (&raw const one).cast(),
            a.cast(),
            complex,
            1,
            a.cast(),
            complex,
            1,
            complex,
            0,
            0,
            0,
        );
        assert_eq!(status, 2, "not_implemented");
        let text = CStr::from_ptr(rocblas::rocblas_status_to_string(4));
        assert_eq!(text, c"rocblas_status_invalid_size");
    }
    assert_eq!(gpu.synchronize(), SUCCESS);
}

#[test]
fn the_version_fits_the_reported_size() {
    let mut size = 0;
    let mut text = vec![0u8; 64];
    // SAFETY: the buffer is larger than any length that is passed.
    unsafe {
        assert_eq!(rocblas::rocblas_get_version_string_size(&mut size), SUCCESS);
        assert_eq!(rocblas::rocblas_get_version_string(text.as_mut_ptr().cast(), size - 1), 4);
        assert_eq!(rocblas::rocblas_get_version_string(text.as_mut_ptr().cast(), size), SUCCESS);
    }
    let version = CStr::from_bytes_until_nul(&text).unwrap();
    assert_eq!(version.to_bytes_with_nul().len(), size);
    assert!(version.to_bytes().starts_with(b"4."), "{version:?}");
}
