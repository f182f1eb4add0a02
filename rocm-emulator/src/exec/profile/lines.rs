//! Memory coalescing: the number of cache lines that the lanes of one access touch.
use crate::exec::memory::Accesses;

/// Base-2 logarithms of the line sizes.
const SHIFTS: [u32; 2] = [6, 7];

/// Numbers of lines of 64 bytes and of 128 bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// Distinct lines that the access touches.
    pub(super) touched: [u64; 2],
    /// Minimum number of lines that could hold the distinct bytes of the access.
    pub(super) minimum: [u64; 2],
}

pub(super) fn count_lines<const W: usize>(accesses: &Accesses<W>) -> Lines {
    let mut starts = [0; W];
    let mut count = 0;
    for lane in (0..W).filter(|lane| accesses.lanes >> lane & 1 != 0) {
        starts[count] = accesses.addresses[lane];
        count += 1;
    }
    let starts = &mut starts[..count];
    starts.sort_unstable();
    let mut lines = Lines::default();
    // End of the counted bytes, and the last counted line of each size.
    let (mut end, mut last) = (0, [None; 2]);
    let mut bytes = 0;
    for &start in starts.iter() {
        let own_end = start.saturating_add(accesses.bytes);
        bytes += own_end - start.max(end).min(own_end);
        end = own_end;
        for (size, shift) in SHIFTS.into_iter().enumerate() {
            let (first, final_line) = (start >> shift, (own_end - 1) >> shift);
            let next = last[size].map_or(first, |last: u64| first.max(last + 1));
            lines.touched[size] += (final_line + 1).saturating_sub(next);
            last[size] = Some(final_line);
        }
    }
    lines.minimum = SHIFTS.map(|shift| bytes.div_ceil(1 << shift));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Access;
    use crate::exec::memory::MemoryKind;

    fn lines(lanes: u64, bytes: u64, address: impl Fn(u64) -> u64) -> Lines {
        let addresses = &std::array::from_fn::<u64, 32, _>(|lane| address(lane as u64));
        let (memory_kind, access) = (MemoryKind::Global, Access::Load);
        count_lines(&Accesses { memory_kind, access, lanes, addresses, bytes })
    }

    const ALL: u64 = 0xffff_ffff;

    fn lines_of(touched: [u64; 2], minimum: [u64; 2]) -> Lines {
        Lines { touched, minimum }
    }

    #[test]
    fn consecutive_lanes_share_lines() {
        assert_eq!(lines(ALL, 4, |lane| 0x1000 + 4 * lane), lines_of([2, 1], [2, 1]));
        assert_eq!(lines(ALL, 16, |lane| 0x1000 + 16 * lane), lines_of([8, 4], [8, 4]));
        // The order of lanes does not matter.
        assert_eq!(lines(ALL, 4, |lane| 0x1000 + 4 * (31 - lane)), lines_of([2, 1], [2, 1]));
    }

    #[test]
    fn unaligned_accesses_touch_one_more_line() {
        assert_eq!(lines(ALL, 4, |lane| 0x1004 + 4 * lane), lines_of([3, 2], [2, 1]));
        // One element crosses a boundary of both line sizes.
        assert_eq!(lines(1, 8, |_| 0x107c), lines_of([2, 2], [1, 1]));
    }

    #[test]
    fn strided_lanes_touch_separate_lines() {
        assert_eq!(lines(ALL, 4, |lane| 0x1000 + 256 * lane), lines_of([32, 32], [2, 1]));
        assert_eq!(lines(ALL, 4, |lane| 0x1000 + 64 * lane), lines_of([32, 16], [2, 1]));
        assert_eq!(lines(0xff, 4, |lane| 0x1000 + 128 * lane), lines_of([8, 8], [1, 1]));
    }

    #[test]
    fn repeated_bytes_count_once() {
        assert_eq!(lines(ALL, 4, |_| 0x1000), lines_of([1, 1], [1, 1]));
        assert_eq!(lines(ALL, 16, |lane| 0x1000 + 4 * lane), lines_of([3, 2], [3, 2]));
        assert_eq!(lines(ALL, 4, |lane| 0x1000 + lane / 16 * 1024), lines_of([2, 2], [1, 1]));
    }
}
