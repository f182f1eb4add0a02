//! Products whose batches lie in no line: heads that share keys, and sides that are broadcast along other dims.
use super::fixture::*;
use super::matmul::product;
use candle_core::{DType, Device, Result, Tensor};

/// Both sides of a product: a dtype's, on a device.
type Sides = fn(DType, &Device) -> Result<(Tensor, Tensor)>;

/// A device whose launches nobody else counts.
fn own() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

fn on(device: &Device, dims: &[usize], dtype: DType) -> Result<Tensor> {
    tensor(dims, dtype, 0.5).to_device(device)
}

/// The product against its definition, and how many kernels of ours were launched for it.
fn check(sides: Sides, dtype: DType, device: &Device, what: &str) -> u64 {
    let counted = device.as_rocm_device().unwrap();
    let (lhs, rhs) = sides(dtype, device).unwrap();
    let before = counted.kernels_launched();
    let got = lhs.matmul(&rhs).unwrap();
    let launched = counted.kernels_launched() - before;
    // Dense copies, with the batches in one dim.
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

/// Neither rows nor columns make whole packs, so that rocBLAS multiplies: nothing of ours is launched.
#[test]
fn broadcast_sides_are_not_copied() {
    let device = own();
    let cases: [(&str, Sides); 9] = [
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
        ("both sides broadcast", |dtype, device| {
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
        for (what, sides) in cases {
            assert_eq!(check(sides, dtype, &device, what), 0, "{what}, {dtype:?}");
        }
    }
}

/// The heads that share keys are the few rows of one launch.
#[test]
fn shared_keys_are_read_once() {
    let device = own();
    let cases: [(&str, Sides, u64); 3] = [
        (
            "of a token",
            |dtype, device| {
                let k = on(device, &[2, 3, 1, 33, 64], dtype)?.broadcast_as((2, 3, 4, 33, 64))?;
                Ok((on(device, &[2, 3, 4, 1, 64], dtype)?, k.t()?))
            },
            1,
        ),
        (
            "of three tokens",
            |dtype, device| {
                let k = on(device, &[2, 3, 1, 33, 64], dtype)?.broadcast_as((2, 3, 4, 33, 64))?;
                Ok((on(device, &[2, 3, 4, 3, 64], dtype)?, k.t()?))
            },
            1,
        ),
        (
            "of three tokens, each with its heads",
            |dtype, device| {
                let q = on(device, &[1, 3, 5, 4, 64], dtype)?.permute((0, 2, 3, 1, 4))?;
                let k = on(device, &[1, 5, 1, 33, 64], dtype)?.broadcast_as((1, 5, 4, 33, 64))?;
                Ok((q, k.t()?))
            },
            4,
        ),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (what, sides, launches) in cases {
            assert_eq!(check(sides, dtype, &device, what), launches, "{what}, {dtype:?}");
        }
    }
}

/// More calls than copies are worth, and matrices that BLAS cannot read where they lie.
#[test]
fn what_cannot_be_walked_is_copied() {
    let device = own();
    let cases: [(&str, Sides, u64); 3] = [
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
        for (what, sides, copies) in cases {
            assert_eq!(check(sides, dtype, &device, what), copies, "{what}, {dtype:?}");
        }
    }
}
