//! What the families share of the texts, character for character as llvm-objdump 22 prints them.
pub mod immediate;
pub mod memory;
pub mod modifier;
pub mod operand;
pub mod rdna;
pub mod slot;
