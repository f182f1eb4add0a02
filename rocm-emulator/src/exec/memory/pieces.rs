//! Loads and stores whose lanes lie one after another: one piece of memory, checked and moved as a whole.
use super::lanes::extend;
use super::{Action, LoadFormat, Memory, MemoryStep, Region, Space, StoreFormat};
use crate::exec::Access;
use crate::exec::wave::{Lanes, Wave};
use std::mem::MaybeUninit;

/// What 64 lanes move at most, in units of 16 bytes.
const MOST_UNITS: usize = 64;

/// How far lanes lie apart if their accesses are to be one piece: the power of two. `None` where that is not tried.
pub(super) fn distance(space: Space, action: Action) -> Option<u8> {
    let bytes = match (space, action) {
        (Space::Private | Space::Buffer { .. }, _) => return None,
        (_, Action::Load(format)) => format.bytes(),
        (_, Action::Store(format)) => format.bytes(),
        _ => return None,
    };
    bytes.is_power_of_two().then(|| bytes.trailing_zeros() as u8)
}

/// All ones for the first `count` lanes: a mask keeps loops free of branches.
#[inline(always)]
fn counts(lane: usize, count: usize) -> u32 {
    u32::from((lane as u32) < count as u32).wrapping_neg()
}

/// Whether in the first `count` lanes, lane i's value is lane 0's plus `i << shift`, without an overflow.
#[inline(always)]
fn is_ramp<const W: usize>(values: &[u32; W], count: usize, shift: u8) -> bool {
    let (first, shift) = (values[0], u32::from(shift & 7));
    let mut difference = 0;
    for (lane, value) in values.iter().enumerate() {
        let apart = value ^ first.wrapping_add((lane as u32) << shift);
        difference |= apart & counts(lane, count);
    }
    difference == 0 && first.checked_add((W as u32) << shift).is_some()
}

/// Whether the first `count` lanes have the same value.
#[inline(always)]
fn are_equal<const W: usize>(values: &[u32; W], count: usize) -> bool {
    let mut difference = 0;
    for (lane, value) in values.iter().enumerate() {
        difference |= (value ^ values[0]) & counts(lane, count);
    }
    difference == 0
}

impl MemoryStep {
    /// Executes the instruction if the lanes that are on are the first ones and access one piece that is allowed as a
    /// whole. False if not: then nothing has happened.
    #[inline(always)]
    pub(super) fn run_in_one_piece<const W: usize>(&self, wave: &mut Wave<W>, memory: &mut Memory) -> bool {
        let (Some(shift), Some(register)) = (self.distance, self.address) else { return false };
        let exec = wave.exec();
        if exec == Wave::<W>::full() {
            self.run_of_first(wave, memory, shift, usize::from(register), W)
        } else if exec & exec.wrapping_add(1) == 0 && exec != 0 {
            self.run_of_first(wave, memory, shift, usize::from(register), exec.trailing_ones() as usize)
        } else {
            false
        }
    }

    /// The same of the first `count` lanes. Where that is all of them, it is known when this is compiled.
    #[inline(always)]
    fn run_of_first<const W: usize>(
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
        let piece = if self.space == Space::Lds {
            // There is no scalar base, and a piece that ends within LDS does not wrap.
            let first = low[0].wrapping_add(offset as u32);
            memory.lds.locate_piece(first.into(), bytes, access)
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
            // Flat addresses from here on are LDS or private memory.
            if first >> 48 != 0 {
                return false;
            }
            memory.global.select(self.slot);
            let piece = memory.global.locate_piece(first, bytes, access);
            if piece.is_some() {
                let counters = &mut memory.counters;
                let sum = if access == Access::Load {
                    &mut counters.bytes_loaded
                } else {
                    &mut counters.bytes_stored
                };
                *sum += bytes;
            }
            piece
        };
        let Some(piece) = piece else { return false };
        // Lanes that are off have no bytes in the piece: theirs are those of a copy.
        let mut copy = MaybeUninit::<[u128; MOST_UNITS]>::uninit();
        let whole = if count == W { piece } else { copy.as_mut_ptr().cast() };
        match self.action {
            Action::Load(format) => {
                let dst = usize::from(self.dst.unwrap_or(0));
                if count == W {
                    // SAFETY: the region allowed to read all lanes' bytes from `piece` on.
                    unsafe { load(wave, format, dst, whole) };
                    return true;
                }
                let count_of = format.registers();
                let before: [Lanes<W>; 4] = std::array::from_fn(|n| wave.vgpr[dst + n.min(count_of - 1)]);
                // SAFETY: the region allowed to read as many bytes from `piece` on; the copy has space for all lanes'.
                unsafe {
                    whole.write_bytes(0, W << shift);
                    std::ptr::copy_nonoverlapping(piece, whole, bytes as usize);
                    load(wave, format, dst, whole);
                }
                for (register, before) in wave.vgpr[dst..][..count_of].iter_mut().zip(before) {
                    register.0[count..].copy_from_slice(&before.0[count..]);
                }
            }
            Action::Store(format) => {
                // SAFETY: the region allowed to write as many bytes from `piece` on as there are lanes; the copy has
                // space for all lanes'.
                unsafe {
                    store(wave, format, usize::from(self.data[0]), whole);
                    if count < W {
                        std::ptr::copy_nonoverlapping(whole, piece, bytes as usize);
                    }
                }
            }
            _ => return false,
        }
        true
    }
}

