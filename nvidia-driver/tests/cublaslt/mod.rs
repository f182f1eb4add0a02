//! hipBLASLt's functions on a fake libcublasLt.
use rocm_loader::hipblaslt::*;

use super::*;

/// Tests with it use a fake cuBLAS too: an installed one would load this library, and fail.
const CUBLASLT: &str = "libcublasLt.so.13";

fn set_layout<T>(layout: hipblasLtMatrixLayout_t, attribute: u32, value: T) -> u32 {
    // SAFETY: a live descriptor, and a value of its size.
    unsafe { hipblasLtMatrixLayoutSetAttribute(layout, attribute, (&raw const value).cast(), size_of::<T>()) }
}

fn set_matmul<T>(matmul: hipblasLtMatmulDesc_t, attribute: u32, value: T) -> u32 {
    // SAFETY: a live descriptor, and a value of its size.
    unsafe { hipblasLtMatmulDescSetAttribute(matmul, attribute, (&raw const value).cast(), size_of::<T>()) }
}

fn layout(kind: hipDataType, rows: u64) -> hipblasLtMatrixLayout_t {
    let mut layout = null_mut();
    // SAFETY: the handle is written to a live variable.
    assert_eq!(unsafe { hipblasLtMatrixLayoutCreate(&mut layout, kind, rows, 5, 9) }, 0);
    layout
}

#[test]
fn missing_cublaslt_is_reported() -> Outcome {
    if !in_child("cublaslt::missing_cublaslt_is_reported", Some(&libraries(&[CUDA])?), &[])? {
        return Ok(());
    }
    if rocm_loader::driver()?.libraries()[3].file.is_some() {
        return Ok(()); // cuBLASLt is installed on this system
    }
    // SAFETY: the handle is written to a live variable.
    assert_eq!(unsafe { hipblasLtCreate(&mut null_mut()) }, HIPBLAS_STATUS_NOT_INITIALIZED);
    assert_contains(last_error(), &["libcublasLt.so of CUDA", "libcublasLt.so.13 or libcublasLt.so.12"]);
    assert_eq!(rocm_loader::driver()?.versions().hipblaslt, None);
    Ok(())
}

#[test]
fn attribute_numbers_are_converted() -> Outcome {
    if !in_child(
        "cublaslt::attribute_numbers_are_converted",
        Some(&libraries(&[CUDA, CUBLAS, CUBLASLT])?),
        &[],
    )? {
        return Ok(());
    }
    let driver = rocm_loader::driver()?;
    assert_eq!(driver.versions().hipblaslt, Some(130_107));
    assert_eq!(driver.libraries()[3].name, "libcublasLt.so");
    assert_eq!(log(CUBLASLT)?, ["handle", "end of handle"]);
    let (mut matmul, mut preference) = (null_mut(), null_mut());
    // SAFETY: the handles are written to live variables, and a value of its size.
    unsafe {
        assert_eq!(hipblasLtMatmulDescCreate(&mut matmul, HIPBLAS_COMPUTE_32F, HIP_R_32F), 0);
        assert_eq!(hipblasLtMatmulDescCreate(&mut matmul, 6, HIP_R_32F), HIPBLAS_STATUS_NOT_SUPPORTED);
        assert_contains(last_error(), &["compute type 6"]);
        assert_eq!(hipblasLtMatmulPreferenceCreate(&mut preference), 0);
        let attribute = HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = 1u64 << 25;
        let from = (&raw const bytes).cast();
        assert_eq!(hipblasLtMatmulPreferenceSetAttribute(preference, attribute, from, 8), 0);
    }
    assert_eq!(
        log(CUBLASLT)?,
        // Partial sums stay in f32.
        ["matmul 68:0", "preference", "preference: 3 = 2 (4 bytes)", "preference: 1 = 33554432 (8 bytes)"]
    );
    let of = layout(HIP_R_16BF, 7);
    for (attribute, number) in [(0, 5), (2, 0), (3, 1)] {
        assert_eq!(set_layout(of, attribute, 11u32), 0);
        assert_eq!(log(CUBLASLT)?.pop(), Some(format!("layout 14:7x5:9: {number} = 11 (4 bytes)")));
    }
    for (attribute, number) in [(1, 6), (4, 2), (5, 3), (6, 4)] {
        assert_eq!(set_layout(of, attribute, 11u64), 0);
        assert_eq!(log(CUBLASLT)?.pop(), Some(format!("layout 14:7x5:9: {number} = 11 (8 bytes)")));
    }
    assert_eq!(set_layout(of, 7, 0u32), HIPBLAS_STATUS_NOT_SUPPORTED);
    for (attribute, value, expected) in [
        (HIPBLASLT_MATMUL_DESC_TRANSA, HIPBLAS_OP_N, "3 = 0"),
        (HIPBLASLT_MATMUL_DESC_TRANSB, HIPBLAS_OP_T, "4 = 1"),
        (HIPBLASLT_MATMUL_DESC_TRANSB, HIPBLAS_OP_C, "4 = 2"),
        (HIPBLASLT_MATMUL_DESC_EPILOGUE, HIPBLASLT_EPILOGUE_BIAS, "7 = 4"),
        (HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, HIP_R_16F, "26 = 2"),
    ] {
        assert_eq!(set_matmul(matmul, attribute, value), 0);
        assert_eq!(log(CUBLASLT)?, [format!("matmul 68:0: {expected} (4 bytes)")]);
    }
    assert_eq!(set_matmul(matmul, HIPBLASLT_MATMUL_DESC_BIAS_POINTER, 64u64), 0);
    assert_eq!(log(CUBLASLT)?, ["matmul 68:0: 8 = 64 (8 bytes)"]);
    assert_eq!(set_matmul(matmul, HIPBLASLT_MATMUL_DESC_TRANSA, 0u32), HIPBLAS_STATUS_INVALID_VALUE);
    assert_eq!(set_matmul(matmul, 5, 0u64), HIPBLAS_STATUS_NOT_SUPPORTED);
    // SAFETY: the fake library rejects a null value.
    unsafe {
        assert_eq!(hipblasLtMatmulDescSetAttribute(matmul, 0, null(), 4), HIPBLAS_STATUS_INVALID_VALUE);
        assert_contains(last_error(), &["cublasLtMatmulDescSetAttribute returned CUBLAS_STATUS_FAKE (7)"]);
        assert_eq!(hipblasLtMatrixLayoutDestroy(of), 0);
        assert_eq!(
            (hipblasLtMatmulDescDestroy(matmul), hipblasLtMatmulPreferenceDestroy(preference)),
            (0, 0)
        );
    }
    assert_eq!(log(CUBLASLT)?, ["end of layout 14:7x5:9", "end of matmul 68:0", "end of preference"]);
    Ok(())
}

