//! Vector loads and stores: data movement between memory and the lanes' registers.
use super::{Memory, MemoryResult, Region, write_lanes};
use crate::exec::Access;
use crate::exec::vector::each;
use crate::exec::wave::Wave;

/// Conversion of loaded bytes to register contents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LoadFormat {
    U8,
    I8,
    U16,
    I16,
    /// Formats named `Low` and `High` write one half of the register and preserve the other.
    LowU8,
    LowI8,
    Low16,
    HighU8,
    HighI8,
    High16,
    /// Whole registers.
    Dword1,
    Dword2,
    Dword3,
    Dword4,
}

impl LoadFormat {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::LowU8 | Self::LowI8 | Self::HighU8 | Self::HighI8 => 1,
            Self::U16 | Self::I16 | Self::Low16 | Self::High16 => 2,
            Self::Dword1 => 4,
            Self::Dword2 => 8,
            Self::Dword3 => 12,
            Self::Dword4 => 16,
        }
    }

    /// Returns the number of registers that a load fills.
    pub(super) fn registers(self) -> usize {
        self.bytes().div_ceil(4) as usize
    }
}

/// Part of the data registers that a store writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StoreFormat {
    Byte,
    Short,
    /// Formats named `High` store from the register's high half.
    HighByte,
    HighShort,
    Dword1,
    Dword2,
    Dword3,
    Dword4,
}

impl StoreFormat {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Byte | Self::HighByte => 1,
            Self::Short | Self::HighShort => 2,
            Self::Dword1 => 4,
            Self::Dword2 => 8,
            Self::Dword3 => 12,
            Self::Dword4 => 16,
        }
    }
}

/// Returns the lanes of a mask, lowest first.
#[inline(always)]
pub(super) fn active(mut exec: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = exec.trailing_zeros() as usize;
        (exec != 0).then(|| {
            exec &= exec - 1;
            lane
        })
    })
}

/// Returns true if lane i's address is lane 0's plus `i * bytes`.
#[inline(always)]
fn is_contiguous<const W: usize>(addresses: &[u64; W], bytes: u64) -> bool {
    let first = addresses[0];
    let mut difference = 0;
    for (lane, &address) in addresses.iter().enumerate() {
        difference |= address ^ first.wrapping_add(lane as u64 * bytes);
    }
    difference == 0
}

/// Returns the lowest address of the active lanes and a pointer to it, if the region permits access to all bytes
/// between the lanes' lowest and highest.
#[inline(always)]
fn locate_span<const W: usize, R: Region>(
    region: &mut R,
    addresses: &[u64; W],
    exec: u64,
    bytes: u64,
    access: Access,
) -> Option<(u64, *mut u8)> {
    let (mut lowest, mut highest) = (u64::MAX, 0);
    for (lane, &address) in addresses.iter().enumerate() {
        // Inactive lanes are neither the lowest nor the highest.
        let inactive = (exec >> lane & 1).wrapping_sub(1);
        lowest = lowest.min(address | inactive);
        highest = highest.max(address & !inactive);
    }
    let span = highest.wrapping_sub(lowest).checked_add(bytes)?;
    Some((lowest, region.locate_block(lowest, span, access)?))
}

/// # Safety
/// `from` must be readable for `B` bytes.
#[inline(always)]
unsafe fn read<const B: usize>(from: *const u8) -> [u32; 4] {
    // SAFETY: `B` bytes are readable, and each arm reads `B`. Nothing about alignment is assumed.
    unsafe {
        match B {
            1 => [u32::from(from.read()), 0, 0, 0],
            2 => [u32::from(from.cast::<u16>().read_unaligned()), 0, 0, 0],
            4 => [from.cast::<u32>().read_unaligned(), 0, 0, 0],
            8 => {
                let [a, b] = from.cast::<[u32; 2]>().read_unaligned();
                [a, b, 0, 0]
            }
            12 => {
                let [a, b, c] = from.cast::<[u32; 3]>().read_unaligned();
                [a, b, c, 0]
            }
            _ => from.cast::<[u32; 4]>().read_unaligned(),
        }
    }
}

