use super::fixture::*;
use candle_core::backend::BackendStorage;
use candle_core::op::{BackpropOp, ReduceOp};
use candle_core::{DType, Device, Result, Storage, Tensor, Var};

/// Converts a tensor to f64, so that results are not rounded.
fn in_f64(t: &Tensor) -> Tensor {
    let values = to_f64(t);
    Tensor::from_vec(values, t.dims(), &Device::Cpu).unwrap()
}

/// Rounds a tensor to `dtype`.
fn rounded(t: &Tensor, dtype: DType) -> Tensor {
    from_f64(&to_f64(t), t.dims(), dtype)
}

#[test]
fn sums_over_every_dim_and_layout() {
    let device = rocm();
    for dtype in ALL {
        // Multiples of 1/4: every partial sum is exact in f32, so that only the result is rounded.
        let cpu = tensor(&DIMS, DType::F64, 6.0).affine(4.0, 0.0).unwrap().round().unwrap();
        let cpu = rounded(&cpu.affine(0.25, 0.0).unwrap().abs().unwrap(), dtype);
        let gpu = cpu.to_device(&device).unwrap();
        for (view_name, view) in VIEWS {
            let (c, g) = (view(&cpu).unwrap(), view(&gpu).unwrap());
            for dims in [&[0usize][..], &[1], &[2], &[0, 1], &[0, 2], &[2, 1], &[0, 1, 2]] {
                let expected = rounded(&in_f64(&c.contiguous().unwrap()).sum(dims).unwrap(), dtype);
                let got = g.sum(dims).unwrap();
                assert_eq!(got.dtype(), dtype);
                assert_close(&got, &expected, 0.0, &format!("sum {dtype:?} {view_name} {dims:?}"));
            }
        }
    }
}

/// Shapes with different plans: few and many results of few and many elements.
const SHAPES: [[usize; 2]; 16] = [
    [3, 31],
    [3, 32],
    [3, 33],
    [3, 65],
    [3, 255],
    [3, 1025],
    [3, 2500],
    [1, 100_000],
    [2, 70_001],
    [70, 4099],
    [300, 3],
    [20_001, 2],
    [5000, 17],
    [40, 1],
    [1, 1],
    [2, 300_000],
];

#[test]
fn sums_of_all_lengths() {
    let device = rocm();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::F8E4M3, DType::U32, DType::I64] {
        for dims in SHAPES {
            // Multiples of 1/16 (integers for integer dtypes) of both signs: every partial sum is exact in f32.
            let values = numbers(dims[0] * dims[1], 4.0).into_iter().map(|v| (v * 16.0).round() / 16.0);
            let values: Vec<f64> =
                if dtype.is_int() { values.map(|v| v.abs().trunc()).collect() } else { values.collect() };
            let cpu = from_f64(&values, &dims, dtype);
            let gpu = cpu.to_device(&device).unwrap();
            for dim in [0, 1] {
                let expected = rounded(&in_f64(&cpu).sum(dim).unwrap(), dtype);
                let what = format!("sum of dim {dim} of {dims:?} {dtype:?}");
                assert_close(&gpu.sum(dim).unwrap(), &expected, 0.0, &what);
                // Equal numbers, transposed in memory.
                let strided = gpu.t().unwrap().contiguous().unwrap().t().unwrap();
                assert_close(&strided.sum(dim).unwrap(), &expected, 0.0, &format!("strided {what}"));
            }
            let expected = rounded(&in_f64(&cpu).sum_all().unwrap(), dtype);
            assert_close(&gpu.sum_all().unwrap(), &expected, 0.0, &format!("sum of all {dims:?} {dtype:?}"));
        }
    }
}

