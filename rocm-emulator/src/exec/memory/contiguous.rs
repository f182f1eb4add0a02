//! Loads and stores whose lanes access one contiguous block of memory, which is checked and copied at once.
use super::lanes::extend;
use super::{Action, LoadFormat, Memory, MemoryStep, Region, Space, StoreFormat};
use crate::exec::Access;
use crate::exec::wave::{Lanes, Wave};
use std::mem::MaybeUninit;

/// Maximum size of a block, in units of 16 bytes: 64 lanes of 16 bytes.
const MAX_BLOCK_UNITS: usize = 64;

/// Returns the base-2 logarithm of the bytes per lane; `None` if the instruction cannot access a block.
pub(super) fn access_shift(space: Space, action: Action) -> Option<u8> {
    let bytes = match (space, action) {
        (Space::Private | Space::Buffer { .. }, _) => return None,
        (_, Action::Load(format)) => format.bytes(),
        (_, Action::Store(format)) => format.bytes(),
        _ => return None,
    };
    bytes.is_power_of_two().then(|| bytes.trailing_zeros() as u8)
}

/// Returns all ones for the first `count` lanes, otherwise 0. Masks keep the loops free of branches.
#[inline(always)]
fn lane_mask(lane: usize, count: usize) -> u32 {
    u32::from((lane as u32) < count as u32).wrapping_neg()
}

/// Returns true if lane i of the first `count` has lane 0's value plus `i << shift`, without overflow.
#[inline(always)]
fn is_ramp<const W: usize>(values: &[u32; W], count: usize, shift: u8) -> bool {
    let (first, shift) = (values[0], u32::from(shift & 7));
    let mut difference = 0;
    for (lane, value) in values.iter().enumerate() {
        let deviation = value ^ first.wrapping_add((lane as u32) << shift);
        difference |= deviation & lane_mask(lane, count);
    }
    difference == 0 && first.checked_add((W as u32) << shift).is_some()
}

/// Returns true if the first `count` lanes have the same value.
#[inline(always)]
fn are_equal<const W: usize>(values: &[u32; W], count: usize) -> bool {
    let mut difference = 0;
    for (lane, value) in values.iter().enumerate() {
        difference |= (value ^ values[0]) & lane_mask(lane, count);
    }
    difference == 0
}

impl MemoryStep {
    /// Executes the instruction if the active lanes are the first ones and access one block that is permitted
    /// as a whole. Otherwise returns false, without any effect.
    #[inline(always)]
    pub(super) fn run_contiguous<const W: usize>(&self, wave: &mut Wave<W>, memory: &mut Memory) -> bool {
        let (Some(shift), Some(register)) = (self.access_shift, self.address) else { return false };
        let exec = wave.exec();
        if exec == Wave::<W>::full() {
            self.run_first_lanes(wave, memory, shift, usize::from(register), W)
        } else if exec & exec.wrapping_add(1) == 0 && exec != 0 {
            self.run_first_lanes(wave, memory, shift, usize::from(register), exec.trailing_ones() as usize)
        } else {
            false
        }
    }

    /// Like [`Self::run_contiguous`], for the first `count` lanes. Inlining makes `count == W` a constant.
    #[inline(always)]
    fn run_first_lanes<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        memory: &mut Memory,
        shift: u8,
        register: usize,
        count: usize,
    ) -> bool {
        let low = &wave.vgpr[register].0;
        if !is_ramp(low, count, shift) {
            return false;
        }
        let offset = i64::from(self.offset) as u64;
        let bytes = (count as u64) << shift;
        let access = if matches!(self.action, Action::Store(_)) { Access::Store } else { Access::Load };
        let block = if self.space == Space::Lds {
            // LDS has no scalar base, and a block that ends within LDS does not wrap.
            let first = low[0].wrapping_add(offset as u32);
            memory.lds.locate_block(first.into(), bytes, access)
        } else {
            let upper = match self.base {
                Some(base) => wave.sgpr64(base),
                None => {
                    let high = &wave.vgpr[register + 1].0;
                    if !are_equal(high, count) {
                        return false;
                    }
                    u64::from(high[0]) << 32
                }
            };
            let first = upper.wrapping_add(low[0].into()).wrapping_add(offset);
            // Flat addresses with these bits set are in LDS or private memory.
            if first >> 48 != 0 {
                return false;
            }
            memory.global.select(self.slot);
            let block = memory.global.locate_block(first, bytes, access);
            if block.is_some() {
                let counters = &mut memory.counters;
                let sum = if access == Access::Load {
                    &mut counters.bytes_loaded
                } else {
                    &mut counters.bytes_stored
                };
                *sum += bytes;
            }
            block
        };
        let Some(block) = block else { return false };
        // Inactive lanes have no bytes in the block, so their bytes go to or come from a copy.
        let mut copy = MaybeUninit::<[u128; MAX_BLOCK_UNITS]>::uninit();
        let whole = if count == W { block } else { copy.as_mut_ptr().cast() };
        match self.action {
            Action::Load(format) => {
                let dst = usize::from(self.dst.unwrap_or(0));
                if count == W {
                    // SAFETY: the region permits reading all lanes' bytes at `block`.
                    unsafe { load(wave, format, dst, whole) };
                    return true;
                }
                let count_of = format.registers();
                let before: [Lanes<W>; 4] = std::array::from_fn(|n| wave.vgpr[dst + n.min(count_of - 1)]);
                // SAFETY: the region permits reading `bytes` bytes at `block`; the copy has space for all
                // lanes.
                unsafe {
                    whole.write_bytes(0, W << shift);
                    std::ptr::copy_nonoverlapping(block, whole, bytes as usize);
                    load(wave, format, dst, whole);
                }
                for (register, before) in wave.vgpr[dst..][..count_of].iter_mut().zip(before) {
                    register.0[count..].copy_from_slice(&before.0[count..]);
                }
            }
            Action::Store(format) => {
                // SAFETY: the region permits writing the active lanes' bytes at `block`; the copy has space
                // for all lanes.
                unsafe {
                    store(wave, format, usize::from(self.data[0]), whole);
                    if count < W {
                        std::ptr::copy_nonoverlapping(whole, block, bytes as usize);
                    }
                }
            }
            _ => return false,
        }
        true
    }
}

