//! Last accesses of each byte of memory, to detect data races.
use super::clock::{Clock, Record, Relation};
use crate::exec::Access;
use std::collections::HashMap;

/// Bytes whose cells are allocated together.
const PAGE: u64 = 4096;

/// Last accesses of 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Last plain store. One is enough: a second store that is not ordered with it has been reported.
    store: Record,
    atomics: [Record; 2],
    loads: [Record; 2],
}

/// The cells of a page. Each covers four bytes until an access is finer.
#[derive(Debug)]
struct Page {
    /// Base-2 logarithm of the bytes per cell.
    shift: u32,
    cells: Vec<Cell>,
}

impl Page {
    fn new() -> Self {
        Self { shift: 2, cells: vec![Cell::default(); PAGE as usize / 4] }
    }

    /// Splits the cells until `address` lies on a boundary between two.
    fn refine(&mut self, address: u64) {
        let shift = address.trailing_zeros().min(self.shift);
        let parts = 1 << (self.shift - shift);
        if parts > 1 {
            self.cells = self.cells.iter().flat_map(|cell| std::iter::repeat_n(*cell, parts)).collect();
            self.shift = shift;
        }
    }
}

/// Cells of global memory or of a workgroup's LDS.
#[derive(Debug, Default)]
pub(super) struct Cells {
    pages: Vec<Page>,
    /// Maps a page number to its index in `pages`.
    by_number: HashMap<u64, usize>,
    /// Number and index of the page that was used last.
    recent: Option<(u64, usize)>,
}

impl Cells {
    fn page(&mut self, number: u64) -> &mut Page {
        let index = match self.recent {
            Some((recent, index)) if recent == number => index,
            _ => {
                let index = *self.by_number.entry(number).or_insert(self.pages.len());
                if index == self.pages.len() {
                    self.pages.push(Page::new());
                }
                self.recent = Some((number, index));
                index
            }
        };
        &mut self.pages[index]
    }

    /// Records an access and returns an earlier, unordered one that conflicts with it. A conflict of two
    /// stores is reported only if there is no other.
    pub(super) fn access(
        &mut self,
        clock: &Clock,
        access: Access,
        address: u64,
        bytes: u64,
        now: Record,
    ) -> Option<Conflict> {
        let mut store_conflict: Option<Conflict> = None;
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let page = self.page(at / PAGE);
            let stop = end.min((at / PAGE + 1) * PAGE);
            page.refine(at);
            page.refine(stop);
            let cell = |address: u64| ((address - at / PAGE * PAGE) >> page.shift) as usize;
            let (first, width) = (cell(at), 1 << page.shift);
            for (cell, start) in page.cells[first..cell(stop)].iter_mut().zip((at..).step_by(width)) {
                let Some((earlier, record)) = find_race(clock, cell, access, now) else { continue };
                let end = start + width as u64;
                let found = Conflict { access: earlier, record, start, end };
                if (access, earlier) != (Access::Store, Access::Store) {
                    return Some(found);
                }
                store_conflict.get_or_insert(found).end = end;
            }
            at = stop;
        }
        store_conflict
    }
}

/// An earlier access that is not ordered with the present one, and the bytes that both access. For two stores
/// the range extends from the first to the last of these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) access: Access,
    pub(super) record: Record,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Returns the earlier access of a cell that races with the present one, and records the present one. Atomics
/// don't race with each other, nor loads with compare-and-swaps: such a loop begins with a plain load.
fn find_race(clock: &Clock, cell: &mut Cell, access: Access, now: Record) -> Option<(Access, Record)> {
    let unordered = |record: &&Record| clock.relation(**record) != Relation::Before;
    let store = Some(&cell.store).filter(unordered).map(|record| (Access::Store, *record));
    let atomic = |record: &Record| (Access::Atomic, *record);
    let load = |record: &Record| (Access::Load, *record);
    let mut atomics = cell.atomics.iter().filter(unordered);
    let mut loads = cell.loads.iter().filter(unordered);
    let race = match access {
        Access::Load => store.or_else(|| atomics.find(|record| !record.is_compare()).map(atomic)),
        Access::Store => store.or_else(|| atomics.next().map(atomic)).or_else(|| loads.next().map(load)),
        Access::Atomic => store.or_else(|| loads.find(|_| !now.is_compare()).map(load)),
    };
    match access {
        Access::Load => clock.add_record(&mut cell.loads, now),
        Access::Store => cell.store = now,
        Access::Atomic => clock.add_record(&mut cell.atomics, now),
    }
    race
}

