//! The hardware registers that s_getreg and s_setreg reach.
use crate::exec::wave::{Mode, Wave};
use crate::exec::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::Operand;

/// The registers that exist here.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Mode,
    /// The apertures' high halves, 16 bits each.
    MemoryBases,
    /// Reads as 0: nothing of it is modelled, and compilers only read it in traps and for diagnostics.
    Zero,
}

/// A field of a hardware register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::exec) struct HardwareRegister {
    kind: Kind,
    offset: u8,
    size: u8,
}

impl HardwareRegister {
    /// `None` for registers that are not there.
    pub(super) fn new(operand: Operand) -> Option<Self> {
        let Operand::HwReg { id, offset, size } = operand else { return None };
        // Numbers of gfx10 and gfx11: MODE, STATUS, TRAPSTS, GPR_ALLOC, LDS_ALLOC, SH_MEM_BASES, FLAT_SCR (which gfx10's
        // kernels set to where private memory begins: it is 0 here), HW_ID1, HW_ID2.
        let kind = match id {
            1 => Kind::Mode,
            15 => Kind::MemoryBases,
            2 | 3 | 5 | 6 | 20 | 21 | 23 | 24 => Kind::Zero,
            _ => return None,
        };
        Some(Self { kind, offset: offset & 31, size })
    }

    fn mask(self) -> u32 {
        if self.size >= 32 { u32::MAX } else { (1 << self.size) - 1 }
    }

    pub(super) fn read<const W: usize>(self, wave: &Wave<W>) -> u32 {
        let value = match self.kind {
            Kind::Mode => wave.mode.bits(),
            Kind::MemoryBases => ((SHARED_APERTURE >> 48) << 16 | PRIVATE_APERTURE >> 48) as u32,
            Kind::Zero => 0,
        };
        (value >> self.offset) & self.mask()
    }

    pub(super) fn write<const W: usize>(self, wave: &mut Wave<W>, value: u32) {
        if self.kind == Kind::Mode {
            let field = self.mask() << self.offset;
            let bits = wave.mode.bits() & !field | (value << self.offset) & field;
            wave.mode = Mode::from_bits(bits);
        }
    }
}
