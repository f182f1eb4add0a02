use super::fixture::*;
use candle_core::rocm::{set_conv_library, set_conv_tiles};
use candle_core::{DType, Device, Result, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, Debug)]
struct Params {
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

const fn params(
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
) -> Params {
    Params { padding, output_padding, stride, dilation, groups }
}

const PLAIN: [Params; 6] = [
    params(0, 0, 1, 1, 1),
    params(1, 0, 1, 1, 1),
    params(2, 0, 2, 1, 1),
    params(1, 0, 1, 2, 1),
    params(3, 0, 3, 2, 2),
    params(0, 0, 2, 1, 2),
];

const TRANSPOSED: [Params; 6] = [
    params(0, 0, 1, 1, 1),
    params(0, 0, 2, 1, 1),
    params(1, 1, 2, 1, 1),
    params(1, 0, 1, 2, 1),
    params(2, 2, 3, 2, 1),
    params(0, 1, 2, 3, 1),
];

/// Returns the input index of a tap at a position, if it is not padding. For a transposed convolution, returns the output
/// index.
fn index_of_tap(
    place: usize,
    tap: usize,
    (padding, stride, dilation): (usize, usize, usize),
    size: usize,
) -> Option<usize> {
    (place * stride + tap * dilation).checked_sub(padding).filter(|at| *at < size)
}

/// Computes a convolution by its definition in f64: (b, c, h, w) with (c_out, c_in, k_h, k_w). Each axis has (padding,
/// stride, dilation).
fn convolution(x: &Tensor, k: &Tensor, groups: usize, [v, u]: [(usize, usize, usize); 2]) -> Tensor {
    let (b, c, h, w) = x.dims4().unwrap();
    let (c_out, c_in, k_h, k_w) = k.dims4().unwrap();
    let size = |n: usize, k: usize, (padding, stride, dilation): (usize, usize, usize)| {
        (n + 2 * padding - dilation * (k - 1) - 1) / stride + 1
    };
    let (h_out, w_out) = (size(h, k_h, v), size(w, k_w, u));
    let (xs, ks) = (to_f64(x), to_f64(k));
    let mut out = Vec::with_capacity(b * c_out * h_out * w_out);
    for (i, o) in (0..b).flat_map(|i| (0..c_out).map(move |o| (i, o))) {
        let first_channel = o / (c_out / groups) * c_in;
        for (y, x) in (0..h_out).flat_map(|y| (0..w_out).map(move |x| (y, x))) {
            let mut sum = 0.0;
            for (tap_y, tap_x) in (0..k_h).flat_map(|y| (0..k_w).map(move |x| (y, x))) {
                if let (Some(y), Some(x)) = (index_of_tap(y, tap_y, v, h), index_of_tap(x, tap_x, u, w)) {
                    for channel in 0..c_in {
                        sum += xs[((i * c + first_channel + channel) * h + y) * w + x]
                            * ks[((o * c_in + channel) * k_h + tap_y) * k_w + tap_x];
                    }
                }
            }
            out.push(sum);
        }
    }
    Tensor::from_vec(out, (b, c_out, h_out, w_out), &Device::Cpu).unwrap()
}

/// Computes a transposed convolution by its definition in f64: (b, c, h, w) with (c, c_out, k_h, k_w). Each axis has
/// (padding, output padding, stride, dilation).
fn transposed(x: &Tensor, k: &Tensor, [v, u]: [(usize, usize, usize, usize); 2]) -> Tensor {
    let (b, c, h, w) = x.dims4().unwrap();
    let (_, c_out, k_h, k_w) = k.dims4().unwrap();
    let size =
        |n: usize, k: usize, (padding, output_padding, stride, dilation): (usize, usize, usize, usize)| {
            (n - 1) * stride + dilation * (k - 1) + output_padding + 1 - 2 * padding
        };
    let (h_out, w_out) = (size(h, k_h, v), size(w, k_w, u));
    let (xs, ks) = (to_f64(x), to_f64(k));
    let mut out = vec![0.0; b * c_out * h_out * w_out];
    for (i, channel) in (0..b).flat_map(|i| (0..c).map(move |c| (i, c))) {
        for (y, x) in (0..h).flat_map(|y| (0..w).map(move |x| (y, x))) {
            for (tap_y, tap_x) in (0..k_h).flat_map(|y| (0..k_w).map(move |x| (y, x))) {
                let (v, u) = ((v.0, v.2, v.3), (u.0, u.2, u.3));
                if let (Some(to_y), Some(to_x)) =
                    (index_of_tap(y, tap_y, v, h_out), index_of_tap(x, tap_x, u, w_out))
                {
                    for o in 0..c_out {
                        out[((i * c_out + o) * h_out + to_y) * w_out + to_x] += xs
                            [((i * c + channel) * h + y) * w + x]
                            * ks[((channel * c_out + o) * k_h + tap_y) * k_w + tap_x];
                    }
                }
            }
        }
    }
    Tensor::from_vec(out, (b, c_out, h_out, w_out), &Device::Cpu).unwrap()
}

const FLAT: (usize, usize, usize) = (0, 1, 1);

/// Each thread computes a pack of outputs of a row, in steps of three taps; rows need not be a multiple of the pack.
#[test]
fn windows_of_any_width() {
    each_way(of_any_width);
}

fn of_any_width(device: &Device) {
    for dtype in FLOATS {
        for width in [4, 7, 8, 17, 33] {
            for (k_h, k_w, padding) in [(1, 1, 0), (3, 3, 1), (1, 4, 3), (5, 5, 2), (2, 7, 6), (1, 31, 30)] {
                for (groups, c_in, c_out) in [(5, 1, 1), (2, 3, 2), (2, 3, 9), (1, 5, 3)] {
                    let x = tensor(&[2, groups * c_in, 5, width], dtype, 1.0);
                    let k = tensor(&[groups * c_out, c_in, k_h, k_w], dtype, 1.0);
                    let expected = convolution(&x, &k, groups, [(padding, 1, 1); 2]);
                    let (x, k) = (x.to_device(device).unwrap(), k.to_device(device).unwrap());
                    let got = x.conv2d(&k, padding, 1, 1, groups).unwrap();
                    let what = format!("{dtype:?} {width} {k_h}x{k_w} {groups} of {c_in} to {c_out}");
                    assert_close(&got, &expected, 4.0 * epsilon(dtype), &what);
                }
            }
        }
    }
}

/// Runs a test with the built-in kernels, with and without tiles, and then with MIOpen where it has a solution.
pub fn each_way(test: impl Fn(&Device)) {
    let alone = lock_conv_settings();
    let device = rocm();
    for tiles in [true, false] {
        set_conv_tiles(Some(tiles));
        test(&device);
    }
    set_conv_library(Some(true));
    test(&device);
    drop(alone);
}

/// Selects the built-in kernels, and locks the process-wide settings for tests that change them or count launches.
pub fn lock_conv_settings() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    set_conv_library(Some(false));
    set_conv_tiles(Some(true));
    alone
}

