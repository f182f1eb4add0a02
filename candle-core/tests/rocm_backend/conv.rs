use super::fixture::*;
use candle_core::{DType, Tensor};

const FLOATS: [DType; 3] = [DType::F32, DType::F64, DType::F16];

/// The CPU's result in f64 of the rounded inputs.
fn wide(t: &Tensor) -> Tensor {
    t.to_dtype(DType::F64).unwrap()
}

#[test]
fn conv1d_with_padding_stride_and_dilation() {
    let device = rocm();
    for dtype in FLOATS {
        let (x, k) = (tensor(&[2, 3, 11], dtype, 1.0), tensor(&[4, 3, 3], dtype, 1.0));
        let (gx, gk) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
        for (padding, stride, dilation) in [(0, 1, 1), (1, 1, 1), (2, 2, 1), (1, 1, 2)] {
            let expected = wide(&x).conv1d(&wide(&k), padding, stride, dilation, 1).unwrap();
            let got = gx.conv1d(&gk, padding, stride, dilation, 1).unwrap();
            assert_close(
                &got,
                &expected,
                4.0 * epsilon(dtype),
                &format!("{dtype:?} {padding} {stride} {dilation}"),
            );
        }
    }
}

#[test]
fn conv2d_with_padding_stride_dilation_and_groups() {
    let device = rocm();
    for dtype in FLOATS {
        let (x, k) = (tensor(&[2, 4, 7, 9], dtype, 1.0), tensor(&[6, 4, 3, 2], dtype, 1.0));
        let (gx, gk) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
        for (padding, stride, dilation) in [(0, 1, 1), (1, 1, 1), (2, 2, 1), (1, 1, 2)] {
            let expected = wide(&x).conv2d(&wide(&k), padding, stride, dilation, 1).unwrap();
            let got = gx.conv2d(&gk, padding, stride, dilation, 1).unwrap();
            assert_close(
                &got,
                &expected,
                4.0 * epsilon(dtype),
                &format!("{dtype:?} {padding} {stride} {dilation}"),
            );
        }
        let k = tensor(&[6, 2, 3, 2], dtype, 1.0);
        let expected = wide(&x).conv2d(&wide(&k), 1, 1, 1, 2).unwrap();
        let got = gx.conv2d(&k.to_device(&device).unwrap(), 1, 1, 1, 2).unwrap();
        assert_close(&got, &expected, 4.0 * epsilon(dtype), &format!("{dtype:?} groups"));
    }
}

#[test]
fn conv2d_of_views() {
    let device = rocm();
    let (x, k) = (tensor(&[1, 9, 7, 3], DType::F32, 1.0), tensor(&[3, 3, 3, 5], DType::F32, 1.0));
    let channels_first = |t: &Tensor| t.permute((0, 3, 1, 2)).unwrap();
    let kernel = |t: &Tensor| t.permute((3, 0, 1, 2)).unwrap();
    let expected =
        channels_first(&x).contiguous().unwrap().conv2d(&kernel(&k).contiguous().unwrap(), 1, 1, 1, 1);
    let (gx, gk) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
    let got = channels_first(&gx).conv2d(&kernel(&gk), 1, 1, 1, 1).unwrap();
    assert_close(&got, &expected.unwrap(), 1e-5, "conv2d of views");
}

/// Batch 1: the CPU is wrong for larger ones with the plainest parameters.
#[test]
fn transposed_convolutions() {
    let device = rocm();
    let (x, k) = (tensor(&[1, 3, 5], DType::F32, 1.0), tensor(&[3, 4, 3], DType::F32, 1.0));
    let (gx, gk) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
    for (padding, output_padding, stride, dilation) in [(0, 0, 1, 1), (1, 1, 2, 1), (1, 0, 1, 2)] {
        let expected = x.conv_transpose1d(&k, padding, output_padding, stride, dilation, 1).unwrap();
        let got = gx.conv_transpose1d(&gk, padding, output_padding, stride, dilation, 1).unwrap();
        assert_close(&got, &expected, 1e-5, &format!("1d {padding} {output_padding} {stride} {dilation}"));
    }
    let (x, k) = (tensor(&[2, 3, 4, 5], DType::F32, 1.0), tensor(&[3, 4, 3, 3], DType::F32, 1.0));
    let (gx, gk) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
    for (padding, output_padding, stride, dilation) in [(0, 0, 1, 1), (1, 1, 2, 1), (1, 0, 1, 2)] {
        let expected = x.conv_transpose2d(&k, padding, output_padding, stride, dilation).unwrap();
        let got = gx.conv_transpose2d(&gk, padding, output_padding, stride, dilation).unwrap();
        assert_close(&got, &expected, 1e-5, &format!("2d {padding} {output_padding} {stride} {dilation}"));
    }
}

#[test]
fn pooling_and_resizing() {
    let device = rocm();
    let x = tensor(&[2, 3, 6, 8], DType::F32, 5.0);
    let g = x.to_device(&device).unwrap();
    for (k, stride) in [((2, 2), (2, 2)), ((3, 2), (1, 2)), ((2, 3), (2, 1))] {
        let what = format!("{k:?} {stride:?}");
        let expected = x.avg_pool2d_with_stride(k, stride).unwrap();
        assert_close(&g.avg_pool2d_with_stride(k, stride).unwrap(), &expected, 1e-6, &format!("avg {what}"));
        let expected = x.max_pool2d_with_stride(k, stride).unwrap();
        assert_close(&g.max_pool2d_with_stride(k, stride).unwrap(), &expected, 0.0, &format!("max {what}"));
    }
    for (h, w) in [(12, 16), (7, 5)] {
        let expected = x.upsample_nearest2d(h, w).unwrap();
        assert_close(&g.upsample_nearest2d(h, w).unwrap(), &expected, 0.0, &format!("nearest {h} {w}"));
        for align in [false, true] {
            let expected = x.upsample_bilinear2d(h, w, align).unwrap();
            let got = g.upsample_bilinear2d(h, w, align).unwrap();
            assert_close(&got, &expected, 1e-5, &format!("bilinear {h} {w} {align}"));
        }
    }
}
