//! Memory that is gone: what names a use after free.
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Ranges that are remembered.
const REMEMBERED: usize = 4096;

/// An allocation that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedRange {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// How many allocations were freed after it.
    pub since: u64,
}

/// The allocations that were freed last.
#[derive(Debug, Default)]
pub struct FreedRanges {
    /// Base and length, latest last.
    ranges: Mutex<VecDeque<(u64, u64)>>,
}

impl FreedRanges {
    /// Remembers a range; the oldest is forgotten if there are too many.
    pub fn note(&self, base: u64, len: u64) {
        let mut ranges = self.ranges.lock();
        if ranges.len() == REMEMBERED {
            ranges.pop_front();
        }
        ranges.push_back((base, len));
    }

    /// The range that was freed last among those that held `address`.
    pub fn find(&self, address: u64) -> Option<FreedRange> {
        let ranges = self.ranges.lock();
        let (since, (base, len)) = ranges
            .iter()
            .rev()
            .enumerate()
            .find(|(_, (base, len))| address >= *base && address - base < *len)?;
        Some(FreedRange { base: *base, len: *len, since: since as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_range_counts() {
        let freed = FreedRanges::default();
        freed.note(100, 50);
        freed.note(120, 10);
        freed.note(500, 1);
        assert_eq!(freed.find(125), Some(FreedRange { base: 120, len: 10, since: 1 }));
        assert_eq!(freed.find(149), Some(FreedRange { base: 100, len: 50, since: 2 }));
        assert_eq!(freed.find(150), None);
        assert_eq!(freed.find(99), None);
    }

    #[test]
    fn old_ranges_are_forgotten() {
        let freed = FreedRanges::default();
        (0..=REMEMBERED as u64).for_each(|n| freed.note(n * 16, 16));
        assert_eq!(freed.find(0), None);
        assert_eq!(freed.find(16).map(|range| range.since), Some(REMEMBERED as u64 - 1));
    }
}
