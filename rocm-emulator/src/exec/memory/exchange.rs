//! LDS instructions that move data between lanes, and the append counter.
use super::{Lds, MemoryResult, MemoryStep, Region, write_lanes};
use crate::exec::Access;
use crate::exec::wave::Wave;
use crate::isa::sreg;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Exchange {
    /// Lane i sends to the lane that its address names among the aligned `reach` lanes that i belongs to.
    Permute {
        reach: usize,
    },
    /// Lane i takes from the lane that its address names among those.
    BackwardPermute {
        reach: usize,
    },
    /// A fixed pattern in the 16-bit offset.
    Swizzle,
    /// Adds or subtracts the number of active lanes at M0 + offset; every lane gets the old value.
    Append,
    Consume,
}

/// The lane that `lane` takes from, by the pattern of ds_swizzle.
fn swizzled(pattern: u32, lane: u32) -> u32 {
    let (low, high) = (lane & 31, lane & !31);
    let source = if pattern >= 0xe000 {
        // Butterfly order of an FFT.
        let mask = pattern & 31;
        ((low.reverse_bits() >> 27) >> mask.count_ones()) | low & mask
    } else if pattern >= 0xc000 {
        // Rotation; the lane bits of the mask stay.
        let (mask, distance) = (pattern & 31, pattern >> 5 & 31);
        let rotated = if pattern & 0x400 != 0 { low.wrapping_sub(distance) } else { low + distance };
        low & mask | rotated & !mask & 31
    } else if pattern & 0x8000 != 0 {
        // A permutation of each four lanes.
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
        let named = |lane: usize, reach: usize| {
            let reach = reach.min(W);
            lane / reach * reach + address[lane].wrapping_add(offset) as usize / 4 % reach
        };
        let mut out = [0; W];
        match self {
            Self::Permute { reach } => {
                for lane in (0..W).filter(|&lane| is_active(lane)) {
                    out[named(lane, reach)] = data[lane];
                }
            }
            Self::BackwardPermute { reach } => {
                for lane in 0..W {
                    let source = named(lane, reach);
                    out[lane] = if is_active(source) { data[source] } else { 0 };
                }
            }
            Self::Swizzle => {
                for (lane, value) in out.iter_mut().enumerate() {
                    let source = swizzled(offset, lane as u32) as usize;
                    *value = if source < W && is_active(source) { address[source] } else { 0 };
                }
            }
            Self::Append | Self::Consume => {
                let place = (wave.sgpr[usize::from(sreg::M0)] & 0xffff).wrapping_add(offset) & !3;
                let place = lds.locate(0, u64::from(place), 4, Access::Atomic)?;
                // SAFETY: the region allowed reading and writing these 4 bytes, which are aligned.
                let counter = unsafe { AtomicU32::from_ptr(place.cast()) };
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
