//! Convolutions, pooling and upsampling.
use candle_core::{DType, Result, Tensor};

use super::{Calls, Op, Plan, at_most, summable};
use crate::case::Case;
use crate::compare::{Bound, Compare};
use crate::strategy::Choices;
use crate::values::Domain;

pub fn ops() -> Vec<Op> {
    let mut ops = convolutions();
    ops.extend(pooling());
    ops.extend(upsampling());
    ops
}

/// The examples have one group: a dense copy of the kernel, columns and a product, or one direct launch.
const CONVOLUTION: Calls = at_most(3);

fn convolutions() -> Vec<Op> {
    // Every output is a sum over the kernel's elements.
    let terms = |case: &Case| case.dims(1).iter().product::<usize>() as f64;
    let bound = || Bound::ulps(1.0).sum(terms);
    // Of a transposed one the sum over the channels of every tap is rounded to the dtype; what f32 sums of narrow floats
    // lose besides is far less.
    let transposed = || {
        Bound::ulps(1.0).stepwise().sum(move |case: &Case| match case.dtype {
            DType::F16 | DType::BF16 => case.dims(1).iter().skip(2).product::<usize>() as f64,
            _ => terms(case),
        })
    };
    let params = |case: &Case| {
        let [padding, output_padding, stride, dilation, groups] =
            ["padding", "output_padding", "stride", "dilation", "groups"].map(|name| case.size(name));
        (padding, output_padding, stride, dilation, groups)
    };
    let ones = "padding=[1] output_padding=[0] stride=[2] dilation=[1] groups=[1]";
    let ops = [
        Op::new(
            "conv1d",
            format!("{ones} x=2x2x6 k=3x2x3"),
            |c| conv(c, 1, false),
            move |case, t| {
                let (padding, _, stride, dilation, groups) = params(case);
                t[0].conv1d(&t[1], padding, stride, dilation, groups)
            },
        ),
        // More output channels than the direct kernel takes: through columns.
        Op::new(
            "conv2d",
            format!("{ones} x=2x2x5x6 k=5x2x2x3"),
            |c| conv(c, 2, false),
            move |case, t| {
                let (padding, _, stride, dilation, groups) = params(case);
                t[0].conv2d(&t[1], padding, stride, dilation, groups)
            },
        ),
        Op::new(
            "conv_transpose1d",
            format!("{ones} x=2x2x6 k=2x3x3"),
            |c| conv(c, 1, true),
            move |case, t| {
                let (padding, output_padding, stride, dilation, groups) = params(case);
                t[0].conv_transpose1d(&t[1], padding, output_padding, stride, dilation, groups)
            },
        ),
        Op::new(
            "conv_transpose2d",
            format!("{ones} x=2x2x4x5 k=2x3x2x3"),
            |c| conv(c, 2, true),
            move |case, t| {
                let (padding, output_padding, stride, dilation, _) = params(case);
                t[0].conv_transpose2d(&t[1], padding, output_padding, stride, dilation)
            },
        ),
    ];
    ops.into_iter()
        .map(|op| {
            let bound = if op.name.starts_with("conv_transpose") { transposed() } else { bound() };
            let op = op.within(bound).calling(CONVOLUTION).taking_more();
            let op = if op.name == "conv_transpose1d" { op.referring_to(item_by_item) } else { op };
            // Padding times an infinite weight is a NaN where the padding is really multiplied.
            op.on(|case, _| match summable(case.dtype) {
                Domain::Within(limit) => Domain::Finite(limit),
                other => other,
            })
        })
        .collect()
}

/// The CPU device's conv_transpose1d mixes up the items of a batch.
fn item_by_item(case: &Case, t: &[Tensor]) -> Result<Tensor> {
    let [padding, output_padding, stride, dilation, groups] =
        ["padding", "output_padding", "stride", "dilation", "groups"].map(|name| case.size(name));
    let items = (0..t[0].dim(0)?).map(|i| {
        let item = t[0].narrow(0, i, 1)?.contiguous()?;
        item.conv_transpose1d(&t[1], padding, output_padding, stride, dilation, groups)
    });
    Tensor::cat(&items.collect::<Result<Vec<_>>>()?, 0)
}