/// Six output channels of a group use the unfolded input, four a direct convolution, and kernels of one element the input
/// itself.
#[test]
fn convolutions_of_one_dimension() {
    each_way(by_one_dimension);
}

fn by_one_dimension(device: &Device) {
    for dtype in FLOATS {
        for (c_out, k) in [(12, 3), (4, 3), (12, 1)] {
            for p in PLAIN {
                let x = tensor(&[2, 4, 11], dtype, 1.0);
                let k = tensor(&[c_out, 4 / p.groups, k], dtype, 1.0);
                let axis = (p.padding, p.stride, p.dilation);
                let (x4, k4) = (x.unsqueeze(2).unwrap(), k.unsqueeze(2).unwrap());
                let expected = convolution(&x4, &k4, p.groups, [FLAT, axis]).squeeze(2).unwrap();
                let (x, k) = (x.to_device(device).unwrap(), k.to_device(device).unwrap());
                let got = x.conv1d(&k, p.padding, p.stride, p.dilation, p.groups).unwrap();
                assert_eq!(got.dtype(), dtype);
                assert_close(&got, &expected, 4.0 * epsilon(dtype), &format!("{dtype:?} {c_out} {p:?}"));
            }
        }
    }
}

#[test]
fn convolutions_of_two_dimensions() {
    each_way(by_two_dimensions);
}

