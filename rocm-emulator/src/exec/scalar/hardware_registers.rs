//! Hardware registers that s_getreg and s_setreg access.
use crate::exec::wave::{Mode, Wave};
use crate::exec::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::Operand;

/// Supported hardware registers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Mode,
    /// Upper 16 bits of the shared and private apertures (SH_MEM_BASES).
    MemoryBases,
    /// Reads as 0. These registers are not modelled; compilers read them only in traps and for diagnostics.
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
    /// Creates a field from an operand. Returns `None` for unsupported registers.
    pub(super) fn new(operand: Operand) -> Option<Self> {
        let Operand::HwReg { id, offset, size } = operand else { return None };
        // Numbers on gfx10 and gfx11: MODE (1), SH_MEM_BASES (15), and as zero STATUS, TRAPSTS, GPR_ALLOC,
        // LDS_ALLOC, FLAT_SCR (the base of private memory, which is 0 here), HW_ID1 and HW_ID2.
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
