use super::fixture::*;
use candle_core::{DType, Device, Tensor};

const WINDOWS: [((usize, usize), (usize, usize)); 5] =
    [((2, 2), (2, 2)), ((3, 2), (1, 2)), ((2, 3), (2, 1)), ((1, 1), (2, 3)), ((6, 8), (1, 1))];

/// Returns the reference input: narrow floats are averaged in f32, so it is converted to f32.
fn reference(t: &Tensor) -> Tensor {
    match t.dtype() {
        DType::F16 | DType::BF16 | DType::F8E4M3 => t.to_dtype(DType::F32).unwrap(),
        _ => t.clone(),
    }
}

#[test]
fn pooling_of_every_dtype_and_view() {
    let device = rocm();
    for dtype in ALL {
        let dense = tensor(&[2, 3, 6, 8], dtype, 5.0);
        for (name, view) in VIEWS4 {
            let x = view(&dense).unwrap();
            let g = view(&dense.to_device(&device).unwrap()).unwrap();
            for (k, stride) in WINDOWS {
                let what = format!("{dtype:?} {name} {k:?} {stride:?}");
                let expected = reference(&x).avg_pool2d_with_stride(k, stride).unwrap();
                let got = g.avg_pool2d_with_stride(k, stride).unwrap();
                assert_eq!(got.dtype(), dtype);
                assert_close(&got, &expected, epsilon(dtype), &format!("average {what}"));
                let expected = x.max_pool2d_with_stride(k, stride).unwrap();
                let got = g.max_pool2d_with_stride(k, stride).unwrap();
                assert_close(&got, &expected, 0.0, &format!("maximum {what}"));
            }
        }
    }
}

/// The order of additions is that of the CPU and the factor is f64, so results are exact.
#[test]
fn averages_of_f64_are_exact() {
    let device = rocm();
    let x = tensor(&[1, 2, 9, 9], DType::F64, 3.0);
    let expected = x.avg_pool2d((3, 3)).unwrap();
    assert_close(&x.to_device(&device).unwrap().avg_pool2d((3, 3)).unwrap(), &expected, 0.0, "3 x 3");
}

#[test]
fn a_maximum_keeps_only_a_leading_nan() {
    let device = rocm();
    let nan = f32::NAN;
    let x =
        [[nan, 1.0, 1.0, nan], [2.0, 3.0, 5.0, 4.0], [-1.0, -f32::INFINITY, nan, nan], [0.0, -0.0, nan, nan]];
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::F8E4M3] {
        let x =
            Tensor::new(&x, &Device::Cpu).unwrap().reshape((1, 1, 4, 4)).unwrap().to_dtype(dtype).unwrap();
        let expected = x.max_pool2d(2).unwrap();
        assert!(to_f64(&expected)[0].is_nan() && to_f64(&expected)[1] == 5.0);
        assert_close(
            &x.to_device(&device).unwrap().max_pool2d(2).unwrap(),
            &expected,
            0.0,
            &format!("{dtype:?}"),
        );
    }
}

#[test]
fn invalid_windows_give_the_errors_of_the_cpu() {
    let device = rocm();
    let (x, g) = (
        Tensor::zeros((1, 1, 3, 3), DType::F32, &Device::Cpu),
        Tensor::zeros((1, 1, 3, 3), DType::F32, &device),
    );
    let (x, g) = (x.unwrap(), g.unwrap());
    assert_same_error(g.avg_pool2d((4, 1)), x.avg_pool2d((4, 1)), "average");
    assert_same_error(g.max_pool2d((1, 4)), x.max_pool2d((1, 4)), "maximum");
    assert_same_error(g.get(0).unwrap().max_pool2d(2), x.get(0).unwrap().max_pool2d(2), "three dims");
    for (window, stride) in [((0, 1), (1, 1)), ((1, 0), (1, 1)), ((1, 1), (0, 1)), ((1, 1), (1, 0))] {
        let what = format!("{window:?} {stride:?}");
        let pool = |t: &Tensor| t.avg_pool2d_with_stride(window, stride);
        assert_same_error(pool(&g), pool(&x), &format!("average {what}"));
        let pool = |t: &Tensor| t.max_pool2d_with_stride(window, stride);
        assert_same_error(pool(&g), pool(&x), &format!("maximum {what}"));
    }
    assert_same_error(g.unfold(2, 2, 0), x.unfold(2, 2, 0), "a step of 0");
    let empty = Tensor::zeros((0, 2, 4, 4), DType::F32, &device).unwrap().max_pool2d(2).unwrap();
    assert_eq!(empty.dims(), [0, 2, 2, 2]);
}
