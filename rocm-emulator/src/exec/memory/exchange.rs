//! LDS instructions that move data between lanes, and the append/consume counter.
use super::{Lds, MemoryResult, MemoryStep, Region, write_lanes};
use crate::exec::Access;
use crate::exec::vector::expand;
use crate::exec::wave::Wave;
use crate::isa::sreg;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Exchange {
    /// Lane i sends to the lane that its address selects within i's aligned group of `group_size` lanes.
    Permute {
        group_size: usize,
    },
    /// Lane i reads from the lane that its address selects within i's group.
    BackwardPermute {
        group_size: usize,
    },
    /// Lanes read from other lanes in a pattern that the 16-bit offset encodes.
    Swizzle,
    /// Adds (`Consume`: subtracts) the number of active lanes at M0 + offset; all lanes get the old value.
    Append,
    Consume,
}

/// Returns the lane that `lane` reads from in a ds_swizzle pattern.
fn swizzle_source(pattern: u32, lane: u32) -> u32 {
    let (low, high) = (lane & 31, lane & !31);
    let source = if pattern >= 0xe000 {
        // Butterfly order of a fast Fourier transform.
        let mask = pattern & 31;
        ((low.reverse_bits() >> 27) >> mask.count_ones()) | low & mask
    } else if pattern >= 0xc000 {
        // Rotation; the lane bits in the mask are preserved.
        let (mask, distance) = (pattern & 31, pattern >> 5 & 31);
        let rotated = if pattern & 0x400 != 0 { low.wrapping_sub(distance) } else { low + distance };
        low & mask | rotated & !mask & 31
    } else if pattern & 0x8000 != 0 {
        // A permutation of every four lanes.
        low & !3 | pattern >> (2 * (low & 3)) & 3
    } else {
        ((low & pattern) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31)
    };
    high | source & 31
}

impl Exchange {
    pub(super) fn run<const W: usize>(
        self,
        step: &MemoryStep,
        wave: &mut Wave<W>,
        lds: &mut Lds,
    ) -> MemoryResult<()> {
        let exec = wave.exec();
        let offset = step.offset as u32;
        let is_active = |lane: usize| exec >> lane & 1 != 0;
        let address = step.address.map_or([0; W], |register| wave.vgpr[usize::from(register)].0);
        let data = wave.vgpr[usize::from(step.data[0])].0;
        // Group sizes are powers of two.
        let selected_lane = |lane: usize, group_size: usize| {
            let within = group_size.min(W) - 1;
            lane & !within | (address[lane].wrapping_add(offset) as usize / 4) & within
        };
        let mut out = [0; W];
        match self {
            Self::Permute { group_size } => {
                for lane in (0..W).filter(|&lane| is_active(lane)) {
                    out[selected_lane(lane, group_size)] = data[lane];
                }
            }
            Self::BackwardPermute { group_size } => {
                // Inactive lanes send zero.
                let (mut sent, mask) = (data, expand::<W>(exec));
                sent.iter_mut().zip(mask).for_each(|(value, mask)| *value &= mask);
                for lane in 0..W {
                    out[lane] = sent[selected_lane(lane, group_size) % W];
                }
            }
            Self::Swizzle => {
                for (lane, value) in out.iter_mut().enumerate() {
                    let source = swizzle_source(offset, lane as u32) as usize;
                    *value = if source < W && is_active(source) { address[source] } else { 0 };
                }
            }
            Self::Append | Self::Consume => {
                let address = (wave.sgpr[usize::from(sreg::M0)] & 0xffff).wrapping_add(offset) & !3;
                let pointer = lds.locate(0, u64::from(address), 4, Access::Atomic)?;
                // SAFETY: the region permits reading and writing these 4 bytes, which are aligned.
                let counter = unsafe { AtomicU32::from_ptr(pointer.cast()) };
                let lanes = exec.count_ones();
                out = [match self {
                    Self::Append => counter.fetch_add(lanes, Ordering::Relaxed),
                    _ => counter.fetch_sub(lanes, Ordering::Relaxed),
                }; W];
            }
        }
        if let Some(dst) = step.dst {
            write_lanes(&mut wave.vgpr[usize::from(dst)], &out, exec);
        }
        Ok(())
    }
}