fn by_two_dimensions(device: &Device) {
    for dtype in FLOATS {
        for (c_out, (k_h, k_w)) in [(12, (3, 2)), (4, (3, 2)), (12, (1, 1)), (10, (1, 2))] {
            for p in PLAIN {
                let x = tensor(&[2, 4, 7, 9], dtype, 1.0);
                let k = tensor(&[c_out, 4 / p.groups, k_h, k_w], dtype, 1.0);
                let axis = (p.padding, p.stride, p.dilation);
                let expected = convolution(&x, &k, p.groups, [axis, axis]);
                let (x, k) = (x.to_device(device).unwrap(), k.to_device(device).unwrap());
                let got = x.conv2d(&k, p.padding, p.stride, p.dilation, p.groups).unwrap();
                assert_eq!(got.dtype(), dtype);
                assert_close(&got, &expected, 4.0 * epsilon(dtype), &format!("{dtype:?} {c_out} {p:?}"));
            }
        }
    }
}

/// Groups of few channels take one launch of the direct kernel. Other groups are unfolded together and multiplied image by
/// image or group by group, also if a gradient is needed.
#[test]
fn groups_are_computed_together() {
    use candle_core::Var;
    let _alone = lock_conv_settings();
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let launches = || device.as_rocm_device().unwrap().kernels_launched();
    for dtype in FLOATS {
        for (images, groups, c_in, c_out, (k_h, k_w)) in [
            (2, 6, 1, 1, (3, 3)),
            (2, 3, 2, 2, (3, 2)),
            (1, 2, 3, 8, (1, 1)),
            (3, 2, 5, 6, (3, 2)),
            (1, 3, 5, 6, (3, 2)),
            (3, 2, 5, 6, (1, 1)),
        ] {
            for p in [params(1, 0, 1, 1, groups), params(2, 0, 2, 2, groups)] {
                let x = tensor(&[images, groups * c_in, 7, 9], dtype, 1.0);
                let k = tensor(&[groups * c_out, c_in, k_h, k_w], dtype, 1.0);
                let axis = (p.padding, p.stride, p.dilation);
                let expected = convolution(&x, &k, groups, [axis, axis]);
                let (x, k) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
                let conv = |x: &Tensor| x.conv2d(&k, p.padding, p.stride, p.dilation, groups).unwrap();
                let before = launches();
                let got = conv(&x);
                assert!(launches() - before <= 1, "{groups} groups of {c_in} to {c_out}");
                let what = format!("{dtype:?} {groups} groups of {c_in} to {c_out} {p:?}");
                assert_close(&got, &expected, 4.0 * epsilon(dtype), &what);
                let (var, before) = (Var::from_tensor(&x).unwrap(), launches());
                let tracked = conv(var.as_tensor());
                assert!(launches() - before <= 1, "{groups} groups of {c_in} to {c_out} with a gradient");
                assert_close(&tracked, &expected, 4.0 * epsilon(dtype), &format!("{what} with a gradient"));
            }
        }
        // The rows have more outputs than a workgroup.
        let (x, k) = (tensor(&[2, 3, 1500], dtype, 1.0), tensor(&[3, 1, 4], dtype, 1.0));
        let (x4, k4) = (x.unsqueeze(2).unwrap(), k.unsqueeze(2).unwrap());
        let expected = convolution(&x4, &k4, 3, [FLAT, (3, 1, 1)]).squeeze(2).unwrap();
        let (x, k) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
        assert_close(&x.conv1d(&k, 3, 1, 1, 3).unwrap(), &expected, 4.0 * epsilon(dtype), "1d");
    }
}

/// More than four input channels take one launch on tiles. A dtype without tiles takes products of all taps, in pieces of
/// images or of output channels.
#[test]
fn transposed_convolutions_by_products() {
    use candle_core::rocm::{conv_workspace, set_conv_workspace};
    let _alone = lock_conv_settings();
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let whole = conv_workspace();
    let launches = || device.as_rocm_device().unwrap().kernels_launched();
    for dtype in FLOATS {
        let (x, k) = (tensor(&[3, 6, 4, 5], dtype, 1.0), tensor(&[6, 7, 3, 4], dtype, 1.0));
        let (gpu_x, gpu_k) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
        for p in TRANSPOSED {
            let axis = (p.padding, p.output_padding, p.stride, p.dilation);
            let expected = transposed(&x, &k, [axis, axis]);
            // 12 taps of 7 channels at 20 positions: pieces of one image, of two channels, and of one channel.
            let bytes = 12 * 20 * dtype.size_in_bytes();
            for (bytes, pieces) in [(whole, 1), (7 * bytes, 3), (2 * bytes, 12), (1, 21)] {
                set_conv_workspace(bytes);
                let before = launches();
                let got = gpu_x.conv_transpose2d(&gpu_k, p.padding, p.output_padding, p.stride, p.dilation);
                let launched = launches() - before;
                set_conv_workspace(whole);
                assert_close(&got.unwrap(), &expected, 4.0 * epsilon(dtype), &format!("{dtype:?} {p:?}"));
                assert_eq!(launched, if dtype == DType::F64 { pieces } else { 1 }, "{bytes} bytes");
            }
        }
        for (name, view) in VIEWS4 {
            let (x, k) = (view(&gpu_x).unwrap(), view(&gpu_k).unwrap());
            let expected = transposed(&x, &k, [(1, 1, 2, 1); 2]);
            let got = x.conv_transpose2d(&k, 1, 1, 2, 1).unwrap();
            assert_close(&got, &expected, 4.0 * epsilon(dtype), name);
        }
    }
}

