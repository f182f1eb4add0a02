//! Immediates of scalar instructions that every family prints in the same way.
use super::super::{Family, Inst, Operand};
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

/// s_sendmsg of gfx9 and gfx10. Bits beside message, operation and stream matter only to a message without a name.
pub fn write_message(text: &mut String, family: Family, imm: u32) -> std::fmt::Result {
    const GS_OPERATIONS: [&str; 4] = ["GS_OP_NOP", "GS_OP_CUT", "GS_OP_EMIT", "GS_OP_EMIT_CUT"];
    const USED: u32 = 0x37f;
    let (message, operation, stream) = (imm & 15, imm >> 4 & 7, imm >> 8 & 3);
    let name = match (message, operation, stream) {
        (2 | 3, 1..=3, _) => {
            let name = if message == 2 { "MSG_GS" } else { "MSG_GS_DONE" };
            return write!(text, "sendmsg({name}, {}, {stream})", GS_OPERATIONS[operation as usize]);
        }
        (3, 0, 0) => "MSG_GS_DONE, GS_OP_NOP",
        (1, 0, 0) => "MSG_INTERRUPT",
        (4, 0, 0) => "MSG_SAVEWAVE",
        (5, 0, 0) => "MSG_STALL_WAVE_GEN",
        (6, 0, 0) => "MSG_HALT_WAVES",
        (7, 0, 0) => "MSG_ORDERED_PS_DONE",
        (8, 0, 0) => "MSG_EARLY_PRIM_DEALLOC",
        (9, 0, 0) => "MSG_GS_ALLOC_REQ",
        (10, 0, 0) => "MSG_GET_DOORBELL",
        (15, 1, 0) => "MSG_SYSMSG, SYSMSG_OP_ECC_ERR_INTERRUPT",
        (15, 2, 0) => "MSG_SYSMSG, SYSMSG_OP_REG_RD",
        (15, 4, 0) => "MSG_SYSMSG, SYSMSG_OP_TTRACE_PC",
        (11, 0, 0) if !family.is_gfx9() => "MSG_GET_DDID",
        _ if imm & !USED == 0 => return write!(text, "sendmsg({message}, {operation}, {stream})"),
        _ => return write!(text, "{imm}"),
    };
    write!(text, "sendmsg({name})")
}

/// s_waitcnt_depctr; with bits set that no field has, as a number.
pub fn write_depctr(text: &mut String, imm: u32) -> std::fmt::Result {
    /// Bits that belong to no field.
    const UNUSED: u32 = 0x0060;
    if imm & UNUSED != 0 {
        return write!(text, "0x{imm:x}");
    }
    let fields = [
        ("depctr_hold_cnt", imm >> 7 & 1, 1),
        ("depctr_sa_sdst", imm & 1, 1),
        ("depctr_va_vdst", imm >> 12 & 15, 15),
        ("depctr_va_sdst", imm >> 9 & 7, 7),
        ("depctr_va_ssrc", imm >> 8 & 1, 1),
        ("depctr_va_vcc", imm >> 1 & 1, 1),
        ("depctr_vm_vsrc", imm >> 2 & 7, 7),
    ];
    write_fields(text, &fields)
}
