//! Sizes of the blocks that are allocated, and of the segments that are requested from the driver.

/// Alignment of the address and length of every block in bytes. `hipMalloc` has the same alignment.
pub(super) const GRANULE: usize = 256;

/// Maximum number of bytes lost by rounding up. Above eight granules, at most an eighth of the size is lost.
const MAX_WASTE: usize = 32 << 20;

/// Maximum length of a block, which exceeds the address space of every device.
const MAX_BLOCK: usize = 1 << 47;

/// Maximum sizes of blocks that share segments of [`SEGMENTS`] bytes. Each kind has separate segments, so that a small
/// long-lived tensor does not keep a large segment in use. Larger blocks get a segment each.
pub(super) const SHARED: [usize; 2] = [1 << 20, 8 << 20];
const SEGMENTS: [usize; 2] = [2 << 20, 32 << 20];

pub(super) const KINDS: usize = SHARED.len() + 1;

/// Kind of the largest blocks, which have a segment each.
pub(super) const LARGE: usize = SHARED.len();

/// Number of classes of lengths: eight for each power of two.
pub(super) const CLASSES: usize = 8 * (MAX_BLOCK.ilog2() - GRANULE.ilog2() + 1) as usize;

/// Returns the kind of segment for a block of this size.
pub(super) fn kind(block: usize) -> usize {
    SHARED.iter().position(|&most| block <= most).unwrap_or(LARGE)
}

/// Returns the size of the block for `bytes` bytes: rounded up to a multiple of an eighth of the next lower power of two, so
/// that slightly different sizes use the same blocks. `None` if it would exceed the maximum length.
pub(super) fn block(bytes: usize) -> Option<usize> {
    let granules = bytes.max(1).checked_next_multiple_of(GRANULE)?;
    // A step is a power of two, so that no division is needed.
    let step = step(granules);
    let block = granules.checked_add(step - 1)? & !(step - 1);
    (block <= MAX_BLOCK).then_some(block)
}

/// Returns the difference between the size of a block and the next larger size.
pub(super) fn step(block: usize) -> usize {
    ((1usize << block.max(1).ilog2()) / 8).clamp(GRANULE, MAX_WASTE)
}

/// Returns the class of lengths that contains `len`. Lengths of a class are greater than those of lower classes. Up to
/// 512 MiB, a class has one block size, its smallest length; beyond, several.
pub(super) fn class(len: usize) -> usize {
    let len = len.clamp(GRANULE, MAX_BLOCK);
    let power = len.ilog2();
    let eighth = (len >> (power - 3)) & 7;
    8 * (power - GRANULE.ilog2()) as usize + eighth
}

/// Returns the size of the segment to request from the driver for a block of `block` bytes.
pub(super) fn segment(block: usize) -> usize {
    SEGMENTS.get(kind(block)).copied().unwrap_or(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_waste_at_most_an_eighth_or_32_mib() {
        let powers = (0..44).flat_map(|n| [(1usize << n) - 1, 1 << n, (1 << n) + 1, 3 << n, (5 << n) + 7]);
        for bytes in powers {
            let block = block(bytes).unwrap();
            assert!(block >= bytes && block.is_multiple_of(GRANULE), "{bytes}: {block}");
            let most = (bytes / 8).clamp(GRANULE - 1, MAX_WASTE);
            assert!(block - bytes.max(1) <= most, "{bytes}: {block}");
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
        for bytes in [1, SHARED[0], SHARED[0] + 1, SHARED[1], SHARED[1] + 1, 3 << 30] {
            let block = block(bytes).unwrap();
            assert!(segment(block) >= block);
            assert!(kind(block) < KINDS);
        }
        assert_eq!(segment(SHARED[1] + GRANULE), SHARED[1] + GRANULE);
    }

    #[test]
    fn a_class_has_one_block_size_up_to_512_mib() {
        let mut sizes = vec![block(1).unwrap()];
        while let Some(next) =
            sizes.last().and_then(|&last| block(last + 1)).filter(|&next| next <= 512 << 20)
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