#[test]
fn convolutions_of_views() {
    of_views(&Device::Cpu);
    each_way(of_views);
}

fn of_views(device: &Device) {
    for (c_out, (k_h, k_w), padding) in [(6, (3, 2), 1), (3, (3, 2), 1), (6, (1, 1), 0)] {
        for (x_name, x_view) in VIEWS4 {
            for (k_name, k_view) in VIEWS4 {
                let x = tensor(&[2, 3, 6, 5], DType::F32, 1.0).to_device(device).unwrap();
                let k = tensor(&[c_out, 3, k_h, k_w], DType::F32, 1.0).to_device(device).unwrap();
                let (x, k) = (x_view(&x).unwrap(), k_view(&k).unwrap());
                let expected = convolution(&x, &k, 1, [(padding, 1, 1); 2]);
                let got = x.conv2d(&k, padding, 1, 1, 1).unwrap();
                assert_close(&got, &expected, 1e-5, &format!("{c_out}: {x_name} by {k_name}"));
            }
        }
    }
    let x = tensor(&[2, 9, 3], DType::F32, 1.0).to_device(device).unwrap().transpose(1, 2).unwrap();
    let k = tensor(&[2, 3, 6], DType::F32, 1.0).to_device(device).unwrap().transpose(0, 2).unwrap();
    let expected = convolution(&x.unsqueeze(2).unwrap(), &k.unsqueeze(2).unwrap(), 1, [FLAT, (1, 1, 1)]);
    let got = x.conv1d(&k, 1, 1, 1, 1).unwrap();
    assert_close(&got, &expected.squeeze(2).unwrap(), 1e-5, "conv1d of transposed");
}

#[test]
fn kernels_wider_than_their_inputs() {
    wider_than_inputs(&Device::Cpu);
    each_way(wider_than_inputs);
}

/// Covers kernels of which some elements only see padding, and strides larger than the inputs.
fn wider_than_inputs(device: &Device) {
    let mut computed = [0, 0];
    for case in 0..2 * 4 * 3 * 2 * 2 {
        let (size, taps, padding) = (1 + case % 2, 1 + case / 2 % 4, [0, 2, 4][case / 8 % 3]);
        let (stride, dilation) = ([1, 3][case / 24 % 2], 1 + case / 48);
        let what = format!("{size} by {taps}, padding {padding}, stride {stride}, dilation {dilation}");
        let on_device = |dims: &[usize]| tensor(dims, DType::F32, 1.0).to_device(device).unwrap();
        let (x, k) = (on_device(&[2, 3, 1, size]), on_device(&[3, 3, 1, taps]));
        let (x3, k3) = (x.squeeze(2).unwrap(), k.squeeze(2).unwrap());
        let reach = dilation * (taps - 1);
        if size + 2 * padding > reach {
            computed[0] += 1;
            let expected = convolution(&x, &k, 1, [FLAT, (padding, stride, dilation)]).squeeze(2).unwrap();
            let got = x3.conv1d(&k3, padding, stride, dilation, 1).unwrap();
            assert_close(&got, &expected, 1e-5, &what);
        }
        if (size - 1) * stride + reach + 1 > 2 * padding {
            computed[1] += 1;
            let steps = (padding, 0, stride, dilation);
            let expected = transposed(&x, &k, [(0, 0, 1, 1), steps]).squeeze(2).unwrap();
            let got = x3.conv_transpose1d(&k3, padding, 0, stride, dilation, 1).unwrap();
            assert_close(&got, &expected, 1e-5, &format!("transposed {what}"));
        }
    }
    assert!(computed.iter().all(|count| *count > 30), "{computed:?}");
    let (x, k) = (tensor(&[3, 4, 1, 1], DType::F32, 1.0), tensor(&[3, 4, 3, 3], DType::F32, 1.0));
    let expected = convolution(&x, &k, 1, [(2, 1, 2); 2]);
    let got = x.to_device(device).unwrap().conv2d(&k.to_device(device).unwrap(), 2, 1, 2, 1).unwrap();
    assert_close(&got, &expected, 1e-5, "2d");
}

