//! A product as calls of BLAS: one, or a few where no stride walks all batches of a side, as of heads that share keys.
use super::operand::{Operand, Side};
use crate::Result;

/// Calls that cost less than copies of operands would.
const MOST_CALLS: usize = 16;
/// Batch dims, after those that all operands walk as one were merged. Sides with more are made dense.
const MOST_DIMS: usize = 4;

/// A batch dim: its size, and how far apart its matrices are in the left side, the right one and the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dim {
    size: usize,
    a: usize,
    w: usize,
    c: usize,
}

/// Batch dims from the innermost on, none of them of size 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dims {
    of: [Dim; MOST_DIMS],
    count: usize,
}

impl Dims {
    fn all(&self) -> &[Dim] {
        &self.of[..self.count]
    }

    fn one(dim: Dim) -> Self {
        let mut dims = Self { count: usize::from(dim.size != 1), ..Self::default() };
        dims.of[0] = dim;
        dims
    }

    /// Dims of two sides, merged as far as one stride of each covers them; that of the result always does.
    fn merged(
        (dims, a): (&[usize], &[usize]),
        (right_dims, w): (&[usize], &[usize]),
        c_batch: usize,
    ) -> Option<Self> {
        let (mut merged, mut c) = (Self::default(), c_batch);
        if dims != right_dims {
            return None;
        }
        for ((&size, &a), &w) in dims.iter().zip(a).zip(w).rev().filter(|((&size, _), _)| size != 1) {
            match merged.of[..merged.count].last_mut() {
                Some(inner) if a == inner.a * inner.size && w == inner.w * inner.size => inner.size *= size,
                _ => {
                    *merged.of.get_mut(merged.count)? = Dim { size, a, w, c };
                    merged.count += 1;
                }
            }
            c *= size;
        }
        Some(merged)
    }

    fn remove(&mut self, at: usize) -> Dim {
        let dim = self.of[at];
        self.of[at..self.count].rotate_left(1);
        self.count -= 1;
        dim
    }
}

/// Parameters that all calls share: batches and rows of each, the operands, and the strides of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    pub batches: usize,
    pub m: usize,
    pub a: Operand,
    pub w: Operand,
    pub c_row: usize,
    pub c_batch: usize,
    /// One call for each of these.
    others: Dims,
}

impl Calls {
    /// For `b` products of `m` rows of `k`, and a result whose rows and batches are so far apart. Sides that too many
    /// calls would walk are copied.
    pub(super) fn of(
        (b, m, k): (usize, usize, usize),
        left: &mut Side,
        right: &mut Side,
        (c_row, c_batch): (usize, usize),
    ) -> Result<Self> {
        let over = |dims, left: &Side, right: &Side| {
            Self::over(dims, (m, k), (left.operand(), right.operand()), (c_row, c_batch))
        };
        if left.one_stride().is_none() || right.one_stride().is_none() {
            let dims = Dims::merged(left.batches(), right.batches(), c_batch);
            let calls = dims.map(|dims| over(dims, left, right));
            if let Some(calls) = calls.filter(|calls| calls.count() <= MOST_CALLS) {
                return Ok(calls);
            }
        }
        let (a, w) = (left.line_up()?, right.line_up()?);
        Ok(over(Dims::one(Dim { size: b, a, w, c: c_batch }), left, right))
    }

    fn over(
        mut dims: Dims,
        (mut m, k): (usize, usize),
        (mut a, mut w): (Operand, Operand),
        (mut c_row, mut c_batch): (usize, usize),
    ) -> Self {
        // One right side for all of a dim, with rows of the left side that follow each other: one taller product. Single
        // rows may be as far apart as their batches.
        let joins = |dim: &Dim| match (dim.w, a.transposed, m) {
            (0, false, 1) => dim.a >= k,
            (0, false, _) => dim.a == m * a.leading && dim.c == m * c_row,
            _ => false,
        };
        if let Some(at) = dims.all().iter().position(joins) {
            let rows = dims.remove(at);
            if m == 1 {
                (a.leading, c_row) = (rows.a, rows.c);
            }
            m *= rows.size;
        }
        let longest = (0..dims.count).max_by_key(|&at| dims.of[at].size);
        let mut batches = 1;
        (a.batch_stride, w.batch_stride) = (0, 0);
        if let Some(at) = longest {
            let walked = dims.remove(at);
            (batches, a.batch_stride, w.batch_stride, c_batch) = (walked.size, walked.a, walked.w, walked.c);
        }
        Self { batches, m, a, w, c_row, c_batch, others: dims }
    }

