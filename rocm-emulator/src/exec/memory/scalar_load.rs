//! Scalar memory loads.
use super::{Memory, MemoryResult, Region};
use crate::exec::wave::Wave;
use crate::exec::{Access, FaultKind};
use crate::isa::{Inst, Operand};

/// A prepared s_load.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct ScalarLoad {
    dst: u8,
    dwords: u8,
    base: u8,
    offset_register: Option<u8>,
    offset: i32,
}

/// `None` if the instruction is unknown here.
pub(in crate::exec) fn prepare(inst: &Inst) -> Option<ScalarLoad> {
    let dwords = match inst.name {
        "s_load_b32" => 1,
        "s_load_b64" => 2,
        "s_load_b128" => 4,
        "s_load_b256" => 8,
        "s_load_b512" => 16,
        _ => return None,
    };
    let (Operand::Scalar(dst), Operand::Scalar(base)) = (inst.dst, inst.src[0]) else { return None };
    let offset_register = match inst.src[1] {
        Operand::Scalar(n) => Some(n),
        _ => None,
    };
    Some(ScalarLoad { dst, dwords, base, offset_register, offset: inst.offset0 })
}

impl ScalarLoad {
    #[inline]
    pub(in crate::exec) fn run<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        memory: &mut Memory,
        slot: usize,
    ) -> MemoryResult<()> {
        let register = self.offset_register.map_or(0, |n| wave.sgpr[usize::from(n & 127)]);
        let address = wave.sgpr64(self.base).wrapping_add(i64::from(self.offset) as u64);
        let address = address.wrapping_add(u64::from(register));
        let bytes = 4 * u64::from(self.dwords);
        // The two low bits do not reach the memory: hardware reads something else, silently.
        if address & 3 != 0 {
            let place = memory.global.place(address);
            let access = Access::Load;
            return Err(Box::new(FaultKind::Misaligned { access, lane: 0, bytes: bytes as u32, place }));
        }
        memory.counters.scalar_memory += 1;
        memory.counters.bytes_loaded += bytes;
        memory.global.select(slot);
        let place = memory.global.locate(0, address, bytes, Access::Load)?.cast::<u32>();
        for n in 0..self.dwords {
            // SAFETY: the region allowed `dwords` dwords from `place` on.
            let value = unsafe { place.add(usize::from(n)).read_unaligned() };
            wave.set_sgpr(self.dst + n, value);
        }
        Ok(())
    }
}
