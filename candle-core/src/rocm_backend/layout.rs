//! Conversion of layouts to kernel arguments, with adjacent dims merged, and splitting of tensors that are too large
//! for one launch.
use super::device::{max_elements, Launch};
use super::RocmError;
use crate::{Layout, Result};
use hip_kernels::contract::{
    dim_word, KernelLayout, LAYOUT_WORDS as WORDS, PACK_BYTES, TILE_BYTES, TILE_ROWS, TILE_ROW_BYTES,
};

pub(crate) use hip_kernels::contract::dim_word as magic;

/// A [`KernelLayout`] with its number of dims, as passed to kernels.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// Number of dims; 0 if all operands are contiguous.
    pub num_dims: usize,
    /// Dims, encoded by [`dim_word`], followed by the strides of each operand in elements.
    pub layout: KernelLayout,
}

impl<'a> Launch<'a> {
    /// Adds two arguments: the number of dims and the layout.
    pub fn strided(self, strided: &'a Strided) -> Self {
        self.arg(&strided.num_dims).arg(&strided.layout)
    }
}

impl Strided {
    /// Layout of contiguous operands.
    pub const CONTIGUOUS: Self = Self { num_dims: 0, layout: KernelLayout([0; WORDS]) };

    /// Packs the dims of the first layout and the strides of all layouts, which must have the same dims.
    /// Adjacent dims are merged if the strides of every operand permit it, and dims of size 1 are removed.
    ///
    /// # Errors
    /// [`RocmError::TooManyDims`] if the result does not fit the kernel argument.
    pub fn of(op: &'static str, operands: &[&Layout]) -> Result<Self> {
        let mut strided = Self::CONTIGUOUS;
        if !operands.iter().all(|l| l.is_contiguous()) {
            strided.pack(op, operands)?;
        }
        Ok(strided)
    }

    /// Like [`Self::of`], in place and for operands of which at least one is not contiguous.
    fn pack(&mut self, op: &'static str, operands: &[&Layout]) -> Result<()> {
        let Some(first) = operands.first() else { return Ok(()) };
        let strides = |dim: usize| operands.iter().map(move |l| l.stride()[dim]);
        self.merge(op, first.dims(), 1 + operands.len(), strides, 0)?;
        self.layout.0[..self.num_dims].iter_mut().for_each(|dim| *dim = dim_word(*dim));
        Ok(())
    }

    /// Returns true if the first `lists` operands can be accessed in vectors of `width` elements: every row has a multiple
    /// of `width` elements and is dense or one repeated element. The alignment of the addresses is not checked.
    /// Contiguous operands always qualify, even if `lists` is 0.
    #[inline]
    pub(crate) fn in_packs(&self, width: usize, lists: usize) -> bool {
        let (count, words) = (self.num_dims, &self.layout.0);
        let fits = |strides: &[usize]| match strides {
            [.., 0] => true,
            [outer @ .., 1] => outer.iter().all(|stride| stride % width == 0),
            _ => false,
        };
        count == 0
            || (lists > 0
                && (words[count - 1] as u32 as usize).is_multiple_of(width)
                && words[count..].chunks(count).take(lists).all(fits))
    }

    /// Returns the innermost dim, or `None` if all operands are contiguous.
    pub(crate) fn row(&self) -> Option<usize> {
        self.num_dims.checked_sub(1).map(|last| self.layout.0[last] as u32 as usize)
    }

    /// Returns the layout of one operand in units of `factor` adjacent elements, or `None` if they are not adjacent in
    /// memory. For contiguous operands, the caller must check that the number of elements is a multiple of `factor`.
    fn joined(&self, factor: usize) -> Option<Self> {
        let (count, mut joined) = (self.num_dims, *self);
        if count == 0 {
            return Some(joined);
        }
        let (dims, strides) = joined.layout.0[..2 * count].split_at_mut(count);
        if !self.in_packs(factor, 1) || strides[count - 1] != 1 {
            return None;
        }
        dims[count - 1] = dim_word(dims[count - 1] as u32 as usize / factor);
        strides.iter_mut().filter(|stride| **stride > 1).for_each(|stride| *stride /= factor);
        Some(joined)
    }

