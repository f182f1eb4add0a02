//! Tests a hipBLASLt without kernels: all objects can be created, but the heuristic finds no algorithm.
use rocm_emulator::hipblaslt::*;
use rocm_emulator::{HipBlasLt, Options, last_error};
use std::ptr::null_mut;

#[test]
fn the_heuristic_finds_nothing() {
    let options = Options { hipblaslt: HipBlasLt::None, ..Options::default() };
    rocm_emulator::configure_with(&["gfx1100"], options).unwrap();
    let [mut handle, mut matmul, mut layout, mut preference] = [null_mut(); 4];
    let none = MatmulHeuristicResult {
        algo: MatmulAlgo::default(),
        workspaceSize: 0,
        state: 0,
        wavesCount: 0.0,
        reserved: [0; 4],
    };
    let (mut results, mut count, one) = ([none; 2], -1, 1f32);
    // SAFETY: the handles and results are written to live variables; no matrix is read.
    unsafe {
        assert_eq!(hipblasLtCreate(&mut handle), 0);
        assert_eq!(hipblasLtMatmulDescCreate(&mut matmul, 2, 0), 0);
        assert_eq!(hipblasLtMatrixLayoutCreate(&mut layout, 0, 4, 4, 4), 0);
        assert_eq!(hipblasLtMatmulPreferenceCreate(&mut preference), 0);
        let (l, to) = (layout, results.as_mut_ptr());
        let status =
            hipblasLtMatmulAlgoGetHeuristic(handle, matmul, l, l, l, l, preference, 2, to, &mut count);
        assert_eq!((status, count), (0, 0));
        let (factor, at) = ((&raw const one).cast(), std::ptr::without_provenance_mut(64));
        let product = hipblasLtMatmul(
            handle,
            matmul,
            factor,
            at,
            l,
            at,
            l,
            factor,
            at,
            l,
            at,
            l,
            std::ptr::null(),
            null_mut(),
            0,
            null_mut(),
        );
        assert_eq!(product, Status::NotSupported as u32);
    }
    assert!(last_error().unwrap_or_default().contains("hipBLASLt has no kernels"));
}