/// # Safety
/// `to` must be writable for `B` bytes.
#[inline(always)]
unsafe fn write<const B: usize>(to: *mut u8, value: [u32; 4]) {
    let [a, b, c, _] = value;
    // SAFETY: `B` bytes are writable, and each arm writes `B`. Nothing about alignment is assumed.
    unsafe {
        match B {
            1 => to.write(a as u8),
            2 => to.cast::<u16>().write_unaligned(a as u16),
            4 => to.cast::<u32>().write_unaligned(a),
            8 => to.cast::<[u32; 2]>().write_unaligned([a, b]),
            12 => to.cast::<[u32; 3]>().write_unaligned([a, b, c]),
            _ => to.cast::<[u32; 4]>().write_unaligned(value),
        }
    }
}

/// Loads `B` bytes per lane into `N` registers, zero-extended.
#[inline(always)]
fn gather<const B: usize, const N: usize, const W: usize, R: Region>(
    region: &mut R,
    addresses: &[u64; W],
    exec: u64,
) -> MemoryResult<[[u32; W]; N]> {
    let mut out = [[0; W]; N];
    if exec == Wave::<W>::full()
        && is_contiguous(addresses, B as u64)
        && let Some(block) = region.locate_block(addresses[0], (B * W) as u64, Access::Load)
    {
        for lane in 0..W {
            // SAFETY: the region permits access to `B * W` bytes at `block`.
            let value = unsafe { read::<B>(block.add(lane * B)) };
            for register in 0..N {
                out[register][lane] = value[register];
            }
        }
        return Ok(out);
    }
    if let Some((first, block)) = locate_span(region, addresses, exec, B as u64, Access::Load) {
        for lane in active(exec) {
            // SAFETY: the region permits access to the bytes of all active lanes, the lowest of which are at `block`.
            let value = unsafe { read::<B>(block.add((addresses[lane] - first) as usize)) };
            for register in 0..N {
                out[register][lane] = value[register];
            }
        }
        return Ok(out);
    }
    for lane in active(exec) {
        let pointer = region.locate(lane, addresses[lane], B as u64, Access::Load)?;
        // SAFETY: the region permits access to `B` bytes at `pointer`.
        let value = unsafe { read::<B>(pointer) };
        for register in 0..N {
            out[register][lane] = value[register];
        }
    }
    Ok(out)
}

/// Stores `B` bytes per lane from up to four registers.
#[inline(always)]
fn scatter<const B: usize, const W: usize, R: Region>(
    region: &mut R,
    addresses: &[u64; W],
    exec: u64,
    data: [&[u32; W]; 4],
) -> MemoryResult<()> {
    // `array::map` would be a call for each lane.
    let words = |lane: usize| [data[0][lane], data[1][lane], data[2][lane], data[3][lane]];
    if exec == Wave::<W>::full()
        && is_contiguous(addresses, B as u64)
        && let Some(block) = region.locate_block(addresses[0], (B * W) as u64, Access::Store)
    {
        for lane in 0..W {
            // SAFETY: the region permits access to `B * W` bytes at `block`.
            unsafe { write::<B>(block.add(lane * B), words(lane)) };
        }
        return Ok(());
    }
    if let Some((first, block)) = locate_span(region, addresses, exec, B as u64, Access::Store) {
        for lane in active(exec) {
            // SAFETY: the region permits access to the bytes of all active lanes, the lowest of which are at `block`.
            unsafe { write::<B>(block.add((addresses[lane] - first) as usize), words(lane)) };
        }
        return Ok(());
    }
    for lane in active(exec) {
        let pointer = region.locate(lane, addresses[lane], B as u64, Access::Store)?;
        // SAFETY: the region permits access to `B` bytes at `pointer`.
        unsafe { write::<B>(pointer, words(lane)) };
    }
    Ok(())
}

/// Loads for all active lanes. Registers are written only if no lane faults.
#[inline(always)]
pub(super) fn load<const W: usize, R: Region>(
    region: &mut R,
    wave: &mut Wave<W>,
    addresses: &[u64; W],
    exec: u64,
    format: LoadFormat,
    dst: usize,
) -> MemoryResult<()> {
    match format {
        LoadFormat::Dword1 => write_all(wave, dst, &gather::<4, 1, W, R>(region, addresses, exec)?, exec),
        LoadFormat::Dword2 => write_all(wave, dst, &gather::<8, 2, W, R>(region, addresses, exec)?, exec),
        LoadFormat::Dword3 => write_all(wave, dst, &gather::<12, 3, W, R>(region, addresses, exec)?, exec),
        LoadFormat::Dword4 => write_all(wave, dst, &gather::<16, 4, W, R>(region, addresses, exec)?, exec),
        _ => {
            let values = gather_part(region, addresses, exec, format, &wave.vgpr[dst].0)?;
            write_all(wave, dst, &[values], exec);
        }
    }
    Ok(())
}