    /// Returns the layout, size and number of the widest units in which `numel` elements of `size` bytes can be copied.
    /// `ends` is the bitwise or of the source and destination addresses.
    pub(crate) fn widened(&self, size: usize, numel: usize, ends: usize) -> (Self, usize, usize) {
        let bits = ends | (numel * size);
        for wide in [8, 4, 2] {
            if wide > size && bits.is_multiple_of(wide) {
                if let Some(joined) = self.joined(wide / size) {
                    return (joined, wide, numel * size / wide);
                }
            }
        }
        (*self, size, numel)
    }

    /// Describes a copy to a dense result as a transposition of two dims, if the source is dense in a dim other than the
    /// last and both dims are long enough.
    pub(crate) fn transposition(&self) -> Option<Transposition> {
        const MIN_SIZE: usize = 16;
        let (count, words) = (self.num_dims, &self.layout.0);
        let last = count.checked_sub(1).filter(|_| count > 1 && 3 * (count - 2) <= WORDS)?;
        let size = |dim: usize| words[dim] as u32 as usize;
        let strides = &words[count..2 * count];
        let row = strides[..last].iter().rposition(|&stride| stride == 1).filter(|_| strides[last] > 1)?;
        let (rows, columns) = (size(row), size(last));
        if rows < MIN_SIZE || columns < MIN_SIZE {
            return None;
        }
        let (mut matrices, mut batches) = (Self { num_dims: count - 2, ..Self::CONTIGUOUS }, 1);
        let others = (0..last).filter(|&dim| dim != row);
        for (place, dim) in others.enumerate() {
            let inner: usize = (dim + 1..count).map(size).product();
            for (list, word) in [words[dim], strides[dim], inner].into_iter().enumerate() {
                matrices.layout.0[list * (count - 2) + place] = word;
            }
            batches *= size(dim);
        }
        let out_stride = (row + 1..count).map(size).product();
        Some(Transposition { matrices, batches, rows, columns, in_stride: strides[last], out_stride })
    }

    /// Returns the layout of a reduction: first the kept dims, then the reduced dims, each in their original order and
    /// merged where the strides permit it.
    ///
    /// # Errors
    /// [`RocmError::TooManyDims`] if the result does not fit the kernel argument.
    pub(crate) fn of_reduction(op: &'static str, layout: &Layout, reduced: &[usize]) -> Result<Reduction> {
        let rank = layout.dims().len();
        if rank > WORDS {
            return Err(RocmError::TooManyDims { op, dims: rank, limit: WORDS / 2 }.into());
        }
        let (mut order, mut dims) = ([0usize; WORDS], [0usize; WORDS]);
        let (kept, last) = (|d: &usize| !reduced.contains(d), |d: &usize| reduced.contains(d));
        for (place, dim) in (0..rank).filter(kept).chain((0..rank).filter(last)).enumerate() {
            order[place] = dim;
            dims[place] = layout.dims()[dim];
        }
        let border = (0..rank).filter(kept).count();
        let stride = |place: usize| std::iter::once(layout.stride()[order[place]]);
        let mut strided = Self::CONTIGUOUS;
        let kept_dims = strided.merge(op, &dims[..rank], 2, stride, border)?;
        let strides = &strided.layout.0[strided.num_dims..2 * strided.num_dims];
        let across = match strides.split_at(kept_dims) {
            ([.., kept], [.., reduced]) => kept < reduced,
            _ => false,
        };
        Ok(Reduction { strided, kept_dims, across })
    }

    /// Returns dims and strides without merging, for kernels that need every dim.
    ///
    /// # Errors
    /// [`RocmError::TooManyDims`] if the lists have more words than the kernel argument.
    pub fn verbatim(op: &'static str, lists: &[&[usize]]) -> Result<KernelLayout> {
        let mut words = [0; WORDS];
        let len: usize = lists.iter().map(|l| l.len()).sum();
        if len > WORDS {
            return Err(RocmError::TooManyDims { op, dims: len, limit: WORDS }.into());
        }
        for (word, value) in words.iter_mut().zip(lists.iter().flat_map(|l| l.iter())) {
            *word = *value;
        }
        Ok(KernelLayout(words))
    }

