//! Gradients of convolutions, of the input or of the weights.
use candle_core::{DType, Device, Error, Result, Tensor, Var};

use super::convolutions::{KINDS, Kind, STEPS, is_narrow, plan};
use super::{Calls, Launches, Op, finite};
use crate::case::Case;
use crate::compare::Bound;

/// The convolution, its result times a gradient, the sum of that, and all of it backwards.
const CALLS: Calls = Calls { launches: Launches::AtMost(20), copies: FILLS };
/// The variable, and sums of gradients that begin with zeros.
const FILLS: u64 = 7;

pub fn ops() -> Vec<Op> {
    // Products of a tap are rounded to the dtype before they are summed; what f32 sums of narrow floats lose besides
    // is far less.
    let roundings = |case: &Case| match is_narrow(case) {
        true => 2.0 + case.dims(1).iter().skip(2).product::<usize>() as f64,
        false => 4.0 * case.operands.iter().map(|o| o.dims.iter().product::<usize>() as f64).sum::<f64>(),
    };
    let op = |kind: Kind| {
        let (groups, operands) =
            if kind.name == "conv1d" { (2, "x=2x4x6 k=6x2x3") } else { (1, kind.operands) };
        let plan = move |c: &mut crate::strategy::Choices| {
            let of = c.pick(2);
            plan(c, kind).sizes("of", &[of])
        };
        let example = format!("{STEPS} of=[1] groups=[{groups}] {operands}");
        let op =
            Op::new(format!("{}_gradient", kind.name), example, plan, move |case, t| gradient(case, t, kind));
        op.within(Bound::ulps(1.0).stepwise().sum(roundings)).calling(CALLS).taking_more().on(finite)
    };
    KINDS.into_iter().map(op).collect()
}

/// By the graph on ROCm; by the definition on the CPU device, which has no gradients of conv_transpose1d.
fn gradient(case: &Case, t: &[Tensor], kind: Kind) -> Result<Tensor> {
    if !matches!(case.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return Err(Error::UnsupportedDTypeForOp(case.dtype, "gradient"));
    }
    let [padding, stride, dilation, groups, of] =
        ["padding", "stride", "dilation", "groups", "of"].map(|name| case.size(name));
    let result = |dims: &[usize]| {
        let values: Vec<f64> = (0..dims.iter().product()).map(weight).collect();
        Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(t[0].dtype())?.to_device(t[0].device())
    };
    if t[0].device().is_cpu() {
        // Only its size, and its errors: the CPU device lacks products of bf16.
        let y = kind.apply(case, &t[0].to_dtype(DType::F64)?, &t[1].to_dtype(DType::F64)?)?;
        return by_definition(
            &t[0],
            &t[1],
            y.dims(),
            (padding, stride, dilation, groups),
            of,
            kind.transposed,
        );
    }
    let mut operands = [t[0].clone(), t[1].clone()];
    let var = Var::from_tensor(&operands[of])?;
    operands[of] = var.as_tensor().clone();
    let y = kind.apply(case, &operands[0], &operands[1])?;
    let grads = (&y * result(y.dims())?)?.sum_all()?.backward()?;
    grads.get(&var).cloned().ok_or_else(|| Error::Msg("no gradient".to_string()))
}

/// The gradient of the result's element: above 0, so that those of magnitudes are magnitudes, and exact in every dtype.
fn weight(element: usize) -> f64 {
    ((element * 37 % 101) + 1) as f64 / 32.0
}

/// Every product of the convolution, once: in f64, rounded at the end.
fn by_definition(
    x: &Tensor,
    k: &Tensor,
    y_dims: &[usize],
    (padding, stride, dilation, groups): (usize, usize, usize, usize),
    of: usize,
    transposed: bool,
) -> Result<Tensor> {
    let values = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let (xs, ks) = (values(x)?, values(k)?);
    let planar = |dims: &[usize]| match *dims {
        [a, b, w] => [a, b, 1, w],
        [a, b, h, w] => [a, b, h, w],
        _ => [0; 4],
    };
    // Of a transposed convolution the result is what a plain one would see.
    let (seen, places) = match transposed {
        true => (planar(y_dims), planar(x.dims())),
        false => (planar(x.dims()), planar(y_dims)),
    };
    let [c_out, c_in, k_h, k_w] = planar(k.dims());
    let mut gradient = vec![0.0; if of == 0 { xs.len() } else { ks.len() }];
    let flat = x.rank() == 3;
    let at = |place: usize, tap: usize, size: usize| {
        (place * stride + tap * dilation).checked_sub(padding).filter(|at| *at < size)
    };
    let mut add = |seen_at: usize, place_at: usize, tap_at: usize| {
        let (input, output) = if transposed { (place_at, seen_at) } else { (seen_at, place_at) };
        match of {
            0 => gradient[input] += weight(output) * ks[tap_at],
            _ => gradient[tap_at] += weight(output) * xs[input],
        }
    };
    for (b, o, c) in
        (0..places[0]).flat_map(|b| (0..c_out).flat_map(move |o| (0..c_in).map(move |c| (b, o, c))))
    {
        let channel = o / (c_out / groups) * c_in + c;
        for (row, column) in (0..places[2]).flat_map(|y| (0..places[3]).map(move |x| (y, x))) {
            for (tap_y, tap_x) in (0..k_h).flat_map(|y| (0..k_w).map(move |x| (y, x))) {
                let down = if flat { Some(0) } else { at(row, tap_y, seen[2]) };
                if let (Some(y), Some(x)) = (down, at(column, tap_x, seen[3])) {
                    add(
                        ((b * seen[1] + channel) * seen[2] + y) * seen[3] + x,
                        ((b * places[1] + o) * places[2] + row) * places[3] + column,
                        ((o * c_in + c) * k_h + tap_y) * k_w + tap_x,
                    );
                }
            }
        }
    }
    let like = if of == 0 { x } else { k };
    Tensor::from_vec(gradient, like.dims(), &Device::Cpu)?.to_dtype(like.dtype())
}
