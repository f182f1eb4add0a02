//! Rows that several families have, marked with the chips that have them; a row without a mark is on all of them. See
//! [`super::table::row`] for the notation. What only one family has is in its own folder.
pub(super) mod lds;
pub(super) mod memory;
pub(super) mod scalar;
pub(super) mod vop1;
pub(super) mod vop2;
pub(super) mod vop3;
pub(super) mod vopc;
