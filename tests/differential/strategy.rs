//! Generates random cases with proptest from a sequence of numbers, which the operation's table entry reads
//! as choices.
//!
//! Each choice is monotone in its number, and 0 selects the simplest option. When proptest shrinks the
//! numbers towards 0, the case becomes simpler: fewer dims, sizes of 1, no views, plain values.
use candle_core::DType;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::case::{Case, Operand, Values, View};
use crate::ops::Op;

/// Dtypes that support computations.
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

/// Length of a sequence: more than any entry reads. Numbers beyond the end are 0.
const SEQUENCE_LENGTH: usize = 80;

/// Maximum number of stored elements of an operand, so that the software GPU can run thousands of cases.
const MAX_ELEMENTS: usize = 4096;

/// Sizes from simple to unusual: 33 exceeds half a wave, 65 a wave and 300 a workgroup.
const SIZES: [usize; 12] = [1, 2, 3, 4, 5, 7, 16, 33, 64, 65, 300, 0];

/// Reads a sequence of numbers as choices.
pub struct Choices<'a> {
    numbers: &'a [u16],
    next: usize,
}

impl<'a> Choices<'a> {
    pub fn new(numbers: &'a [u16]) -> Self {
        Self { numbers, next: 0 }
    }

    /// Returns a number below `count`.
    pub fn pick(&mut self, count: usize) -> usize {
        let number = self.numbers.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        (usize::from(number) * count) >> 16
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.pick(choices.len())]
    }

    /// Returns true in one of `often` cases, and never in the simplest.
    pub fn seldom(&mut self, often: usize) -> bool {
        self.pick(often) == often - 1
    }

    /// Returns a number from `from` to `to`, inclusive.
    pub fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.pick(to - from + 1)
    }

    /// Returns sizes from 1 to `most`; in one of `often` cases, one of them is 0.
    pub fn sizes<const N: usize>(&mut self, most: usize, often: usize) -> [usize; N] {
        let mut sizes = std::array::from_fn(|_| self.between(1, most));
        if self.seldom(often) {
            sizes[self.pick(N)] = 0;
        }
        sizes
    }

    /// Returns dims with a rank in the given range and at most [`MAX_ELEMENTS`] elements.
    pub fn shape(&mut self, from_rank: usize, to_rank: usize) -> Vec<usize> {
        let mut ranks: Vec<usize> = (from_rank.max(1)..=to_rank).collect();
        ranks.extend((from_rank == 0).then_some(0));
        let rank = self.one_of(&ranks);
        let mut dims: Vec<usize> = (0..rank).map(|_| self.one_of(&SIZES)).collect();
        for dim in 0..rank {
            let others: usize =
                dims.iter().enumerate().filter(|(i, _)| *i != dim).map(|(_, d)| *d.max(&1)).product();
            if dims[dim] > 2 && dims[dim] * others > MAX_ELEMENTS {
                dims[dim] = 2;
            }
        }
        dims
    }

    /// Returns an operand of these dims with up to three views.
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
            // Views are chosen in reverse order, from the operand to the stored tensor.
            operand.views.insert(0, view);
            if operand.stored_dims().iter().product::<usize>() > 2 * MAX_ELEMENTS {
                operand.views.remove(0);
            }
        }
        operand
    }

    /// Returns an operand that is usually dense, for operations that reject other layouts.
    pub fn mostly_dense(&mut self, name: &str, dims: &[usize]) -> Operand {
        match self.pick(4) {
            3 => self.operand(name, dims),
            // Dense, with an offset into its storage.
            2 if dims.first().is_some_and(|d| *d > 0) => {
                let offset = View::Narrowed { dim: 0, before: 1, after: 0 };
                Operand::new(name, dims).with_views(vec![offset])
            }
            _ => Operand::new(name, dims),
        }
    }
}

/// Builds the case that a sequence of numbers encodes for an operation.
pub fn case(op: &Op, dtype: DType, numbers: &[u16], seed: u64) -> Case {
    let mut choices = Choices::new(numbers);
    let values = if choices.pick(2) == 0 { Values::Plain } else { Values::Special };
    let plan = (op.plan)(&mut choices);
    Case { op: op.name.clone(), dtype, params: plan.params, operands: plan.operands, values, seed }
}

/// Returns the case of the table's example: dense, with small dims and plain values.
pub fn typical(op: &Op, dtype: DType) -> Case {
    let line = format!("op={} dtype={} {} seed=1", op.name, dtype.as_str(), op.example);
    line.parse().expect("the table's example")
}

/// Returns a strategy for cases of all operations. All families are equally likely, regardless of their
/// number of variants. Operation and dtype are not shrunk, since another operation would be another failure.
pub fn cases(ops: &'static [Op]) -> impl Strategy<Value = Case> {
    let families: Vec<&[Op]> = ops.chunk_by(|a, b| a.family() == b.family()).collect();
    let target = (0..families.len(), any::<Index>(), 0..DTYPES.len()).no_shrink();
    let numbers = proptest::collection::vec(any::<u16>(), SEQUENCE_LENGTH);
    (target, numbers, 0u64..1 << 16).prop_map(move |((family, variant, dtype), numbers, seed)| {
        case(variant.get(families[family]), DTYPES[dtype], &numbers, seed)
    })
}
