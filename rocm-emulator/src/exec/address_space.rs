//! Memory ranges that a launch may access. A device address is a host address.
use super::report::{freed_text, nearest_text};
use super::{FreedRange, FreedRanges, Missing, RangeHistories, RangeHistory};
use std::sync::Arc;

/// Flat addresses from here to +4 GiB are the workgroup's LDS.
pub const SHARED_APERTURE: u64 = 0x0001_0000_0000_0000;
/// Flat addresses from here to +4 GiB are the lane's private memory.
pub const PRIVATE_APERTURE: u64 = 0x0002_0000_0000_0000;

/// One live range of device-visible memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub base: u64,
    /// Size in bytes.
    pub len: u64,
    /// False for code and constant data.
    pub writable: bool,
}

impl Range {
    /// One past the last address.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.len)
    }

    /// Returns true if the `bytes` bytes from `address` on lie entirely in this range.
    #[inline(always)]
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && address - self.base <= self.len && bytes <= self.len - (address - self.base)
    }
}

/// A snapshot of the live ranges, sorted by address. Ranges must not overlap.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    ranges: Vec<Range>,
    /// Recently freed ranges, named in error messages.
    freed: Option<Arc<FreedRanges>>,
    /// Write histories for the checks. Ranges without one count as written by the host.
    histories: RangeHistories,
}

impl AddressSpace {
    /// Builds an address space from ranges in any order; empty ranges are dropped.
    ///
    /// # Safety
    /// Until the last launch that uses this value has returned, every range must be mapped host memory:
    /// readable, and writable if `writable` is set. The host must not hold references to its contents,
    /// because kernels read and write them from several threads.
    pub unsafe fn from_ranges(mut ranges: Vec<Range>) -> Self {
        ranges.retain(|range| range.len > 0);
        ranges.sort_unstable_by_key(|range| range.base);
        Self { ranges, freed: None, histories: RangeHistories::new() }
    }

    /// Adds the freed ranges, so that a use after free is reported as such.
    pub fn with_freed(mut self, freed: Arc<FreedRanges>) -> Self {
        self.freed = Some(freed);
        self
    }

    /// Adds the ranges' histories, which the checks need.
    pub fn with_histories(mut self, mut histories: RangeHistories) -> Self {
        histories.sort_unstable_by_key(|(base, _)| *base);
        self.histories = histories;
        self
    }

    /// Returns the history of the range that begins at `base`, if there is one.
    pub fn history(&self, base: u64) -> Option<&RangeHistory> {
        let index = self.histories.binary_search_by_key(&base, |(base, _)| *base).ok()?;
        Some(&self.histories[index].1)
    }

    /// Returns the unwritten bytes of a live range; `None` if all are written or nothing is recorded.
    pub fn missing(&self, address: u64, bytes: u64) -> Option<Missing> {
        let range = self.find(address)?;
        self.history(range.base)?.written.as_ref()?.missing(address - range.base, bytes)
    }

    /// Records that the host writes a live range of memory.
    pub fn note_written(&self, address: u64, bytes: u64) {
        if let Some(range) = self.find(address)
            && let Some(written) = self.history(range.base).and_then(|history| history.written.as_ref())
        {
            written.set(address - range.base, bytes);
        }
    }

    /// Returns the freed allocation that contained `address`, if it is still recorded.
    pub fn freed_at(&self, address: u64) -> Option<FreedRange> {
        self.freed.as_ref()?.find(address)
    }

    /// Describes an access outside every range: the kind of error, and the nearest or freed allocation.
    pub fn outside(&self, address: u64, bytes: u64) -> (&'static str, String) {
        match self.freed_at(address) {
            // An access that leaves live memory is out of bounds, even if it continues into freed memory.
            Some(freed) if self.find(address).is_none() => ("use after free", freed_text(freed, address)),
            _ => ("out of bounds", nearest_text(self.nearest(address), address, bytes)),
        }
    }

    /// Ranges, sorted by address.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the range that contains the byte at `address`.
    pub fn find(&self, address: u64) -> Option<Range> {
        let after = self.ranges.partition_point(|range| range.base <= address);
        let range = *self.ranges.get(after.checked_sub(1)?)?;
        range.holds(address, 1).then_some(range)
    }

    /// Returns the range that starts or ends closest to `address`, for error messages.
    pub fn nearest(&self, address: u64) -> Option<Range> {
        let after = self.ranges.partition_point(|range| range.base <= address);
        let below = after.checked_sub(1).and_then(|i| self.ranges.get(i));
        let above = self.ranges.get(after);
        match (below, above) {
            (Some(b), Some(a)) => {
                let to_below = address.saturating_sub(b.end());
                Some(if to_below <= a.base - address { *b } else { *a })
            }
            (b, a) => b.or(a).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> AddressSpace {
        let range = |base, len| Range { base, len, writable: true };
        // SAFETY: the ranges are only looked up, never accessed.
        unsafe { AddressSpace::from_ranges(vec![range(500, 10), range(100, 50), range(300, 0)]) }
    }

    #[test]
    fn find_returns_the_range_that_contains_the_address() {
        let space = space();
        assert_eq!(space.ranges().len(), 2);
        assert_eq!(space.find(100).map(|r| r.base), Some(100));
        assert_eq!(space.find(149).map(|r| r.base), Some(100));
        assert_eq!(space.find(150), None);
        assert_eq!(space.find(99), None);
        assert_eq!(space.find(509).map(|r| r.base), Some(500));
        assert_eq!(space.find(u64::MAX), None);
    }

    #[test]
    fn nearest_returns_the_closest_range() {
        let space = space();
        assert_eq!(space.nearest(0).map(|r| r.base), Some(100));
        assert_eq!(space.nearest(160).map(|r| r.base), Some(100));
        assert_eq!(space.nearest(499).map(|r| r.base), Some(500));
        assert_eq!(space.nearest(9999).map(|r| r.base), Some(500));
        assert_eq!(AddressSpace::default().nearest(1), None);
    }

    #[test]
    fn an_access_must_lie_entirely_in_its_range() {
        let range = Range { base: 100, len: 8, writable: true };
        assert!(range.holds(100, 8));
        assert!(!range.holds(101, 8));
        assert!(!range.holds(99, 1));
        assert!(range.holds(107, 1));
        assert!(!range.holds(u64::MAX, 4));
    }
}
