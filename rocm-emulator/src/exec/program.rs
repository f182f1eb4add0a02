//! The machine code of one code object, decoded as it is reached.
use crate::isa::Family;

/// The text of a code object. Shared by every launch of its kernels.
pub struct Program {
    family: Family,
    text: Vec<u8>,
    text_address: u64,
}

impl Program {
    /// `text` is the code, and `text_address` the host address at which the loaded code object's text lies:
    /// PC-relative addresses are computed from it.
    pub fn load(family: Family, text: Vec<u8>, text_address: u64) -> Self {
        Self { family, text, text_address }
    }
}
