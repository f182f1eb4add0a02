//! Immediates of scalar instructions that every family spells alike.
use super::super::{Inst, Operand};
use std::fmt::Write;

/// What is no inline constant is hexadecimal.
pub fn write_decimal(text: &mut String, imm: u32) -> std::fmt::Result {
    if imm <= 64 { write!(text, "{imm}") } else { write!(text, "0x{imm:x}") }
}

/// `hwreg(name, offset, size)` of s_getreg and s_setreg.
pub fn write_hardware_register(text: &mut String, inst: &Inst, names: &[(u8, &str)]) -> std::fmt::Result {
    let operand = if inst.dst == Operand::None || matches!(inst.src[0], Operand::HwReg { .. }) {
        inst.src[0]
    } else {
        inst.dst
    };
    let Operand::HwReg { id, offset, size } = operand else {
        return write!(text, "hwreg(?)");
    };
    match names.iter().find(|(known, _)| *known == id) {
        Some((_, name)) => write!(text, "hwreg({name}")?,
        None => write!(text, "hwreg({id}")?,
    }
    if (offset, size) == (0, 32) { write!(text, ")") } else { write!(text, ", {offset}, {size})") }
}

/// Writes `name(value)` of every field that differs from its maximum, or of all if none does.
pub fn write_fields(text: &mut String, fields: &[(&str, u32, u32)]) -> std::fmt::Result {
    let all = fields.iter().all(|(_, value, maximum)| value == maximum);
    let mut separator = "";
    for (name, value, maximum) in fields {
        if all || value != maximum {
            write!(text, "{separator}{name}({value})")?;
            separator = " ";
        }
    }
    Ok(())
}