/// Compares the errors on both devices, of the operation and of the operation with a gradient.
#[test]
fn sizes_without_output_give_the_errors_of_the_cpu() {
    let device = rocm();
    let convolve = |device: &Device, sizes: [usize; 2], [padding, stride, dilation, groups]: [usize; 4]| {
        let on_device = |size| tensor(&[1, 2, size], DType::F32, 1.0).to_device(device).unwrap();
        let (x, k) = (on_device(sizes[0]), on_device(sizes[1]).broadcast_as((2, 2, sizes[1])).unwrap());
        let flat = x.conv1d(&k, padding, stride, dilation, groups);
        let (x4, k4) = (x.unsqueeze(2).unwrap(), k.unsqueeze(2).unwrap());
        let transposed = x.conv_transpose1d(&k, padding, 0, stride, dilation, groups);
        let tracked = candle_core::Var::from_tensor(&x4).unwrap();
        let plane = tracked.conv2d(&k4, padding, stride, dilation, groups);
        (flat, plane, transposed, x4.conv_transpose2d(&k4, padding, 0, stride, dilation))
    };
    for (sizes, steps, transposes) in [
        ([2, 3], [0, 1, 1, 1], true),
        ([2, 3], [0, 1, 9, 1], true),
        ([2, 0], [1, 1, 1, 1], false),
        ([2, 2], [1, 0, 1, 1], false),
        ([2, 2], [usize::MAX / 2 + 1, 1, 1, 1], false),
        ([2, 2], [1, 1, usize::MAX, 1], false),
    ] {
        let what = format!("{sizes:?} {steps:?}");
        let (got, expected) = (convolve(&device, sizes, steps), convolve(&Device::Cpu, sizes, steps));
        assert_same_error(got.0, expected.0, &format!("conv1d {what}"));
        assert_same_error(got.1, expected.1, &format!("conv2d {what}"));
        if !transposes {
            assert_same_error(got.2, expected.2, &format!("conv_transpose1d {what}"));
            assert_same_error(got.3, expected.3, &format!("conv_transpose2d {what}"));
        }
    }
    // No groups, no channels, more padding than output, and an empty input.
    let on = |device: &Device, dims: &[usize]| tensor(dims, DType::F32, 1.0).to_device(device).unwrap();
    let both = |compute: &dyn Fn(&Device) -> Result<Tensor>, what: &str| {
        assert_same_error(compute(&device), compute(&Device::Cpu), what);
    };
    both(&|d| on(d, &[1, 0, 3]).conv1d(&on(d, &[2, 1, 2]), 0, 1, 1, 0), "conv1d in no groups");
    both(
        &|d| on(d, &[1, 0, 3]).conv_transpose1d(&on(d, &[0, 1, 2]), 0, 0, 1, 1, 0),
        "transposed in no groups",
    );
    both(&|d| on(d, &[1, 2, 3]).conv1d(&on(d, &[3, 1, 2]), 0, 1, 1, 2), "3 filters in 2 groups");
    both(&|d| on(d, &[1, 0, 3]).conv1d(&on(d, &[2, 0, 2]), 0, 1, 1, 2), "no channels in 2 groups");
    both(
        &|d| on(d, &[1, 2, 2]).conv_transpose1d(&on(d, &[2, 2, 2]), 2, 0, 1, 1, 1),
        "padding beyond the output",
    );
    both(&|d| on(d, &[1, 2, 0]).conv_transpose1d(&on(d, &[2, 2, 2]), 0, 0, 1, 1, 1), "an empty input");
}