#[test]
fn integer_sums_wrap() {
    let device = rocm();
    let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
    let expected = bytes.iter().fold(0u8, |sum, v| sum.wrapping_add(*v));
    let t = Tensor::from_vec(bytes, 5000, &device).unwrap();
    assert_eq!(t.sum_all().unwrap().to_scalar::<u8>().unwrap(), expected);
    let shorts: Vec<i16> = (0..5000i32).map(|i| (i * 777) as i16).collect();
    let expected = shorts.iter().fold(0i16, |sum, v| sum.wrapping_add(*v));
    let t = Tensor::from_vec(shorts, 5000, &device).unwrap();
    assert_eq!(t.sum_all().unwrap().to_scalar::<i16>().unwrap(), expected);
    let longs = vec![i64::MAX / 3; 100_000];
    let expected = longs.iter().fold(0i64, |sum, v| sum.wrapping_add(*v));
    let t = Tensor::from_vec(longs, 100_000, &device).unwrap();
    assert_eq!(t.sum_all().unwrap().to_scalar::<i64>().unwrap(), expected);
}

/// A sum of 4096 ones in f16 would stop at 2048, where adding 1 has no effect.
#[test]
fn narrow_floats_are_summed_in_f32() {
    let device = rocm();
    for (dtype, count) in [(DType::F16, 4096), (DType::BF16, 1000), (DType::F8E4M3, 300)] {
        let ones = Tensor::ones((2, count), dtype, &device).unwrap();
        let expected = rounded(&from_f64(&[count as f64; 2], &[2], DType::F64), dtype);
        assert_close(&ones.sum(1).unwrap(), &expected, 0.0, &format!("{dtype:?}"));
    }
}

type Reduce = fn(&Tensor, usize) -> Result<Tensor>;

const EXTREMA: [(&str, Reduce); 4] = [
    ("min", |t, d| t.min(d)),
    ("max", |t, d| t.max(d)),
    ("argmin", |t, d| t.argmin(d)),
    ("argmax", |t, d| t.argmax(d)),
];

#[test]
fn extrema_and_their_indices() {
    let device = rocm();
    for dtype in ALL {
        // Many ties; for floats also NaN, as first element and elsewhere, and zeros of both signs.
        let mut values: Vec<f64> = (0..40).map(|i| f64::from((i * 17 + 5) % 7)).collect();
        if !dtype.is_int() {
            for at in [0, 6, 7, 21, 22, 23, 24, 39] {
                values[at] = f64::NAN;
            }
            values.iter_mut().step_by(3).for_each(|v| *v = -*v);
        }
        let cpu = from_f64(&values, &DIMS, dtype);
        let gpu = cpu.to_device(&device).unwrap();
        for (name, op) in EXTREMA {
            for (view_name, view) in VIEWS {
                for dim in 0..3 {
                    let expected = op(&view(&cpu).unwrap(), dim).unwrap();
                    let got = op(&view(&gpu).unwrap(), dim).unwrap();
                    assert_eq!(got.dtype(), expected.dtype());
                    assert_close(&got, &expected, 0.0, &format!("{name} {dtype:?} {view_name} dim {dim}"));
                }
            }
        }
    }
}

#[test]
fn extrema_of_all_lengths() {
    let device = rocm();
    for dtype in ALL {
        for dims in SHAPES {
            let count = dims[0] * dims[1];
            // Each extremum occurs several times; f8e4m3 has the fewest values.
            let mut values: Vec<f64> = (0..count).map(|i| ((i * 7919) % 10007 % 97) as f64).collect();
            if !dtype.is_int() && count > 3 {
                values[1] = f64::NAN;
                values[count - 1] = f64::NAN;
                values[count / 2] = f64::NAN;
            }
            let cpu = from_f64(&values, &dims, dtype);
            let gpu = cpu.to_device(&device).unwrap();
            let strided = gpu.t().unwrap().contiguous().unwrap().t().unwrap();
            for (name, op) in EXTREMA {
                for dim in [0, 1] {
                    let expected = op(&cpu, dim).unwrap();
                    let what = format!("{name} of dim {dim} of {dims:?} {dtype:?}");
                    assert_close(&op(&gpu, dim).unwrap(), &expected, 0.0, &what);
                    assert_close(&op(&strided, dim).unwrap(), &expected, 0.0, &format!("strided {what}"));
                }
            }
        }
    }
}

