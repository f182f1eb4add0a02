//! Dims and strides as kernels take them: by value, merged as far as the strides allow.
use super::RocmError;
use crate::{Layout, Result};

/// Words in the by-value layout argument of a kernel (`CandleLayout` on the device side).
const WORDS: usize = 32;

/// The layout argument of a kernel: dims, then one stride list per operand, in elements.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelLayout([usize; WORDS]);

/// A [`KernelLayout`] with the number of dims that it describes.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// 0 stands for "everything is contiguous".
    pub num_dims: usize,
    pub layout: KernelLayout,
}

impl Strided {
    /// What a kernel takes for contiguous operands.
    pub const CONTIGUOUS: Self = Self { num_dims: 0, layout: KernelLayout([0; WORDS]) };

    /// Packs the dims of the first layout and the strides of all, which must have the same dims.
    /// Adjacent dims that every operand walks through as one are merged, dims of size 1 are left out.
    ///
    /// # Errors
    /// [`RocmError::TooManyDims`] if the result does not fit the kernel argument.
    pub fn of(op: &'static str, operands: &[&Layout]) -> Result<Self> {
        if operands.iter().all(|l| l.is_contiguous()) {
            return Ok(Self::CONTIGUOUS);
        }
        let Some(first) = operands.first() else { return Ok(Self::CONTIGUOUS) };
        let strides = |dim: usize| operands.iter().map(move |l| l.stride()[dim]);
        Self::merged(op, first.dims(), 1 + operands.len(), strides, &[])
    }

    /// Dims and strides of a reduction: what is kept first, what is reduced last, at least one dim.
    /// Merging stops at the border, and the last dim is kept even if its size is 1: the kernels of
    /// argmin and argmax count along it.
    pub fn of_reduction(op: &'static str, layout: &Layout, reduced: &[usize]) -> Result<Self> {
        let rank = layout.dims().len();
        if rank > WORDS {
            return Err(RocmError::TooManyDims { op, dims: rank, limit: WORDS / 2 }.into());
        }
        let mut order = [0usize; WORDS];
        let mut dims = [0usize; WORDS];
        let kept = (0..rank).filter(|d| !reduced.contains(d));
        for (place, dim) in kept.chain(reduced.iter().copied()).take(rank).enumerate() {
            order[place] = dim;
            dims[place] = layout.dims()[dim];
        }
        let stride = |place: usize| std::iter::once(layout.stride()[order[place]]);
        let border = [rank - reduced.len().min(rank), rank.saturating_sub(1)];
        let borders = if reduced.len() == 1 { &border[..] } else { &border[..1] };
        let packed = Self::merged(op, &dims[..rank], 2, stride, borders)?;
        if packed.num_dims > 0 {
            return Ok(packed);
        }
        let mut words = [0; WORDS];
        (words[0], words[1]) = (1, 1);
        Ok(Self { num_dims: 1, layout: KernelLayout(words) })
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

    /// `lists` counts the dims and every stride list. No dim in `borders` is merged into the one before it, and a
    /// border dim that is the last one stays even if its size is 1.
    fn merged<I: Iterator<Item = usize> + Clone>(
        op: &'static str,
        dims: &[usize],
        lists: usize,
        strides: impl Fn(usize) -> I,
        borders: &[usize],
    ) -> Result<Self> {
        let limit = WORDS / lists;
        let mut merged_dims = [0usize; WORDS];
        // `last[i]` is the innermost dim of group i: its strides are the group's.
        let mut last = [0usize; WORDS];
        let mut count = 0;
        let mut previous: Option<usize> = None;
        let mut border_passed = true;
        for (dim, &size) in dims.iter().enumerate() {
            border_passed |= borders.contains(&dim);
            let must_stay = borders.contains(&dim) && dim + 1 == dims.len();
            if size == 1 && !must_stay {
                continue;
            }
            let joins = match previous {
                Some(outer) if !border_passed => {
                    strides(outer).zip(strides(dim)).all(|(outer, inner)| outer == inner * size)
                }
                _ => false,
            };
            if joins {
                merged_dims[count - 1] *= size;
                last[count - 1] = dim;
            } else {
                if count == limit {
                    return Err(RocmError::TooManyDims { op, dims: dims.len(), limit }.into());
                }
                merged_dims[count] = size;
                last[count] = dim;
                count += 1;
            }
            previous = Some(dim);
            border_passed = false;
        }
        let mut words = [0; WORDS];
        words[..count].copy_from_slice(&merged_dims[..count]);
        for (group, &dim) in last[..count].iter().enumerate() {
            for (list, stride) in strides(dim).enumerate() {
                words[(1 + list) * count + group] = stride;
            }
        }
        Ok(Self { num_dims: count, layout: KernelLayout(words) })
    }
}

/// One past the highest element that `layout` reaches, or `None` if that overflows. 0 for an empty layout.
pub(super) fn extent(layout: &Layout) -> Option<usize> {
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
            at += (i % packed.layout.0[d]) * packed.layout.0[(1 + list) * n + d];
            i /= packed.layout.0[d];
        }
        at
    }

    /// The same from the layout itself.
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
        assert_eq!(packed.layout.0[..4], [4, 30, 60, 1]);
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
        let packed = Strided::of_reduction("test", &l, &[1]).unwrap();
        assert_eq!(packed.num_dims, 3);
        assert_eq!(packed.layout.0[..6], [2, 4, 3, 12, 1, 4]);
        let packed = Strided::of_reduction("test", &l, &[2]).unwrap();
        assert_eq!(packed.num_dims, 2);
        assert_eq!(packed.layout.0[..4], [6, 4, 4, 1]);
        let packed = Strided::of_reduction("test", &l, &[0, 1, 2]).unwrap();
        assert_eq!(packed.layout.0[..2], [24, 1]);
        assert_eq!(packed.num_dims, 1);
    }

    #[test]
    fn reducing_a_unit_dim_keeps_it_last() {
        let l = Layout::contiguous((5, 1));
        let packed = Strided::of_reduction("test", &l, &[1]).unwrap();
        assert_eq!(packed.num_dims, 2);
        assert_eq!(packed.layout.0[..2], [5, 1]);
        let scalar = Layout::contiguous(());
        assert_eq!(Strided::of_reduction("test", &scalar, &[]).unwrap().num_dims, 1);
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

    #[test]
    fn extent_is_one_past_the_highest_element() {
        assert_eq!(extent(&layout(&[2, 3], &[10, 2])), Some(15));
        assert_eq!(extent(&layout(&[2, 0], &[10, 2])), Some(0));
        assert_eq!(extent(&layout(&[3], &[usize::MAX])), None);
    }
}
