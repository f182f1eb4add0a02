//! Convolutions and transposed convolutions, and candle-nn's convolution layers with a bias.
use candle_core::{DType, Result, Tensor};
use candle_nn::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Module};

use super::{Op, Plan, at_most, finite};
use crate::case::{Case, Operand};
use crate::compare::Bound;
use crate::strategy::Choices;

/// Kind of convolution.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub spatial: usize,
    pub transposed: bool,
    /// Operands of the example.
    pub operands: &'static str,
}

const fn kind(name: &'static str, spatial: usize, transposed: bool, operands: &'static str) -> Kind {
    Kind { name, spatial, transposed, operands }
}

/// All kinds. The example of conv2d has more output channels than the direct kernel supports.
pub const KINDS: [Kind; 4] = [
    kind("conv1d", 1, false, "x=2x2x6 k=3x2x3"),
    kind("conv2d", 2, false, "x=2x2x5x6 k=5x2x2x3"),
    kind("conv_transpose1d", 1, true, "x=2x2x6 k=2x3x3"),
    kind("conv_transpose2d", 2, true, "x=2x2x4x5 k=2x3x2x3"),
];

/// Parameters of an example.
pub const STEPS: &str = "padding=[1] output_padding=[0] stride=[2] dilation=[1]";

pub fn ops() -> Vec<Op> {
    let plain = KINDS.map(|kind| {
        let example = format!("{STEPS} groups=[1] {}", kind.operands);
        let op = Op::new(
            kind.name,
            example,
            move |c| plan(c, kind),
            move |case, t| kind.apply(case, &t[0], &t[1]),
        );
        // Dense copies of the operands, then im2col and a product, or one launch for all groups.
        op.within(bound(kind)).calling(at_most(3))
    });
    let biased = [(KINDS[0], "bias=3"), (KINDS[1], "bias=5")].map(|(kind, bias)| {
        let example = format!("{STEPS} groups=[1] {} {bias}", kind.operands);
        let name = format!("{}_with_bias", kind.name);
        let plan = move |c: &mut Choices| {
            let mut plan = plan(c, kind);
            let filters = plan.operands[1].dims[0] + usize::from(c.seldom(32));
            plan.operands.push(c.mostly_dense("bias", &[filters]));
            plan
        };
        let op = Op::new(name, example, plan, with_bias);
        // The sum and the bias are each rounded to the dtype.
        let roundings = |case: &Case| if is_narrow(case) { 2.0 } else { 1.0 + terms(case) };
        op.within(Bound::ulps(1.0).stepwise().sum(roundings)).calling(at_most(4))
    });
    // Finite values only: padding times an infinite weight is NaN only if the padding is really multiplied.
    plain.into_iter().chain(biased).map(|op| op.accepting_more().on(finite)).collect()
}

impl Kind {
    pub fn apply(self, case: &Case, x: &Tensor, k: &Tensor) -> Result<Tensor> {
        let [padding, output_padding, stride, dilation, groups] =
            ["padding", "output_padding", "stride", "dilation", "groups"].map(|name| case.size(name));
        match (self.spatial, self.transposed) {
            (1, false) => x.conv1d(k, padding, stride, dilation, groups),
            (_, false) => x.conv2d(k, padding, stride, dilation, groups),
            (1, true) => x.conv_transpose1d(k, padding, output_padding, stride, dilation, groups),
            (_, true) => x.conv_transpose2d(k, padding, output_padding, stride, dilation),
        }
    }
}

fn with_bias(case: &Case, t: &[Tensor]) -> Result<Tensor> {
    let [padding, stride, dilation, groups] =
        ["padding", "stride", "dilation", "groups"].map(|name| case.size(name));
    let (x, k, bias, cudnn_fwd_algo) = (&t[0], t[1].clone(), Some(t[2].clone()), None);
    if x.rank() == 3 {
        let config = Conv1dConfig { padding, stride, dilation, groups, cudnn_fwd_algo };
        return Conv1d::new(k, bias, config).forward(x);
    }
    let config = Conv2dConfig { padding, stride, dilation, groups, cudnn_fwd_algo };
    Conv2d::new(k, bias, config).forward(x)
}

