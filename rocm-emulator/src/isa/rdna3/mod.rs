//! gfx11: RDNA3, wave32.
use super::{DecodeError, Inst};

/// Decodes the instruction at `offset` bytes into `text`.
pub fn decode(_text: &[u8], _offset: usize) -> Result<Inst, DecodeError> {
    unimplemented!("being built")
}

/// The instruction as llvm-objdump prints it.
pub fn format(_inst: &Inst, _address: u64) -> String {
    unimplemented!("being built")
}
