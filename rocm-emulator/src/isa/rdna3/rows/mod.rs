//! The instructions of gfx11: opcode, name, operands. See [`crate::isa::table::row`] for the notation. Most are
//! gfx12's too; what is not is marked.
pub(in crate::isa) mod lds;
pub(in crate::isa) mod memory;
pub(in crate::isa) mod scalar;
pub(in crate::isa) mod vop1;
pub(in crate::isa) mod vop2;
pub(in crate::isa) mod vop3;
pub(in crate::isa) mod vopc;

/// The families as bits of a row.
pub(in crate::isa) const RDNA3: u8 = 1;
pub(in crate::isa) const RDNA4: u8 = 2;