    /// Merges dims into `self`, which must be [`Self::CONTIGUOUS`]. `lists` is the number of lists: the dims and the strides
    /// of each operand. Dims are not merged across `border`; returns the number of merged dims before it.
    fn merge<I: Iterator<Item = usize> + Clone>(
        &mut self,
        op: &'static str,
        dims: &[usize],
        lists: usize,
        strides: impl Fn(usize) -> I,
        border: usize,
    ) -> Result<usize> {
        // There are always the dims and at least one list of strides.
        let limit = WORDS / lists.max(2);
        let words = &mut self.layout.0;
        // `last[i]` is the innermost dim of group i, whose strides are those of the group.
        let mut last = [0usize; WORDS / 2];
        let mut count = 0;
        for (dim, &size) in dims.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let joins = match last[..count].last() {
                Some(&outer) if (outer < border) == (dim < border) => {
                    strides(outer).zip(strides(dim)).all(|(outer, inner)| outer == inner * size)
                }
                _ => false,
            };
            if joins {
                words[count - 1] *= size;
                last[count - 1] = dim;
            } else {
                if count == limit {
                    return Err(RocmError::TooManyDims { op, dims: dims.len(), limit }.into());
                }
                words[count] = size;
                last[count] = dim;
                count += 1;
            }
        }
        for (group, &dim) in last[..count].iter().enumerate() {
            for (list, stride) in strides(dim).enumerate() {
                words[(1 + list) * count + group] = stride;
            }
        }
        self.num_dims = count;
        Ok(last[..count].iter().filter(|&&dim| dim < border).count())
    }

    /// Returns the layout for summing the partial results of a reduction, a dense matrix (parts, results).
    pub(crate) fn of_parts(results: usize, parts: usize) -> Reduction {
        let mut words = [0; WORDS];
        words[..4].copy_from_slice(&[results, parts, 1, results]);
        let strided = Self { num_dims: 2, layout: KernelLayout(words) };
        Reduction { strided, kept_dims: 1, across: results > 1 }
    }
}

/// The layout of a reduction, as passed to its kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub strided: Strided,
    /// Number of kept dims; the reduced dims follow them.
    pub kept_dims: usize,
    /// True if the innermost kept dim has a smaller stride than the innermost reduced dim.
    pub across: bool,
}

/// A batch of matrices that a copy transposes; strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transposition {
    /// Batch dims, with the strides of source and destination.
    pub matrices: Strided,
    pub batches: usize,
    /// Number of elements that are contiguous in the source.
    pub rows: usize,
    /// Number of elements that are contiguous in the destination.
    pub columns: usize,
    /// Stride of the columns in the source.
    pub in_stride: usize,
    /// Stride of the rows in the destination.
    pub out_stride: usize,
}

impl Transposition {
    /// Returns the number of workgroups for elements of `size` bytes: tiles in x, matrices in y and z.
    pub(crate) fn grid(&self, size: usize) -> (u32, u32, u32) {
        const MAX_GRID: usize = 65535;
        let height = TILE_ROWS.min(TILE_ROW_BYTES / size);
        let tiles = self.rows.div_ceil(height) * self.columns.div_ceil(TILE_BYTES / size / height);
        (tiles as u32, self.batches.min(MAX_GRID) as u32, self.batches.div_ceil(MAX_GRID) as u32)
    }

    /// Returns true if every row of source and destination is aligned for vectors of `PACK_BYTES`. `ends` is the bitwise
    /// or of their addresses.
    pub(crate) fn in_packs(&self, size: usize, ends: usize) -> bool {
        let Strided { num_dims, layout } = &self.matrices;
        let strides = layout.0[*num_dims..3 * num_dims].iter();
        let bits =
            strides.fold(self.rows | self.columns | self.in_stride | self.out_stride, |all, s| all | s);
        ((bits * size) | ends).is_multiple_of(PACK_BYTES)
    }
}

