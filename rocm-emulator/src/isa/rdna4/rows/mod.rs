//! The instructions of gfx12 that gfx11 has not, or not under the same opcode. See [`crate::isa::table::row`] for
//! the notation.
pub(super) mod memory;
pub(super) mod scalar;
pub(super) mod vector;