    fn count(&self) -> usize {
        self.others.all().iter().map(|dim| dim.size).product()
    }

    /// The elements from the first call's operands and result to those of each.
    pub(super) fn each(&self) -> impl Iterator<Item = [usize; 3]> + '_ {
        (0..self.count()).map(|mut rest| {
            self.others.all().iter().fold([0; 3], |[a, w, c], dim| {
                let at = rest % dim.size;
                rest /= dim.size;
                [a + at * dim.a, w + at * dim.w, c + at * dim.c]
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrices (m, k) and (k, n), with the second one stored by columns.
    fn calls(dims: &[usize], a: &[usize], w: &[usize], (m, n, k): (usize, usize, usize)) -> Option<Calls> {
        let left = Operand { transposed: false, leading: k, batch_stride: 0 };
        let right = Operand { transposed: true, leading: k, batch_stride: 0 };
        let dims = Dims::merged((dims, a), (dims, w), m * n)?;
        Some(Calls::over(dims, (m, k), (left, right), (n, m * n)))
    }

    fn shape(calls: &Calls) -> (usize, usize, usize, usize) {
        (calls.count(), calls.batches, calls.m, calls.c_row)
    }

    #[test]
    fn heads_that_share_keys_are_rows() {
        // (b, key heads, heads of each, n, k): the first two dims are one.
        let (m, n, k) = (3, 5, 4);
        let found = calls(&[2, 6, 4], &[288, 48, 12], &[120, 20, 0], (m, n, k)).unwrap();
        assert_eq!(shape(&found), (1, 12, 12, 5));
        assert_eq!((found.a.batch_stride, found.w.batch_stride, found.c_batch), (48, 20, 60));
        // Rows of heads that lie among each other do not follow: a call for each of the four.
        let found = calls(&[6, 4], &[16, 4], &[20, 0], (m, n, k)).unwrap();
        assert_eq!(shape(&found), (4, 6, 3, 5));
        assert_eq!(found.each().collect::<Vec<_>>()[3], [12, 0, 3 * m * n]);
        // But single ones do, if they are apart.
        let found = calls(&[6, 4], &[16, 4], &[20, 0], (1, n, k)).unwrap();
        assert_eq!(shape(&found), (1, 6, 4, 5));
        // Of a dim outside of others, too, whose rows of the result are then further apart.
        let found = calls(&[4, 6], &[24, 4], &[0, 20], (1, n, k)).unwrap();
        assert_eq!((shape(&found), found.a.leading, found.c_batch), ((1, 6, 4, 30), 24, 5));
    }

    #[test]
    fn the_longest_dim_is_walked_by_a_stride() {
        let found = calls(&[3, 7, 2], &[0, 24, 12], &[280, 0, 20], (3, 5, 4)).unwrap();
        assert_eq!(shape(&found), (6, 7, 3, 5));
        let last = found.each().last().unwrap();
        assert_eq!(last, [12, 2 * 280 + 20, 2 * 14 * 15 + 15]);
    }

    #[test]
    fn sides_with_other_dims_and_with_too_many_are_not_walked() {
        assert_eq!(Dims::merged((&[2, 3], &[3, 1]), (&[6], &[1]), 1), None);
        let (zero, some) = ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1]);
        assert_eq!(Dims::merged((&[2; 5], &zero), (&[2; 5], &some), 1), None);
    }
}
