//! The instructions of gfx10.3: opcode, name, operands. See [`crate::isa::table::row`] for the notation.
pub(super) mod lds;
pub(super) mod memory;
pub(super) mod scalar;
pub(super) mod vop1;
pub(super) mod vop2;
pub(super) mod vop3;
pub(super) mod vopc;