#[cfg(test)]
mod tests {
    use super::super::clock::Kind;
    use super::*;

    const GROUP: [u32; 3] = [0, 0, 0];
    const OTHER: [u32; 3] = [1, 0, 0];

    /// Runs accesses of (workgroup, wave) to bytes; an empty range stands for a barrier of the workgroup.
    /// Returns the index of the access that raced, and the kind, workgroup and wave of the earlier one.
    fn race(
        steps: &[([u32; 3], u32, Access, std::ops::Range<u64>)],
    ) -> Option<(usize, Access, [u32; 3], u32)> {
        let (mut clock, mut cells) = (Clock::default(), Cells::default());
        for (index, (group, wave, access, bytes)) in steps.iter().enumerate() {
            if bytes.is_empty() {
                clock.barrier(*group);
                continue;
            }
            clock.resume_wave(*group, *wave);
            clock.set_instruction(4 * index as u32, Kind::Other);
            let now = clock.record(*wave);
            let found = cells.access(&clock, *access, bytes.start, bytes.end - bytes.start, now);
            if let Some(Conflict { access: kind, record: earlier, start, end }) = found {
                assert!(bytes.contains(&start) && end <= bytes.end);
                assert!(earlier.offset() < 4 * index as u64);
                let (group, wave) = clock.workgroup_and_wave(earlier);
                assert_eq!(earlier.lane(), wave);
                return Some((index, kind, group, wave));
            }
        }
        None
    }

    #[test]
    fn waves_of_a_workgroup_race_between_barriers() {
        use Access::{Load, Store};
        let touch = |wave, access, bytes| (GROUP, wave, access, bytes);
        let barrier = (GROUP, 0, Load, 0..0);
        assert_eq!(race(&[touch(0, Store, 0..4), touch(1, Load, 0..4)]), Some((1, Store, GROUP, 0)));
        assert_eq!(race(&[touch(0, Load, 0..4), touch(1, Store, 0..4)]), Some((1, Load, GROUP, 0)));
        assert_eq!(race(&[touch(0, Store, 0..4), touch(1, Store, 0..4)]), Some((1, Store, GROUP, 0)));
        assert_eq!(race(&[touch(0, Load, 0..4), touch(1, Load, 0..4)]), None);
        assert_eq!(race(&[touch(0, Store, 0..4), barrier.clone(), touch(1, Load, 0..4)]), None);
        assert_eq!(race(&[touch(0, Store, 0..4), touch(0, Load, 0..4)]), None);
        // The conflict is with the reader before the last one.
        let readers = [touch(0, Load, 0..4), touch(1, Load, 0..4), touch(1, Store, 0..4)];
        assert_eq!(race(&readers), Some((2, Load, GROUP, 0)));
        // A barrier orders one of two readers only.
        let late = [touch(0, Load, 0..4), barrier, touch(1, Load, 0..4), touch(0, Store, 0..4)];
        assert_eq!(race(&late), Some((3, Load, GROUP, 1)));
    }