#[test]
fn a_product_is_one_call() -> Outcome {
    if !in_child("cublaslt::a_product_is_one_call", Some(&libraries(&[CUDA, CUBLAS, CUBLASLT])?), &[])? {
        return Ok(());
    }
    let (mut handle, mut matmul, mut preference) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the handles are written to live variables.
    unsafe {
        assert_eq!(hipblasLtCreate(&mut handle), 0);
        assert_eq!(hipblasLtMatmulDescCreate(&mut matmul, HIPBLAS_COMPUTE_32F, HIP_R_32F), 0);
        assert_eq!(hipblasLtMatmulPreferenceCreate(&mut preference), 0);
    }
    let of = layout(HIP_R_16F, 7);
    let mut results = [hipblasLtMatmulHeuristicResult_t::default(); 4];
    let mut heuristic = |a, wanted| {
        let mut count = -1;
        let to = results.as_mut_ptr();
        // SAFETY: live descriptors, and an array of four results.
        let status = unsafe {
            hipblasLtMatmulAlgoGetHeuristic(handle, matmul, a, of, of, of, preference, wanted, to, &mut count)
        };
        (status, count, results)
    };
    assert_eq!(heuristic(of, 0).0, HIPBLAS_STATUS_INVALID_VALUE);
    let (status, count, found) = heuristic(of, 4);
    assert_eq!((status, count), (0, 2), "unusable algorithms are left out");
    assert_eq!((found[0].workspaceSize, found[1].workspaceSize), (4096, 0));
    assert_eq!(found[0].wavesCount, 0.5);
    assert_eq!(heuristic(of, 4).2[..2], found[..2], "the same algorithms are returned again");
    // A missing kernel is not an error; a failure is.
    let (small, failing) = (layout(HIP_R_8F_E4M3, 7), layout(HIP_R_16F, 3));
    let (status, count, _) = heuristic(small, 4);
    assert_eq!((status, count), (0, 0));
    assert_eq!(heuristic(failing, 4).0, HIPBLAS_STATUS_INTERNAL_ERROR);
    assert_contains(last_error(), &["cublasLtMatmulAlgoGetHeuristic returned CUBLAS_STATUS_FAKE (14)"]);
    log(CUBLASLT)?;

    let product = |alpha: f32, algo: *const hipblasLtMatmulAlgo_t| {
        let address = std::ptr::without_provenance_mut::<c_void>;
        let (beta, stream) = (0.25f32, address(96).cast());
        let (alpha, beta) = ((&raw const alpha).cast(), (&raw const beta).cast());
        let (a, b, c, d, workspace) = (address(16), address(32), address(48), address(64), address(80));
        // SAFETY: live descriptors; the fake library reads no matrix.
        unsafe {
            hipblasLtMatmul(
                handle, matmul, alpha, a, of, b, of, beta, c, of, d, of, algo, workspace, 4096, stream,
            )
        }
    };
    let by = |algorithm: &str| {
        format!("matmul 68:0 of 1.5 16:layout 2:7x5:9 32 0.25 48 to 64 by {algorithm} in 4096 at 80 on 96")
    };
    for (number, algo) in [(7, found[0].algo), (8, found[1].algo)] {
        assert_eq!(product(1.5, &algo), 0);
        assert_eq!(log(CUBLASLT)?, [by(&format!("Some({:?})", [number; 8]))]);
    }
    assert_eq!(product(1.5, null()), 0);
    assert_eq!(log(CUBLASLT)?, [by("None")]);
    assert_eq!(product(99.0, null()), HIPBLAS_STATUS_EXECUTION_FAILED);
    assert_contains(last_error(), &["cublasLtMatmul returned CUBLAS_STATUS_FAKE (13): it was asked to fail"]);
    assert_eq!(product(1.5, &hipblasLtMatmulAlgo_t::default()), HIPBLAS_STATUS_INVALID_VALUE);
    assert_contains(last_error(), &["not returned by the heuristic"]);
    Ok(())
}
