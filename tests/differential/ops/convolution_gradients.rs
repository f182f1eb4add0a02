//! Gradients of convolutions with respect to the input or the weights.
use candle_core::{DType, Device, Error, Result, Tensor, Var};

use super::convolutions::{KINDS, Kind, STEPS, is_narrow, plan};
use super::{Calls, Launches, Op, finite};
use crate::case::Case;
use crate::compare::Bound;

/// Calls of the convolution, the product with a gradient, its sum, and the backward pass.
const CALLS: Calls = Calls { launches: Launches::AtMost(20), copies: COPIES };
/// Copies for the variable, and zero fills of gradient sums.
const COPIES: u64 = 7;

pub fn ops() -> Vec<Op> {
    // For narrow floats, each tap's product is rounded to the dtype before the sum; the error of f32 sums is
    // negligible.
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
        op.within(Bound::ulps(1.0).stepwise().sum(roundings)).calling(CALLS).accepting_more().on(finite)
    };
    KINDS.into_iter().map(op).collect()
}

/// Computes the gradient with autograd on ROCm, and by definition on the CPU, which lacks that of
/// conv_transpose1d.
fn gradient(case: &Case, t: &[Tensor], kind: Kind) -> Result<Tensor> {
    if !matches!(case.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return Err(Error::UnsupportedDTypeForOp(case.dtype, "gradient"));
    }
    let [padding, stride, dilation, groups, of] =
        ["padding", "stride", "dilation", "groups", "of"].map(|name| case.size(name));
    let result = |dims: &[usize]| {
        let values: Vec<f64> = (0..dims.iter().product()).map(output_gradient).collect();
        Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(t[0].dtype())?.to_device(t[0].device())
    };
    if t[0].device().is_cpu() {
        // Needed for the shape and for errors only; in f64, since the CPU device lacks bf16 products.
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

/// Gradient of an output element: positive, so that magnitudes have gradients that are magnitudes, and exact
/// in every dtype.
fn output_gradient(element: usize) -> f64 {
    ((element * 37 % 101) + 1) as f64 / 32.0
}

/// Computes the gradient by adding every product of the convolution in f64, rounded at the end.
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
    // A transposed convolution exchanges the roles of input and output.
    let (inputs, outputs) = match transposed {
        true => (planar(y_dims), planar(x.dims())),
        false => (planar(x.dims()), planar(y_dims)),
    };
    let [c_out, c_in, k_h, k_w] = planar(k.dims());
    let mut gradient = vec![0.0; if of == 0 { xs.len() } else { ks.len() }];
    let flat = x.rank() == 3;
    let at = |position: usize, tap: usize, size: usize| {
        (position * stride + tap * dilation).checked_sub(padding).filter(|at| *at < size)
    };
    let mut add = |input_at: usize, output_at: usize, tap_at: usize| {
        let (input, output) = if transposed { (output_at, input_at) } else { (input_at, output_at) };
        match of {
            0 => gradient[input] += output_gradient(output) * ks[tap_at],
            _ => gradient[tap_at] += output_gradient(output) * xs[input],
        }
    };
    for (b, o, c) in
        (0..outputs[0]).flat_map(|b| (0..c_out).flat_map(move |o| (0..c_in).map(move |c| (b, o, c))))
    {
        let channel = o / (c_out / groups) * c_in + c;
        for (row, column) in (0..outputs[2]).flat_map(|y| (0..outputs[3]).map(move |x| (y, x))) {
            for (tap_y, tap_x) in (0..k_h).flat_map(|y| (0..k_w).map(move |x| (y, x))) {
                let down = if flat { Some(0) } else { at(row, tap_y, inputs[2]) };
                if let (Some(y), Some(x)) = (down, at(column, tap_x, inputs[3])) {
                    add(
                        ((b * inputs[1] + channel) * inputs[2] + y) * inputs[3] + x,
                        ((b * outputs[1] + o) * outputs[2] + row) * outputs[3] + column,
                        ((o * c_in + c) * k_h + tap_y) * k_w + tap_x,
                    );
                }
            }
        }
    }
    let like = if of == 0 { x } else { k };
    Tensor::from_vec(gradient, like.dims(), &Device::Cpu)?.to_dtype(like.dtype())
}