/// An input and a kernel with `spatial` dims.
pub fn conv(c: &mut Choices, spatial: usize, transposed: bool) -> Plan {
    let groups = if spatial == 2 && transposed { 1 } else { c.one_of(&[1, 1, 2, 3]) };
    let batch = c.between(1, 2);
    let (c_in, c_out) = (groups * c.between(1, 3), groups * c.between(1, 6));
    let mut x = vec![batch, c_in];
    let mut k = if transposed { vec![c_in, c_out / groups] } else { vec![c_out, c_in / groups] };
    for _ in 0..spatial {
        let size = c.between(1, 4);
        k.push(size);
        x.push(size + c.pick(8));
    }
    if c.seldom(32) {
        k[1] += 1;
    }
    let (padding, stride, dilation) = (c.pick(3), c.between(1, 3), c.between(1, 2));
    let output_padding = if stride > 1 { c.pick(2) } else { 0 };
    // What the padding takes away must leave something.
    let covered = |x: &usize, k: &usize| (x - 1) * stride + k > 2 * padding;
    let padding =
        if transposed && !x[2..].iter().zip(&k[2..]).all(|(x, k)| covered(x, k)) { 0 } else { padding };
    // A dilated kernel must fit into the input.
    let dilation = if x[2..].iter().zip(&k[2..]).all(|(x, k)| x + 2 * padding > dilation * (k - 1)) {
        dilation
    } else {
        1
    };
    Plan::of([c.operand("x", &x), c.mostly_dense("k", &k)])
        .sizes("padding", &[padding])
        .sizes("output_padding", &[output_padding])
        .sizes("stride", &[stride])
        .sizes("dilation", &[dilation])
        .sizes("groups", &[groups])
}

/// An input with `spatial` dims, none of them empty.
fn image(c: &mut Choices, spatial: usize) -> Vec<usize> {
    let mut dims = vec![c.between(1, 3), c.between(1, 3)];
    dims.extend((0..spatial).map(|_| c.between(1, 9)));
    dims
}

fn pooling() -> Vec<Op> {
    let plan = |c: &mut Choices| {
        let dims = image(c, 2);
        let window = [c.between(1, 4), c.between(1, 4)];
        let stride = [c.between(1, 3), c.between(1, 3)];
        Plan::of([c.operand("x", &dims)]).sizes("window", &window).sizes("stride", &stride)
    };
    let params = |case: &Case| {
        let (window, stride) = (case.sizes("window"), case.sizes("stride"));
        ((window[0], window[1]), (stride[0], stride[1]))
    };
    let example = "window=[2,3] stride=[1,2] x=2x2x5x6";
    vec![
        Op::new("avg_pool2d", example, plan, move |case, t| {
            let (window, stride) = params(case);
            t[0].avg_pool2d_with_stride(window, stride)
        })
        // The factor is rounded to the dtype too.
        .within(Bound::ulps(2.0).sum(|case| case.sizes("window").iter().product::<usize>() as f64))
        .on(|case, _| summable(case.dtype)),
        Op::new("max_pool2d", example, plan, move |case, t| {
            let (window, stride) = params(case);
            t[0].max_pool2d_with_stride(window, stride)
        })
        .compared(Compare::Bits),
    ]
}

fn upsampling() -> Vec<Op> {
    // Four products with weights that add up to 1. A weight is the fraction of a coordinate: it loses as much
    // as the coordinate is large.
    let bound = || Bound::ulps(1.0).sum(|case| (4 + case.dims(0)[2] + case.dims(0)[3]) as f64);
    vec![
        Op::new(
            "upsample_nearest1d",
            "to=[7] x=2x2x3",
            |c| {
                let dims = image(c, 1);
                Plan::of([c.operand("x", &dims)]).sizes("to", &[c.between(1, 20)])
            },
            |case, t| t[0].upsample_nearest1d(case.size("to")),
        ),
        Op::new("upsample_nearest2d", "to=[5,7] x=2x2x3x2", resize, |case, t| {
            let to = case.sizes("to");
            t[0].upsample_nearest2d(to[0], to[1])
        }),
        Op::new(
            "upsample_bilinear2d",
            "to=[5,7] corners=[0] x=2x2x3x2",
            |c| resize(c).sizes("corners", &[c.pick(2)]),
            |case, t| {
                let to = case.sizes("to");
                t[0].upsample_bilinear2d(to[0], to[1], case.size("corners") == 1)
            },
        )
        .within(bound())
        .on(|case, _| summable(case.dtype)),
        Op::new(
            "upsample_bilinear2d_with_scale",
            "scale=[1.5,2] corners=[0] x=2x2x3x2",
            |c| {
                let dims = image(c, 2);
                let scale = [c.one_of(&[1.0, 2.0, 1.5, 0.7]), c.one_of(&[1.0, 2.0, 3.3, 0.6])];
                Plan::of([c.operand("x", &dims)]).param("scale", &scale).sizes("corners", &[c.pick(2)])
            },
            |case, t| -> Result<Tensor> {
                let scale = case.numbers("scale");
                t[0].upsample_bilinear2d_with_scale(scale[0], scale[1], case.size("corners") == 1)
            },
        )
        .within(bound())
        .on(|case, _| summable(case.dtype))
        .calling(at_most(1)),
    ]
}

fn resize(c: &mut Choices) -> Plan {
    let dims = image(c, 2);
    let to = [c.between(1, 14), c.between(1, 14)];
    Plan::of([c.operand("x", &dims)]).sizes("to", &to)
}
