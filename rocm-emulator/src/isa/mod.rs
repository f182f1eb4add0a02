//! Instruction decoder and printer. An [`Inst`] has the same representation in every family; decoder and
//! printer handle the differences. [`rows`] lists the instructions of every GPU.
//!
//! Names are LLVM's mnemonics without the encoding suffix (`_e32`, `_e64`, `_dpp`, `_sdwa`), so that one
//! implementation in [`crate::exec`] serves every encoding and every family that has the operation.

pub mod check;
mod decode;
mod dual;
mod fields;
mod gfx12;
mod memory;
mod print;
mod rows;
mod scalar;
mod sdwa;
mod table;
mod tables;
#[cfg(test)]
mod tests;
mod vector;

pub use decode::decode;
pub use print::format;
pub(crate) use table::expand;

/// An instruction-set family, which determines the decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// gfx103x and gfx10-3-generic, wave32.
    Rdna2,
    /// gfx110x and gfx11-generic, wave32.
    Rdna3,
    /// gfx115x, wave32: gfx110x and scalar floating point.
    Rdna35,
    /// gfx12xx, wave32.
    Rdna4,
    /// gfx908, wave64.
    Cdna1,
    /// gfx90a, wave64.
    Cdna2,
    /// gfx942 and gfx9-4-generic, wave64.
    Cdna3,
    /// gfx950, wave64: gfx942 without xf32, and with wider matrix products.
    Cdna4,
    /// gfx906, wave64: gfx908 without matrix products.
    Gcn5,
}

impl Family {
    pub(crate) const fn is_gfx9(self) -> bool {
        matches!(self, Self::Gcn5 | Self::Cdna1 | Self::Cdna2 | Self::Cdna3 | Self::Cdna4)
    }

    /// Returns true if memory instructions access accumulation registers: gfx90a, gfx942 and gfx950.
    pub(crate) const fn has_unified_registers(self) -> bool {
        matches!(self, Self::Cdna2 | Self::Cdna3 | Self::Cdna4)
    }

    /// Returns true for gfx942 and gfx950.
    pub(crate) const fn is_gfx94(self) -> bool {
        self.version() == 94
    }

    /// Returns true for gfx110x and gfx115x.
    pub(crate) const fn is_gfx11(self) -> bool {
        matches!(self, Self::Rdna3 | Self::Rdna35)
    }

    /// Returns true if 32-bit encodings can address halves of registers ("true16"): gfx11 and gfx12.
    const fn has_true16(self) -> bool {
        self.is_gfx11() || matches!(self, Self::Rdna4)
    }

    /// Returns the instruction-set version, the leading digits of GPU names: 90, 94, 103, 110 or 120.
    const fn version(self) -> u16 {
        match self {
            Self::Gcn5 | Self::Cdna1 | Self::Cdna2 => 90,
            Self::Cdna3 | Self::Cdna4 => 94,
            Self::Rdna2 => 103,
            Self::Rdna3 | Self::Rdna35 => 110,
            Self::Rdna4 => 120,
        }
    }

    /// Returns the canonical number of the scalar register with this 7-bit operand code, if it exists.
    const fn scalar_register(self, code: u8) -> Option<u8> {
        match code {
            // Before gfx11, M0 has the code that is NULL in later families; gfx9 has no NULL.
            124 if !self.has_true16() => Some(sreg::M0),
            125 if self.is_gfx9() => None,
            125 if !self.has_true16() => Some(sreg::NULL),
            0..=127 => Some(code),
            _ => None,
        }
    }
}

/// An operand. Register numbers are those of the first register; the width follows from the mnemonic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Operand {
    /// Absent (printed as `off` for `saddr`).
    #[default]
    None,
    /// Vector register `v[n]`.
    Vgpr(u16),
    /// Accumulation register `a[n]`.
    Agpr(u16),
    /// Scalar register, by canonical number (see [`sreg`]).
    Scalar(u8),
    /// The scalar condition code, read as 0 or 1.
    Scc,
    /// `vccz` and `execz` as sources.
    VccZ,
    ExecZ,
    /// Inline integer (-16..=64), or a 32-bit literal as its bits. A 64-bit integer operation sign-extends an
    /// inline integer, and zero- or sign-extends a literal as the ISA specifies. A 64-bit float operation
    /// uses a literal as its high half.
    Int(i32),
    Literal(u32),
    /// Inline float constant; its bits depend on the operation's type.
    Float(InlineFloat),
    /// Bases and limits of the apertures.
    SharedBase,
    SharedLimit,
    PrivateBase,
    PrivateLimit,
    /// `hwreg(id, offset, size)` of s_getreg/s_setreg.
    HwReg {
        id: u8,
        offset: u8,
        size: u8,
    },
}

