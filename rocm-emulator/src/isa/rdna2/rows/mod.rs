//! The instructions that only gfx10.3 has: opcode, name, operands. See [`crate::isa::table::row`] for the notation.
pub(super) mod lds;
pub(super) mod memory;
pub(super) mod scalar;
pub(super) mod vop1;
pub(super) mod vop2;
pub(super) mod vop3;