/// Loads bytes or 16-bit values and combines them with the old register values as the format requires.
#[inline(always)]
fn gather_part<const W: usize, R: Region>(
    region: &mut R,
    addresses: &[u64; W],
    exec: u64,
    format: LoadFormat,
    old: &[u32; W],
) -> MemoryResult<[u32; W]> {
    let [mut values] = match format.bytes() {
        1 => gather::<1, 1, W, R>(region, addresses, exec)?,
        _ => gather::<2, 1, W, R>(region, addresses, exec)?,
    };
    extend(format, &mut values, old);
    Ok(values)
}

/// Loads a dword per lane of `exec` from global memory into consecutive dwords of LDS. Lanes of `exec` that
/// are not in `within` store zero instead.
#[inline(never)]
pub(super) fn load_to_lds<const W: usize>(
    memory: &mut Memory,
    addresses: &[u64; W],
    [exec, within]: [u64; 2],
    format: LoadFormat,
    first: u32,
) -> MemoryResult<()> {
    let values = match format {
        LoadFormat::Dword1 => {
            let [values] = gather::<4, 1, W, _>(&mut memory.global, addresses, within)?;
            values
        }
        _ => gather_part(&mut memory.global, addresses, within, format, &[0; W])?,
    };
    let addresses_in_lds = std::array::from_fn(|lane| u64::from(first.wrapping_add(4 * lane as u32)));
    scatter::<4, W, _>(&mut memory.lds, &addresses_in_lds, exec, [&values; 4])
}

#[inline(always)]
fn write_all<const N: usize, const W: usize>(
    wave: &mut Wave<W>,
    dst: usize,
    values: &[[u32; W]; N],
    exec: u64,
) {
    for (register, values) in values.iter().enumerate() {
        write_lanes(&mut wave.vgpr[dst + register], values, exec);
    }
}

/// Converts zero-extended bytes to the register contents of the format.
#[inline(always)]
pub(super) fn extend<const W: usize>(format: LoadFormat, values: &mut [u32; W], old: &[u32; W]) {
    let with_old = values.iter_mut().zip(old);
    match format {
        LoadFormat::I8 => with_old.for_each(|(v, _)| *v = *v as i8 as u32),
        LoadFormat::I16 => with_old.for_each(|(v, _)| *v = *v as i16 as u32),
        LoadFormat::LowU8 | LoadFormat::Low16 => with_old.for_each(|(v, old)| *v |= old & 0xffff_0000),
        LoadFormat::LowI8 => {
            with_old.for_each(|(v, old)| *v = *v as i8 as u32 & 0xffff | old & 0xffff_0000);
        }
        LoadFormat::HighU8 | LoadFormat::High16 => with_old.for_each(|(v, old)| *v = *v << 16 | old & 0xffff),
        LoadFormat::HighI8 => with_old.for_each(|(v, old)| *v = (*v as i8 as u32) << 16 | old & 0xffff),
        // The value is already zero-extended or fills whole registers.
        _ => {}
    }
}

/// Stores for all active lanes in ascending order.
#[inline(always)]
pub(super) fn store<const W: usize, R: Region>(
    region: &mut R,
    wave: &Wave<W>,
    addresses: &[u64; W],
    exec: u64,
    format: StoreFormat,
    data: usize,
) -> MemoryResult<()> {
    let register = |n: usize| &wave.vgpr[data + n].0;
    let single = [register(0); 4];
    let high = || each(register(0), |value| value >> 16);
    match format {
        StoreFormat::Byte => scatter::<1, W, R>(region, addresses, exec, single),
        StoreFormat::Short => scatter::<2, W, R>(region, addresses, exec, single),
        StoreFormat::HighByte => scatter::<1, W, R>(region, addresses, exec, [&high(); 4]),
        StoreFormat::HighShort => scatter::<2, W, R>(region, addresses, exec, [&high(); 4]),
        StoreFormat::Dword1 => scatter::<4, W, R>(region, addresses, exec, single),
        StoreFormat::Dword2 => {
            scatter::<8, W, R>(region, addresses, exec, [register(0), register(1), register(1), register(1)])
        }
        StoreFormat::Dword3 => {
            scatter::<12, W, R>(region, addresses, exec, [register(0), register(1), register(2), register(2)])
        }
        StoreFormat::Dword4 => {
            scatter::<16, W, R>(region, addresses, exec, [register(0), register(1), register(2), register(3)])
        }
    }
}
