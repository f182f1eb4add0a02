//! Products whose batches no single stride covers: heads that share keys, and operands broadcast along different dims.
use super::fixture::*;
use super::matmul::product;
use candle_core::{DType, Device, Result, Tensor};

/// Creates both operands of a product.
type Operands = fn(DType, &Device) -> Result<(Tensor, Tensor)>;

/// Returns a device whose launches no other test affects.
fn own() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

fn on(device: &Device, dims: &[usize], dtype: DType) -> Result<Tensor> {
    tensor(dims, dtype, 0.5).to_device(device)
}

/// Compares the product with its definition. Returns the number of built-in kernels that were launched.
fn check(operands: Operands, dtype: DType, device: &Device, what: &str) -> u64 {
    let counted = device.as_rocm_device().unwrap();
    let (lhs, rhs) = operands(dtype, device).unwrap();
    let before = counted.kernels_launched();
    let got = lhs.matmul(&rhs).unwrap();
    let launched = counted.kernels_launched() - before;
    // Dense copies with a single batch dim.
    let flat = |t: &Tensor| {
        let [batch @ .., rows, columns] = t.dims() else { panic!("{what}") };
        let dims = (batch.iter().product::<usize>(), *rows, *columns);
        t.to_device(&Device::Cpu).unwrap().contiguous().unwrap().reshape(dims).unwrap()
    };
    let expected = product(&flat(&lhs), &flat(&rhs));
    let [batch @ .., _, _] = lhs.dims() else { panic!("{what}") };
    assert_eq!(got.dims(), [batch, &[lhs.dims()[batch.len()], rhs.dims()[batch.len() + 1]]].concat());
    let tolerance = if dtype == DType::F32 { 1e-5 } else { epsilon(dtype) };
    assert_close_values(&to_f64(&got), &expected, tolerance, &format!("{what}, {dtype:?}"));
    launched
}

/// Rows and columns are not aligned, so rocBLAS computes the product and no built-in kernel is launched.
#[test]
fn broadcast_operands_are_not_copied() {
    let device = own();
    let cases: [(&str, Operands); 9] = [
        ("heads that share keys", |dtype, device| {
            let k = on(device, &[2, 3, 1, 7, 6], dtype)?.broadcast_as((2, 3, 4, 7, 6))?;
            Ok((on(device, &[2, 3, 4, 5, 6], dtype)?, k.t()?))
        }),
        ("heads among each other that share keys", |dtype, device| {
            let q = on(device, &[2, 5, 3, 4, 6], dtype)?.permute((0, 2, 3, 1, 4))?;
            let k = on(device, &[2, 3, 1, 7, 6], dtype)?.broadcast_as((2, 3, 4, 7, 6))?;
            Ok((q, k.t()?))
        }),
        ("single rows among each other", |dtype, device| {
            let q = on(device, &[2, 1, 3, 4, 6], dtype)?.permute((0, 2, 3, 1, 4))?;
            Ok((q, on(device, &[2, 3, 1, 6, 7], dtype)?.broadcast_as((2, 3, 4, 6, 7))?))
        }),
        ("single rows of batches that share a right side", |dtype, device| {
            let q = on(device, &[4, 3, 1, 6], dtype)?;
            Ok((q, on(device, &[1, 3, 6, 7], dtype)?.broadcast_as((4, 3, 6, 7))?))
        }),
        ("one left side for all batches", |dtype, device| {
            let q = on(device, &[1, 4, 5, 6], dtype)?.broadcast_as((3, 4, 5, 6))?;
            Ok((q, on(device, &[3, 4, 6, 7], dtype)?))
        }),
        ("both operands broadcast", |dtype, device| {
            let q = on(device, &[3, 1, 5, 6], dtype)?.broadcast_as((3, 4, 5, 6))?;
            Ok((q, on(device, &[1, 4, 6, 7], dtype)?.broadcast_as((3, 4, 6, 7))?))
        }),
        ("heads beside each other", |dtype, device| {
            let q = on(device, &[2, 5, 3, 6], dtype)?.transpose(1, 2)?;
            Ok((q, on(device, &[2, 7, 3, 6], dtype)?.permute((0, 2, 3, 1))?))
        }),
        ("a part of the heads of each batch", |dtype, device| {
            let q = on(device, &[4, 5, 5, 6], dtype)?.narrow(1, 1, 3)?;
            Ok((q, on(device, &[4, 3, 6, 7], dtype)?))
        }),
        ("the left side by columns", |dtype, device| {
            let q = on(device, &[2, 3, 4, 6, 5], dtype)?.t()?;
            Ok((q, on(device, &[2, 3, 1, 6, 7], dtype)?.broadcast_as((2, 3, 4, 6, 7))?))
        }),
    ];
    for dtype in FLOATS {
        for (what, operands) in cases {
            assert_eq!(check(operands, dtype, &device, what), 0, "{what}, {dtype:?}");
        }
    }
}