/// Canonical numbers of scalar registers, which are the same for every family.
pub(crate) mod sreg {
    /// On gfx9, flat_scratch is 102 and 103, xnack_mask 104 and 105; elsewhere these are s102..s105.
    #[cfg(test)]
    pub const FLAT_SCRATCH_LO: u8 = 102;
    #[cfg(test)]
    pub const XNACK_MASK_LO: u8 = 104;
    pub const VCC_LO: u8 = 106;
    pub const VCC_HI: u8 = 107;
    /// ttmp0..15 are 108..=123.
    pub const TTMP0: u8 = 108;
    /// Reads as 0 and discards writes.
    pub const NULL: u8 = 124;
    pub const M0: u8 = 125;
    pub const EXEC_LO: u8 = 126;
    pub const EXEC_HI: u8 = 127;
}

/// Inline float constants: ±0.5, ±1, ±2, ±4 and 1/(2π).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlineFloat {
    Half,
    NegHalf,
    One,
    NegOne,
    Two,
    NegTwo,
    Four,
    NegFour,
    InvTwoPi,
}

/// Encodings of the supported families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Encoding {
    Sop1,
    Sop2,
    Sopk,
    Sopc,
    Sopp,
    Smem,
    Vop1,
    Vop2,
    Vop3,
    /// VOP3 with a vector and a scalar destination.
    Vop3Sd,
    Vop3p,
    Vopc,
    Vopd,
    Vinterp,
    LdsDir,
    Ds,
    Flat,
    Global,
    Scratch,
    Mubuf,
}

/// A decoded instruction.
///
/// Operand order in `src`:
/// - ALU: as LLVM prints them, after the destination(s). v_fmac/v_mac and the like: the accumulator is only `dst`.
///   v_fmamk/v_fmaak, s_fmamk...: the literal is at its printed position. e32 forms that read VCC implicitly
///   (v_cndmask_b32_e32, v_addc) have `Operand::Scalar(VCC_LO)` as last source, e32 compares have it as `dst`,
///   e32 carry-out forms as `dst2`. v_cmpx has `dst` = `Scalar(EXEC_LO)`; gfx9's writes both `dst` and EXEC.
/// - SMEM: `[sbase, soffset or None]`, constant offset in `offset0`.
/// - DS: `[addr, data0, data1]`, `None` if absent; `offset0`, and in two-address forms `offset1`.
/// - FLAT/GLOBAL/SCRATCH: `[vaddr or None, data or None, saddr or None]`, constant offset in `offset0`;
///   an atomic that returns has a `dst`.
/// - MUBUF: `[vaddr or None, vdata or None, srsrc, soffset]`.
/// - SOPP/SOPK immediates: `imm`, in SOPK sign-extended except in unsigned compares and waits. Branch
///   targets: `imm` is the signed dword distance from the next instruction. s_sendmsg_rtn: `imm` is the message.
///   s_setreg: `dst` is the hardware register, `src[0]` the value; s_getreg: `src[0]` is the hardware register.
/// - v_bitop3: the fourth source is the truth table.
/// - VOPD: this is the X half, `pair` the Y half. Both have the names of the single instructions (v_fmac_f32, not
///   v_dual_fmac_f32).
/// - VINTERP, LDSDIR: `imm` is the count to wait for; lds_param_load: attribute and channel in the offsets.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// LLVM's mnemonic without the suffix of the encoding.
    pub name: &'static str,
    pub(crate) encoding: Encoding,
    /// Size in bytes: 4, 8 or 12, including a literal, DPP or SDWA dword.
    pub size: u8,
    pub(crate) dst: Operand,
    /// Second destination: the carry-out, or v_div_scale's mask.
    pub(crate) dst2: Operand,
    pub(crate) src: [Operand; 4],
    pub(crate) imm: i32,
    pub(crate) offset0: i32,
    pub(crate) offset1: i32,
    pub(crate) mods: Mods,
    pub(crate) dpp: Option<Dpp>,
    pub(crate) sdwa: Option<Sdwa>,
    /// Y half of a dual-issue instruction. Both halves read their sources before either writes.
    pub(crate) pair: Option<Box<Inst>>,
}

impl Inst {
    /// Creates an instruction without operands.
    pub(crate) fn blank(name: &'static str, encoding: Encoding) -> Self {
        Self {
            name,
            encoding,
            size: 0,
            dst: Operand::None,
            dst2: Operand::None,
            src: [Operand::None; 4],
            imm: 0,
            offset0: 0,
            offset1: 0,
            mods: Mods::default(),
            dpp: None,
            sdwa: None,
            pair: None,
        }
    }
}