/// Rows of odd lengths are read element by element: full batches of loads, and what is left of them.
#[test]
fn middle_dims_of_odd_rows() {
    let device = rocm();
    let lengths = [(1, 1), (2, 3), (3, 1), (7, 3), (8, 1), (9, 37), (16, 2), (33, 5), (67, 1), (260, 3)];
    for dtype in [DType::F16, DType::F32, DType::F64, DType::U32] {
        for (length, width) in lengths {
            let dims = [3, length, width + 2];
            let values: Vec<f64> =
                (0..dims.iter().product()).map(|i| (i * 7919 % 10007 % 13) as f64).collect();
            let cpu = from_f64(&values, &dims, dtype);
            let view = |t: &Tensor| t.narrow(2, 1, width).unwrap();
            let gpu = view(&cpu.to_device(&device).unwrap());
            let cpu = view(&cpu);
            let what = format!("{dims:?} {dtype:?}");
            let sum = rounded(&in_f64(&cpu.contiguous().unwrap()).sum(1).unwrap(), dtype);
            assert_close(&gpu.sum(1).unwrap(), &sum, 0.0, &format!("sum {what}"));
            for (name, op) in EXTREMA {
                assert_close(&op(&gpu, 1).unwrap(), &op(&cpu, 1).unwrap(), 0.0, &format!("{name} {what}"));
            }
        }
    }
}

/// A NaN as first element is the result, independent of the workgroup that reads it.
#[test]
fn a_first_nan_is_the_extremum_of_a_long_row() {
    let device = rocm();
    let mut values = vec![1f32; 200_000];
    values[0] = f32::NAN;
    values[150_000] = 9.0;
    let gpu = Tensor::from_vec(values.clone(), (1, 200_000), &device).unwrap();
    assert!(gpu.max(1).unwrap().to_vec1::<f32>().unwrap()[0].is_nan());
    assert_eq!(gpu.argmin(1).unwrap().to_vec1::<u32>().unwrap(), [0]);
    values.swap(0, 70_000);
    let gpu = Tensor::from_vec(values, (1, 200_000), &device).unwrap();
    assert_eq!(gpu.max(1).unwrap().to_vec1::<f32>().unwrap(), [9.0]);
    assert_eq!(gpu.argmax(1).unwrap().to_vec1::<u32>().unwrap(), [150_000]);
    let nothing_else = Tensor::full(f32::NAN, (2, 100_000), &device).unwrap();
    assert_eq!(nothing_else.argmax(1).unwrap().to_vec1::<u32>().unwrap(), [0, 0]);
}

/// The CPU device only supports extrema over one dim; several dims are equivalent to one flattened dim.
#[test]
fn extrema_over_several_dims() {
    let device = rocm();
    let mut values: Vec<f64> = (0..40).map(|i| f64::from((i * 17 + 5) % 7)).collect();
    values[9] = f64::NAN;
    let cpu = from_f64(&values, &DIMS, DType::F32);
    let gpu = cpu.to_device(&device).unwrap();
    for (dims, order, size) in
        [([2usize, 0], [1usize, 0, 2], 10), ([0, 1], [2, 0, 1], 8), ([1, 2], [0, 1, 2], 20)]
    {
        let together = cpu.permute(order).unwrap().reshape(((), size)).unwrap();
        let (storage, layout) = gpu.storage_and_layout();
        let Storage::Rocm(storage) = &*storage else { panic!("not on a ROCm device") };
        let reduce = |op| {
            let reduced = Storage::Rocm(storage.reduce_op(op, layout, &dims).unwrap());
            Tensor::from_storage(reduced, together.dims()[0], BackpropOp::none(), false)
        };
        let cases = [
            (reduce(ReduceOp::Min), together.min(1)),
            (reduce(ReduceOp::Max), together.max(1)),
            (reduce(ReduceOp::ArgMin), together.argmin(1)),
            (reduce(ReduceOp::ArgMax), together.argmax(1)),
        ];
        for (i, (got, expected)) in cases.into_iter().enumerate() {
            assert_close(&got, &expected.unwrap(), 0.0, &format!("{dims:?}, case {i}"));
        }
    }
}

