//! Convolutions, pooling and upsampling.
use crate::case::{Cases, FLOATS, random};
use candle_core::{DType, Result, Tensor};

const GROUP: &str = "conv";

/// Batch size, input channels, output channels, side of the images, side of the kernel.
const CONV2D: [[usize; 5]; 4] =
    [[8, 64, 128, 64, 3], [8, 64, 128, 64, 1], [1, 320, 320, 64, 3], [1, 320, 320, 128, 3]];
/// Batch size, input channels, output channels, side of the images, stride, number of groups. The kernels have side 3.
const STRIDED_OR_GROUPED: [[usize; 6]; 2] = [[8, 256, 512, 56, 2, 1], [8, 256, 256, 56, 1, 32]];

type Pool = fn(&Tensor, usize) -> Result<Tensor>;
const POOLS: [(&str, Pool); 2] =
    [("max_pool2d", Tensor::max_pool2d::<usize>), ("avg_pool2d", Tensor::avg_pool2d::<usize>)];

pub fn cases(cases: &mut Cases) {
    for dtype in FLOATS {
        let size = dtype.size_in_bytes();
        for [b, c, o, side, k] in CONV2D.map(|dims| cases.scale.dims(dims)) {
            let operands = [random(dtype, [b, c, side, side]), random(dtype, [o, c, k, k])];
            cases
                .operation(
                    [GROUP, "conv2d"],
                    dtype,
                    format!("b{b} c{c} {side}x{side} k{k} o{o}"),
                    operands,
                    move |[x, kernel]| x.conv2d(kernel, k / 2, 1, 1, 1),
                )
                .flops(2 * b * o * side * side * c * k * k);
        }
        for full in STRIDED_OR_GROUPED {
            let [b, c, o, side, stride, _] = cases.scale.dims(full);
            // Groups have 8 channels at each scale.
            let groups = if full[5] == 1 { 1 } else { c / 8 };
            let operands = [random(dtype, [b, c, side, side]), random(dtype, [o, c / groups, 3, 3])];
            let out = side.div_ceil(stride);
            cases
                .operation(
                    [GROUP, "conv2d"],
                    dtype,
                    format!("b{b} c{c} {side}x{side} k3 s{stride} g{groups} o{o}"),
                    operands,
                    move |[x, kernel]| x.conv2d(kernel, 1, stride, 1, groups),
                )
                .flops(2 * b * o * out * out * (c / groups) * 9);
        }
        let [b, c, o, length] = cases.scale.dims([1, 80, 512, 3000]);
        let operands = [random(dtype, [b, c, length]), random(dtype, [o, c, 3])];
        cases
            .operation([GROUP, "conv1d"], dtype, format!("b{b} c{c} {length} k3 o{o}"), operands, |[x, k]| {
                x.conv1d(k, 1, 1, 1, 1)
            })
            .flops(2 * b * o * length * c * 3);
        images(cases, dtype, size);
    }
}

/// Adds cases on a batch of eight small images with 64 channels.
fn images(cases: &mut Cases, dtype: DType, size: usize) {
    let [b, c, o, side] = cases.scale.dims([8, 64, 32, 64]);
    let image = || random(dtype, [b, c, side, side]);
    let shape = format!("b{b} c{c} {side}x{side}");
    let bytes = b * c * side * side * size;
    let operands = [image(), random(dtype, [c, 1, 3, 3])];
    cases
        .operation([GROUP, "conv2d_depthwise"], dtype, format!("{shape} k3"), operands, move |[x, kernel]| {
            x.conv2d(kernel, 1, 1, 1, c)
        })
        .bytes(2 * bytes);
    let operands = [image(), random(dtype, [c, o, 4, 4])];
    cases
        .operation([GROUP, "conv_transpose2d"], dtype, format!("{shape} k4 s2 o{o}"), operands, |[x, k]| {
            x.conv_transpose2d(k, 1, 0, 2, 1)
        })
        .flops(2 * b * c * side * side * o * 16);
    for (name, pool) in POOLS {
        cases
            .operation([GROUP, name], dtype, format!("{shape} k2"), [image()], move |[x]| pool(x, 2))
            .bytes(bytes + bytes / 4);
    }
    cases
        .operation([GROUP, "upsample_nearest2d"], dtype, format!("{shape} x2"), [image()], move |[x]| {
            x.upsample_nearest2d(2 * side, 2 * side)
        })
        .bytes(5 * bytes);
}
