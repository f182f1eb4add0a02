//! Sizes of the blocks that are allocated, and of the segments that are requested from the driver.

/// Alignment of the address and length of every block in bytes. `hipMalloc` has the same alignment.
pub(super) const GRANULE: usize = 256;

/// Maximum difference between a size and the next one that [`ample`] returns.
const MAX_STEP: usize = 32 << 20;

/// Maximum length of a block, which exceeds the address space of every device.
const MAX_BLOCK: usize = 1 << 47;

/// Maximum size of small blocks.
pub(super) const MAX_SMALL: usize = 1 << 20;

/// Kind of the segments of small blocks. They have separate segments, so that a small long-lived tensor does not keep a
/// large segment in use.
pub(super) const SMALL: usize = 0;

/// Kind of the segments of all other blocks.
pub(super) const LARGE: usize = 1;

pub(super) const KINDS: usize = 2;

/// Size of the segments of small blocks.
const SMALL_SEGMENT: usize = 2 << 20;

/// Size of the segments of large blocks of up to half this size. Larger blocks get a segment each.
const LARGE_SEGMENT: usize = 32 << 20;

/// Segments of a single block are a multiple of this size, which is that of a driver's pages.
const PAGE: usize = 2 << 20;

/// Number of classes of lengths: eight for each power of two.
pub(super) const CLASSES: usize = 8 * (MAX_BLOCK.ilog2() - GRANULE.ilog2() + 1) as usize;

/// Returns the kind of segment for a block of this size.
pub(super) fn kind(block: usize) -> usize {
    if block <= MAX_SMALL {
        SMALL
    } else {
        LARGE
    }
}

/// Returns the size of the block for `bytes` bytes. Small sizes are rounded up to a multiple of an eighth of the next lower
/// power of two, so that slightly different sizes use the same blocks. Large sizes are only rounded up to granules.
/// `None` if it would exceed the maximum length.
pub(super) fn block(bytes: usize) -> Option<usize> {
    let granules = bytes.max(1).checked_next_multiple_of(GRANULE)?;
    let block = if granules <= MAX_SMALL { ample(granules) } else { granules };
    (block <= MAX_BLOCK).then_some(block)
}

/// Returns a multiple of an eighth of the next lower power of two that is at least `block`, which is a multiple of the
/// granule.
pub(super) fn ample(block: usize) -> usize {
    // A step is a power of two, so that no division is needed.
    let step = step(block);
    block.saturating_add(step - 1) & !(step - 1)
}

/// Returns the difference between a result of [`ample`] and the next larger one.
fn step(block: usize) -> usize {
    ((1usize << block.max(1).ilog2()) / 8).clamp(GRANULE, MAX_STEP)
}

/// Returns the minimum length of what remains of a free block when a block of `len` bytes is split off. A smaller rest
/// stays part of the block, since no block of this kind fits into it.
pub(super) fn least_rest(kind: usize, len: usize) -> usize {
    if kind == SMALL {
        step(len)
    } else {
        MAX_SMALL
    }
}

/// Returns the class of lengths that contains `len`. Lengths of a class are greater than those of lower classes. A class
/// of small blocks has one block size, its smallest length; other classes have several.
pub(super) fn class(len: usize) -> usize {
    let len = len.clamp(GRANULE, MAX_BLOCK);
    let power = len.ilog2();
    let eighth = (len >> (power - 3)) & 7;
    8 * (power - GRANULE.ilog2()) as usize + eighth
}

/// Returns the size of the segment to request from the driver for a block of `block` bytes.
pub(super) fn segment(block: usize) -> usize {
    match block {
        ..=MAX_SMALL => SMALL_SEGMENT,
        _ if block <= LARGE_SEGMENT / 2 => LARGE_SEGMENT,
        _ => block.next_multiple_of(PAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_waste_at_most_an_eighth_and_large_blocks_nothing() {
        let powers = (0..44).flat_map(|n| [(1usize << n) - 1, 1 << n, (1 << n) + 1, 3 << n, (5 << n) + 7]);
        for bytes in powers {
            let block = block(bytes).unwrap();
            assert!(block >= bytes && block.is_multiple_of(GRANULE), "{bytes}: {block}");
            let most = if block <= MAX_SMALL { (bytes / 8).max(GRANULE - 1) } else { GRANULE - 1 };
            assert!(block - bytes.max(1) <= most, "{bytes}: {block}");
            let ample = ample(block);
            assert!((block..=block + (block / 8).min(MAX_STEP)).contains(&ample), "{block}: {ample}");
        }
    }

    #[test]
    fn rounding_a_block_size_does_not_change_it() {
        for bytes in (0..100_000).step_by(97) {
            let rounded = block(bytes).unwrap();
            assert_eq!(block(rounded), Some(rounded));
        }
    }

    #[test]
    fn sizes_beyond_the_maximum_return_none() {
        assert_eq!(block(usize::MAX), None);
        assert_eq!(block(usize::MAX - GRANULE), None);
        assert_eq!((block(MAX_BLOCK), block(MAX_BLOCK + 1)), (Some(MAX_BLOCK), None));
    }

    #[test]
    fn segments_hold_their_block() {
        for bytes in [1, MAX_SMALL, MAX_SMALL + 1, LARGE_SEGMENT / 2, LARGE_SEGMENT / 2 + 1, 3 << 30] {
            let block = block(bytes).unwrap();
            assert!(segment(block) >= block);
            assert!(kind(block) < KINDS);
        }
        assert_eq!(segment(LARGE_SEGMENT / 2 + GRANULE), LARGE_SEGMENT / 2 + PAGE);
    }

    #[test]
    fn a_class_has_one_size_of_small_blocks() {
        let mut sizes = vec![block(1).unwrap()];
        while let Some(next) =
            sizes.last().and_then(|&last| block(last + 1)).filter(|&next| next <= MAX_SMALL)
        {
            sizes.push(next);
        }
        for pair in sizes.windows(2) {
            assert!(class(pair[0]) < class(pair[1]), "{pair:?}");
            assert_eq!((class(pair[1] - GRANULE), pair[1] - pair[0]), (class(pair[0]), step(pair[0])));
        }
        assert_eq!(class(0), 0);
        assert!(class(usize::MAX) < CLASSES && class(600 << 20) >= class(512 << 20));
    }
}
