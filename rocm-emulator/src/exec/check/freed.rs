//! Recently freed ranges, so that a use after free names the allocation.
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Maximum number of freed ranges that are kept.
const MAX_FREED_RANGES: usize = 4096;

/// A freed allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedRange {
    /// First address.
    pub base: u64,
    /// Size in bytes.
    pub len: u64,
    /// Number of allocations that were freed after it.
    pub since: u64,
}

/// The most recently freed allocations.
#[derive(Debug, Default)]
pub struct FreedRanges {
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// Ranges, the latest last. Here `since` is the number of ranges freed up to and including this one.
    ranges: VecDeque<FreedRange>,
    freed: u64,
}

impl FreedRanges {
    /// Adds a range, and drops the oldest if the limit is reached.
    pub fn note(&self, base: u64, len: u64) {
        let mut log = self.log.lock();
        if log.ranges.len() == MAX_FREED_RANGES {
            log.ranges.pop_front();
        }
        log.freed += 1;
        let since = log.freed;
        log.ranges.push_back(FreedRange { base, len, since });
    }

    /// Removes the ranges that overlap the given one.
    pub fn forget(&self, base: u64, len: u64) {
        let overlaps = |range: &FreedRange| range.base < base + len && base < range.base + range.len;
        self.log.lock().ranges.retain(|range| !overlaps(range));
    }

    /// Returns the most recently freed range that contained `address`, if it is still kept.
    pub fn find(&self, address: u64) -> Option<FreedRange> {
        let log = self.log.lock();
        let holds = |range: &&FreedRange| address >= range.base && address - range.base < range.len;
        let found = log.ranges.iter().rev().find(holds)?;
        Some(FreedRange { since: log.freed - found.since, ..*found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_the_latest_range() {
        let freed = FreedRanges::default();
        freed.note(100, 50);
        freed.note(120, 10);
        freed.note(500, 1);
        assert_eq!(freed.find(125), Some(FreedRange { base: 120, len: 10, since: 1 }));
        assert_eq!(freed.find(149), Some(FreedRange { base: 100, len: 50, since: 2 }));
        assert_eq!(freed.find(150), None);
        assert_eq!(freed.find(99), None);
        freed.forget(125, 5);
        assert_eq!(freed.find(125), None);
        assert_eq!(freed.find(500), Some(FreedRange { base: 500, len: 1, since: 0 }));
    }

    #[test]
    fn the_oldest_ranges_are_dropped() {
        let freed = FreedRanges::default();
        (0..=MAX_FREED_RANGES as u64).for_each(|n| freed.note(n * 16, 16));
        assert_eq!(freed.find(0), None);
        assert_eq!(freed.find(16).map(|range| range.since), Some(MAX_FREED_RANGES as u64 - 1));
    }
}