impl Reduction {
    /// Returns the stride of the innermost reduced dim.
    pub(crate) fn inner_stride(&self) -> Option<usize> {
        let Self { strided: Strided { num_dims, layout }, kept_dims, .. } = self;
        (num_dims > kept_dims).then(|| layout.0[2 * num_dims - 1])
    }
}

/// A part of an elementwise operation: the layouts of its operands, and the index of its first element in the dense
/// result.
pub(crate) struct Piece {
    pub layouts: Vec<Layout>,
    pub first: usize,
}

/// Layout of contiguous operands, in static memory.
static CONTIGUOUS: Strided = Strided::CONTIGUOUS;

/// Splits an elementwise operation into pieces of at most [`max_elements`] and calls `work` for each, with the layouts of
/// the operands, the same packed for kernels, the index of the first element and the number of elements. The layouts
/// must have the same dims. Nearly always there is only one piece.
///
/// # Errors
/// [`RocmError::TooManyDims`], or the first error of `work`.
#[inline]
pub(crate) fn in_pieces<const N: usize>(
    op: &'static str,
    layouts: [&Layout; N],
    mut work: impl FnMut([&Layout; N], &Strided, usize, usize) -> Result<()>,
) -> Result<()> {
    let mut packed = |layouts: [&Layout; N], first: usize, elements: usize| match layouts
        .iter()
        .all(|layout| layout.is_contiguous())
    {
        true => work(layouts, &CONTIGUOUS, first, elements),
        false => {
            let mut strided = Strided::CONTIGUOUS;
            strided.pack(op, &layouts)?;
            work(layouts, &strided, first, elements)
        }
    };
    let elements = layouts[0].shape().elem_count();
    match elements {
        0 => Ok(()),
        elements if elements <= max_elements() => packed(layouts, 0, elements),
        _ => pieces(&layouts, max_elements()).iter().try_for_each(|piece| {
            let elements = piece.layouts[0].shape().elem_count();
            packed(std::array::from_fn(|operand| &piece.layouts[operand]), piece.first, elements)
        }),
    }
}

/// Splits `0..count` into runs of at most `max_len`. Returns the start and the length of each.
pub(crate) fn runs(count: usize, max_len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(max_len).map(move |first| (first, max_len.min(count - first)))
}

/// Splits along the outermost dims, so that no piece has more than `limit` elements and the results are consecutive.
#[cold]
pub(crate) fn pieces(layouts: &[&Layout], limit: usize) -> Vec<Piece> {
    let dims = layouts[0].dims();
    if layouts[0].shape().elem_count() <= limit {
        return vec![Piece { layouts: layouts.iter().map(|&layout| layout.clone()).collect(), first: 0 }];
    }
    // Dims after `cut` stay whole, dim `cut` is split into runs, and dims before it into single indices.
    let mut inner = 1;
    let mut cut = dims.len();
    while cut > 0 && inner <= limit {
        cut -= 1;
        if inner * dims[cut] > limit {
            break;
        }
        inner *= dims[cut];
    }
    let run = (limit / inner).max(1);
    let outer: usize = dims[..cut].iter().product();
    let mut pieces = Vec::new();
    let mut first = 0;
    for place in 0..outer {
        for (begin, len) in runs(dims[cut], run) {
            let layouts = layouts.iter().map(|layout| {
                let mut offset = layout.start_offset() + begin * layout.stride()[cut];
                let mut rest = place;
                for dim in (0..cut).rev() {
                    offset += rest % dims[dim] * layout.stride()[dim];
                    rest /= dims[dim];
                }
                let mut shape = dims.to_vec();
                shape[..cut].fill(1);
                shape[cut] = len;
                Layout::new(shape.into(), layout.stride().to_vec(), offset)
            });
            pieces.push(Piece { layouts: layouts.collect(), first });
            first += len * inner;
        }
    }
    pieces
}

