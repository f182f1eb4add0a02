use super::fixture::*;
use candle_core::{DType, Device, Tensor};

const SIZES: [(usize, usize); 5] = [(12, 16), (7, 5), (6, 9), (1, 1), (13, 3)];

#[test]
fn nearest_of_every_dtype_and_view() {
    let device = rocm();
    for dtype in ALL {
        let dense = tensor(&[2, 3, 6, 8], dtype, 60.0);
        for (name, view) in VIEWS4 {
            let x = view(&dense).unwrap();
            let g = view(&dense.to_device(&device).unwrap()).unwrap();
            for (h, w) in SIZES {
                let what = format!("{dtype:?} {name} {h} {w}");
                let got = g.upsample_nearest2d(h, w).unwrap();
                assert_eq!(got.dtype(), dtype);
                assert_close(&got, &x.upsample_nearest2d(h, w).unwrap(), 0.0, &format!("2d {what}"));
                let (x, g) = (x.get_on_dim(2, 1).unwrap(), g.get_on_dim(2, 1).unwrap());
                let got = g.upsample_nearest1d(w).unwrap();
                assert_eq!(got.dtype(), dtype);
                assert_close(&got, &x.upsample_nearest1d(w).unwrap(), 0.0, &format!("1d {what}"));
            }
        }
    }
}

/// The source index equals that of the CPU for every pair of sizes, even if the step is not exact.
#[test]
fn nearest_selects_the_same_element_as_the_cpu() {
    let device = rocm();
    for from in [1usize, 2, 3, 7, 10, 49] {
        let x = Tensor::arange(0u32, from as u32, &Device::Cpu).unwrap().reshape((1, 1, from)).unwrap();
        let g = x.to_device(&device).unwrap();
        for to in [0, 1, 2, 3, 5, 9, 21, 70, 147, 490] {
            let got = g.upsample_nearest1d(to).unwrap();
            assert_close(&got, &x.upsample_nearest1d(to).unwrap(), 0.0, &format!("{from} to {to}"));
        }
    }
}

#[test]
fn bilinear_of_every_dtype_and_view() {
    let device = rocm();
    for dtype in ALL {
        let dense = tensor(&[2, 3, 6, 8], dtype, 60.0);
        for (name, view) in VIEWS4 {
            let x = view(&dense).unwrap();
            let g = view(&dense.to_device(&device).unwrap()).unwrap();
            for (h, w) in SIZES.into_iter().chain([(6, 8)]) {
                for align in [false, true] {
                    let expected = x.upsample_bilinear2d(h, w, align).unwrap();
                    let got = g.upsample_bilinear2d(h, w, align).unwrap();
                    assert_eq!(got.dtype(), dtype);
                    // The CPU rounds these twice, first to f32.
                    let twice = matches!(dtype, DType::F16 | DType::BF16 | DType::F8E4M3);
                    let tolerance = if twice { epsilon(dtype) } else { 0.0 };
                    assert_close(&got, &expected, tolerance, &format!("{dtype:?} {name} {h} {w} {align}"));
                }
            }
        }
    }
}

/// Returns the weight of each input position for each output position: 1 minus their distance, at least 0.
fn weights(size: usize, out: usize, align: bool) -> Vec<Vec<f64>> {
    let at = |to: usize| match align {
        true => to as f64 * (size - 1) as f64 / (out.max(2) - 1) as f64,
        false => ((to as f64 + 0.5) * size as f64 / out as f64 - 0.5).clamp(0.0, (size - 1) as f64),
    };
    (0..out).map(|to| (0..size).map(|from| (1.0 - (at(to) - from as f64).abs()).max(0.0)).collect()).collect()
}

