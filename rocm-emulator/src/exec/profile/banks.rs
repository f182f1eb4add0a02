//! Bank conflicts: LDS serves 32 banks of 4 bytes at a time, one dword of each.
//!
//! An access is cut into steps of at most 32 dwords, in the order of lanes: 32 lanes of 4 bytes, 16 of 8, 8 of more.
//! A step takes as many turns as the busiest bank has different dwords; those after the first are conflicts.
use crate::exec::memory::Touch;

const BANKS: usize = 32;
/// Dwords of a step: a lane's 4, and one more where they are not aligned.
const MOST_DWORDS: usize = 64;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    /// Steps with an active lane.
    pub(super) fewest: u64,
    /// Further turns.
    pub(super) conflicts: u64,
}

pub(super) fn of<const W: usize>(touch: &Touch<W>) -> Steps {
    let lanes_of_a_step = match touch.bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let mut steps = Steps::default();
    for first in (0..W).step_by(lanes_of_a_step) {
        let (mut dwords, mut count) = ([0; MOST_DWORDS], 0);
        for lane in (first..first + lanes_of_a_step).filter(|lane| touch.lanes >> lane & 1 != 0) {
            let address = touch.addresses[lane];
            for dword in address >> 2..=(address + touch.bytes - 1) >> 2 {
                dwords[count] = dword;
                count += 1;
            }
        }
        if count == 0 {
            continue;
        }
        let dwords = &mut dwords[..count];
        dwords.sort_unstable();
        let mut of_bank = [0; BANKS];
        for (index, dword) in dwords.iter().enumerate() {
            if index == 0 || dwords[index - 1] != *dword {
                of_bank[*dword as usize % BANKS] += 1;
            }
        }
        steps.fewest += 1;
        steps.conflicts += of_bank.into_iter().max().unwrap_or(1) - 1;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Access;
    use crate::exec::memory::MemoryKind;

    fn steps<const W: usize>(lanes: u64, bytes: u64, address: impl Fn(u64) -> u64) -> (u64, u64) {
        let addresses = &std::array::from_fn::<u64, W, _>(|lane| address(lane as u64));
        let steps =
            of(&Touch { memory_kind: MemoryKind::Lds, access: Access::Load, lanes, addresses, bytes });
        (steps.fewest, steps.conflicts)
    }

    const ALL: u64 = 0xffff_ffff;

    #[test]
    fn neighbours_do_not_conflict() {
        assert_eq!(steps::<32>(ALL, 4, |lane| 4 * lane), (1, 0));
        assert_eq!(steps::<64>(u64::MAX, 4, |lane| 4 * lane), (2, 0));
        assert_eq!(steps::<32>(ALL, 8, |lane| 8 * lane), (2, 0));
        assert_eq!(steps::<32>(ALL, 16, |lane| 16 * lane), (4, 0));
        assert_eq!(steps::<32>(ALL, 1, |lane| lane), (1, 0));
    }

    #[test]
    fn strides_meet_in_a_bank() {
        for (stride, conflicts) in [(2, 1), (4, 3), (8, 7), (16, 15), (32, 31), (33, 0), (3, 0)] {
            assert_eq!(steps::<32>(ALL, 4, |lane| 4 * stride * lane), (1, conflicts), "stride {stride}");
        }
        // Half of the lanes: half of the meetings.
        assert_eq!(steps::<32>(0xffff, 4, |lane| 128 * lane), (1, 15));
    }

    #[test]
    fn the_same_dword_is_no_conflict() {
        assert_eq!(steps::<32>(ALL, 4, |_| 64), (1, 0));
        assert_eq!(steps::<32>(ALL, 4, |lane| lane % 2 * 128), (1, 1));
    }

    #[test]
    fn unaligned_accesses_touch_a_further_dword() {
        assert_eq!(steps::<32>(1, 16, |_| 2), (1, 0));
        assert_eq!(steps::<32>(ALL, 4, |lane| 2 + 4 * lane), (1, 1));
    }
}
