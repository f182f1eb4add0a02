//! Dims and strides as kernels take them: by value, merged as far as the strides allow; and tensors cut into pieces
//! that one launch can count.
use super::device::{max_elements, Launch};
use super::RocmError;
use crate::{Layout, Result};
use hip_kernels::contract::{
    dim_word, KernelLayout, LAYOUT_WORDS as WORDS, PACK_BYTES, TILE_BYTES, TILE_ROWS, TILE_ROW_BYTES,
};

pub(crate) use hip_kernels::contract::dim_word as magic;

/// A [`KernelLayout`] with the number of dims that it describes.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// 0 stands for "everything is contiguous".
    pub num_dims: usize,
    /// Dims, as [`dim_word`] has them, then the strides of each operand, in elements.
    pub layout: KernelLayout,
}

impl<'a> Launch<'a> {
    /// Adds the number of dims and the layout itself, the pair that kernels take that follow a layout.
    pub fn strided(self, strided: &'a Strided) -> Self {
        self.arg(&strided.num_dims).arg(&strided.layout)
    }
}

impl Strided {
    /// Argument of a kernel for contiguous operands.
    pub const CONTIGUOUS: Self = Self { num_dims: 0, layout: KernelLayout([0; WORDS]) };

    /// Packs the dims of the first layout and the strides of all, which must have the same dims.
    /// Adjacent dims that every operand walks through as one are merged, dims of size 1 are left out.
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

    /// [`Self::of`] in its place, for operands of which not all are contiguous.
    fn pack(&mut self, op: &'static str, operands: &[&Layout]) -> Result<()> {
        let Some(first) = operands.first() else { return Ok(()) };
        let strides = |dim: usize| operands.iter().map(move |l| l.stride()[dim]);
        self.merge(op, first.dims(), 1 + operands.len(), strides, 0)?;
        self.layout.0[..self.num_dims].iter_mut().for_each(|dim| *dim = dim_word(*dim));
        Ok(())
    }

    /// Whether the first `lists` operands can be taken in packs of `width` elements, wherever they begin: every row is a
    /// whole number of packs, and dense or one element. Contiguous ones always can, even if `lists` is 0.
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

    /// Layout of one operand with `factor` neighbours counted as one, if they lie next to each other.
    /// Contiguous ones do, but for what is left over at their end.
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

    /// `numel` elements of `size` bytes, to be copied between the addresses in `ends`, as the widest that one operand has
    /// whole and in line; with their size and number.
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

    /// The copy to a dense result as one that exchanges two dims, if the elements of one operand lie beside each other
    /// in another dim than the result's, and both dims are long enough.
    pub(crate) fn transposition(&self) -> Option<Transposition> {
        const LEAST: usize = 16;
        let (count, words) = (self.num_dims, &self.layout.0);
        let last = count.checked_sub(1).filter(|_| count > 1 && 3 * (count - 2) <= WORDS)?;
        let size = |dim: usize| words[dim] as u32 as usize;
        let strides = &words[count..2 * count];
        let row = strides[..last].iter().rposition(|&stride| stride == 1).filter(|_| strides[last] > 1)?;
        let (rows, columns) = (size(row), size(last));
        if rows < LEAST || columns < LEAST {
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

    /// Dims and strides of a reduction: what is kept first, what is reduced last, each in the layout's own order and
    /// merged as far as its strides allow.
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

    /// Dims and strides of each operand as they are, for kernels that need every dim in its place.
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

    /// Fills a [`Self::CONTIGUOUS`]. `lists` counts the dims and every stride list. The dim at `border` is not merged into
    /// the one before it; the result is the number of merged dims before it.
    fn merge<I: Iterator<Item = usize> + Clone>(
        &mut self,
        op: &'static str,
        dims: &[usize],
        lists: usize,
        strides: impl Fn(usize) -> I,
        border: usize,
    ) -> Result<usize> {
        // The dims and at least one list of strides.
        let limit = WORDS / lists.max(2);
        let words = &mut self.layout.0;
        // `last[i]` is the innermost dim of group i: its strides are the group's.
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

    /// One kept dim and one reduced dim, in elements: the sums that parts of a reduction leave.
    pub(crate) fn of_parts(results: usize, parts: usize) -> Reduction {
        let mut words = [0; WORDS];
        words[..4].copy_from_slice(&[results, parts, 1, results]);
        let strided = Self { num_dims: 2, layout: KernelLayout(words) };
        Reduction { strided, kept_dims: 1, across: results > 1 }
    }
}

/// The layout of a reduction, as its kernels take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub strided: Strided,
    /// Number of dims that are kept; the others follow and are reduced.
    pub kept_dims: usize,
    /// Whether neighbouring results lie closer together than neighbouring elements of one result.
    pub across: bool,
}

/// Matrices whose rows and columns a copy exchanges, with distances in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transposition {
    /// Dims of the others, with strides of both sides.
    pub matrices: Strided,
    pub batches: usize,
    /// Elements beside each other where they are read.
    pub rows: usize,
    /// Elements beside each other where they are written.
    pub columns: usize,
    /// From column to column where they are read.
    pub in_stride: usize,
    /// From row to row where they are written.
    pub out_stride: usize,
}

impl Transposition {
    /// Workgroups in x, y and z for elements of `size` bytes: tiles, and then matrices.
    pub(crate) fn grid(&self, size: usize) -> (u32, u32, u32) {
        const MOST: usize = 65535;
        let height = TILE_ROWS.min(TILE_ROW_BYTES / size);
        let tiles = self.rows.div_ceil(height) * self.columns.div_ceil(TILE_BYTES / size / height);
        (tiles as u32, self.batches.min(MOST) as u32, self.batches.div_ceil(MOST) as u32)
    }

