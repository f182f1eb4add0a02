//! Pooling, resizing, padding and windows of tensors of shape (batch, channel, height, width).
use candle_core::{Result, Tensor};
use candle_nn::ops::{pixel_shuffle, pixel_unshuffle, replication_pad2d};

use super::{Calls, Launches, Op, Plan, at_most, summable};
use crate::case::Case;
use crate::compare::{Bound, Compare};
use crate::strategy::Choices;

pub fn ops() -> Vec<Op> {
    [pooling(), upsampling(), padding(), windows()].into_iter().flatten().collect()
}

/// Returns the dims of an image and whether they are small. Half of the cases are small, and may have a dim
/// of 0.
fn image(c: &mut Choices) -> ([usize; 4], bool) {
    if c.seldom(2) {
        return (c.sizes(3, 4), true);
    }
    ([c.between(1, 3), c.between(1, 3), c.between(1, 9), c.between(1, 9)], false)
}

fn pooling() -> Vec<Op> {
    let plan = |c: &mut Choices| {
        let (dims, small) = image(c);
        // Small images also get windows and strides beyond their size, or of 0.
        let [window, stride] = if small { [5, 8] } else { [4, 3] };
        let (window, stride) = (c.sizes::<2>(window, 12), c.sizes::<2>(stride, 24));
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
        // The factor is rounded to the dtype, too.
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
    // Four products with weights that add up to 1. A weight is the fractional part of a coordinate, so its
    // error is proportional to the coordinate.
    let bound = || Bound::ulps(1.0).sum(|case| (4 + case.dims(0)[2] + case.dims(0)[3]) as f64);
    vec![
        Op::new(
            "upsample_nearest1d",
            "to=[7] x=2x2x3",
            |c| {
                let (dims, small) = image(c);
                let to = if small { c.pick(4) } else { c.between(1, 20) };
                Plan::of([c.operand("x", &dims[..3])]).sizes("to", &[to])
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
                let (dims, _) = image(c);
                let scale = [1.5, 3.3].map(|scale| c.one_of(&[1.0, 2.0, scale, 0.7, 0.3, 7.5, 0.0]));
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
    let (dims, small) = image(c);
    let to = if small { [c.pick(4), c.pick(4)] } else { [c.between(1, 14), c.between(1, 14)] };
    Plan::of([c.operand("x", &dims)]).sizes("to", &to)
}

/// Calls of padding: both ends of a dim are filled, and the tensor is copied between them.
const PADDED: Calls = Calls { launches: Launches::AtMost(4), copies: 3 };

fn padding() -> Vec<Op> {
    type Pad = fn(&Tensor, usize, usize, usize) -> Result<Tensor>;
    let kinds: [(&str, Pad); 2] =
        [("pad_with_zeros", Tensor::pad_with_zeros), ("pad_with_same", Tensor::pad_with_same)];
    let along = |(name, pad): (&'static str, Pad)| {
        let plan = |c: &mut Choices| {
            let dims = c.shape(1, 4);
            let dim = c.pick(dims.len());
            let sides = [c.pick(5), c.pick(5)];
            Plan::of([c.operand("x", &dims)]).sizes("dim", &[dim]).sizes("sides", &sides)
        };
        let op = Op::new(name, "dim=[1] sides=[2,1] x=3x4", plan, move |case, t| {
            let sides = case.sizes("sides");
            pad(&t[0], case.size("dim"), sides[0], sides[1])
        });
        op.calling(PADDED)
    };
    let edges = Op::new(
        "replication_pad2d",
        "by=[1] x=2x2x3x4",
        |c| {
            let (dims, _) = image(c);
            let by = c.one_of(&[1, 0, 2]);
            Plan::of([c.operand("x", &dims)]).sizes("by", &[by])
        },
        |case, t| replication_pad2d(&t[0], case.size("by")),
    );
    // Two dims are padded.
    kinds.map(along).into_iter().chain([edges.calling(at_most(6))]).collect()
}

/// Operations that extract or reorder windows, followed by a dense copy.
fn windows() -> Vec<Op> {
    let shuffle = |shuffles: bool| {
        move |c: &mut Choices| {
            let ([batch, channels, h, w], _) = image(c);
            let factor = if c.seldom(12) { 0 } else { c.between(1, 3) };
            // Sizes that are not divisible by the factor are rejected.
            let more = usize::from(c.seldom(12));
            let dims = match shuffles {
                true => [batch, channels * factor * factor + more, h, w],
                false => [batch, channels, h * factor + more, w * factor],
            };
            Plan::of([c.operand("x", &dims)]).sizes("factor", &[factor])
        }
    };
    vec![
        Op::new(
            "unfold",
            "dim=[1] size=[2] step=[2] x=2x5x3",
            |c| {
                let dims = c.shape(1, 4);
                let dim = c.pick(dims.len());
                let step = if c.seldom(12) { 0 } else { c.one_of(&[1, 2, 3, 5, 100]) };
                Plan::of([c.operand("x", &dims)])
                    .sizes("dim", &[dim])
                    .sizes("size", &[c.pick(dims[dim].min(6) + 2)])
                    .sizes("step", &[step])
            },
            |case, t| t[0].unfold(case.size("dim"), case.size("size"), case.size("step"))?.force_contiguous(),
        ),
        Op::new("pixel_shuffle", "factor=[2] x=2x4x3x2", shuffle(true), |case, t| {
            pixel_shuffle(&t[0], case.size("factor"))?.force_contiguous()
        })
        .calling(at_most(3)),
        Op::new("pixel_unshuffle", "factor=[2] x=2x2x4x6", shuffle(false), |case, t| {
            pixel_unshuffle(&t[0], case.size("factor"))?.force_contiguous()
        })
        .calling(at_most(3)),
    ]
}
