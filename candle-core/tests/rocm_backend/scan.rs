//! Cumulative sums.
use super::fixture::*;
use candle_core::{DType, Device, Tensor, Var};

/// Computes cumulative sums along `dim` in f64.
fn cumulative_sums(t: &Tensor, dim: usize) -> Tensor {
    let (dims, mut values) = (t.dims(), to_f64(&t.contiguous().unwrap()));
    let inner: usize = dims[dim + 1..].iter().product();
    for i in 0..values.len() {
        if !(i / inner).is_multiple_of(dims[dim]) {
            values[i] += values[i - inner];
        }
    }
    Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
}

/// Returns multiples of 1/8 of both signs: every partial sum is exact in f32, so that only the result is rounded.
fn eighths(dims: &[usize], dtype: DType) -> Tensor {
    let values: Vec<f64> =
        numbers(dims.iter().product(), 4.0).into_iter().map(|v| (v * 8.0).round() / 8.0).collect();
    from_f64(&values, dims, dtype)
}

fn rounded(t: &Tensor, dtype: DType) -> Tensor {
    from_f64(&to_f64(t), t.dims(), dtype)
}

#[test]
fn cumulative_sums_along_every_dim_of_every_layout() {
    let device = rocm();
    for dtype in FLOATS {
        let cpu = eighths(&DIMS, dtype);
        let gpu = cpu.to_device(&device).unwrap();
        for (view_name, view) in VIEWS {
            for dim in 0..3 {
                let expected = rounded(&cumulative_sums(&view(&cpu).unwrap(), dim), dtype);
                let got = view(&gpu).unwrap().cumsum(dim).unwrap();
                assert_eq!(got.dtype(), dtype);
                assert_close(&got, &expected, 0.0, &format!("{dtype:?} {view_name} dim {dim}"));
            }
        }
    }
}

/// Covers short lines, of which a workgroup has many, lines in several tiles or parts, and lines of one element, with
/// aligned and unaligned rows.
#[test]
fn cumulative_sums_of_all_lengths_and_alignments() {
    let device = rocm();
    for dtype in FLOATS {
        for (dims, skipped) in [
            ([1, 1, 1], 0),
            ([5, 1, 3], 0),
            ([300, 3, 1], 2),
            ([1, 7, 70], 3),
            ([33, 64, 1], 0),
            ([9, 65, 2], 1),
            ([3, 1024, 1], 0),
            ([2, 1029, 1], 5),
            ([1, 700, 37], 0),
            ([2, 20_001, 1], 0),
            ([1, 40_000, 1], 1),
            ([1, 9000, 3], 0),
        ] {
            let count: usize = dims.iter().product();
            let flat = eighths(&[count + skipped], dtype);
            let of = |t: &Tensor| t.narrow(0, skipped, count).unwrap().reshape(&dims).unwrap();
            let expected = rounded(&cumulative_sums(&of(&flat), 1), dtype);
            let got = of(&flat.to_device(&device).unwrap()).cumsum(1).unwrap();
            assert_close(&got, &expected, 0.0, &format!("{dtype:?} {dims:?} from {skipped}"));
        }
    }
}

#[test]
fn the_error_is_not_larger_than_that_of_the_cpu() {
    let device = rocm();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let cpu = tensor(&[3, 1000], dtype, 2.0);
        let exact = to_f64(&cumulative_sums(&cpu, 1));
        let error = |t: Tensor| {
            let pairs = to_f64(&t).into_iter().zip(&exact);
            pairs.map(|(got, exact)| (got - exact).abs()).fold(0.0, f64::max)
        };
        let got = error(cpu.to_device(&device).unwrap().cumsum(1).unwrap());
        let limit = error(cpu.cumsum(1).unwrap());
        assert!(got <= limit, "{dtype:?}: {got} against {limit}");
    }
}

/// Later elements do not affect a sum, unlike in upstream's matrix product with zeros.
#[test]
fn infinities_and_nan_only_affect_later_sums() {
    let device = rocm();
    let mut values = vec![1f32; 3000];
    (values[40], values[2500]) = (f32::INFINITY, f32::NAN);
    let got = to_f64(&Tensor::new(values, &device).unwrap().cumsum(0).unwrap());
    assert!(got[39] == 40.0 && got[40..2500].iter().all(|v| *v == f64::INFINITY));
    assert!(got[2500..].iter().all(|v| v.is_nan()));
}

/// The kernel has no gradient; upstream's matrix product is used if gradients are tracked.
#[test]
fn gradients_of_cumulative_sums() {
    let device = rocm();
    let cpu = Var::from_tensor(&tensor(&[3, 40], DType::F32, 1.0)).unwrap();
    let gpu = Var::from_tensor(&cpu.to_device(&device).unwrap()).unwrap();
    let gradient = |x: &Var| {
        let weights = tensor(&[3, 40], DType::F32, 1.0).to_device(x.device()).unwrap();
        let loss = (x.cumsum(1).unwrap() * weights).unwrap().sum_all().unwrap();
        loss.backward().unwrap().get(x).unwrap().clone()
    };
    assert_close(&gradient(&gpu), &gradient(&cpu), 1e-5, "gradient");
}

#[test]
fn integers_give_the_errors_of_the_cpu() {
    let device = rocm();
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let cpu = tensor(&[2, 3], dtype, 3.0);
        let error = |t: Tensor| t.cumsum(1).unwrap_err().to_string().lines().next().unwrap().to_string();
        assert_eq!(error(cpu.to_device(&device).unwrap()), error(cpu), "{dtype:?}");
    }
}