/// For a dtype without tiles, the unfolded input is computed in pieces: several images, or some positions of one image.
#[test]
fn a_smaller_workspace_gives_the_same_results() {
    use candle_core::rocm::{conv_workspace, set_conv_workspace};
    let _alone = lock_conv_settings();
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let x = tensor(&[3, 4, 12, 13], DType::F64, 1.0).to_device(&device).unwrap();
    let k = tensor(&[8, 4, 3, 3], DType::F64, 1.0).to_device(&device).unwrap();
    let expected = convolution(&x, &k, 1, [(1, 1, 1); 2]);
    let whole = conv_workspace();
    let launches = || device.as_rocm_device().unwrap().kernels_launched();
    // 36 columns of 8 bytes at each of 156 positions: pieces of all images, two, one, 128 positions, one position.
    for (bytes, pieces) in [(whole, 1), (2 * 44_928, 2), (44_928, 3), (37_000, 6), (1, 3 * 156)] {
        set_conv_workspace(bytes);
        let before = launches();
        let got = x.conv2d(&k, 1, 1, 1, 1);
        let launched = launches() - before;
        set_conv_workspace(whole);
        assert_close(&got.unwrap(), &expected, 1e-12, &format!("{bytes} bytes"));
        assert_eq!(launched, pieces, "{bytes} bytes");
    }
}

/// With little memory, inputs of wide rows are unfolded along rows only, for some rows of outputs at a time.
#[test]
fn wide_rows_are_unfolded_along_rows() {
    use candle_core::rocm::{conv_workspace, set_conv_tiles, set_conv_workspace};
    let _alone = lock_conv_settings();
    set_conv_tiles(Some(false));
    let device = rocm();
    let whole = conv_workspace();
    for dtype in FLOATS {
        for (width, taps, padding, stride) in [(130, (3, 3), 1, 1), (128, (2, 1), 0, 1), (259, (3, 4), 2, 2)]
        {
            let x = tensor(&[2, 3, 7, width + 2], dtype, 1.0);
            let k = tensor(&[6, 3, taps.0, taps.1], dtype, 1.0);
            let view = |x: &Tensor| x.narrow(3, 1, width).unwrap();
            let expected = convolution(&view(&x).contiguous().unwrap(), &k, 1, [(padding, stride, 1); 2]);
            let (x, k) = (view(&x.to_device(&device).unwrap()), k.to_device(&device).unwrap());
            // All rows of an image, a few, and one row of outputs at a time.
            for rows in [9, 5, 0] {
                set_conv_workspace(rows * 3 * taps.1 * 136 * dtype.size_in_bytes());
                let got = x.conv2d(&k, padding, stride, 1, 1);
                set_conv_workspace(whole);
                let what = format!("{dtype:?} {width} by {taps:?}, {rows} rows");
                assert_close(&got.unwrap(), &expected, 4.0 * epsilon(dtype), &what);
            }
        }
    }
    set_conv_tiles(Some(true));
}

#[test]
fn transposed_convolutions_of_every_dtype() {
    each_way(transposed_of_every_dtype);
}

fn transposed_of_every_dtype(device: &Device) {
    for dtype in ALL {
        let limit = if dtype.is_int() { 9.0 } else { 1.0 };
        let x = tensor(&[2, 3, 4, 5], dtype, limit);
        let k = tensor(&[3, 4, 3, 2], dtype, limit);
        let (x1, k1) = (tensor(&[2, 3, 5], dtype, limit), tensor(&[3, 4, 3], dtype, limit));
        let on_device = |t: &Tensor| t.to_device(device).unwrap();
        // Integers wrap around, as on the CPU device.
        let wrapped =
            |t: Tensor| if dtype == DType::U8 { from_f64(&mod_256(&t), t.dims(), dtype) } else { t };
        for p in TRANSPOSED {
            let what = format!("{dtype:?} {p:?}");
            let axis = (p.padding, p.output_padding, p.stride, p.dilation);
            let expected = wrapped(transposed(&x, &k, [axis, axis]));
            let got = on_device(&x)
                .conv_transpose2d(&on_device(&k), p.padding, p.output_padding, p.stride, p.dilation)
                .unwrap();
            assert_eq!(got.dtype(), dtype);
            assert_close(&got, &expected, 4.0 * epsilon(dtype), &format!("2d {what}"));
            let (x4, k4) = (x1.unsqueeze(2).unwrap(), k1.unsqueeze(2).unwrap());
            let expected = wrapped(transposed(&x4, &k4, [(0, 0, 1, 1), axis]).squeeze(2).unwrap());
            let got = on_device(&x1)
                .conv_transpose1d(&on_device(&k1), p.padding, p.output_padding, p.stride, p.dilation, 1)
                .unwrap();
            assert_close(&got, &expected, 4.0 * epsilon(dtype), &format!("1d {what}"));
        }
    }
}

