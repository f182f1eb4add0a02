//! Atomic operations. They use the host's atomics, because workgroups run on several host threads.
use super::{MemoryResult, Region, lanes::active, write_lanes};
use crate::exec::vector::each;
use crate::exec::vector::half::{narrow, narrow_to_bf16, widen};
use crate::exec::wave::Wave;
use crate::exec::{Access, FaultKind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Function from the old value, the source and the second operand (compare value or mask) to the new value.
#[derive(Clone, Copy)]
pub(super) enum AtomicOperation {
    Narrow(fn(u32, u32, u32) -> u32),
    Wide(fn(u64, u64, u64) -> u64),
}

fn f32_op(op: fn(f32, f32) -> f32, a: u32, b: u32) -> u32 {
    op(f32::from_bits(a), f32::from_bits(b)).to_bits()
}

fn each_half(a: u32, b: u32, op: impl Fn(u32, u32) -> u32) -> u32 {
    op(a & 0xffff, b & 0xffff) | op(a >> 16, b >> 16) << 16
}

/// Adds two bf16, rounding to nearest even. f32 is precise enough for the double rounding to be correct.
fn add_bf16(a: u32, b: u32) -> u32 {
    narrow_to_bf16(f32::from_bits(a << 16) + f32::from_bits(b << 16))
}

/// Returns the smaller value, or `old` if either is NaN: a NaN never replaces a number.
fn smaller<T: PartialOrd>(old: T, source: T) -> T {
    if source < old { source } else { old }
}

fn larger<T: PartialOrd>(old: T, source: T) -> T {
    if source > old { source } else { old }
}

/// Finds an operation that 32-bit and 64-bit integers share, by its name without the number of bits.
macro_rules! integer_operation {
    ($name:expr, $unsigned:ty, $signed:ty) => {{
        let operation: fn($unsigned, $unsigned, $unsigned) -> $unsigned = match $name {
            "add_u" => |old, s, _| old.wrapping_add(s),
            "sub_u" => |old, s, _| old.wrapping_sub(s),
            "rsub_u" => |old, s, _| s.wrapping_sub(old),
            "inc_u" => |old, s, _| if old >= s { 0 } else { old + 1 },
            "dec_u" => |old, s, _| if old == 0 || old > s { s } else { old - 1 },
            "min_i" => |old, s, _| (old as $signed).min(s as $signed) as $unsigned,
            "max_i" => |old, s, _| (old as $signed).max(s as $signed) as $unsigned,
            "min_u" => |old, s, _| old.min(s),
            "max_u" => |old, s, _| old.max(s),
            "and_b" => |old, s, _| old & s,
            "or_b" => |old, s, _| old | s,
            "xor_b" => |old, s, _| old ^ s,
            "mskor_b" => |old, s, t| old & !s | t,
            "swap_b" | "storexchg_b" => |_, s, _| s,
            "cmpswap_b" | "cmpstore_b" => |old, s, compare| if old == compare { s } else { old },
            _ => return None,
        };
        operation
    }};
}

/// Returns the operation of a name such as `add_u32` or `cmpswap_b64`: LLVM's, without `atomic_` or `_rtn`.
pub(super) fn find(name: &str) -> Option<AtomicOperation> {
    use AtomicOperation::{Narrow, Wide};
    Some(match name {
        "csub_u32" => Narrow(|old, s, _| old.saturating_sub(s)),
        "cond_sub_u32" => Narrow(|old, s, _| if old >= s { old - s } else { old }),
        "wrap_b32" => Narrow(|old, s, t| if old >= s { old - s } else { old.wrapping_add(t) }),
        "add_f32" => Narrow(|old, s, _| f32_op(|a, b| a + b, old, s)),
        "min_f32" => Narrow(|old, s, _| f32_op(smaller, old, s)),
        "max_f32" => Narrow(|old, s, _| f32_op(larger, old, s)),
        "cmpswap_f32" | "cmpstore_f32" => {
            Narrow(|old, s, t| if f32::from_bits(old) == f32::from_bits(t) { s } else { old })
        }
        "pk_add_f16" => Narrow(|old, s, _| each_half(old, s, |a, b| narrow(widen(a) + widen(b)))),
        "pk_add_bf16" => Narrow(|old, s, _| each_half(old, s, add_bf16)),
        "add_f64" => Wide(|old, s, _| (f64::from_bits(old) + f64::from_bits(s)).to_bits()),
        "min_f64" => Wide(|old, s, _| smaller(f64::from_bits(old), f64::from_bits(s)).to_bits()),
        "max_f64" => Wide(|old, s, _| larger(f64::from_bits(old), f64::from_bits(s)).to_bits()),
        "cmpswap_f64" | "cmpstore_f64" => {
            Wide(|old, s, t| if f64::from_bits(old) == f64::from_bits(t) { s } else { old })
        }
        _ => match (name.strip_suffix("32"), name.strip_suffix("64")) {
            (Some(name), _) => Narrow(integer_operation!(name, u32, i32)),
            (_, Some(name)) => Wide(integer_operation!(name, u64, i64)),
            _ => return None,
        },
    })
}

impl AtomicOperation {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Narrow(_) => 4,
            Self::Wide(_) => 8,
        }
    }

    /// Returns the number of registers per value.
    pub(super) fn registers(self) -> u16 {
        match self {
            Self::Narrow(_) => 1,
            Self::Wide(_) => 2,
        }
    }

    /// Returns the values of an operand that starts at `register`.
    pub(super) fn operand<const W: usize>(self, wave: &Wave<W>, register: usize) -> [u64; W] {
        let low = &wave.vgpr[register].0;
        match self {
            Self::Narrow(_) => each(low, u64::from),
            Self::Wide(_) => {
                let high = &wave.vgpr[register + 1].0;
                std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32)
            }
        }
    }

    /// Executes the operation for all active lanes in ascending order.
    pub(super) fn run<const W: usize, R: Region>(
        self,
        region: &mut R,
        wave: &mut Wave<W>,
        addresses: &[u64; W],
        exec: u64,
        data: [usize; 2],
        dst: Option<u16>,
    ) -> MemoryResult<()> {
        let (source, second) = (self.operand(wave, data[0]), self.operand(wave, data[1]));
        self.run_with(region, wave, addresses, exec, &source, &second, dst)
    }

    /// Like [`Self::run`], with operands that have already been read.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn run_with<const W: usize, R: Region>(
        self,
        region: &mut R,
        wave: &mut Wave<W>,
        addresses: &[u64; W],
        exec: u64,
        source: &[u64; W],
        second: &[u64; W],
        dst: Option<u16>,
    ) -> MemoryResult<()> {
        let mut old = [0u64; W];
        let bytes = self.bytes();
        for lane in active(exec) {
            let address = addresses[lane];
            let pointer = region.locate(lane, address, bytes, Access::Atomic)?;
            if !(pointer as u64).is_multiple_of(bytes) {
                let (lane, bytes, location) = (lane as u32, bytes as u32, region.location(address));
                let access = Access::Atomic;
                return Err(Box::new(FaultKind::Misaligned { access, lane, bytes, location }));
            }
            old[lane] = match self {
                Self::Narrow(op) => {
                    // SAFETY: the region permits reading and writing these 4 aligned bytes. Concurrent
                    // accesses are atomic, unless the kernel itself has a data race.
                    let atomic = unsafe { AtomicU32::from_ptr(pointer.cast()) };
                    let (source, second) = (source[lane] as u32, second[lane] as u32);
                    let update = |old| Some(op(old, source, second));
                    match atomic.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
                        Ok(old) | Err(old) => u64::from(old),
                    }
                }
                Self::Wide(op) => {
                    // SAFETY: as above, with 8 bytes.
                    let atomic = unsafe { AtomicU64::from_ptr(pointer.cast()) };
                    let update = |old| Some(op(old, source[lane], second[lane]));
                    match atomic.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
                        Ok(old) | Err(old) => old,
                    }
                }
            };
        }
        if let Some(dst) = dst.map(usize::from) {
            write_lanes(&mut wave.vgpr[dst], &old.map(|value| value as u32), exec);
            if matches!(self, Self::Wide(_)) {
                write_lanes(&mut wave.vgpr[dst + 1], &old.map(|value| (value >> 32) as u32), exec);
            }
        }
        Ok(())
    }
}
