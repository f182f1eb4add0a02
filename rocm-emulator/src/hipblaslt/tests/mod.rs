//! Tests through the C functions: products compared with a triple loop in f64, and rejected arguments.
mod case;

use super::*;
use crate::runtime::{self, Injection};
use crate::{api, inject, last_error, last_fault};
use case::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

#[track_caller]
fn assert_error_contains(parts: &[&str]) {
    let text = last_error().unwrap_or_default();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Architecture, type of A and B, type of C and D.
const TYPES: [(&str, u32, u32); 11] = [
    ("gfx1100", F32, F32),
    ("gfx1100", F16, F16),
    ("gfx1100", F16, F32),
    ("gfx1100", BF16, BF16),
    ("gfx1100", BF16, F32),
    ("gfx942", F8_FNUZ, F16),
    ("gfx942", F8_FNUZ, BF16),
    ("gfx942", F8_FNUZ, F32),
    ("gfx1200", F8, F16),
    ("gfx1200", F8, BF16),
    ("gfx1200", F8, F32),
];

#[test]
fn every_operation_and_type_agrees_with_the_definition() {
    let shapes = [
        SMALL,
        Shape { m: 37, n: 29, k: 64, batch: 1, slack: 5, broadcast: false },
        Shape { m: 9, n: 4, k: 17, batch: 3, slack: 1, broadcast: false },
        Shape { m: 6, n: 8, k: 5, batch: 4, slack: 0, broadcast: true },
        Shape { m: 3, n: 2, k: 0, batch: 1, slack: 0, broadcast: false },
    ];
    for (arch, input, output) in TYPES {
        let _gpu = gpu(arch);
        for operations in [[NONE, NONE], [NONE, TRANSPOSE], [TRANSPOSE, NONE], [TRANSPOSE, TRANSPOSE]] {
            for shape in shapes {
                for (factors, bias) in
                    [([1.0, 0.0], false), ([2.0, -1.0], false), ([0.5, 2.0], true), ([0.0, 0.0], true)]
                {
                    let mut case = Case::new(input, output, operations, shape);
                    case.factors = factors;
                    if bias {
                        case = case.with_bias(output);
                    }
                    assert_eq!(case.run(), SUCCESS, "{:?}", last_error());
                    case.agrees(&format!("{input} to {output} on {arch}, {operations:?}, {factors:?}"));
                }
            }
        }
    }
}

#[test]
fn a_bias_in_f32_is_added_before_rounding() {
    let _gpu = gpu("gfx1100");
    let mut case = Case::new(F16, F16, [NONE; 2], SMALL).with_bias(F32);
    // f16 cannot represent 2049: rounding before adding the bias would lose it.
    case.factors = [1.0, 0.0];
    let values: Vec<f32> = (0..SMALL.m).map(|row| 2048.0 + row as f32 / 2.0).collect();
    let bias = case.bias.as_mut().unwrap();
    bias.values = values.iter().map(|value| f64::from(*value)).collect();
    // SAFETY: the buffer has this many floats.
    assert_eq!(unsafe { api::hipMemcpy(bias.place, values.as_ptr().cast(), values.len() * 4, 1) }, 0);
    assert_eq!(case.run(), SUCCESS);
    case.agrees("bias in f32");
    // A type other than D's or the factors' is not supported.
    assert_eq!(case.set_matmul(4, BF16), SUCCESS);
    assert_eq!(case.run(), NOT_SUPPORTED);
}

#[test]
fn gelu_is_applied_to_the_sum_with_the_bias() {
    let _gpu = gpu("gfx1100");
    for has_bias in [false, true] {
        let mut case = Case::new(F32, F32, [NONE; 2], SMALL);
        if has_bias {
            case = case.with_bias(F32);
        }
        let mut case = case.with_gelu();
        case.factors = [0.01, 0.0];
        assert_eq!(case.run(), SUCCESS);
        assert_eq!(case.synchronize(), 0);
        for (got, expected) in case.buffers[3].now().iter().zip(case.expected()) {
            assert!((got - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{got}, expected {expected}");
        }
    }
}

#[test]
fn c_may_be_d_and_is_not_read_without_beta() {
    let _gpu = gpu("gfx1100");
    let mut case = Case::new(F16, F16, [NONE; 2], SMALL);
    case.factors = [1.0, 2.0];
    let expected = {
        let d = case.buffers[3].values.clone();
        case.buffers[2].values = d;
        case.expected()
    };
    let (c, d) = (case.buffers[2].place, case.buffers[3].place);
    case.buffers[2].place = d;
    assert_eq!(case.run(), SUCCESS);
    assert_eq!((case.synchronize(), case.buffers[3].now()), (0, expected));
    // At the same address, but with different layouts.
    assert_eq!(case.set_layout(2, 6, SMALL.m as i64 + 1), SUCCESS);
    assert_eq!(case.run(), INVALID_VALUE);
    case.buffers[2].place = c;
}

#[test]
fn the_heuristic_offers_a_workspace_for_long_sums() {
    let _gpu = gpu("gfx1100");
    let case = Case::new(F16, F32, [TRANSPOSE, NONE], LONG);
    let sizes = |results: &[MatmulHeuristicResult]| -> Vec<usize> {
        assert!(results.iter().all(|result| result.state == SUCCESS));
        results.iter().map(|result| result.workspaceSize).collect()
    };
    let (status, results) = case.heuristic(4);
    assert_eq!((status, sizes(&results)), (SUCCESS, vec![0]), "no workspace is allowed");
    // Four parts of 2 x 4 x 3 floats.
    let needed = 4 * 2 * 4 * 3 * 4;
    case.allow_workspace(needed as u64 - 1);
    assert_eq!(sizes(&case.heuristic(4).1), [0]);
    case.allow_workspace(1 << 20);
    assert_eq!(sizes(&case.heuristic(1).1), [needed]);
    let (_, results) = case.heuristic(4);
    assert_eq!(sizes(&results), [needed, 0]);
    assert_eq!(results[0].algo.max_workspace_bytes, 1 << 20);
    assert_eq!(case.heuristic(0).0, INVALID_VALUE);

    // Both algorithms compute the result and overwrite the workspace.
    let workspace = Buffer::new(F32, needed / 4 + 1, 0);
    for result in &results {
        assert_eq!(case.run_with(&result.algo, workspace.place, needed), SUCCESS);
        case.agrees("long sums");
    }
    let after = workspace.now();
    assert!(after[..needed / 4].iter().all(|value| value.is_nan()));
    assert_eq!(after[needed / 4], workspace.values[needed / 4]);

    // The workspace is too small, missing or misaligned, or the algorithm is from elsewhere.
    let algo = &results[0].algo;
    assert_eq!(case.run_with(algo, workspace.place, needed - 1), INVALID_VALUE);
    assert_error_contains(&["hipblasLtMatmul", &format!("needs {needed} bytes")]);
    assert_eq!(case.run_with(algo, null_mut(), needed), INVALID_VALUE);
    assert_eq!(case.run_with(algo, workspace.place.wrapping_byte_add(8), needed), INVALID_VALUE);
    assert_eq!(case.run_with(&MatmulAlgo::default(), workspace.place, needed), INVALID_VALUE);
    assert_error_contains(&["not returned by the heuristic"]);
    // The workspace is smaller than claimed.
    assert_eq!(case.run_with(algo, workspace.place.wrapping_byte_add(16), needed), SUCCESS);
    assert_eq!(case.synchronize(), runtime::ErrorCode::IllegalAddress as u32);
    assert!(last_fault().unwrap().contains("the workspace"));
}

#[test]
fn faults_are_reported_when_the_host_waits_for_the_stream() {
    let _gpu = gpu("gfx1100");
    let case = Case::new(F32, F32, [NONE; 2], SMALL).with_bias(F32);
    assert_eq!(case.set_matmul(3, case.bias.as_ref().unwrap().place.wrapping_byte_add(4)), SUCCESS);
    assert_eq!(case.run(), SUCCESS);
    assert_eq!(case.synchronize(), runtime::ErrorCode::IllegalAddress as u32);
    let text = last_fault().unwrap();
    assert!(text.contains("hipblasLtMatmul") && text.contains("matrix bias"), "{text}");
    assert_eq!(case.buffers[3].now(), case.buffers[3].values, "nothing was written");
}

#[test]
fn unsupported_products_have_no_algorithms() {
    let assert_unsupported = |arch: &str, input: u32, output: u32, change: &dyn Fn(&Case), reason: &str| {
        let _gpu = gpu(arch);
        let case = Case::new(input, output, [NONE; 2], SMALL);
        change(&case);
        let (status, results) = case.heuristic(2);
        assert_eq!((status, results.len()), (SUCCESS, 0), "{reason}");
        assert_eq!(case.run(), NOT_SUPPORTED);
        assert_error_contains(&["hipblasLtMatmul", reason]);
    };
    let nothing = |_: &Case| ();
    assert_unsupported("gfx1030", F16, F16, &nothing, "no kernels for gfx1030");
    assert_unsupported("gfx1100", F8, F16, &nothing, "no products of the data types");
    assert_unsupported("gfx942", F8, F16, &nothing, "on gfx942");
    assert_unsupported("gfx1200", F8_FNUZ, F16, &nothing, "on gfx1200");
    assert_unsupported("gfx1100", F32, F16, &nothing, "no products of the data types");
    assert_unsupported("gfx1100", F16, BF16, &nothing, "no products of the data types");
    let f64s = |case: &Case| (0..4).for_each(|i| assert_eq!(case.set_layout(i, 2, F64), SUCCESS));
    assert_unsupported("gfx1100", F32, F32, &f64s, "no products of the data types");
    let set = |case: &Case| assert_eq!(case.set_matmul(2, RELU), SUCCESS);
    assert_unsupported("gfx1100", F16, F16, &set, &format!("no epilogue {RELU}"));
    let rows = |case: &Case| assert_eq!(case.set_layout(0, 3, 1), SUCCESS);
    assert_unsupported("gfx1100", F16, F16, &rows, "column-major");
}

#[test]
fn wrong_sizes_are_invalid() {
    let _gpu = gpu("gfx1100");
    let changes: [(usize, u32, i64); 6] = [
        (0, 5, SMALL.k as i64 + 1),
        (1, 4, SMALL.k as i64 + 1),
        (2, 5, SMALL.n as i64 + 1),
        (0, 6, SMALL.m as i64 - 1),
        (3, 4, 1 << 40),
        (3, 6, -1),
    ];
    for (matrix, attribute, value) in changes {
        let case = Case::new(F16, F16, [NONE; 2], SMALL);
        assert_eq!(case.set_layout(matrix, attribute, value), SUCCESS);
        assert_eq!((case.run(), case.heuristic(1).0), (INVALID_VALUE, INVALID_VALUE), "{matrix} {attribute}");
    }
    let case = Case::new(F16, F16, [NONE; 2], SMALL);
    assert_eq!(case.set_layout(0, 0, 2i32), SUCCESS);
    assert_eq!(case.run(), INVALID_VALUE);
    assert_error_contains(&["the batch of A is 2, that of D 1"]);
    (1..4).for_each(|i| assert_eq!(case.set_layout(i, 0, 2i32), SUCCESS));
    assert_eq!(case.set_layout(3, 1, 0i64), SUCCESS);
    assert_eq!(case.run(), INVALID_VALUE);
    assert_error_contains(&["the same D"]);
    // An empty product is not an error.
    let empty = Case::new(F16, F16, [NONE; 2], SMALL);
    assert_eq!((empty.set_layout(1, 5, 0u64), empty.set_layout(2, 5, 0u64)), (SUCCESS, SUCCESS));
    assert_eq!((empty.set_layout(3, 5, 0u64), empty.run()), (SUCCESS, SUCCESS));
    assert_eq!((empty.synchronize(), empty.buffers[3].now()), (0, empty.buffers[3].values.clone()));
}

#[test]
fn attributes_have_their_types() {
    let _gpu = gpu("gfx1100");
    let case = Case::new(F16, F16, [NONE; 2], SMALL);
    assert_eq!(case.set_layout(0, 0, 1i64), INVALID_VALUE, "a count has 4 bytes");
    assert_eq!(case.set_layout(0, 1, 1i32), INVALID_VALUE, "a stride has 8 bytes");
    assert_eq!(case.set_layout(0, 7, 0i32), NOT_SUPPORTED);
    assert_eq!(case.set_matmul(0, 0u32), INVALID_VALUE, "CUBLAS_OP_N");
    assert_eq!(case.set_matmul(5, null::<c_void>()), NOT_SUPPORTED);
    assert_error_contains(&["attribute 5 of hipblasLtMatmulDescAttributes_t"]);
    // SAFETY: a null value is rejected.
    assert_eq!(unsafe { hipblasLtMatmulDescSetAttribute(case.matmul, 0, null(), 4) }, INVALID_VALUE);
    assert_eq!(case.set_matmul(2, BIAS), SUCCESS);
    assert_eq!(case.run(), INVALID_VALUE);
    assert_error_contains(&["the bias is null"]);
    assert_eq!(case.set_matmul(2, DEFAULT), SUCCESS);
    assert_eq!(case.run(), SUCCESS);
}

#[test]
fn stale_handles_are_errors() {
    let _gpu = gpu("gfx1100");
    let number = std::ptr::without_provenance_mut(0x1234);
    let mut version = 0;
    // SAFETY: handles may have any value; the version is written to a live variable.
    unsafe {
        assert_eq!(hipblasLtCreate(null_mut()), INVALID_VALUE);
        for handle in [null_mut(), number] {
            assert_eq!(hipblasLtDestroy(handle), NOT_INITIALIZED);
            assert_eq!(hipblasLtGetVersion(handle, &mut version), NOT_INITIALIZED);
            assert_eq!(hipblasLtMatrixLayoutDestroy(handle), INVALID_VALUE);
            assert_eq!(hipblasLtMatmulDescDestroy(handle), INVALID_VALUE);
            assert_eq!(hipblasLtMatmulPreferenceDestroy(handle), INVALID_VALUE);
        }
        let case = Case::new(F16, F16, [NONE; 2], SMALL);
        assert_eq!((hipblasLtGetVersion(case.handle, &mut version), version), (SUCCESS, 1200));
        assert_eq!(hipblasLtMatrixLayoutDestroy(case.layouts[2]), SUCCESS);
        assert_eq!((case.run(), case.heuristic(1).0), (INVALID_VALUE, INVALID_VALUE));
        assert_error_contains(&["is not a live hipblasLtMatrixLayout_t"]);
        assert_eq!(case.set_layout(2, 0, 1i32), INVALID_VALUE);
        assert_eq!(hipblasLtDestroy(case.handle), SUCCESS);
        assert_eq!((case.run(), case.heuristic(1).0), (NOT_INITIALIZED, NOT_INITIALIZED));
        // A destroyed stream, and one of another device.
        let mut case = Case::new(F16, F16, [NONE; 2], SMALL);
        let own = case.stream;
        case.stream = number;
        assert_eq!(case.run(), INVALID_VALUE);
        assert_eq!(api::hipSetDevice(1), 0);
        assert_eq!(api::hipStreamCreateWithFlags(&mut case.stream, 1), 0);
        assert_eq!(case.run(), INVALID_VALUE);
        assert_eq!(api::hipStreamDestroy(case.stream), 0);
        case.stream = own;
        assert_eq!(case.run(), SUCCESS);
    }
}

#[test]
fn injected_calls_fail() {
    let _gpu = gpu("gfx1100");
    let case = Case::new(F16, F16, [NONE; 2], SMALL);
    inject(Injection { failing: vec![("hipblasLtMatmul".into(), 2)], ..Injection::default() });
    let outcomes = [case.run(), case.run(), case.run()];
    inject(Injection::default());
    assert_eq!(outcomes, [SUCCESS, INTERNAL_ERROR, SUCCESS]);
    case.agrees("after a failure");
}

#[test]
fn eight_bit_floats_have_their_values() {
    use crate::rocblas::element::{self, Element};
    for code in 0..=255 {
        for (kind, value) in [(F8, element::F8(code).widen()), (F8_FNUZ, element::F8Fnuz(code).widen())] {
            match small_float(kind, code) {
                Some(expected) => assert_eq!(f64::from(value), expected, "{kind} {code:#x}"),
                None => assert!(value.is_nan(), "{kind} {code:#x}"),
            }
        }
    }
}

#[test]
fn a_panic_in_a_function_returns_an_error_status() {
    let _gpu = gpu("gfx1100");
    assert_eq!(functions::call("test", |_| panic!("on purpose")), Status::InternalError as u32);
    assert_error_contains(&["test: the software GPU failed: on purpose"]);
}