    #[test]
    fn adjacent_bytes_do_not_race() {
        use Access::{Load, Store};
        let touch = |wave, access, bytes| (GROUP, wave, access, bytes);
        let apart =
            [touch(0, Store, 4..5), touch(1, Store, 5..6), touch(2, Store, 6..8), touch(3, Store, 2..4)];
        assert_eq!(race(&apart), None);
        let wide = [touch(0, Store, 5..6), touch(1, Load, 4..8)];
        assert_eq!(race(&wide), Some((1, Store, GROUP, 0)));
        // The whole word is written before its cell is split.
        let split = [touch(0, Store, 4..8), touch(0, Store, 6..7), touch(1, Load, 7..8)];
        assert_eq!(race(&split), Some((2, Store, GROUP, 0)));
        let pages = [touch(0, Store, 4094..4095), touch(1, Load, 4090..4100)];
        assert_eq!(race(&pages), Some((1, Store, GROUP, 0)));
        assert_eq!(race(&[touch(0, Store, 4097..4098), touch(1, Load, 4090..4097)]), None);
    }

    #[test]
    fn barriers_do_not_order_workgroups() {
        use Access::{Load, Store};
        let barrier = (GROUP, 0, Load, 0..0);
        let touch = |group, access| (group, 0, access, 0..4);
        assert_eq!(
            race(&[touch(GROUP, Store), barrier.clone(), touch(OTHER, Load)]),
            Some((2, Store, GROUP, 0))
        );
        assert_eq!(race(&[touch(GROUP, Load), barrier, touch(OTHER, Store)]), Some((2, Load, GROUP, 0)));
        let readers = [touch(GROUP, Load), touch(OTHER, Load), touch(OTHER, Store)];
        assert_eq!(race(&readers), Some((2, Load, GROUP, 0)));
        // The workgroup that read first writes after the other has read.
        let readers = [touch(GROUP, Load), touch(OTHER, Load), touch(GROUP, Store)];
        assert_eq!(race(&readers), Some((2, Load, OTHER, 0)));
    }

    #[test]
    fn atomics_race_with_plain_accesses_only() {
        use Access::{Atomic, Load, Store};
        let touch = |group, wave, access| (group, wave, access, 0..4);
        assert_eq!(race(&[touch(GROUP, 0, Atomic), touch(GROUP, 1, Atomic), touch(OTHER, 0, Atomic)]), None);
        assert_eq!(race(&[touch(GROUP, 0, Atomic), touch(GROUP, 1, Load)]), Some((1, Atomic, GROUP, 0)));
        assert_eq!(race(&[touch(GROUP, 0, Load), touch(GROUP, 1, Atomic)]), Some((1, Load, GROUP, 0)));
        assert_eq!(race(&[touch(GROUP, 0, Atomic), touch(OTHER, 0, Load)]), Some((1, Atomic, GROUP, 0)));
        assert_eq!(race(&[touch(GROUP, 0, Load), touch(OTHER, 0, Atomic)]), Some((1, Load, GROUP, 0)));
        assert_eq!(race(&[touch(GROUP, 0, Atomic), touch(OTHER, 0, Store)]), Some((1, Atomic, GROUP, 0)));
        // One workgroup clears a counter that all increment.
        let cleared = [touch(GROUP, 0, Store), touch(GROUP, 0, Atomic), touch(OTHER, 0, Atomic)];
        assert_eq!(race(&cleared), Some((2, Store, GROUP, 0)));
        let late = [touch(GROUP, 0, Atomic), touch(OTHER, 0, Atomic), touch(OTHER, 0, Store)];
        assert_eq!(race(&late), Some((2, Atomic, GROUP, 0)));
    }

    #[test]
    fn loads_do_not_race_with_compare_and_swaps() {
        use Access::{Atomic, Load, Store};
        for (first, second, races) in [
            (Load, Atomic, false),
            (Atomic, Load, false),
            (Atomic, Atomic, false),
            (Store, Atomic, true),
            (Atomic, Store, true),
        ] {
            let (mut clock, mut cells) = (Clock::default(), Cells::default());
            let mut found = None;
            for (group, access) in [(GROUP, first), (OTHER, second)] {
                clock.resume_wave(group, 0);
                clock.set_instruction(0, if access == Atomic { Kind::Compare } else { Kind::Other });
                found = cells.access(&clock, access, 0, 4, clock.record(0));
            }
            assert_eq!(found.is_some(), races, "{first}, {second}");
        }
    }
}
