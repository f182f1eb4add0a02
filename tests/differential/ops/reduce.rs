//! Reductions and sorting.
use candle_core::{Result, Tensor};

use super::{Op, Plan, at_most, summable};
use crate::case::Case;
use crate::compare::{Bound, Compare, sequential_roundings};
use crate::strategy::Choices;
use crate::values::Domain;

pub fn ops() -> Vec<Op> {
    let mut ops = vec![
        Op::new(
            "sum",
            "dims=[0,2] x=2x3x4",
            |c| {
                let dims = c.shape(0, 4);
                let (rank, chosen, wrong) = (dims.len(), c.between(1, 15), c.seldom(32));
                let mut over: Vec<usize> = (0..rank).filter(|dim| chosen >> dim & 1 == 1).collect();
                over.extend(wrong.then_some(rank));
                Plan::of([c.operand("x", &dims)]).sizes("dims", &over)
            },
            |case, t| t[0].sum(case.sizes("dims")),
        )
        .within(Bound::ulps(1.0).sum(|case| {
            let over = case.sizes("dims");
            sequential_roundings(case.dtype, over.iter().filter_map(|dim| case.dims(0).get(*dim)).product())
        }))
        .on(|case, _| summable(case.dtype))
        .calling(at_most(2)),
    ];
    type Method = fn(&Tensor, usize) -> Result<Tensor>;
    let along: [(&str, Method); 3] =
        [("mean", |t, dim| t.mean(dim)), ("var", |t, dim| t.var(dim)), ("cumsum", |t, dim| t.cumsum(dim))];
    ops.extend(along.map(|(name, method)| {
        let plan = move |c: &mut Choices| {
            let mut plan = one_dim(c);
            if name != "cumsum" {
                // No empty dims: upstream divides by 0, which f8e4m3 cannot, and subtracts 1 from the size.
                plan.operands
                    .iter_mut()
                    .for_each(|x| x.dims.iter_mut().for_each(|size| *size = 1.max(*size)));
            }
            plan
        };
        let run = move |case: &Case, t: &[Tensor]| method(&t[0], case.size("dim"));
        let roundings = |case: &Case| {
            sequential_roundings(case.dtype, case.dims(0).get(case.size("dim")).copied().unwrap_or(1))
        };
        let bound = Bound::ulps(3.0).underflowing();
        let bound = match name {
            // Squares of differences up to 16 from a mean that upstream rounds.
            "var" => bound.sum_with(roundings, |case, t| t[0].sum(case.size("dim"))?.affine(0.0, 256.0)),
            _ => bound.sum(roundings),
        };
        // Finite values only: upstream's cumsum multiplies non-finite values with zeros, which gives NaN.
        let finite = |case: &Case, _| match summable(case.dtype) {
            Domain::Within(limit) => Domain::Finite(limit),
            domain => domain,
        };
        let op = Op::new(name, "dim=[1] x=2x3x4", plan, run).within(bound).calling(at_most(7)).on(finite);
        // The CPU device's product rejects some strides of dims of size 1, even of dense tensors.
        if name == "cumsum" { op.with_reference(running_sum).accepting_more() } else { op }
    }));
    let extrema: [(&str, Method); 4] = [
        ("min", |t, dim| t.min(dim)),
        ("max", |t, dim| t.max(dim)),
        ("argmin", |t, dim| t.argmin(dim)),
        ("argmax", |t, dim| t.argmax(dim)),
    ];
    ops.extend(extrema.map(|(name, method)| {
        let run = move |case: &Case, t: &[Tensor]| method(&t[0], case.size("dim"));
        Op::new(name, "dim=[1] x=2x3x4", one_dim, run).calling(at_most(2))
    }));
    ops.extend([true, false].map(|ascending| {
        let name = if ascending { "arg_sort_ascending" } else { "arg_sort_descending" };
        let plan = |c: &mut Choices| {
            let mut dims = c.shape(0, 3);
            if let (Some(last), true) = (dims.last_mut(), c.seldom(6)) {
                // Longer than a workgroup.
                *last = 1100 + c.pick(1000);
                let rank = dims.len();
                dims[..rank - 1].fill(1);
            }
            Plan::of([c.mostly_dense("x", &dims)])
        };
        Op::new(name, "x=3x5", plan, move |_, t| t[0].arg_sort_last_dim(ascending))
            .compared(Compare::Sorted { ascending })
    }));
    ops
}

fn one_dim(c: &mut Choices) -> Plan {
    let dims = c.shape(0, 4);
    let dim = if c.seldom(32) { dims.len() } else { c.pick(dims.len().max(1)) };
    Plan::of([c.operand("x", &dims)]).sizes("dim", &[dim])
}

/// Computes the cumulative sum by definition.
fn running_sum(case: &Case, t: &[Tensor]) -> Result<Tensor> {
    let (x, dim) = (&t[0], case.size("dim"));
    let mut sums: Vec<Tensor> = Vec::new();
    for i in 0..x.dim(dim)? {
        let next = x.narrow(dim, i, 1)?;
        sums.push(match sums.last() {
            Some(sum) => (sum + next)?,
            None => next,
        });
    }
    if sums.is_empty() { Ok(x.clone()) } else { Tensor::cat(&sums, dim) }
}
