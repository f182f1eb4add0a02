//! Sizes that memory is handed out in, and pieces that it is got in.

/// Every block starts at a multiple of this many bytes and is a multiple of it long. `hipMalloc` aligns as well.
pub(super) const GRANULE: usize = 256;

/// Rounding up never wastes more than this, nor more than an eighth of the size above eight granules.
const MOST_WASTE: usize = 32 << 20;

/// Longer blocks are not handed out: no device has an address space for them.
const LONGEST: usize = 1 << 47;

/// Blocks up to these sizes share segments of [`SEGMENTS`] bytes, each kind its own: a small tensor that lives long
/// would keep a large segment from being given back. Larger blocks get segments of their own size.
pub(super) const SHARED: [usize; 2] = [1 << 20, 8 << 20];
const SEGMENTS: [usize; 2] = [2 << 20, 32 << 20];

/// Number of kinds of segments.
pub(super) const KINDS: usize = SHARED.len() + 1;

/// The kind of the largest blocks: a segment is got for each of them.
pub(super) const LARGE: usize = SHARED.len();

/// Number of classes of lengths: eight for each power of two.
pub(super) const CLASSES: usize = 8 * (LONGEST.ilog2() - GRANULE.ilog2() + 1) as usize;

/// The kind of segment that a block comes from.
pub(super) fn kind(block: usize) -> usize {
    SHARED.iter().position(|&most| block <= most).unwrap_or(LARGE)
}

/// The size of the block for `bytes` bytes: a multiple of an eighth of the power of two below, so that sizes which
/// drift a little meet the same blocks. `None` if there is none so long.
pub(super) fn block(bytes: usize) -> Option<usize> {
    let granules = bytes.max(1).checked_next_multiple_of(GRANULE)?;
    // A step is a power of two: no division on the way of every tensor.
    let step = step(granules);
    let block = granules.checked_add(step - 1)? & !(step - 1);
    (block <= LONGEST).then_some(block)
}

/// The distance from the size of a block to the next larger one.
pub(super) fn step(block: usize) -> usize {
    ((1usize << block.max(1).ilog2()) / 8).clamp(GRANULE, MOST_WASTE)
}

/// The class of lengths that `len` belongs to: all of a class are at least as long as all of the class before. Up to
/// 512 MiB a class has one block size, its shortest; beyond, several.
pub(super) fn class(len: usize) -> usize {
    let len = len.clamp(GRANULE, LONGEST);
    let power = len.ilog2();
    let eighth = (len >> (power - 3)) & 7;
    8 * (power - GRANULE.ilog2()) as usize + eighth
}

/// Number of bytes to ask the driver for, where a block of `block` bytes is wanted and none is free.
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
            let most = (bytes / 8).clamp(GRANULE - 1, MOST_WASTE);
            assert!(block - bytes.max(1) <= most, "{bytes}: {block}");
        }
    }

    #[test]
    fn a_block_is_its_own_size() {
        for bytes in (0..100_000).step_by(97) {
            let rounded = block(bytes).unwrap();
            assert_eq!(block(rounded), Some(rounded));
        }
    }

    #[test]
    fn what_cannot_be_addressed_has_no_size() {
        assert_eq!(block(usize::MAX), None);
        assert_eq!(block(usize::MAX - GRANULE), None);
        assert_eq!((block(LONGEST), block(LONGEST + 1)), (Some(LONGEST), None));
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
