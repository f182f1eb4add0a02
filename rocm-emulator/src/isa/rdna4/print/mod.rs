//! The text of an instruction, character for character as llvm-objdump 22 prints it. The ALU's is as gfx11's.

mod memory;

use super::super::rdna3::print::Printer;
use super::super::{Family, Inst};
use super::table::GFX12;

/// The instruction as llvm-objdump prints it. Branch targets are distances, so the address does not matter.
pub fn format(inst: &Inst, _address: u64) -> String {
    Printer { family: Family::Rdna4, names: &GFX12.names, write_memory: memory::write }.format(inst)
}
