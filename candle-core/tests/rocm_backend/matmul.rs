use super::fixture::*;
use candle_core::{DType, Device, Result, Tensor};

/// Computes the product of (b, m, k) and (b, k, n) by its definition in f64.
pub fn product(lhs: &Tensor, rhs: &Tensor) -> Vec<f64> {
    let (b, m, k) = lhs.dims3().unwrap();
    let n = rhs.dim(2).unwrap();
    let (x, y) = (to_f64(lhs), to_f64(rhs));
    let mut out = vec![0.0; b * m * n];
    for batch in 0..b {
        for i in 0..m {
            for j in 0..n {
                out[(batch * m + i) * n + j] =
                    (0..k).map(|l| x[(batch * m + i) * k + l] * y[(batch * k + l) * n + j]).sum();
            }
        }
    }
    out
}

/// Creates an operand of the given dims with a certain layout, as a view of another tensor.
pub type OperandLayout = fn(&[usize; 3], DType, &Device) -> Result<Tensor>;

pub const OPERAND_LAYOUTS: [(&str, OperandLayout); 7] = [
    ("dense", |d, dtype, device| tensor(d, dtype, 1.0).to_device(device)),
    ("transposed", |d, dtype, device| {
        tensor(&[d[0], d[2], d[1]], dtype, 1.0).to_device(device)?.transpose(1, 2)
    }),
    ("wider rows", |d, dtype, device| {
        tensor(&[d[0], d[1], d[2] + 3], dtype, 1.0).to_device(device)?.narrow(2, 2, d[2])
    }),
    ("every other row's batch", |d, dtype, device| {
        tensor(&[d[1], d[0], d[2]], dtype, 1.0).to_device(device)?.transpose(0, 1)
    }),
    ("batches broadcast", |d, dtype, device| {
        tensor(&[1, d[1], d[2]], dtype, 1.0).to_device(device)?.broadcast_as(&d[..])
    }),
    ("rows broadcast", |d, dtype, device| {
        tensor(&[d[0], 1, d[2]], dtype, 1.0).to_device(device)?.broadcast_as(&d[..])
    }),
    ("all dims reversed, with an offset", |d, dtype, device| {
        let wide = tensor(&[d[2] + 1, d[1], d[0]], dtype, 1.0).to_device(device)?;
        wide.narrow(0, 1, d[2])?.transpose(0, 2)
    }),
];

#[test]
fn products_of_all_layouts() {
    let device = rocm();
    for dtype in FLOATS {
        for (b, m, n, k) in
            [(1, 3, 4, 5), (3, 4, 5, 6), (2, 1, 5, 3), (2, 4, 1, 3), (2, 3, 4, 1), (4, 1, 1, 1)]
        {
            for (left_name, left) in OPERAND_LAYOUTS {
                for (right_name, right) in OPERAND_LAYOUTS {
                    let lhs = left(&[b, m, k], dtype, &device).unwrap();
                    let rhs = right(&[b, k, n], dtype, &device).unwrap();
                    let got = lhs.matmul(&rhs).unwrap();
                    assert_eq!((got.dims(), got.dtype()), (&[b, m, n][..], dtype));
                    let what = format!("{dtype:?} ({b}, {m}, {n}, {k}) {left_name} by {right_name}");
                    assert_close_values(&to_f64(&got), &product(&lhs, &rhs), epsilon(dtype), &what);
                }
            }
        }
    }
}

/// Batch dims (batch, heads) as in attention, which no single stride covers.
#[test]
fn products_over_two_batch_dims() {
    let device = rocm();
    let heads = |dims: [usize; 4]| {
        tensor(&dims, DType::F32, 1.0).to_device(&device).unwrap().transpose(1, 2).unwrap()
    };
    let (q, k) = (heads([2, 3, 4, 5]), heads([2, 6, 4, 5]));
    let scores = q.matmul(&k.t().unwrap()).unwrap();
    assert_eq!(scores.dims(), [2, 4, 3, 6]);
    let flat = |t: &Tensor, r, c| t.contiguous().unwrap().reshape((8, r, c)).unwrap();
    let expected = product(&flat(&q, 3, 5), &flat(&k.t().unwrap(), 5, 6));
    assert_close_values(&to_f64(&scores), &expected, 1e-6, "q k'");
    // Two heads share each key head: stride 0 within the batch.
    let shared = heads([2, 6, 2, 5]).unsqueeze(2).unwrap().broadcast_as((2, 2, 2, 6, 5)).unwrap();
    let shared = shared.reshape((2, 4, 6, 5)).unwrap().t().unwrap();
    let expected = product(&flat(&q, 3, 5), &flat(&shared, 5, 6));
    assert_close_values(&to_f64(&q.matmul(&shared).unwrap()), &expected, 1e-6, "grouped");
}

#[test]
fn one_matrix_for_all_batches() {
    let device = rocm();
    let lhs = tensor(&[3, 4, 5], DType::F32, 1.0).to_device(&device).unwrap();
    let rhs = tensor(&[5, 6], DType::F32, 1.0).to_device(&device).unwrap();
    let got = lhs.broadcast_matmul(&rhs).unwrap();
    let expected = product(&lhs, &rhs.unsqueeze(0).unwrap().broadcast_as((3, 5, 6)).unwrap());
    assert_close_values(&to_f64(&got), &expected, 1e-6, "broadcast_matmul");
}

