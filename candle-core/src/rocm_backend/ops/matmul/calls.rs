//! Decomposition of a batched product into BLAS calls. Several calls are needed if no single stride covers all batches of
//! an operand, for example if attention heads share keys.
use super::operand::{Operand, Side};
use crate::Result;

/// Maximum number of calls; beyond it, copying the operands is cheaper.
const MAX_CALLS: usize = 16;
/// Maximum number of batch dims after merging. Operands with more are made dense.
const MAX_DIMS: usize = 4;

/// A batch dim: its size, and its strides in the left operand, the right operand and the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dim {
    size: usize,
    a: usize,
    w: usize,
    c: usize,
}

/// Batch dims, innermost first and without those of size 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dims {
    of: [Dim; MAX_DIMS],
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

    /// Merges the batch dims of two operands as far as the strides of both permit it; the result is always dense.
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

/// A list of BLAS calls and their common parameters: batches, rows, operands, and strides of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    pub batches: usize,
    pub m: usize,
    pub a: Operand,
    pub w: Operand,
    pub c_row: usize,
    pub c_batch: usize,
    /// Remaining batch dims, with one call for each index.
    others: Dims,
}

impl Calls {
    /// Returns the calls for `b` products with `m` rows of `k` elements. `c_row` and `c_batch` are the strides of the result.
    /// Operands that would need too many calls are copied.
    pub(super) fn of(
        (b, m, k): (usize, usize, usize),
        left: &mut Side,
        right: &mut Side,
        (c_row, c_batch): (usize, usize),
    ) -> Result<Self> {
        let over = |dims, left: &Side, right: &Side| {
            Self::over(dims, (m, k), (left.operand(), right.operand()), (c_row, c_batch))
        };
        if left.single_stride().is_none() || right.single_stride().is_none() {
            let dims = Dims::merged(left.batches(), right.batches(), c_batch);
            let calls = dims.map(|dims| over(dims, left, right));
            if let Some(calls) = calls.filter(|calls| calls.count() <= MAX_CALLS) {
                return Ok(calls);
            }
        }
        let (a, w) = (left.make_evenly_spaced()?, right.make_evenly_spaced()?);
        Ok(over(Dims::one(Dim { size: b, a, w, c: c_batch }), left, right))
    }

    fn over(
        mut dims: Dims,
        (mut m, k): (usize, usize),
        (mut a, mut w): (Operand, Operand),
        (mut c_row, mut c_batch): (usize, usize),
    ) -> Self {
        // If all matrices of a dim share the right operand and the rows of the left operand are evenly spaced, they form
        // one product with more rows.
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
            let batch = dims.remove(at);
            (batches, a.batch_stride, w.batch_stride, c_batch) = (batch.size, batch.a, batch.w, batch.c);
        }
        Self { batches, m, a, w, c_row, c_batch, others: dims }
    }

    fn count(&self) -> usize {
        self.others.all().iter().map(|dim| dim.size).product()
    }

    /// Returns the offsets of each call's operands and result, in elements.
    pub(super) fn offsets(&self) -> impl Iterator<Item = [usize; 3]> + '_ {
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

    /// Returns the calls for matrices (m, k) and (k, n), with the second one column-major.
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
    fn heads_that_share_keys_become_rows() {
        // (b, key heads, heads of each, n, k): the first two dims are merged.
        let (m, n, k) = (3, 5, 4);
        let found = calls(&[2, 6, 4], &[288, 48, 12], &[120, 20, 0], (m, n, k)).unwrap();
        assert_eq!(shape(&found), (1, 12, 12, 5));
        assert_eq!((found.a.batch_stride, found.w.batch_stride, found.c_batch), (48, 20, 60));
        // Interleaved rows of the heads are not evenly spaced, so each of the four heads is a call.
        let found = calls(&[6, 4], &[16, 4], &[20, 0], (m, n, k)).unwrap();
        assert_eq!(shape(&found), (4, 6, 3, 5));
        assert_eq!(found.offsets().collect::<Vec<_>>()[3], [12, 0, 3 * m * n]);
        // Single rows are always evenly spaced.
        let found = calls(&[6, 4], &[16, 4], &[20, 0], (1, n, k)).unwrap();
        assert_eq!(shape(&found), (1, 6, 4, 5));
        // An outer dim can become rows too, which increases the row stride of the result.
        let found = calls(&[4, 6], &[24, 4], &[0, 20], (1, n, k)).unwrap();
        assert_eq!((shape(&found), found.a.leading, found.c_batch), ((1, 6, 4, 30), 24, 5));
    }

    #[test]
    fn the_longest_dim_becomes_the_batch() {
        let found = calls(&[3, 7, 2], &[0, 24, 12], &[280, 0, 20], (3, 5, 4)).unwrap();
        assert_eq!(shape(&found), (6, 7, 3, 5));
        let last = found.offsets().last().unwrap();
        assert_eq!(last, [12, 2 * 280 + 20, 2 * 14 * 15 + 15]);
    }

    #[test]
    fn different_or_too_many_dims_are_not_merged() {
        assert_eq!(Dims::merged((&[2, 3], &[3, 1]), (&[6], &[1]), 1), None);
        let (zero, some) = ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1]);
        assert_eq!(Dims::merged((&[2; 5], &zero), (&[2; 5], &some), 1), None);
    }
}