fn mod_256(t: &Tensor) -> Vec<f64> {
    to_f64(t).into_iter().map(|v| v.rem_euclid(256.0)).collect()
}

#[test]
fn transposed_convolutions_of_views_and_groups() {
    transposed_of_views_and_groups(&Device::Cpu);
    each_way(transposed_of_views_and_groups);
}

fn transposed_of_views_and_groups(device: &Device) {
    for (x_name, x_view) in VIEWS4 {
        for (k_name, k_view) in VIEWS4 {
            let x = x_view(&tensor(&[2, 3, 4, 5], DType::F32, 1.0).to_device(device).unwrap()).unwrap();
            let k = k_view(&tensor(&[3, 4, 3, 2], DType::F32, 1.0).to_device(device).unwrap()).unwrap();
            let expected = transposed(&x, &k, [(1, 1, 2, 1); 2]);
            let got = x.conv_transpose2d(&k, 1, 1, 2, 1).unwrap();
            assert_close(&got, &expected, 1e-5, &format!("{x_name} by {k_name}"));
        }
    }
    let x = tensor(&[2, 4, 5], DType::F32, 1.0).to_device(device).unwrap();
    let k = tensor(&[4, 3, 3], DType::F32, 1.0).to_device(device).unwrap();
    // With and without padding: without it, the CPU device multiplies the whole batch.
    for (padding, groups) in [(1, 2), (0, 1)] {
        let parts = (0..groups).map(|group| {
            let part = |t: &Tensor, dim| {
                t.narrow(dim, group * 4 / groups, 4 / groups).unwrap().unsqueeze(2).unwrap()
            };
            transposed(&part(&x, 1), &part(&k, 0), [(0, 0, 1, 1), (padding, 0, 2, 1)]).squeeze(2).unwrap()
        });
        let expected = Tensor::cat(&parts.collect::<Vec<_>>(), 1).unwrap();
        let got = x.conv_transpose1d(&k, padding, 0, 2, 1, groups).unwrap();
        assert_close(&got, &expected, 1e-5, &format!("{groups} groups"));
    }
}

#[test]
fn dtypes_without_products_give_the_errors_of_the_cpu() {
    let device = rocm();
    let both = |dims: &[usize], dtype| {
        let t = tensor(dims, dtype, 3.0);
        (t.to_device(&device).unwrap(), t)
    };
    for dtype in ALL.into_iter().filter(|dtype| !FLOATS.contains(dtype)) {
        let ((gx, x), (gk, k)) = (both(&[1, 2, 5], dtype), both(&[6, 2, 3], dtype));
        let conv1d = |x: &Tensor, k: &Tensor| -> Result<Tensor> { x.conv1d(k, 0, 1, 1, 1) };
        assert_same_error(conv1d(&gx, &gk), conv1d(&x, &k), &format!("conv1d {dtype:?}"));
        let ((gx, x), (gk, k)) = (both(&[1, 2, 5, 5], dtype), both(&[6, 2, 3, 3], dtype));
        let conv2d = |x: &Tensor, k: &Tensor| -> Result<Tensor> { x.conv2d(k, 0, 1, 1, 1) };
        assert_same_error(conv2d(&gx, &gk), conv2d(&x, &k), &format!("conv2d {dtype:?}"));
    }
    let ((gx, x), (gk, k)) = (both(&[1, 2, 5], DType::F32), both(&[6, 2, 3], DType::F64));
    let transposed = |x: &Tensor, k: &Tensor| x.conv_transpose1d(&k.t()?.contiguous()?, 1, 0, 1, 1, 1);
    let k_of = |k: &Tensor| k.permute((1, 2, 0)).unwrap();
    assert_same_error(transposed(&gx, &k_of(&gk)), transposed(&x, &k_of(&k)), "mixed dtypes");
}

