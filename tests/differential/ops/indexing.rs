//! Operations that read or write at indexes.
use candle_core::DType;

use super::{Calls, Launches, Op, Plan, summable};
use crate::case::Case;
use crate::compare::{Bound, Compare};
use crate::strategy::Choices;
use crate::values::Domain;

const INDEXES: [DType; 5] = [DType::U32, DType::I64, DType::U8, DType::I32, DType::I16];

pub fn ops() -> Vec<Op> {
    let mut ops: Vec<Op> = INDEXES.into_iter().flat_map(ops_with_ids).collect();
    // Keeps the variants of a family together.
    ops.sort_by(|a, b| a.family().cmp(b.family()));
    ops
}

/// Calls of operations that copy the target tensor and then write to it.
const COPY_AND_WRITE: Calls = Calls { launches: Launches::AtMost(2), copies: 1 };

fn ops_with_ids(ids: DType) -> [Op; 6] {
    let name = |family: &str| format!("{family}/{}", ids.as_str());
    let example = |rest: &str| rest.replace('@', &format!("@{}", ids.as_str()));
    // An element may be the sum of all elements along the indexed dim, in their order.
    let sums = || {
        let count = |case: &Case| {
            // The index tensor has all dims, or only the indexed one.
            let ids = case.dims(1);
            ids.get(case.size("dim")).copied().unwrap_or(ids[0]) as f64
        };
        Compare::Close(Bound::ulps(1.0).stepwise().sum(count))
    };
    let sum_domain = |case: &Case, operand| match index_domain(case, operand) {
        Domain::Any => summable(case.dtype),
        index => index,
    };
    [
        Op::new(
            name("index_select"),
            example("dim=[1] x=2x3x4 ids=5@"),
            move |c| {
                let (dims, dim) = dims_and_dim(c);
                let count = [c.pick(7)];
                let ids_dims = if c.seldom(32) { vec![1, 2] } else { count.to_vec() };
                let ids = c.operand("ids", &ids_dims).with_dtype(ids);
                Plan::of([c.mostly_dense("x", &dims), ids]).sizes("dim", &[dim])
            },
            |case, t| t[0].index_select(&t[1], case.size("dim")),
        )
        .on(index_domain),
        Op::new(
            name("gather"),
            example("dim=[1] x=2x3x4 ids=2x5x4@"),
            move |c| {
                let (dims, dim) = dims_and_dim(c);
                let mut ids_dims = dims.clone();
                ids_dims[dim] = c.pick(7);
                let ids = c.mostly_dense("ids", &ids_dims).with_dtype(ids);
                Plan::of([c.mostly_dense("x", &dims), ids]).sizes("dim", &[dim])
            },
            |case, t| t[0].gather(&t[1], case.size("dim")),
        )
        .on(index_domain),
        Op::new(name("scatter"), example("dim=[1] x=2x3x4 ids=2x5x4@ src=2x5x4"), scatter(ids), |case, t| {
            t[0].scatter(&t[1], &t[2], case.size("dim"))
        })
        .on(index_domain)
        .calling(COPY_AND_WRITE),
        Op::new(
            name("scatter_add"),
            example("dim=[1] x=2x3x4 ids=2x5x4@ src=2x5x4"),
            scatter(ids),
            |case, t| t[0].scatter_add(&t[1], &t[2], case.size("dim")),
        )
        .on(sum_domain)
        .compared(sums())
        .calling(COPY_AND_WRITE),
        Op::new(
            name("index_add"),
            example("dim=[1] x=2x3x4 ids=5@ src=2x5x4"),
            move |c| {
                let (dims, dim) = dims_and_dim(c);
                let mut src = dims.clone();
                src[dim] = c.pick(7);
                let ids = c.mostly_dense("ids", &src[dim..=dim]).with_dtype(ids);
                Plan::of([c.mostly_dense("x", &dims), ids, c.mostly_dense("src", &src)]).sizes("dim", &[dim])
            },
            |case, t| t[0].index_add(&t[1], &t[2], case.size("dim")),
        )
        .on(sum_domain)
        .compared(sums())
        .calling(COPY_AND_WRITE),
        Op::new(
            name("embedding"),
            example("dim=[0] x=5x4 ids=3@"),
            move |c| {
                let dims = c.shape(2, 2);
                let count = [c.pick(7)];
                let ids = c.mostly_dense("ids", &count).with_dtype(ids);
                Plan::of([c.mostly_dense("x", &dims), ids]).sizes("dim", &[0])
            },
            |_, t| t[0].embedding(&t[1]),
        )
        .on(index_domain),
    ]
}

/// Returns the domain of an operand; the second one contains indexes into a dim of the first.
fn index_domain(case: &Case, operand: usize) -> Domain {
    match operand {
        1 => Domain::Index(case.dims(0).get(case.size("dim")).copied().unwrap_or(1)),
        _ => Domain::Any,
    }
}

fn dims_and_dim(c: &mut Choices) -> (Vec<usize>, usize) {
    let dims = c.shape(1, 4);
    let dim = c.pick(dims.len());
    (dims, dim)
}

fn scatter(ids: DType) -> impl Fn(&mut Choices) -> Plan {
    move |c| {
        let (dims, dim) = dims_and_dim(c);
        let mut src = dims.clone();
        src[dim] = c.pick(7);
        let src_dims = if c.seldom(32) { dims.clone() } else { src.clone() };
        let ids = c.mostly_dense("ids", &src).with_dtype(ids);
        let operands = [c.mostly_dense("x", &dims), ids, c.mostly_dense("src", &src_dims)];
        Plan::of(operands).sizes("dim", &[dim])
    }
}
