//! Sizes that memory is handed out in, and pieces that it is got in.

/// Every block starts at a multiple of this many bytes and is a multiple of it long. `hipMalloc` aligns as well.
pub(super) const GRANULE: usize = 256;

/// Rounding up never wastes more than this, nor more than an eighth of the size above eight granules.
const MOST_WASTE: usize = 32 << 20;

/// Blocks up to these sizes share segments of [`SEGMENTS`] bytes, each kind its own: a small tensor that lives long
/// would keep a large segment from being given back. Larger blocks get segments of their own size.
const SHARED: [usize; 2] = [1 << 20, 8 << 20];
const SEGMENTS: [usize; 2] = [2 << 20, 32 << 20];

/// How many kinds of segments there are.
pub(super) const KINDS: usize = SHARED.len() + 1;

/// The kind of segment that a block comes from.
pub(super) fn kind(block: usize) -> usize {
    SHARED.iter().position(|&most| block <= most).unwrap_or(SHARED.len())
}

/// The size of the block for `bytes` bytes: a multiple of an eighth of the power of two below, so that sizes which
/// drift a little meet the same blocks. `None` if it overflows.
pub(super) fn block(bytes: usize) -> Option<usize> {
    let granules = bytes.max(1).checked_next_multiple_of(GRANULE)?;
    let below = 1usize << granules.ilog2();
    let step = (below / 8).clamp(GRANULE, MOST_WASTE);
    granules.checked_next_multiple_of(step)
}

/// How many bytes to ask the driver for, where a block of `block` bytes is wanted and none is parked.
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
}
