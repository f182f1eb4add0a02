//! Scalar loads (s_load).
use super::{Memory, MemoryResult, Region};
use crate::exec::wave::Wave;
use crate::exec::{Access, FaultKind};
use crate::isa::{Inst, Operand, sreg};

/// Size of the loaded data.
#[derive(Clone, Copy, Debug)]
enum Width {
    Dwords(u8),
    /// gfx12: a byte or 16-bit value, zero- or sign-extended into one register.
    Byte {
        signed: bool,
    },
    Short {
        signed: bool,
    },
}

impl Width {
    fn bytes(self) -> u64 {
        match self {
            Self::Dwords(count) => 4 * u64::from(count),
            Self::Byte { .. } => 1,
            Self::Short { .. } => 2,
        }
    }
}

/// A prepared s_load.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct ScalarLoad {
    dst: u8,
    width: Width,
    base: u8,
    offset_register: Option<u8>,
    offset: i32,
    /// Entry of the instruction in the range cache.
    slot: u8,
}

/// Prepares an instruction. Returns `None` if it is unsupported.
pub(in crate::exec) fn prepare(inst: &Inst) -> Option<ScalarLoad> {
    let width = match inst.name {
        "s_load_b32" => Width::Dwords(1),
        "s_load_b64" => Width::Dwords(2),
        "s_load_b96" => Width::Dwords(3),
        "s_load_b128" => Width::Dwords(4),
        "s_load_b256" => Width::Dwords(8),
        "s_load_b512" => Width::Dwords(16),
        "s_load_u8" => Width::Byte { signed: false },
        "s_load_i8" => Width::Byte { signed: true },
        "s_load_u16" => Width::Short { signed: false },
        "s_load_i16" => Width::Short { signed: true },
        _ => return None,
    };
    let (Operand::Scalar(dst), Operand::Scalar(base)) = (inst.dst, inst.src[0]) else { return None };
    let offset_register = match inst.src[1] {
        Operand::Scalar(n) => Some(n),
        _ => None,
    };
    Some(ScalarLoad { dst, width, base, offset_register, offset: inst.offset0, slot: 0 })
}

impl ScalarLoad {
    /// Assigns an entry of the range cache.
    pub(in crate::exec) fn with_cache_slot(self, slot: u8) -> Self {
        Self { slot, ..self }
    }

    #[inline]
    pub(in crate::exec) fn run<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        memory: &mut Memory,
    ) -> MemoryResult<()> {
        let register = self.offset_register.map_or(0, |n| wave.sgpr[usize::from(n & 127)]);
        let address = wave.sgpr64(self.base).wrapping_add(i64::from(self.offset) as u64);
        let address = address.wrapping_add(u64::from(register));
        let bytes = self.width.bytes();
        // Hardware ignores the low address bits and silently reads other data.
        if address & (bytes.min(4) - 1) != 0 {
            let location = memory.global.location(address);
            let access = Access::Load;
            return Err(Box::new(FaultKind::Misaligned { access, lane: 0, bytes: bytes as u32, location }));
        }
        memory.counters.scalar_memory += 1;
        memory.counters.bytes_loaded += bytes;
        memory.global.select(self.slot);
        let pointer = memory.global.locate(0, address, bytes, Access::Load)?;
        // SAFETY: the region permits reading `bytes` bytes at `pointer`, and each arm reads that many.
        unsafe {
            match self.width {
                Width::Dwords(count) => {
                    for n in 0..count {
                        let value = pointer.cast::<u32>().add(usize::from(n)).read_unaligned();
                        // A load to NULL discards all dwords. The next register number would be M0.
                        wave.set_sgpr(if self.dst == sreg::NULL { sreg::NULL } else { self.dst + n }, value);
                    }
                }
                Width::Byte { signed: false } => wave.set_sgpr(self.dst, pointer.read().into()),
                Width::Byte { signed: true } => wave.set_sgpr(self.dst, pointer.read() as i8 as u32),
                Width::Short { signed } => {
                    let value = pointer.cast::<u16>().read_unaligned();
                    wave.set_sgpr(self.dst, if signed { value as i16 as u32 } else { value.into() });
                }
            }
        }
        Ok(())
    }
}
