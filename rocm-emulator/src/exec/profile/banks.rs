//! Bank conflicts of LDS, which has 32 banks of 4 bytes and serves one dword of each bank per cycle.
//!
//! An access is split into steps of at most 32 dwords, in lane order: 32 lanes of up to 4 bytes, 16 of 8, 8
//! of more. A step takes one cycle per different dword of its busiest bank. All but the first are conflicts.
use crate::exec::memory::Accesses;

const BANKS: usize = 32;
/// Upper bound of the dwords per step. A lane has up to 4, and one more if they are not aligned.
const MAX_DWORDS: usize = 64;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    /// Steps with an active lane, which is the number of cycles without conflicts.
    pub(super) conflict_free: u64,
    /// Additional cycles because of conflicts.
    pub(super) conflicts: u64,
}

pub(super) fn count_steps<const W: usize>(accesses: &Accesses<W>) -> Steps {
    let lanes_of_a_step = match accesses.bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let mut steps = Steps::default();
    for first in (0..W).step_by(lanes_of_a_step) {
        let (mut dwords, mut count) = ([0; MAX_DWORDS], 0);
        for lane in (first..first + lanes_of_a_step).filter(|lane| accesses.lanes >> lane & 1 != 0) {
            let address = accesses.addresses[lane];
            for dword in address >> 2..=(address + accesses.bytes - 1) >> 2 {
                dwords[count] = dword;
                count += 1;
            }
        }
        if count == 0 {
            continue;
        }
        let dwords = &mut dwords[..count];
        dwords.sort_unstable();
        let mut dwords_per_bank = [0; BANKS];
        for (index, dword) in dwords.iter().enumerate() {
            if index == 0 || dwords[index - 1] != *dword {
                dwords_per_bank[*dword as usize % BANKS] += 1;
            }
        }
        steps.conflict_free += 1;
        steps.conflicts += dwords_per_bank.into_iter().max().unwrap_or(1) - 1;
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
        let (memory_kind, access) = (MemoryKind::Lds, Access::Load);
        let steps = count_steps(&Accesses { memory_kind, access, lanes, addresses, bytes });
        (steps.conflict_free, steps.conflicts)
    }

    const ALL: u64 = 0xffff_ffff;

    #[test]
    fn consecutive_lanes_do_not_conflict() {
        assert_eq!(steps::<32>(ALL, 4, |lane| 4 * lane), (1, 0));
        assert_eq!(steps::<64>(u64::MAX, 4, |lane| 4 * lane), (2, 0));
        assert_eq!(steps::<32>(ALL, 8, |lane| 8 * lane), (2, 0));
        assert_eq!(steps::<32>(ALL, 16, |lane| 16 * lane), (4, 0));
        assert_eq!(steps::<32>(ALL, 1, |lane| lane), (1, 0));
    }

    #[test]
    fn strides_conflict() {
        for (stride, conflicts) in [(2, 1), (4, 3), (8, 7), (16, 15), (32, 31), (33, 0), (3, 0)] {
            assert_eq!(steps::<32>(ALL, 4, |lane| 4 * stride * lane), (1, conflicts), "stride {stride}");
        }
        // Half of the lanes have half of the conflicts.
        assert_eq!(steps::<32>(0xffff, 4, |lane| 128 * lane), (1, 15));
    }

    #[test]
    fn accesses_to_the_same_dword_do_not_conflict() {
        assert_eq!(steps::<32>(ALL, 4, |_| 64), (1, 0));
        assert_eq!(steps::<32>(ALL, 4, |lane| lane % 2 * 128), (1, 1));
    }

    #[test]
    fn unaligned_accesses_use_an_additional_dword() {
        assert_eq!(steps::<32>(1, 16, |_| 2), (1, 0));
        assert_eq!(steps::<32>(ALL, 4, |lane| 2 + 4 * lane), (1, 1));
    }
}