/// # Safety
/// The bytes of all lanes must be readable at `piece`.
#[inline(always)]
unsafe fn load<const W: usize>(wave: &mut Wave<W>, format: LoadFormat, dst: usize, piece: *const u8) {
    // SAFETY: each arm reads the format's bytes for each lane. Nothing about alignment is assumed.
    unsafe {
        match format {
            LoadFormat::Dword1 => wave.vgpr[dst].0 = piece.cast::<[u32; W]>().read_unaligned(),
            LoadFormat::Dword2 => load_tuples::<2, W>(&mut wave.vgpr[dst..], piece),
            LoadFormat::Dword4 => load_tuples::<4, W>(&mut wave.vgpr[dst..], piece),
            _ => {
                let mut values = [0; W];
                if format.bytes() == 1 {
                    let bytes = piece.cast::<[u8; W]>().read();
                    (0..W).for_each(|lane| values[lane] = u32::from(bytes[lane]));
                } else {
                    let halves = piece.cast::<[u16; W]>().read_unaligned();
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
/// The bytes of all lanes must be writable at `piece`.
#[inline(always)]
unsafe fn store<const W: usize>(wave: &Wave<W>, format: StoreFormat, data: usize, piece: *mut u8) {
    let register = &wave.vgpr[data].0;
    // SAFETY: each arm writes the format's bytes for each lane. Nothing about alignment is assumed.
    unsafe {
        match format {
            StoreFormat::Dword1 => piece.cast::<[u32; W]>().write_unaligned(*register),
            StoreFormat::Dword2 => store_tuples::<2, W>(&wave.vgpr[data..], piece),
            StoreFormat::Dword4 => store_tuples::<4, W>(&wave.vgpr[data..], piece),
            StoreFormat::Byte | StoreFormat::HighByte => {
                let shift = if format == StoreFormat::HighByte { 16 } else { 0 };
                let mut bytes = [0; W];
                (0..W).for_each(|lane| bytes[lane] = (register[lane] >> shift) as u8);
                piece.cast::<[u8; W]>().write(bytes);
            }
            StoreFormat::Short | StoreFormat::HighShort => {
                let shift = if format == StoreFormat::HighShort { 16 } else { 0 };
                let mut halves = [0; W];
                (0..W).for_each(|lane| halves[lane] = (register[lane] >> shift) as u16);
                piece.cast::<[u16; W]>().write_unaligned(halves);
            }
            // Not a power of two: never one piece.
            StoreFormat::Dword3 => {}
        }
    }
}

/// Lanes that are moved at a time.
const GROUP: usize = 4;

/// From `N` dwords of each lane to `N` registers.
///
/// # Safety
/// `4 * N * W` bytes must be readable at `piece`.
#[inline(always)]
unsafe fn load_tuples<const N: usize, const W: usize>(registers: &mut [Lanes<W>], piece: *const u8) {
    let registers = &mut registers[..N];
    for group in 0..W / GROUP {
        let from = piece.cast::<[[u32; N]; GROUP]>().wrapping_add(group);
        // SAFETY: the groups of all lanes are as many bytes as the caller vouches for.
        let tuples = unsafe { from.read_unaligned() };
        for (n, register) in registers.iter_mut().enumerate() {
            let column: [u32; GROUP] = std::array::from_fn(|lane| tuples[lane][n]);
            register.0[group * GROUP..][..GROUP].copy_from_slice(&column);
        }
    }
}

/// From `N` registers to `N` dwords of each lane.
///
/// # Safety
/// `4 * N * W` bytes must be writable at `piece`.
#[inline(always)]
unsafe fn store_tuples<const N: usize, const W: usize>(registers: &[Lanes<W>], piece: *mut u8) {
    let registers = &registers[..N];
    for group in 0..W / GROUP {
        let mut tuples = [[0; N]; GROUP];
        for (n, register) in registers.iter().enumerate() {
            let column = &register.0[group * GROUP..][..GROUP];
            (0..GROUP).for_each(|lane| tuples[lane][n] = column[lane]);
        }
        let to = piece.cast::<[[u32; N]; GROUP]>().wrapping_add(group);
        // SAFETY: the groups of all lanes are as many bytes as the caller vouches for.
        unsafe { to.write_unaligned(tuples) };
    }
}
