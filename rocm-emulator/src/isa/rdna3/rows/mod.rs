//! The instructions that only gfx11 and gfx12 have: opcode, name, operands. See [`crate::isa::table::row`] for the
//! notation; a row without a mark is on both.
pub(in crate::isa) mod lds;
pub(in crate::isa) mod memory;
pub(in crate::isa) mod scalar;
pub(in crate::isa) mod vop1;
pub(in crate::isa) mod vop2;
pub(in crate::isa) mod vop3;