#[test]
fn at_most_two_launches() {
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let counter = device.as_rocm_device().unwrap();
    for dims in SHAPES {
        let t = Tensor::ones(&dims[..], DType::F16, &device).unwrap();
        for dim in [0, 1] {
            for (name, op) in [("sum", (|t, d| t.sum(d)) as Reduce), EXTREMA[1], EXTREMA[3]] {
                let before = counter.kernels_launched();
                op(&t, dim).unwrap();
                let launches = counter.kernels_launched() - before;
                assert!((1..=2).contains(&launches), "{name} of dim {dim} of {dims:?}: {launches}");
            }
        }
    }
}

#[test]
fn reducing_nothing_and_scalars() {
    let device = rocm();
    for dtype in ALL {
        let empty = Tensor::zeros((2, 0), dtype, &device).unwrap();
        assert_close_values(&to_f64(&empty.sum(1).unwrap()), &[0.0, 0.0], 0.0, "sum of nothing");
        assert_eq!(empty.sum(0).unwrap().dims(), [0]);
        let error = empty.max(1).unwrap_err().to_string();
        assert!(error.contains("empty tensor for reduce"), "{error}");
        let scalar = Tensor::ones((), dtype, &device).unwrap();
        assert_close_values(&to_f64(&scalar.sum_all().unwrap()), &[1.0], 0.0, "sum of a scalar");
        let ones = Tensor::ones((5, 1), dtype, &device).unwrap();
        assert_eq!(ones.argmax(1).unwrap().to_vec1::<u32>().unwrap(), [0; 5]);
    }
}

#[test]
fn many_dims() {
    let device = rocm();
    let cpu = tensor(&[2, 3, 2, 2, 3, 2], DType::F32, 9.0);
    let gpu = cpu.to_device(&device).unwrap();
    let view = |t: &Tensor| t.permute((5, 0, 3, 1, 4, 2)).unwrap();
    for dims in [&[1usize, 3, 5][..], &[0, 2, 4], &[5], &[0]] {
        let expected = in_f64(&view(&cpu).contiguous().unwrap()).sum(dims).unwrap();
        assert_close(&view(&gpu).sum(dims).unwrap(), &expected, 1e-6, &format!("sum {dims:?}"));
    }
    for dim in 0..6 {
        let (c, g) = (view(&cpu), view(&gpu));
        assert_close(&g.argmax(dim).unwrap(), &c.argmax(dim).unwrap(), 0.0, &format!("argmax {dim}"));
    }
}

/// Compares means over two dims and variances along each dim with results in f64.
#[test]
fn means_and_variances_of_every_layout_are_rounded_once() {
    let device = rocm();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::F8E4M3] {
        let cpu = tensor(&DIMS, dtype, 3.0);
        let gpu = cpu.to_device(&device).unwrap();
        let tolerance = if dtype == DType::F64 { 1e-14 } else { 0.0 };
        for (view_name, view) in VIEWS {
            let (c, g) = (in_f64(&view(&cpu).unwrap().contiguous().unwrap()), view(&gpu).unwrap());
            let what = |name: &str| format!("{name} {dtype:?} {view_name}");
            let check = |name: &str, got: Result<Tensor>, expected: Result<Tensor>, tolerance: f64| {
                assert_close(&got.unwrap(), &rounded(&expected.unwrap(), dtype), tolerance, &what(name));
            };
            check("mean", g.mean((0, 2)), c.mean((0, 2)), tolerance);
            check("mean_keepdim", g.mean_keepdim(1), c.mean_keepdim(1), tolerance);
            check("mean_all", g.mean_all(), c.mean_all(), tolerance);
            for dim in [0, 1, 2] {
                let (got, expected) = (g.var(dim), c.var(dim));
                // f8e4m3 is rounded twice, first to f32.
                check("var", got, expected, if dtype == DType::F64 { 1e-13 } else { 0.0 });
            }
        }
    }
}