/// Compares permuted inputs and parts of larger tensors with the formula on both devices, also for equal sizes.
#[test]
fn bilinear_supports_views() {
    let turned: View4 = ("turned", |t| t.permute((1, 0, 3, 2)));
    for device in [Device::Cpu, rocm()] {
        let dense = tensor(&[2, 3, 6, 8], DType::F64, 60.0).to_device(&device).unwrap();
        for (name, view) in VIEWS4.into_iter().chain([turned]) {
            let x = view(&dense).unwrap();
            let (b, c, h, w) = x.dims4().unwrap();
            let values = to_f64(&x);
            for (h_out, w_out) in SIZES.into_iter().chain([(h, w)]) {
                for align in [false, true] {
                    let (rows, columns) = (weights(h, h_out, align), weights(w, w_out, align));
                    let mut expected = Vec::new();
                    for (plane, row) in (0..b * c).flat_map(|plane| rows.iter().map(move |row| (plane, row)))
                    {
                        expected.extend(columns.iter().map(|column| {
                            let sum = |y: usize| -> f64 {
                                (0..w).map(|x| column[x] * values[(plane * h + y) * w + x]).sum()
                            };
                            (0..h).map(|y| row[y] * sum(y)).sum::<f64>()
                        }));
                    }
                    let got = x.upsample_bilinear2d(h_out, w_out, align).unwrap();
                    let what = format!("{device:?} {name} {h_out} {w_out} {align}");
                    assert_close_values(&to_f64(&got), &expected, 1e-12, &what);
                }
            }
        }
    }
}

#[test]
fn bilinear_by_factors_and_with_extreme_values() {
    let device = rocm();
    let x = tensor(&[1, 2, 5, 7], DType::F64, 3.0);
    for (h, w, align) in [(2.0, 1.5, false), (1.3, 0.7, false), (2.6, 1.9, true)] {
        let expected = x.upsample_bilinear2d_with_scale(h, w, align).unwrap();
        let got = x.to_device(&device).unwrap().upsample_bilinear2d_with_scale(h, w, align).unwrap();
        assert_close(&got, &expected, 0.0, &format!("{h} {w} {align}"));
    }
    let edges = Tensor::new(&[[i64::MAX, i64::MAX, i64::MIN, -1]], &Device::Cpu).unwrap();
    let edges = edges.reshape((1, 1, 2, 2)).unwrap();
    let expected = edges.upsample_bilinear2d(3, 5, false).unwrap();
    let got = edges.to_device(&device).unwrap().upsample_bilinear2d(3, 5, false).unwrap();
    assert_eq!(
        got.flatten_all().unwrap().to_vec1::<i64>().unwrap(),
        expected.flatten_all().unwrap().to_vec1::<i64>().unwrap()
    );
    let odd = Tensor::new(&[[1f32, f32::NAN], [f32::INFINITY, -2.0]], &Device::Cpu).unwrap();
    let odd = odd.reshape((1, 1, 2, 2)).unwrap();
    let expected = odd.upsample_bilinear2d(4, 3, false).unwrap();
    assert_close(
        &odd.to_device(&device).unwrap().upsample_bilinear2d(4, 3, false).unwrap(),
        &expected,
        0.0,
        "NaN",
    );
}

#[test]
fn empty_planes_cannot_be_resized() {
    for device in [Device::Cpu, rocm()] {
        // An empty part of a larger tensor, whose elements must not be read.
        let zeros = |dims: &[usize]| {
            let whole: Vec<usize> = dims.iter().map(|dim| dim + 1).collect();
            let whole = Tensor::zeros(whole, DType::F32, &device).unwrap();
            dims.iter().enumerate().fold(whole, |part, (dim, size)| part.narrow(dim, 1, *size).unwrap())
        };
        let error = zeros(&[1, 1, 0]).upsample_nearest1d(3).unwrap_err().to_string();
        assert!(error.contains("upsample_nearest1d"), "{error}");
        assert!(zeros(&[1, 1, 0, 2]).upsample_nearest2d(3, 3).is_err());
        assert!(zeros(&[1, 1, 2, 0]).upsample_bilinear2d(3, 3, false).is_err());
        assert_eq!(zeros(&[1, 1, 2, 2]).upsample_nearest2d(0, 3).unwrap().dims(), [1, 1, 0, 3]);
    }
}

/// Resizing to the same size copies: a neighbor with weight 0 has no effect, even if it is not finite.
#[test]
fn bilinear_to_the_same_size_copies() {
    let values = [1f32, f32::INFINITY, 2.0, f32::NAN, -3.0, 4.0];
    let x =
        Tensor::new(&values, &Device::Cpu).unwrap().reshape((1, 1, 2, 3)).unwrap().transpose(2, 3).unwrap();
    let got = x.to_device(&rocm()).unwrap().upsample_bilinear2d(3, 2, false).unwrap();
    assert_close(&got, &x, 0.0, "bilinear to 3 x 2");
}