#[test]
fn sizes_of_zero() {
    let device = rocm();
    for dtype in FLOATS {
        for (b, m, n, k) in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)] {
            let zeros = |dims: (usize, usize, usize)| Tensor::zeros(dims, dtype, &device).unwrap();
            for got in [
                zeros((b, m, k)).matmul(&zeros((b, k, n))),
                zeros((b, k, m)).t().unwrap().matmul(&zeros((b, n, k)).t().unwrap()),
            ] {
                let got = got.unwrap();
                assert_eq!(got.dims(), [b, m, n]);
                assert_eq!(to_f64(&got), vec![0.0; b * m * n], "{dtype:?} {b} {m} {n} {k}");
            }
        }
    }
}

#[test]
fn larger_products_in_every_dtype() {
    let device = rocm();
    for dtype in FLOATS {
        let lhs = tensor(&[1, 65, 130], dtype, 0.5).to_device(&device).unwrap();
        let rhs = tensor(&[1, 130, 33], dtype, 0.5).to_device(&device).unwrap();
        let got = lhs.matmul(&rhs).unwrap();
        let tolerance = if dtype == DType::F32 { 1e-5 } else { epsilon(dtype) };
        assert_close_values(&to_f64(&got), &product(&lhs, &rhs), tolerance, &format!("{dtype:?}"));
    }
}

/// Up to 16 rows and more with dense columns, the layout of a layer's weights, aligned and not, also in batches. Built-in
/// kernels take one launch.
#[test]
fn few_rows_by_dense_columns() {
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let counted = device.as_rocm_device().unwrap();
    for dtype in FLOATS {
        for (b, n, k) in [(1, 1, 8), (1, 3, 2080), (1, 300, 128), (3, 70, 64), (2, 17, 36), (1, 5, 1001)] {
            for m in [1, 2, 3, 4, 5, 8, 13, 16, 17] {
                let of = |d: &[usize]| tensor(d, dtype, 0.25).to_device(&device).unwrap();
                // A part of wider rows, and columns that are aligned or not.
                let lhs = of(&[b, m, k + 16]).narrow(2, 8, k).unwrap();
                for begin in [0, 1] {
                    let rhs = of(&[b, n + 1, k]).narrow(1, begin, n).unwrap().transpose(1, 2).unwrap();
                    let before = counted.kernels_launched();
                    let got = lhs.matmul(&rhs).unwrap();
                    let launched = counted.kernels_launched() - before;
                    let what = format!("{dtype:?} ({b}, {m}, {n}, {k})");
                    let packs = (k * dtype.size_in_bytes()).is_multiple_of(16);
                    let is_own = packs && has_own_product(dtype, m, counted);
                    assert_eq!(launched, u64::from(is_own), "{what}");
                    let tolerance = if dtype == DType::F32 { 1e-5 } else { epsilon(dtype) };
                    assert_close_values(&to_f64(&got), &product(&lhs, &rhs), tolerance, &what);
                }
            }
        }
    }
}

/// Sums that f16 would round at every step or could not represent.
#[test]
fn narrow_floats_are_summed_in_f32() {
    let device = rocm();
    for dtype in [DType::F16, DType::BF16] {
        for m in [1, 4, 16, 20] {
            // Intermediate sums exceed the largest f16, and the result is small.
            let terms = |row: usize| (0..256).map(move |i| [256.0, -255.0][(i + row) / 128 % 2]);
            let lhs: Vec<f64> = (0..m).flat_map(terms).collect();
            let lhs = from_f64(&lhs, &[1, m, 256], dtype).to_device(&device).unwrap();
            let rhs = from_f64(&[64.0; 3 * 256], &[1, 3, 256], dtype).to_device(&device).unwrap();
            let rhs = rhs.transpose(1, 2).unwrap();
            let got = lhs.matmul(&rhs).unwrap();
            assert_close_values(&to_f64(&got), &product(&lhs, &rhs), 0.0, &format!("{dtype:?} {m}"));
        }
    }
}

#[test]
fn unsupported_dtypes_give_the_errors_of_the_cpu() {
    let device = rocm();
    for dtype in ALL.into_iter().filter(|dtype| !FLOATS.contains(dtype)) {
        let (t, g) = (tensor(&[2, 2], dtype, 3.0), tensor(&[2, 2], dtype, 3.0).to_device(&device).unwrap());
        assert_same_error(g.matmul(&g), t.matmul(&t), &format!("{dtype:?}"));
    }
    let (f32, f64) = (tensor(&[2, 2], DType::F32, 3.0), tensor(&[2, 2], DType::F64, 3.0));
    let on_device = |t: &Tensor| t.to_device(&device).unwrap();
    assert_same_error(on_device(&f32).matmul(&on_device(&f64)), f32.matmul(&f64), "mixed dtypes");
}

#[test]
fn mismatched_shapes_give_the_errors_of_the_cpu() {
    let device = rocm();
    let (lhs, rhs) = ((2, 3), (4, 5));
    let of = |dims: (usize, usize), device: &Device| Tensor::ones(dims, DType::F32, device).unwrap();
    let first_line = |device: &Device| {
        let error = of(lhs, device).matmul(&of(rhs, device)).unwrap_err().to_string();
        // The first line is the message without the backtrace.
        error.lines().next().unwrap_or_default().to_string()
    };
    assert_eq!(first_line(&device), first_line(&Device::Cpu));
}