/// Modifiers. Bit i of a mask belongs to source i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mods {
    pub neg: u8,
    pub abs: u8,
    /// VOP3P: negation of the high halves. v_fma_mix instead uses `neg` and `abs` for its whole operands.
    pub neg_hi: u8,
    /// VOP3: reads the high half of source i (bit 3: writes the destination's high half). VOP3P: op_sel.
    /// Also contains the halves that true16 registers of e32 encodings select.
    pub op_sel: u8,
    pub op_sel_hi: u8,
    pub clamp: bool,
    /// Output modifier: 0 none, 1 multiplies by 2, 2 by 4, 3 divides by 2.
    pub omod: u8,
    pub glc: bool,
    pub slc: bool,
    pub dlc: bool,
    pub gds: bool,
    /// gfx12: temporal hint and scope of a memory access, which replace glc, slc and dlc.
    pub th: u8,
    pub scope: u8,
    /// gfx90a and gfx942. gfx942 names glc, slc and scc sc0, nt and sc1.
    pub scc: bool,
    /// Set for a load to LDS, which has no data register.
    pub lds: bool,
    /// MUBUF addressing.
    pub offen: bool,
    pub idxen: bool,
    /// gfx9 SMEM: set if the encoding has a constant offset (which may be 0) in addition to the register.
    pub with_constant: bool,
    /// MFMA: broadcast of A's blocks (size and index); permutation of B's lanes (gfx942's f64: signs).
    pub cbsz: u8,
    pub abid: u8,
    pub blgp: u8,
}

/// Sub-dword addressing (SDWA): the part of each operand that is used. Bit i of `sext` belongs to source i.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sdwa {
    /// `None` for compares, which write a whole mask.
    pub dst: Option<(SdwaSelect, SdwaUnused)>,
    pub src: [SdwaSelect; 2],
    /// Sign-extends the selected part.
    pub sext: u8,
}

/// Part of a dword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SdwaSelect {
    Byte0,
    Byte1,
    Byte2,
    Byte3,
    Word0,
    Word1,
    Dword,
}

impl SdwaSelect {
    /// Returns the first bit and the number of bits.
    pub fn range(self) -> (u32, u32) {
        match self {
            Self::Byte0 => (0, 8),
            Self::Byte1 => (8, 8),
            Self::Byte2 => (16, 8),
            Self::Byte3 => (24, 8),
            Self::Word0 => (0, 16),
            Self::Word1 => (16, 16),
            Self::Dword => (0, 32),
        }
    }
}

/// Value of the destination's other bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SdwaUnused {
    /// Zero.
    Pad,
    /// Copies of the result's sign.
    SignExtend,
    Preserve,
}

/// Data-parallel primitives (DPP): the lanes from which source 0 is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dpp {
    pub control: DppControl,
    pub row_mask: u8,
    pub bank_mask: u8,
    pub bound_ctrl: bool,
    pub fetch_inactive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DppControl {
    QuadPerm([u8; 4]),
    RowShl(u8),
    RowShr(u8),
    RowRor(u8),
    RowMirror,
    RowHalfMirror,
    /// Also encodes gfx9's row_newbcast.
    RowShare(u8),
    RowXmask(u8),
    /// gfx9 only: shifts and rotations of the wave by one lane, and row broadcasts.
    WaveShl,
    WaveRol,
    WaveShr,
    WaveRor,
    RowBcast15,
    RowBcast31,
    /// Selected lanes of each eight.
    Dpp8([u8; 8]),
}

/// Error for code that is not an instruction of the family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {family:?} instruction: 0x{word:08x} at offset 0x{offset:x}: {reason}")]
pub struct DecodeError {
    /// Family for which the code was decoded.
    pub family: Family,
    /// Offset of the instruction in the code, in bytes.
    pub offset: usize,
    /// First dword of the instruction.
    pub word: u32,
    /// Reason why the code does not decode.
    pub reason: &'static str,
}

impl InlineFloat {
    /// All constants with their values, in the order of their operand codes.
    pub const ALL: [(Self, f64); 9] = [
        (Self::Half, 0.5),
        (Self::NegHalf, -0.5),
        (Self::One, 1.0),
        (Self::NegOne, -1.0),
        (Self::Two, 2.0),
        (Self::NegTwo, -2.0),
        (Self::Four, 4.0),
        (Self::NegFour, -4.0),
        // One unit in the last place less than the nearest f64.
        (Self::InvTwoPi, f64::from_bits(0x3fc4_5f30_6dc9_c882)),
    ];

    pub const fn value(self) -> f64 {
        Self::ALL[self as usize].1
    }

    /// Returns the constant's bits as f16.
    pub fn bits_16(self) -> u16 {
        half::f16::from_f64(self.value()).to_bits()
    }

    /// Returns the constant's bits as f32.
    pub const fn bits_32(self) -> u32 {
        (self.value() as f32).to_bits()
    }

    /// Returns the constant's bits as f64.
    pub const fn bits_64(self) -> u64 {
        self.value().to_bits()
    }
}
