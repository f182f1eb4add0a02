//! The immediates of scalar instructions: counters, dependencies, messages, hardware registers.
use super::super::super::print::immediate::{
    write_decimal, write_depctr, write_fields, write_hardware_register, write_message,
};
use super::super::super::table::Class;
use super::super::super::{Family, Inst};
use std::fmt::Write;

/// s_endpgm prints its immediate only if there is one.
pub fn is_hidden(inst: &Inst, class: Class) -> bool {
    class == Class::Immediate && inst.name == "s_endpgm" && inst.imm == 0
}

/// Writes the immediate that a slot of this class stands for; false if the class is a register's.
pub fn write(text: &mut String, inst: &Inst, class: Class) -> bool {
    let imm = inst.imm as u32 & 0xffff;
    // Writing into a String cannot fail.
    let _ = match class {
        Class::Immediate if inst.name == "s_endpgm" => write!(text, "{imm}"),
        Class::Immediate => write!(text, "0x{imm:x}"),
        Class::Decimal => write_decimal(text, imm),
        Class::Branch => write!(text, "{imm}"),
        Class::Message => write_message(text, Family::Rdna2, imm),
        Class::HwReg => write_hardware_register(text, inst, HARDWARE_REGISTERS),
        Class::WaitCount => write_wait_count(text, imm),
        Class::Depctr => write_depctr(text, imm),
        _ => return false,
    };
    true
}

/// The hardware registers that have names.
const HARDWARE_REGISTERS: &[(u8, &str)] = &[
    (1, "HW_REG_MODE"),
    (2, "HW_REG_STATUS"),
    (3, "HW_REG_TRAPSTS"),
    (5, "HW_REG_GPR_ALLOC"),
    (6, "HW_REG_LDS_ALLOC"),
    (7, "HW_REG_IB_STS"),
    (15, "HW_REG_SH_MEM_BASES"),
    (16, "HW_REG_TBA_LO"),
    (17, "HW_REG_TBA_HI"),
    (18, "HW_REG_TMA_LO"),
    (19, "HW_REG_TMA_HI"),
    (20, "HW_REG_FLAT_SCR_LO"),
    (21, "HW_REG_FLAT_SCR_HI"),
    (23, "HW_REG_HW_ID1"),
    (24, "HW_REG_HW_ID2"),
    (25, "HW_REG_POPS_PACKER"),
    (29, "HW_REG_SHADER_CYCLES"),
];

/// s_waitcnt: the counters that are waited for, or all if none is.
fn write_wait_count(text: &mut String, imm: u32) -> std::fmt::Result {
    let vector = imm & 15 | imm >> 10 & 0x30;
    let fields = [("vmcnt", vector, 63), ("expcnt", imm >> 4 & 7, 7), ("lgkmcnt", imm >> 8 & 63, 63)];
    write_fields(text, &fields)
}