/// Returns the maximum number of terms of an output: the number of the kernel's elements.
fn terms(case: &Case) -> f64 {
    case.dims(1).iter().product::<usize>() as f64
}

pub fn is_narrow(case: &Case) -> bool {
    matches!(case.dtype, DType::F16 | DType::BF16)
}

fn bound(kind: Kind) -> Bound {
    if !kind.transposed {
        return Bound::ulps(1.0).sum(terms);
    }
    // For narrow floats, each tap's sum over channels is rounded to the dtype; the error of f32 sums is
    // negligible.
    Bound::ulps(1.0).stepwise().sum(|case| match is_narrow(case) {
        true => case.dims(1).iter().skip(2).product::<usize>() as f64,
        false => terms(case),
    })
}

/// Generates an input, a kernel and parameters. Half of the cases have small sizes and arbitrary parameters:
/// sizes of 0, kernels larger than the padded input, kernel elements that only overlap padding, strides and
/// dilations beyond the input. The other cases have kernels that fit.
pub fn plan(c: &mut Choices, kind: Kind) -> Plan {
    let Kind { spatial, transposed, .. } = kind;
    let small = c.seldom(2);
    let mut groups = if spatial == 2 && transposed { 1 } else { c.one_of(&[1, 1, 2, 3]) };
    let [batch, c_in, c_out, rows, columns] = match small {
        true => c.sizes(3, 4),
        false => [c.between(1, 2), c.between(1, 3), c.between(1, 6), c.pick(8), c.pick(8)],
    };
    let taps = match small {
        true => c.sizes::<2>(5, 12),
        false => [c.between(1, 4), c.between(1, 4)],
    };
    let (c_in, c_out) = (groups * c_in, groups * c_out);
    let mut x = vec![batch, c_in];
    let mut k = if transposed { vec![c_in, c_out / groups] } else { vec![c_out, c_in / groups] };
    for (size, taps) in [rows, columns].into_iter().zip(taps).take(spatial) {
        x.push(if small { size } else { taps + size });
        k.push(taps);
    }
    if c.seldom(32) {
        k[1] += 1;
    }
    if groups > 1 && c.seldom(16) {
        // A number of filters that is not divisible by the groups; of channels for a transposed convolution.
        k[0] += 1;
        x[1] += usize::from(transposed);
    }
    let [mut padding, mut stride, mut dilation, mut output_padding] = match small {
        true => [c.pick(8), c.one_of(&[1, 2, 3, 4, 7]), c.one_of(&[1, 2, 3, 5]), c.pick(4)],
        false => [c.pick(3), c.between(1, 3), c.between(1, 2), c.pick(2)],
    };
    if small && c.seldom(16) {
        *[&mut stride, &mut dilation, &mut groups][c.pick(3)] = 0;
    }
    if !small {
        output_padding *= usize::from(stride > 1);
        let sizes = || x[2..].iter().zip(&k[2..]);
        // The output must not be empty after padding is removed, and a dilated kernel must fit into the
        // input.
        if transposed && !sizes().all(|(x, k)| (x - 1) * stride + k > 2 * padding) {
            padding = 0;
        }
        if !sizes().all(|(x, k)| x + 2 * padding > dilation * (k - 1)) {
            dilation = 1;
        }
    }
    let operands: [Operand; 2] = [c.operand("x", &x), c.mostly_dense("k", &k)];
    Plan::of(operands)
        .sizes("padding", &[padding])
        .sizes("output_padding", &[output_padding])
        .sizes("stride", &[stride])
        .sizes("dilation", &[dilation])
        .sizes("groups", &[groups])
}
