use super::fixture::*;
use candle_core::{DType, Device, Result, Tensor};

const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I64];

/// The exact result from the values in f64, rounded by nobody.
fn reference(t: &Tensor) -> Tensor {
    t.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap()
}

#[test]
fn sums_over_every_dim_and_layout() {
    let device = rocm();
    for dtype in DTYPES {
        let cpu = tensor(&DIMS, dtype, 6.0);
        let gpu = cpu.to_device(&device).unwrap();
        for (view_name, view) in VIEWS {
            let (c, g) = (view(&cpu).unwrap(), view(&gpu).unwrap());
            for dims in [&[0usize][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]] {
                let expected = reference(&c).sum(dims).unwrap();
                let got = g.sum(dims).unwrap();
                assert_close(
                    &got,
                    &expected,
                    8.0 * epsilon(dtype),
                    &format!("sum {dtype:?} {view_name} {dims:?}"),
                );
            }
        }
    }
}

#[test]
fn long_rows_are_summed_by_a_workgroup() {
    let device = rocm();
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I64] {
        for columns in [31, 32, 33, 63, 65, 255, 1024, 1025, 2500] {
            // Sixteenths (wholes for integers): every partial sum is exact in f32.
            let values = numbers(3 * columns, 4.0).into_iter().map(|v| (v * 16.0).round() / 16.0);
            let cpu = from_f64(&values.collect::<Vec<_>>(), &[3, columns], dtype);
            let gpu = cpu.to_device(&device).unwrap();
            let expected = reference(&cpu).sum(1).unwrap();
            let tolerance = if dtype == DType::BF16 { epsilon(dtype) } else { 0.0 };
            assert_close(&gpu.sum(1).unwrap(), &expected, tolerance, &format!("sum {dtype:?} of {columns}"));
            // The same numbers as columns: every row is strided.
            let strided = gpu.t().unwrap().contiguous().unwrap().t().unwrap();
            assert_close(
                &strided.sum(1).unwrap(),
                &expected,
                tolerance,
                &format!("strided {dtype:?} of {columns}"),
            );
        }
    }
}

type Reduce = fn(&Tensor, usize) -> Result<Tensor>;

#[test]
fn extrema_and_their_places() {
    let device = rocm();
    let ops: [(&str, Reduce); 4] = [
        ("min", |t, d| t.min(d)),
        ("max", |t, d| t.max(d)),
        ("argmin", |t, d| t.argmin(d)),
        ("argmax", |t, d| t.argmax(d)),
    ];
    for dtype in DTYPES {
        // All values differ, so that a place is unambiguous: a permutation of 0..40.
        let values: Vec<f64> = (0..40).map(|i| f64::from((i * 17 + 5) % 40)).collect();
        let cpu = from_f64(&values, &DIMS, dtype);
        let gpu = cpu.to_device(&device).unwrap();
        for (name, op) in ops {
            // A broadcast dim repeats its values: there the place is anybody's choice.
            for (view_name, view) in VIEWS.into_iter().filter(|(name, _)| *name != "broadcast") {
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
fn places_in_dims_of_size_one_and_in_long_rows() {
    let device = rocm();
    let cpu = tensor(&[5, 1], DType::F32, 3.0);
    let got = cpu.to_device(&device).unwrap().argmax(1).unwrap();
    assert_eq!(got.to_vec1::<u32>().unwrap(), [0; 5]);
    let cpu = tensor(&[2, 3000], DType::F32, 1000.0);
    let gpu = cpu.to_device(&device).unwrap();
    assert_close(&gpu.argmax(1).unwrap(), &cpu.argmax(1).unwrap(), 0.0, "argmax of 3000");
    assert_close(&gpu.argmin(1).unwrap(), &cpu.argmin(1).unwrap(), 0.0, "argmin of 3000");
}

#[test]
fn reducing_nothing() {
    let device = rocm();
    let empty = Tensor::zeros((2, 0), DType::F32, &device).unwrap();
    assert_eq!(empty.sum(1).unwrap().to_vec1::<f32>().unwrap(), [0.0, 0.0]);
    assert!(empty.max(1).is_err());
    let scalar = Tensor::new(3f32, &device).unwrap();
    assert_eq!(scalar.sum_all().unwrap().to_scalar::<f32>().unwrap(), 3.0);
}

#[test]
fn mean_and_variance_are_built_on_sums() {
    let device = rocm();
    let cpu = tensor(&[4, 100], DType::F32, 2.0);
    let gpu = cpu.to_device(&device).unwrap();
    assert_close(&gpu.mean(1).unwrap(), &cpu.mean(1).unwrap(), 1e-6, "mean");
    assert_close(&gpu.var(1).unwrap(), &cpu.var(1).unwrap(), 1e-5, "var");
}