    /// Whether every row of both sides, which begin at the addresses in `ends`, is whole packs.
    pub(crate) fn in_packs(&self, size: usize, ends: usize) -> bool {
        let Strided { num_dims, layout } = &self.matrices;
        let strides = layout.0[*num_dims..3 * num_dims].iter();
        let bits =
            strides.fold(self.rows | self.columns | self.in_stride | self.out_stride, |all, s| all | s);
        ((bits * size) | ends).is_multiple_of(PACK_BYTES)
    }
}

impl Reduction {
    /// The distance of neighbouring elements of one result.
    pub(crate) fn inner_stride(&self) -> Option<usize> {
        let Self { strided: Strided { num_dims, layout }, kept_dims, .. } = self;
        (num_dims > kept_dims).then(|| layout.0[2 * num_dims - 1])
    }
}

/// A part of an operation on elements: the layouts of its operands, and how many elements of the dense result come
/// before it.
pub(crate) struct Piece {
    pub layouts: Vec<Layout>,
    pub first: usize,
}

/// Layout of contiguous operands, made once.
static CONTIGUOUS: Strided = Strided::CONTIGUOUS;

/// Calls `work` for each piece of an operation on elements whose operands have `layouts` of the same dims: with the
/// layouts of the piece, as kernels take them as well, the number of elements before it, and its own. Nearly always
/// there is one.
///
/// # Errors
/// [`RocmError::TooManyDims`], or the first of `work`.
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

/// `count` places cut into runs of `most` at most: the first place of each, and how many there are.
pub(crate) fn runs(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(most).map(move |first| (first, most.min(count - first)))
}

/// Cuts along the outermost dims, so that no piece has more than `limit` elements and their results follow each other.
#[cold]
pub(crate) fn pieces(layouts: &[&Layout], limit: usize) -> Vec<Piece> {
    let dims = layouts[0].dims();
    if layouts[0].shape().elem_count() <= limit {
        return vec![Piece { layouts: layouts.iter().map(|&layout| layout.clone()).collect(), first: 0 }];
    }
    // Dims from `cut + 1` on stay whole, `cut` itself is cut into runs, those before it into single places.
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

/// One past the highest element that `layout` reaches, or `None` if that overflows. 0 for an empty layout.
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

    /// The element that index `i` of a packed layout stands for, as the kernels compute it.
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

    /// Expected value, from the layout itself.
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
        // (4, 5, 6) narrowed along dim 0 of a wider parent: dims 1 and 2 walk as one.
        let packed = Strided::of("test", &[&layout(&[4, 5, 6], &[60, 6, 1])]).unwrap();
        assert_eq!(packed.num_dims, 2);
        assert_eq!(packed.layout.0[..4], [dim_word(4), dim_word(30), 60, 1]);
        assert!(packed.in_packs(2, 1) && !packed.in_packs(2, 0) && !packed.in_packs(4, 1));
    }

    #[test]
    fn neighbours_join_where_all_have_them() {
        let of = |dims: &[usize], strides: &[usize]| Strided::of("test", &[&layout(dims, strides)]).unwrap();
        let rows = of(&[3, 8], &[20, 1]);
        assert_eq!(rows.joined(4).unwrap().layout.0[..4], [dim_word(3), dim_word(2), 5, 1]);
        assert!(rows.joined(8).is_none(), "rows begin between two of 8");
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
        assert!(of(&[64, 64], &[2, 128]).is_none(), "nowhere dense");
        assert!(of(&[64, 64], &[1, 0]).is_none(), "repeated");
        assert!(of(&[64, 64], &[128, 1]).is_none(), "no exchange");
    }

    #[test]
    fn every_operand_must_agree_to_a_merge() {
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
    fn unit_dims_are_left_out() {
        let l = layout(&[1, 3, 1, 2], &[99, 1, 7, 3]);
        let packed = Strided::of("test", &[&l]).unwrap();
        assert_eq!(packed.num_dims, 2);
        for i in 0..6 {
            assert_eq!(element(&packed, 0, i), expected(&l, i));
        }
    }

    #[test]
    fn reductions_keep_the_border() {
        let l = Layout::contiguous((2, 3, 4));
        // dims to reduce, words, dims kept, whether results are closer together than elements
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
    fn unit_dims_of_reductions_are_left_out() {
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

    /// The elements of a layout, in the order of its dense copy.
    fn elements(l: &Layout) -> Vec<usize> {
        (0..l.shape().elem_count()).map(|i| l.start_offset() + expected(l, i)).collect()
    }

    #[test]
    fn pieces_are_the_whole_in_order() {
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
