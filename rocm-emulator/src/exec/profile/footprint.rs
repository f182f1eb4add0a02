//! Distinct cache lines of 128 bytes that a launch accesses: the traffic to memory behind an ideal cache.
use super::Profile;
use crate::exec::Access;
use crate::exec::memory::Accesses;
use std::collections::HashMap;

const LINE_SHIFT: u32 = 7;
/// Base-2 logarithm of the lines per page, which are the bits of a mask.
const PAGE_SHIFT: u32 = 6;

/// Lines loaded from and lines stored to, each as bit masks by page.
#[derive(Debug, Default)]
pub(in crate::exec) struct Footprint([HashMap<u64, u64>; 2]);

impl Footprint {
    pub(super) fn record<const W: usize>(&mut self, accesses: &Accesses<W>) {
        let Self([loaded, stored]) = self;
        if accesses.access != Access::Store {
            mark(loaded, accesses);
        }
        if accesses.access != Access::Load {
            mark(stored, accesses);
        }
    }

    /// Adds the lines that another part of the launch accessed.
    pub(in crate::exec) fn add(&mut self, other: Self) {
        for (pages, others) in self.0.iter_mut().zip(other.0) {
            if pages.is_empty() {
                *pages = others;
            } else {
                others.into_iter().for_each(|(page, mask)| *pages.entry(page).or_default() |= mask);
            }
        }
    }

    /// Stores the numbers of lines in the profile.
    pub(in crate::exec) fn count(&self, profile: &mut Profile) {
        let lines = |pages: &HashMap<u64, u64>| pages.values().map(|mask| u64::from(mask.count_ones())).sum();
        [profile.lines_loaded, profile.lines_stored] = [lines(&self.0[0]), lines(&self.0[1])];
    }
}

/// Marks the lines of an access. Consecutive lanes in one page are combined into one map update.
fn mark<const W: usize>(pages: &mut HashMap<u64, u64>, accesses: &Accesses<W>) {
    let (mut page, mut mask) = (0, 0);
    let mut write = |page, mask| {
        if mask != 0 {
            *pages.entry(page).or_default() |= mask;
        }
    };
    for lane in (0..W).filter(|lane| accesses.lanes >> lane & 1 != 0) {
        let start = accesses.addresses[lane];
        for line in start >> LINE_SHIFT..=start.saturating_add(accesses.bytes - 1) >> LINE_SHIFT {
            if line >> PAGE_SHIFT != page {
                write(page, mask);
                (page, mask) = (line >> PAGE_SHIFT, 0);
            }
            mask |= 1 << (line % (1 << PAGE_SHIFT));
        }
    }
    write(page, mask);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::memory::MemoryKind;

    fn footprint_of(access: Access, lanes: u64, bytes: u64, address: impl Fn(u64) -> u64) -> Footprint {
        let addresses = &std::array::from_fn::<u64, 32, _>(|lane| address(lane as u64));
        let mut footprint = Footprint::default();
        footprint.record(&Accesses { memory_kind: MemoryKind::Global, access, lanes, addresses, bytes });
        footprint
    }

    fn lines(footprint: &Footprint) -> [u64; 2] {
        let mut profile = Profile::default();
        footprint.count(&mut profile);
        [profile.lines_loaded, profile.lines_stored]
    }

    const ALL: u64 = 0xffff_ffff;

    #[test]
    fn repeated_lines_count_once() {
        let mut all = footprint_of(Access::Load, ALL, 4, |lane| 4 * lane);
        assert_eq!(lines(&all), [1, 0]);
        all.add(footprint_of(Access::Load, ALL, 4, |lane| 4 * lane));
        assert_eq!(lines(&all), [1, 0]);
        all.add(footprint_of(Access::Load, ALL, 16, |lane| 64 + 16 * lane));
        assert_eq!(lines(&all), [5, 0]);
        all.add(footprint_of(Access::Store, ALL, 16, |lane| 16 * lane));
        assert_eq!(lines(&all), [5, 4]);
        all.add(footprint_of(Access::Atomic, 1, 4, |_| 1 << 40));
        assert_eq!(lines(&all), [6, 5]);
    }

    #[test]
    fn accesses_cross_lines_and_pages() {
        // The access covers the last byte of a page and the first byte of the next.
        assert_eq!(lines(&footprint_of(Access::Load, 1, 2, |_| (64 << 7) - 1)), [2, 0]);
        assert_eq!(lines(&footprint_of(Access::Load, ALL, 4, |lane| lane << 13)), [32, 0]);
        // Inactive lanes access nothing.
        assert_eq!(lines(&footprint_of(Access::Store, 0b101, 4, |lane| lane << 7)), [0, 2]);
    }
}