#[test]
fn windows_that_do_not_fit_are_errors() {
    let device = rocm();
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &device).unwrap();
    let cases = [
        zeros(&[1, 1, 4]).conv1d(&zeros(&[1, 1, 5]), 0, 1, 1, 1),
        zeros(&[1, 1, 4]).conv1d(&zeros(&[1, 1, 3]), 0, 0, 1, 1),
        zeros(&[1, 1, 4, 4]).conv2d(&zeros(&[1, 1, 3, 3]), 0, 1, 2, 1),
        zeros(&[1, 1, 0]).conv_transpose1d(&zeros(&[1, 1, 3]), 0, 0, 1, 1, 1),
        zeros(&[1, 1, 1, 1]).conv_transpose2d(&zeros(&[1, 1, 1, 1]), 1, 0, 1, 1),
    ];
    for (i, case) in cases.into_iter().enumerate() {
        let error = case.unwrap_err().to_string();
        assert!(error.contains("conv") && error.contains("no output"), "{i}: {error}");
    }
    let empty = zeros(&[0, 2, 4, 4]).conv2d(&zeros(&[3, 2, 3, 3]), 0, 1, 1, 1).unwrap();
    assert_eq!(empty.dims(), [0, 3, 2, 2]);
}

/// Only one tensor is allocated: the result.
#[test]
fn a_bias_is_added_in_place() {
    use candle_core::rocm::{conv1d_with_bias, conv2d_with_bias};
    use candle_core::Var;
    let _alone = lock_conv_settings();
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let on = |t: &Tensor| t.to_device(&device).unwrap();
    let requests = || device.as_rocm_device().unwrap().memory_stats().requests;
    for dtype in FLOATS {
        for (groups, c_in, c_out) in [(1, 6, 7), (2, 5, 3), (6, 1, 1)] {
            let x = tensor(&[2, groups * c_in, 5, 9], dtype, 1.0);
            let k = tensor(&[groups * c_out, c_in, 3, 3], dtype, 1.0);
            let b = tensor(&[2 * groups * c_out], dtype, 4.0);
            let p = [1, 2, 1, groups];
            let without = convolution(&x, &k, groups, [(1, 2, 1); 2]);
            let bias = from_f64(&to_f64(&b), b.dims(), DType::F64);
            // A bias that is not dense, with a stride of 2.
            let bias = bias.reshape((groups * c_out, 2)).unwrap().narrow(1, 0, 1).unwrap();
            let expected = without.broadcast_add(&bias.reshape((1, groups * c_out, 1, 1)).unwrap()).unwrap();
            let b = on(&b).reshape((groups * c_out, 2)).unwrap().narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
            let (gx, gk) = (on(&x), on(&k));
            let before = requests();
            let got = conv2d_with_bias(&gx, &gk, &b, p).unwrap().expect("on the device");
            if dtype != DType::F64 {
                assert_eq!(requests() - before, 1, "{dtype:?} {groups} groups");
            }
            assert_close(&got, &expected, 8.0 * epsilon(dtype), &format!("{dtype:?} {groups} groups"));
        }
    }
    let (x, k, b) = (on(&tensor(&[1, 2, 9], DType::F32, 1.0)), tensor(&[3, 2, 3], DType::F32, 1.0), [3]);
    let (k, b) = (on(&k), on(&tensor(&b, DType::F32, 1.0)));
    let got = conv1d_with_bias(&x, &k, &b, [1, 1, 1, 1]).unwrap().expect("on the device");
    let expected = x.conv1d(&k, 1, 1, 1, 1).unwrap().broadcast_add(&b.reshape((1, 3, 1)).unwrap()).unwrap();
    assert_eq!(to_f64(&got), to_f64(&expected));
    let cpu = |t: &Tensor| t.to_device(&Device::Cpu).unwrap();
    let var = Var::from_tensor(&x).unwrap();
    for (what, x, k, b) in [
        ("on the CPU", cpu(&x), cpu(&k), cpu(&b)),
        ("on two devices", x.clone(), cpu(&k), b.clone()),
        ("tracked", var.as_tensor().clone(), k.clone(), b.clone()),
        ("of too few", x.clone(), k.clone(), b.narrow(0, 0, 2).unwrap()),
        ("of another dtype", x.clone(), k.clone(), b.to_dtype(DType::F16).unwrap()),
    ] {
        assert!(conv1d_with_bias(&x, &k, &b, [1, 1, 1, 1]).unwrap().is_none(), "{what}");
    }
}
