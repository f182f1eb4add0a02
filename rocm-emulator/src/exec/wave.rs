//! State of one wave.
use crate::isa::sreg;

/// Vector registers per lane, with padding for register tuples that extend past the last register.
pub const VGPRS: usize = 256 + 16;
/// First of gfx9's accumulation registers, which follow the vector registers.
pub const FIRST_AGPR: u16 = VGPRS as u16;
/// Registers per lane including accumulation registers.
pub const VGPRS_AND_AGPRS: usize = 2 * VGPRS;

/// A vector register: one 32-bit value per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Lanes<const W: usize>(pub [u32; W]);

impl<const W: usize> Lanes<W> {
    pub const fn splat(value: u32) -> Self {
        Self([value; W])
    }
}

/// Fields of the MODE register (hwreg 1) that affect arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Rounding of f32: 0 nearest even, 1 +inf, 2 -inf, 3 zero.
    pub round_32: u8,
    /// Rounding of f16 and f64.
    pub round_16_64: u8,
    /// Denormals of f32: bit 0 allows inputs, bit 1 allows outputs.
    pub denorm_32: u8,
    /// Denormals of f16 and f64.
    pub denorm_16_64: u8,
    /// Clamping turns NaN into zero (DX10_CLAMP).
    pub dx10_clamp: bool,
    /// IEEE mode: signalling NaNs are quieted by min/max.
    pub ieee: bool,
}

impl Mode {
    /// Returns the register's bits, as s_getreg reads them.
    pub const fn bits(&self) -> u32 {
        self.round_32 as u32
            | (self.round_16_64 as u32) << 2
            | (self.denorm_32 as u32) << 4
            | (self.denorm_16_64 as u32) << 6
            | (self.dx10_clamp as u32) << 8
            | (self.ieee as u32) << 9
    }

    /// Converts the register's bits; bits that are not modelled are dropped.
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            round_32: (bits & 3) as u8,
            round_16_64: (bits >> 2 & 3) as u8,
            denorm_32: (bits >> 4 & 3) as u8,
            denorm_16_64: (bits >> 6 & 3) as u8,
            dx10_clamp: bits >> 8 & 1 != 0,
            ieee: bits >> 9 & 1 != 0,
        }
    }
}

/// Registers of one wave of `W` lanes (32 or 64).
pub struct Wave<const W: usize> {
    /// Scalar registers by canonical number ([`sreg`]): s0..s105, VCC, TTMP, NULL, M0, EXEC.
    pub sgpr: [u32; 128],
    pub scc: bool,
    pub mode: Mode,
    pub vgpr: Vec<Lanes<W>>,
}

impl<const W: usize> Wave<W> {
    /// Returns the execution mask. Bits from `W` up are zero.
    #[inline(always)]
    pub fn exec(&self) -> u64 {
        self.sgpr64(sreg::EXEC_LO) & Self::full()
    }

    /// Returns the mask of all lanes.
    #[inline(always)]
    pub const fn full() -> u64 {
        if W == 64 { u64::MAX } else { (1 << W) - 1 }
    }

    /// Returns a scalar register pair.
    #[inline(always)]
    pub fn sgpr64(&self, n: u8) -> u64 {
        let n = (n & 127) as usize;
        u64::from(self.sgpr[n]) | (u64::from(self.sgpr[(n + 1) & 127]) << 32)
    }

    /// Writes a scalar register. Writes to NULL are discarded.
    #[inline(always)]
    pub fn set_sgpr(&mut self, n: u8, value: u32) {
        if n != sreg::NULL {
            self.sgpr[(n & 127) as usize] = value;
        }
    }

    /// Writes a scalar register pair. Writes to NULL are discarded.
    #[inline(always)]
    pub fn set_sgpr64(&mut self, n: u8, value: u64) {
        if n != sreg::NULL {
            self.sgpr[(n & 127) as usize] = value as u32;
            self.sgpr[((n + 1) & 127) as usize] = (value >> 32) as u32;
        }
    }

    /// Returns a lane mask in scalar registers: one register for wave32, a pair for wave64.
    #[inline(always)]
    pub fn mask(&self, n: u8) -> u64 {
        if W == 64 { self.sgpr64(n) } else { u64::from(self.sgpr[(n & 127) as usize]) }
    }

    /// Writes a lane mask: one register for wave32, a pair for wave64.
    #[inline(always)]
    pub fn set_mask(&mut self, n: u8, value: u64) {
        if W == 64 { self.set_sgpr64(n, value) } else { self.set_sgpr(n, value as u32) }
    }
}
