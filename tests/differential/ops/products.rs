//! Matrix products.
use candle_core::Tensor;

use super::{Calls, Launches, Op, Plan, summable};
use crate::case::Case;
use crate::compare::Bound;
use crate::strategy::Choices;

/// Calls of a product: copies of operands whose strides rocBLAS does not support, then one rocBLAS call.
const PRODUCT: Calls = Calls { launches: Launches::AtMost(3), copies: 0 };

pub fn ops() -> Vec<Op> {
    let bound = || Bound::ulps(1.0).sum(|case: &Case| case.dims(0).last().map_or(0.0, |k| *k as f64));
    let ops = [
        Op::new(
            "matmul",
            "lhs=2x3x4 rhs=2x4x5",
            |c| {
                let (m, n, k) = (size(c), size(c), size(c));
                let batch: Vec<usize> = (0..c.pick(3)).map(|_| c.between(1, 4) % 4).collect();
                let inner = if c.seldom(32) { k + 1 } else { k };
                Plan::of([
                    c.operand("lhs", &[&batch[..], &[m, k]].concat()),
                    c.operand("rhs", &[&batch[..], &[inner, n]].concat()),
                ])
            },
            |_, t: &[Tensor]| t[0].matmul(&t[1]),
        ),
        Op::new(
            "broadcast_matmul",
            "lhs=2x3x4 rhs=4x5",
            |c| {
                let (m, n, k) = (size(c), size(c), size(c));
                let batch: Vec<usize> = (0..c.pick(3)).map(|_| c.between(1, 3)).collect();
                // One side lacks leading batch dims, or has size 1 in one of them.
                let mut other = batch[c.pick(batch.len() + 1)..].to_vec();
                if let (Some(first), true) = (other.first_mut(), c.pick(2) == 1) {
                    *first = 1;
                }
                let (l, r) = if c.pick(2) == 0 { (&batch, &other) } else { (&other, &batch) };
                Plan::of([
                    c.operand("lhs", &[&l[..], &[m, k]].concat()),
                    c.operand("rhs", &[&r[..], &[k, n]].concat()),
                ])
            },
            |_, t| t[0].broadcast_matmul(&t[1]),
        ),
    ];
    ops.into_iter()
        .map(|op| op.within(bound()).on(|case, _| summable(case.dtype)).calling(PRODUCT).accepting_more())
        .collect()
}

fn size(c: &mut Choices) -> usize {
    c.one_of(&[1, 2, 3, 4, 5, 8, 0, 16, 17, 33])
}