/// For few long results, the variance uses upstream's operations, in f32 for narrow floats. A large mean must not reduce its
/// precision.
#[test]
fn variances_of_all_lengths() {
    let device = rocm();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for dims in [[3, 31], [70, 4099], [2, 20_001], [5000, 17], [300, 3], [1, 2]] {
            let cpu = rounded(&(tensor(&dims, DType::F64, 2.0) + 60.0).unwrap(), dtype);
            let gpu = cpu.to_device(&device).unwrap();
            for dim in [0, 1] {
                let expected = in_f64(&cpu).var(dim).unwrap();
                let (got, what) = (gpu.var(dim).unwrap(), format!("{dtype:?} {dims:?} dim {dim}"));
                if dims[dim] == 1 {
                    assert!(to_f64(&got).iter().all(|v| v.is_nan()), "{what}");
                    continue;
                }
                let tolerance = if dtype == DType::F32 { 2e-6 } else { 0.0 };
                assert_close(&got, &rounded(&expected, dtype), tolerance, &what);
            }
        }
    }
}

/// Sums and squares overflow in f16, while means, variances and norms do not.
#[test]
fn means_variances_and_norms_of_f16_do_not_overflow() {
    let device = rocm();
    let values: Vec<f64> = (0..2 * 4096).map(|i| f64::from(i % 2 * 200)).collect();
    let cpu = from_f64(&values, &[2, 4096], DType::F16);
    let gpu = cpu.to_device(&device).unwrap();
    assert_close(&gpu.mean(1).unwrap(), &from_f64(&[100.0; 2], &[2], DType::F16), 0.0, "mean");
    assert_close(&gpu.mean_all().unwrap(), &from_f64(&[100.0], &[], DType::F16), 0.0, "mean_all");
    let long = gpu.reshape((1, 8192)).unwrap().repeat((1, 3)).unwrap();
    for (t, name) in [(&gpu, "var"), (&long, "long var")] {
        let expected = rounded(&in_f64(t).var(1).unwrap(), DType::F16);
        assert_close(&t.var(1).unwrap(), &expected, 0.0, name);
    }
    let large = from_f64(&[300.0; 16], &[16], DType::F16).to_device(&device).unwrap();
    assert_close(&large.norm().unwrap(), &from_f64(&[1200.0], &[], DType::F16), 0.0, "norm");
}

#[test]
fn gradients_of_means_variances_and_norms() {
    type Loss = fn(&Tensor) -> Result<Tensor>;
    let losses: [(&str, Loss); 5] = [
        ("mean", |x| x.sqr()?.mean(1)?.sqr()?.sum_all()),
        ("mean_keepdim", |x| x.broadcast_mul(&x.mean_keepdim((0, 2))?)?.sum_all()),
        ("mean_all", |x| x.sqr()?.mean_all()),
        ("var", |x| x.var(2)?.sum_all()),
        ("norm", |x| x.norm()),
    ];
    let device = rocm();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = tensor(&DIMS, dtype, 2.0);
        let gpu = Var::from_tensor(&x.to_device(&device).unwrap()).unwrap();
        let cpu = Var::from_tensor(&in_f64(&x)).unwrap();
        for (name, loss) in losses {
            let gradient = |x: &Var| loss(x).unwrap().backward().unwrap().get(x).unwrap().clone();
            let tolerance = match dtype {
                DType::F32 => 1e-6,
                DType::F16 => 4e-3,
                _ => 3e-2,
            };
            assert_close(&gradient(&gpu), &gradient(&cpu), tolerance, &format!("{name} {dtype:?}"));
        }
    }
}
