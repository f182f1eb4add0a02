//! Ranges that were freed, to name a use after free.
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
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// Latest last; here `since` is how many were freed up to it.
    ranges: VecDeque<FreedRange>,
    freed: u64,
}

impl FreedRanges {
    /// Remembers a range; the oldest is forgotten if there are too many.
    pub fn note(&self, base: u64, len: u64) {
        let mut log = self.log.lock();
        if log.ranges.len() == REMEMBERED {
            log.ranges.pop_front();
        }
        log.freed += 1;
        let since = log.freed;
        log.ranges.push_back(FreedRange { base, len, since });
    }

    /// Forgets what overlaps a range.
    pub fn forget(&self, base: u64, len: u64) {
        let overlaps = |range: &FreedRange| range.base < base + len && base < range.base + range.len;
        self.log.lock().ranges.retain(|range| !overlaps(range));
    }

    /// The range that was freed last among those that held `address`.
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
    fn the_latest_range_counts() {
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
    fn old_ranges_are_forgotten() {
        let freed = FreedRanges::default();
        (0..=REMEMBERED as u64).for_each(|n| freed.note(n * 16, 16));
        assert_eq!(freed.find(0), None);
        assert_eq!(freed.find(16).map(|range| range.since), Some(REMEMBERED as u64 - 1));
    }
}
