//! The instructions that only gfx908, gfx90a and gfx942 have: opcode, name, operands, chips. See
//! [`crate::isa::table::row`] for the notation; a row without chips is on all of them.
pub(super) mod lds;
pub(super) mod memory;
pub(super) mod scalar;
pub(super) mod vop1;
pub(super) mod vop2;
pub(super) mod vop3;
