//! Reductions and sorting.
use candle_core::{Result, Tensor};

use super::{Op, Plan, at_most, summable};
use crate::case::Case;
use crate::compare::{Bound, Compare, tree};
use crate::strategy::Choices;

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
            tree(case.dtype, over.iter().filter_map(|dim| case.dims(0).get(*dim)).product())
        }))
        .on(|case, _| summable(case.dtype))
        .calling(at_most(2)),
    ];
    type Method = fn(&Tensor, usize) -> Result<Tensor>;
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
                // Longer than a block.
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