/// Returns the highest element index of `layout` plus one, or `None` if that overflows. It is 0 for an empty layout.
pub(crate) fn extent(layout: &Layout) -> Option<usize> {
    let mut highest = layout.start_offset();
    for (&dim, &stride) in layout.dims().iter().zip(layout.stride()) {
        if dim == 0 {
            return Some(0);
        }
        highest = highest.checked_add((dim - 1).checked_mul(stride)?)?;
    }
    highest.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn layout(dims: &[usize], strides: &[usize]) -> Layout {
        Layout::new(Shape::from(dims), strides.to_vec(), 0)
    }

    /// Computes the offset of element `i` of a packed layout like the kernels.
    fn element(packed: &Strided, list: usize, mut i: usize) -> usize {
        let n = packed.num_dims;
        let mut at = 0;
        for d in (0..n).rev() {
            let size = packed.layout.0[d] as u32 as usize;
            at += (i % size) * packed.layout.0[(1 + list) * n + d];
            i /= size;
        }
        at
    }

    /// Computes the offset of element `i` from the original layout.
    fn expected(l: &Layout, mut i: usize) -> usize {
        let mut at = 0;
        for (&dim, &stride) in l.dims().iter().zip(l.stride()).rev() {
            at += (i % dim) * stride;
            i /= dim;
        }
        at
    }

    #[test]
    fn contiguous_needs_no_dims() {
        let packed = Strided::of("test", &[&Layout::contiguous((2, 3))]).unwrap();
        assert_eq!(packed.num_dims, 0);
    }

    #[test]
    fn adjacent_dims_merge() {
        // (4, 5, 6), narrowed along dim 0 of a larger tensor, so that only dims 1 and 2 can be merged.
        let packed = Strided::of("test", &[&layout(&[4, 5, 6], &[60, 6, 1])]).unwrap();
        assert_eq!(packed.num_dims, 2);
        assert_eq!(packed.layout.0[..4], [dim_word(4), dim_word(30), 60, 1]);
        assert!(packed.in_packs(2, 1) && !packed.in_packs(2, 0) && !packed.in_packs(4, 1));
    }

    #[test]
    fn adjacent_elements_are_joined_if_rows_are_dense() {
        let of = |dims: &[usize], strides: &[usize]| Strided::of("test", &[&layout(dims, strides)]).unwrap();
        let rows = of(&[3, 8], &[20, 1]);
        assert_eq!(rows.joined(4).unwrap().layout.0[..4], [dim_word(3), dim_word(2), 5, 1]);
        assert!(rows.joined(8).is_none(), "the stride of rows is no multiple of 8");
        assert!(of(&[4, 8], &[8, 0]).joined(2).is_none());
        assert_eq!(Strided::CONTIGUOUS.joined(8).unwrap().num_dims, 0);
    }

    #[test]
    fn transpositions_are_found() {
        // (5, 32, 7, 16) seen as (7, 5, 16, 32).
        let of = |dims: &[usize], strides: &[usize]| {
            Strided::of("test", &[&layout(dims, strides)]).unwrap().transposition()
        };
        let found = of(&[7, 5, 16, 32], &[16, 3584, 1, 112]).unwrap();
        assert_eq!((found.batches, found.rows, found.columns), (35, 16, 32));
        assert_eq!((found.in_stride, found.out_stride), (112, 32));
        let words = [dim_word(7), dim_word(5), 16, 3584, 2560, 512];
        assert_eq!((found.matrices.num_dims, &found.matrices.layout.0[..6]), (2, &words[..]));
        assert!(of(&[64, 64], &[1, 64]).is_some());
        assert!(of(&[64, 8], &[1, 64]).is_none(), "too short");
        assert!(of(&[64, 64], &[2, 128]).is_none(), "no dense dim");
        assert!(of(&[64, 64], &[1, 0]).is_none(), "broadcast");
        assert!(of(&[64, 64], &[128, 1]).is_none(), "not transposed");
    }

    #[test]
    fn dims_merge_only_if_all_operands_permit_it() {
        let lhs = layout(&[4, 5, 6], &[60, 6, 1]);
        let rhs = layout(&[4, 5, 6], &[0, 0, 1]);
        let packed = Strided::of("test", &[&lhs, &rhs]).unwrap();
        assert_eq!(packed.num_dims, 3);
        for i in 0..120 {
            assert_eq!(element(&packed, 0, i), expected(&lhs, i));
            assert_eq!(element(&packed, 1, i), expected(&rhs, i));
        }
    }

    #[test]
    fn unit_dims_are_removed() {
        let l = layout(&[1, 3, 1, 2], &[99, 1, 7, 3]);
        let packed = Strided::of("test", &[&l]).unwrap();
        assert_eq!(packed.num_dims, 2);
        for i in 0..6 {
            assert_eq!(element(&packed, 0, i), expected(&l, i));
        }
    }

    #[test]
    fn kept_and_reduced_dims_are_not_merged() {
        let l = Layout::contiguous((2, 3, 4));
        // Reduced dims, expected words, expected number of kept dims, expected `across`.
        type Case<'a> = (&'a [usize], &'a [usize], usize, bool);
        let cases: [Case; 6] = [
            (&[1], &[2, 4, 3, 12, 1, 4], 2, true),
            (&[2], &[6, 4, 4, 1], 1, false),
            (&[0], &[12, 2, 1, 12], 1, true),
            (&[2, 0], &[3, 2, 4, 4, 12, 1], 1, false),
            (&[0, 1, 2], &[24, 1], 0, false),
            (&[], &[24, 1], 1, false),
        ];
        for (reduced, words, kept, across) in cases {
            let got = Strided::of_reduction("test", &l, reduced).unwrap();
            assert_eq!(got.strided.num_dims, words.len() / 2, "{reduced:?}");
            assert_eq!(got.strided.layout.0[..words.len()], *words, "{reduced:?}");
            assert_eq!((got.kept_dims, got.across), (kept, across), "{reduced:?}");
        }
    }

    #[test]
    fn unit_dims_of_reductions_are_removed() {
        let got = Strided::of_reduction("test", &Layout::contiguous((5, 1)), &[1]).unwrap();
        assert_eq!((got.strided.num_dims, got.kept_dims), (1, 1));
        let scalar = Strided::of_reduction("test", &Layout::contiguous(()), &[]).unwrap();
        assert_eq!((scalar.strided.num_dims, scalar.kept_dims), (0, 0));
    }

    #[test]
    fn too_many_dims_is_an_error() {
        let dims = [2; 12];
        let strides: Vec<usize> = (0..12).map(|d| 3usize.pow(12 - d)).collect();
        let l = layout(&dims, &strides);
        assert!(Strided::of("test", &[&l]).is_ok());
        let error = Strided::of("test", &[&l, &l]).unwrap_err().to_string();
        assert!(error.contains("12 dimensions") && error.contains("10 at most"), "{error}");
    }

    /// Returns the offsets of a layout's elements in the order of its dense copy.
    fn elements(l: &Layout) -> Vec<usize> {
        (0..l.shape().elem_count()).map(|i| l.start_offset() + expected(l, i)).collect()
    }

    #[test]
    fn pieces_cover_the_tensor_in_order() {
        let whole = layout(&[3, 4, 5], &[100, 1, 7]);
        let other = layout(&[3, 4, 5], &[0, 5, 1]);
        for limit in [1, 2, 3, 5, 7, 10, 19, 20, 21, 59, 60, 61, 1000] {
            let (mut seen, mut seen_of_other) = (Vec::new(), Vec::new());
            for piece in pieces(&[&whole, &other], limit) {
                assert_eq!(piece.first, seen.len());
                assert!((1..=limit).contains(&piece.layouts[0].shape().elem_count()));
                seen.extend(elements(&piece.layouts[0]));
                seen_of_other.extend(elements(&piece.layouts[1]));
            }
            assert_eq!((seen, seen_of_other), (elements(&whole), elements(&other)), "{limit}");
        }
    }

    #[test]
    fn extent_is_one_past_the_highest_element() {
        assert_eq!(extent(&layout(&[2, 3], &[10, 2])), Some(15));
        assert_eq!(extent(&layout(&[2, 0], &[10, 2])), Some(0));
        assert_eq!(extent(&layout(&[3], &[usize::MAX])), None);
    }
}