/// # Safety
/// The bytes of all lanes must be readable at `block`.
#[inline(always)]
unsafe fn load<const W: usize>(wave: &mut Wave<W>, format: LoadFormat, dst: usize, block: *const u8) {
    // SAFETY: each arm reads the format's bytes for each lane. Nothing about alignment is assumed.
    unsafe {
        match format {
            LoadFormat::Dword1 => wave.vgpr[dst].0 = block.cast::<[u32; W]>().read_unaligned(),
            LoadFormat::Dword2 => load_tuples::<2, W>(&mut wave.vgpr[dst..], block),
            LoadFormat::Dword4 => load_tuples::<4, W>(&mut wave.vgpr[dst..], block),
            _ => {
                let mut values = [0; W];
                if format.bytes() == 1 {
                    let bytes = block.cast::<[u8; W]>().read();
                    (0..W).for_each(|lane| values[lane] = u32::from(bytes[lane]));
                } else {
                    let halves = block.cast::<[u16; W]>().read_unaligned();
                    (0..W).for_each(|lane| values[lane] = u32::from(halves[lane]));
                }
                let register = &mut wave.vgpr[dst].0;
                extend(format, &mut values, register);
                *register = values;
            }
        }
    }
}

/// # Safety
/// The bytes of all lanes must be writable at `block`.
#[inline(always)]
unsafe fn store<const W: usize>(wave: &Wave<W>, format: StoreFormat, data: usize, block: *mut u8) {
    let register = &wave.vgpr[data].0;
    // SAFETY: each arm writes the format's bytes for each lane. Nothing about alignment is assumed.
    unsafe {
        match format {
            StoreFormat::Dword1 => block.cast::<[u32; W]>().write_unaligned(*register),
            StoreFormat::Dword2 => store_tuples::<2, W>(&wave.vgpr[data..], block),
            StoreFormat::Dword4 => store_tuples::<4, W>(&wave.vgpr[data..], block),
            StoreFormat::Byte | StoreFormat::HighByte => {
                let shift = if format == StoreFormat::HighByte { 16 } else { 0 };
                let mut bytes = [0; W];
                (0..W).for_each(|lane| bytes[lane] = (register[lane] >> shift) as u8);
                block.cast::<[u8; W]>().write(bytes);
            }
            StoreFormat::Short | StoreFormat::HighShort => {
                let shift = if format == StoreFormat::HighShort { 16 } else { 0 };
                let mut halves = [0; W];
                (0..W).for_each(|lane| halves[lane] = (register[lane] >> shift) as u16);
                block.cast::<[u16; W]>().write_unaligned(halves);
            }
            // Not a power of two, so never a block.
            StoreFormat::Dword3 => {}
        }
    }
}

/// Number of lanes that are copied at a time.
const GROUP: usize = 4;

/// Loads `N` dwords of each lane into `N` registers.
///
/// # Safety
/// `4 * N * W` bytes must be readable at `block`.
#[inline(always)]
unsafe fn load_tuples<const N: usize, const W: usize>(registers: &mut [Lanes<W>], block: *const u8) {
    let registers = &mut registers[..N];
    for group in 0..W / GROUP {
        let from = block.cast::<[[u32; N]; GROUP]>().wrapping_add(group);
        // SAFETY: the groups of all lanes together have the size that the caller guarantees.
        let tuples = unsafe { from.read_unaligned() };
        for (n, register) in registers.iter_mut().enumerate() {
            let column: [u32; GROUP] = std::array::from_fn(|lane| tuples[lane][n]);
            register.0[group * GROUP..][..GROUP].copy_from_slice(&column);
        }
    }
}

/// Stores `N` registers as `N` dwords of each lane.
///
/// # Safety
/// `4 * N * W` bytes must be writable at `block`.
#[inline(always)]
unsafe fn store_tuples<const N: usize, const W: usize>(registers: &[Lanes<W>], block: *mut u8) {
    let registers = &registers[..N];
    for group in 0..W / GROUP {
        let mut tuples = [[0; N]; GROUP];
        for (n, register) in registers.iter().enumerate() {
            let column = &register.0[group * GROUP..][..GROUP];
            (0..GROUP).for_each(|lane| tuples[lane][n] = column[lane]);
        }
        let to = block.cast::<[[u32; N]; GROUP]>().wrapping_add(group);
        // SAFETY: the groups of all lanes together have the size that the caller guarantees.
        unsafe { to.write_unaligned(tuples) };
    }
}
