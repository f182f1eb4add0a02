//! Tests of the loader's own features on two software GPUs: bound devices, suballocations, errors.
#![cfg(feature = "emulator")]

use std::error::Error;
use std::ptr::null_mut;

use rocm_loader::{bound_device, hip, hipblaslt, miopen, parts};

fn select() -> Result<(), rocm_loader::LoadError> {
    rocm_loader::select("emulator:gfx1100,gfx90a")
}

#[test]
fn the_bound_device_follows_the_calls_of_the_thread() -> Result<(), Box<dyn Error>> {
    select()?;
    assert_eq!(bound_device(), None);
    // SAFETY: these functions take integers or write one integer to a live variable.
    unsafe {
        assert_eq!(hip::hipSetDevice(1), 0);
        assert_eq!(bound_device(), Some(1));
        assert_eq!(hip::hipGetDeviceCount(&mut 0), 0);
        assert_eq!(bound_device(), Some(1), "a query does not change it");
        assert_ne!(hip::hipSetDevice(2), 0);
        assert_eq!(bound_device(), None, "hipSetDevice failed");
        assert_eq!(hip::hipSetDevice(0), 0);
        assert_eq!(std::thread::spawn(bound_device).join().ok(), Some(None));
        assert_eq!(bound_device(), Some(0));
        hip::hipCtxSetCurrent(null_mut());
        assert_eq!(bound_device(), None);
    }
    Ok(())
}

#[test]
fn a_suballocation_restricts_accesses_to_its_allocation() -> Result<(), Box<dyn Error>> {
    select()?;
    assert!(parts::are_tracked());
    let null_stream = null_mut();
    let mut segment = null_mut();
    // SAFETY: the segment is 64 KiB, and every fill begins and ends in it.
    unsafe {
        assert_eq!(hip::hipMalloc(&mut segment, 1 << 16), 0);
        let fills = |offset: usize| {
            let code = hip::hipMemset(segment.byte_add(offset), 0, 4096);
            (code == 0) && hip::hipDeviceSynchronize() == 0
        };
        assert!(fills(8192), "the whole segment is one allocation");
        parts::allocated(null_stream, segment.addr(), 4096);
        assert!(fills(0));
        parts::freed(null_stream, segment.addr());
        assert!(!fills(0), "the part was freed");
    }
    Ok(())
}

#[test]
fn the_software_gpu_needs_no_tensile_files() -> Result<(), Box<dyn Error>> {
    select()?;
    assert_eq!(rocm_loader::driver()?.tensile_files("gfx1100")?, None);
    Ok(())
}

#[test]
fn the_software_gpu_has_no_find_mode() -> Result<(), Box<dyn Error>> {
    select()?;
    let (handle, tensor, convolution) = (null_mut(), null_mut(), null_mut());
    // SAFETY: no pointer is read, and the result is one number.
    let status = unsafe {
        miopen::miopenConvolutionForwardGetWorkSpaceSize(handle, tensor, tensor, convolution, tensor, &mut 0)
    };
    let text = rocm_loader::last_error().unwrap_or_default();
    assert_eq!(status, 6, "not implemented");
    assert!(text.contains("the software GPU has no miopenConvolutionForwardGetWorkSpaceSize"), "{text}");
    Ok(())
}

#[test]
fn a_code_object_for_an_nvidia_gpu_is_rejected() -> Result<(), Box<dyn Error>> {
    select()?;
    let mut image = [0u8; 64];
    image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    image[18] = 190;
    image[20] = 1;
    // SAFETY: the handle is live; the image is as long as its header says.
    assert_eq!(unsafe { hip::hipModuleLoadData(&mut null_mut(), image.as_ptr().cast()) }, 200);
    let text = rocm_loader::last_error().unwrap_or_default();
    assert!(text.contains("an object for an NVIDIA GPU"), "{text}");
    Ok(())
}

/// Computes D = A B + bias for f32 matrices of 2 x 2 with the calls that a program makes.
#[test]
fn a_product_with_a_bias_through_hipblaslt() -> Result<(), Box<dyn Error>> {
    use hipblaslt::*;
    select()?;
    let null = std::ptr::null_mut::<c_void>;
    let (mut handle, mut matmul, mut layout, mut preference) =
        (null(), null().cast(), null().cast(), null().cast());
    let mut found = [hipblasLtMatmulHeuristicResult_t::default()];
    let (mut memory, mut count, one, zero) = (null(), 0, 1f32, 0f32);
    let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
    // Column-major: A is [1 3; 2 4], B [0 1; 1 0], the bias [10 20]; C is not read.
    let mut values = [1f32, 2.0, 3.0, 4.0, 0.0, 1.0, 1.0, 0.0, 10.0, 20.0, f32::NAN, 0.0, 0.0, 0.0];
    // SAFETY: all pointers are live and of their attributes' sizes; the allocation holds the values.
    unsafe {
        assert_eq!(hip::hipSetDevice(0), 0);
        assert_eq!(hip::hipMalloc(&mut memory, size_of_val(&values)), 0);
        assert_eq!(hip::hipMemcpy(memory, values.as_ptr().cast(), size_of_val(&values), 1), 0);
        let at = |index: usize| memory.cast::<f32>().wrapping_add(index).cast::<c_void>();
        assert_eq!(hipblasLtCreate(&mut handle), HIPBLAS_STATUS_SUCCESS);
        assert_eq!(hipblasLtMatmulDescCreate(&mut matmul, HIPBLAS_COMPUTE_32F, HIP_R_32F), 0);
        assert_eq!(hipblasLtMatrixLayoutCreate(&mut layout, HIP_R_32F, 2, 2, 2), 0);
        assert_eq!(hipblasLtMatmulPreferenceCreate(&mut preference), 0);
        let (epilogue, bias) = (HIPBLASLT_EPILOGUE_BIAS, at(8));
        let set = |attribute, from, bytes| hipblasLtMatmulDescSetAttribute(matmul, attribute, from, bytes);
        assert_eq!(set(HIPBLASLT_MATMUL_DESC_EPILOGUE, (&raw const epilogue).cast(), 4), 0);
        assert_eq!(set(HIPBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const bias).cast(), 8), 0);
        let l = layout;
        let to = found.as_mut_ptr();
        let status =
            hipblasLtMatmulAlgoGetHeuristic(handle, matmul, l, l, l, l, preference, 1, to, &mut count);
        assert_eq!((status, count, found[0].workspaceSize), (0, 1, 0));
        let (a, b, d, algo) = (at(0), at(4), at(10), &raw const found[0].algo);
        let status = hipblasLtMatmul(
            handle,
            matmul,
            alpha,
            a,
            l,
            b,
            l,
            beta,
            d,
            l,
            d,
            l,
            algo,
            null(),
            0,
            null().cast(),
        );
        assert_eq!(status, HIPBLAS_STATUS_SUCCESS, "{:?}", rocm_loader::last_error());
        assert_eq!(hip::hipMemcpy(values.as_mut_ptr().cast(), memory, size_of_val(&values), 2), 0);
        assert_eq!(hipblasLtDestroy(handle), 0);
        assert_eq!(hip::hipFree(memory), 0);
    }
    assert_eq!(values[10..], [13.0, 24.0, 11.0, 22.0]);
    Ok(())
}