/// The heads that share keys become the rows of one launch.
#[test]
fn shared_keys_are_read_once() {
    let device = own();
    let cases: [(&str, Operands, usize, u64); 3] = [
        (
            "of a token",
            |dtype, device| {
                let k = on(device, &[2, 3, 1, 33, 64], dtype)?.broadcast_as((2, 3, 4, 33, 64))?;
                Ok((on(device, &[2, 3, 4, 1, 64], dtype)?, k.t()?))
            },
            4,
            1,
        ),
        (
            "of three tokens",
            |dtype, device| {
                let k = on(device, &[2, 3, 1, 33, 64], dtype)?.broadcast_as((2, 3, 4, 33, 64))?;
                Ok((on(device, &[2, 3, 4, 3, 64], dtype)?, k.t()?))
            },
            12,
            1,
        ),
        (
            "of three tokens, each with its heads",
            |dtype, device| {
                let q = on(device, &[1, 3, 5, 4, 64], dtype)?.permute((0, 2, 3, 1, 4))?;
                let k = on(device, &[1, 5, 1, 33, 64], dtype)?.broadcast_as((1, 5, 4, 33, 64))?;
                Ok((q, k.t()?))
            },
            3,
            4,
        ),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (what, operands, rows, launches) in cases {
            let is_own = has_own_product(dtype, rows, device.as_rocm_device().unwrap());
            let launches = if is_own { launches } else { 0 };
            assert_eq!(check(operands, dtype, &device, what), launches, "{what}, {dtype:?}");
        }
    }
}

/// Operands that would need too many calls, and strides that BLAS does not support.
#[test]
fn unsupported_layouts_are_copied() {
    let device = own();
    let cases: [(&str, Operands, u64); 3] = [
        (
            "many of both",
            |dtype, device| {
                let q = on(device, &[17, 1, 2, 3], dtype)?.broadcast_as((17, 18, 2, 3))?;
                Ok((q, on(device, &[1, 18, 3, 2], dtype)?.broadcast_as((17, 18, 3, 2))?))
            },
            2,
        ),
        (
            "every other column, of shared matrices",
            |dtype, device| {
                let wide = on(device, &[2, 1, 6, 7, 2], dtype)?.narrow(4, 1, 1)?.squeeze(4)?;
                Ok((on(device, &[2, 4, 5, 6], dtype)?, wide.broadcast_as((2, 4, 6, 7))?))
            },
            1,
        ),
        (
            "one row for all",
            |dtype, device| {
                let q = on(device, &[2, 3, 1, 6], dtype)?.broadcast_as((2, 3, 5, 6))?;
                Ok((q, on(device, &[2, 3, 6, 7], dtype)?))
            },
            1,
        ),
    ];
    for dtype in FLOATS {
        for (what, operands, copies) in cases {
            assert_eq!(check(operands, dtype, &device, what), copies, "{what}, {dtype:?}");
        }
    }
}
