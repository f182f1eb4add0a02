//! Random cases for proptest: a tape of numbers, which the operation's table entry reads as choices.
//!
//! Each choice is monotone in its number and its first answer is the simplest, so that proptest, which
//! shrinks the numbers towards 0, shrinks the case: fewer dims, sizes of 1, no views, plain values.
use candle_core::DType;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::case::{Case, Operand, Values, View};
use crate::ops::Op;

/// Every dtype that computes.
pub const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// More than any entry reads; what lies beyond the end of a tape is 0.
const TAPE: usize = 80;

/// Elements of the memory of one operand: the software GPU is to run thousands of cases.
const MOST_ELEMENTS: usize = 4096;

/// From simple to unusual. 64 and 65 lie on both sides of a wave, 33 beyond half of one, 300 beyond a block.
const SIZES: [usize; 12] = [1, 2, 3, 4, 5, 7, 16, 33, 64, 65, 300, 0];

/// Reads a tape as choices.
pub struct Choices<'a> {
    tape: &'a [u16],
    next: usize,
}

impl<'a> Choices<'a> {
    pub fn new(tape: &'a [u16]) -> Self {
        Self { tape, next: 0 }
    }

    /// A number below `count`.
    pub fn pick(&mut self, count: usize) -> usize {
        let number = self.tape.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        (usize::from(number) * count) >> 16
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.pick(choices.len())]
    }

    /// True in one of `often` cases, and never in the simplest.
    pub fn seldom(&mut self, often: usize) -> bool {
        self.pick(often) == often - 1
    }

    /// A number from `from` to `to`.
    pub fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.pick(to - from + 1)
    }

    /// Sizes from 1 to `most`; in one of `often` cases, one of them is 0.
    pub fn sizes<const N: usize>(&mut self, most: usize, often: usize) -> [usize; N] {
        let mut sizes = std::array::from_fn(|_| self.between(1, most));
        if self.seldom(often) {
            sizes[self.pick(N)] = 0;
        }
        sizes
    }

    /// Dims of some rank, with few enough elements in all.
    pub fn shape(&mut self, from_rank: usize, to_rank: usize) -> Vec<usize> {
        let mut ranks: Vec<usize> = (from_rank.max(1)..=to_rank).collect();
        ranks.extend((from_rank == 0).then_some(0));
        let rank = self.one_of(&ranks);
        let mut dims: Vec<usize> = (0..rank).map(|_| self.one_of(&SIZES)).collect();
        for dim in 0..rank {
            let others: usize =
                dims.iter().enumerate().filter(|(i, _)| *i != dim).map(|(_, d)| *d.max(&1)).product();
            if dims[dim] > 2 && dims[dim] * others > MOST_ELEMENTS {
                dims[dim] = 2;
            }
        }
        dims
    }

    /// An operand of these dims, seen through up to three views.
    pub fn operand(&mut self, name: &str, dims: &[usize]) -> Operand {
        let count = self.pick(4);
        let mut operand = Operand::new(name, dims);
        for _ in 0..count {
            let (kind, a, b, size) = (self.pick(3), self.pick(4), self.pick(4), self.pick(9));
            if dims.is_empty() {
                continue;
            }
            let (a, b) = (a % dims.len(), b % dims.len());
            let view = match kind {
                0 => View::Narrowed { dim: a, before: size / 3, after: size % 3 },
                1 => View::Transposed(a, b),
                _ => View::Broadcast(a),
            };
            let changes = match view {
                View::Narrowed { before, after, .. } => before + after > 0,
                View::Transposed(a, b) => a != b,
                View::Broadcast(dim) => operand.stored_dims()[dim] != 1,
            };
            if !changes {
                continue;
            }
            // The views are chosen from the operand back to the memory.
            operand.views.insert(0, view);
            if operand.stored_dims().iter().product::<usize>() > 2 * MOST_ELEMENTS {
                operand.views.remove(0);
            }
        }
        operand
    }

    /// An operand that is mostly dense, for operations that refuse other layouts.
    pub fn mostly_dense(&mut self, name: &str, dims: &[usize]) -> Operand {
        match self.pick(4) {
            3 => self.operand(name, dims),
            // Dense, but not at the start of its memory.
            2 if dims.first().is_some_and(|d| *d > 0) => {
                let offset = View::Narrowed { dim: 0, before: 1, after: 0 };
                Operand::new(name, dims).seen_through(vec![offset])
            }
            _ => Operand::new(name, dims),
        }
    }
}

/// The case that a tape means for an operation.
pub fn case(op: &Op, dtype: DType, tape: &[u16], seed: u64) -> Case {
    let mut choices = Choices::new(tape);
    let values = if choices.pick(2) == 0 { Values::Plain } else { Values::Special };
    let plan = (op.plan)(&mut choices);
    Case { op: op.name.clone(), dtype, params: plan.params, operands: plan.operands, values, seed }
}

/// The simplest well-formed case of a useful size: dims of 2 to 4, dense, plain values.
pub fn typical(op: &Op, dtype: DType) -> Case {
    let line = format!("op={} dtype={} {} seed=1", op.name, dtype.as_str(), op.example);
    line.parse().expect("the table's example")
}

/// Any case of any operation of the table; each family is as likely as another, however many variants it has.
/// The operation and its dtype are not shrunk: another one would be another failure.
pub fn cases(ops: &'static [Op]) -> impl Strategy<Value = Case> {
    let families: Vec<&[Op]> = ops.chunk_by(|a, b| a.family() == b.family()).collect();
    let which = (0..families.len(), any::<Index>(), 0..DTYPES.len()).no_shrink();
    let tape = proptest::collection::vec(any::<u16>(), TAPE);
    (which, tape, 0u64..1 << 16).prop_map(move |((family, variant, dtype), tape, seed)| {
        case(variant.get(families[family]), DTYPES[dtype], &tape, seed)
    })
}
