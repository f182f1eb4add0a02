//! The immediates of scalar instructions: counters, messages, hardware registers, indexed operands.
use super::super::super::print::immediate::{
    write_decimal, write_fields, write_hardware_register, write_message,
};
use super::super::super::table::Class;
use super::super::super::{Family, Inst};
use std::fmt::Write;

/// s_endpgm prints its immediate only if there is one.
pub fn is_hidden(inst: &Inst, class: Class) -> bool {
    class == Class::Immediate && inst.name == "s_endpgm" && inst.imm == 0
}

/// Writes the immediate that a slot of this class stands for; false if the class is a register's.
pub fn write(text: &mut String, family: Family, inst: &Inst, class: Class) -> bool {
    let imm = inst.imm as u32 & 0xffff;
    // Writing into a String cannot fail.
    let _ = match class {
        Class::Immediate if inst.name == "s_endpgm" => write!(text, "{imm}"),
        Class::Immediate => write!(text, "0x{imm:x}"),
        Class::Decimal => write_decimal(text, imm),
        Class::Branch => write!(text, "{imm}"),
        Class::Message => write_message(text, family, imm),
        Class::HwReg => write_hardware_register(text, inst, hardware_registers(family)),
        Class::WaitCount => write_wait_count(text, imm),
        Class::GprIndex => write_indexed(text, imm),
        _ => return false,
    };
    true
}

/// The hardware registers that have names; those of gfx942 alone are the last ones.
const HARDWARE_REGISTERS: &[(u8, &str)] = &[
    (1, "HW_REG_MODE"),
    (2, "HW_REG_STATUS"),
    (3, "HW_REG_TRAPSTS"),
    (4, "HW_REG_HW_ID"),
    (5, "HW_REG_GPR_ALLOC"),
    (6, "HW_REG_LDS_ALLOC"),
    (7, "HW_REG_IB_STS"),
    (15, "HW_REG_SH_MEM_BASES"),
    (16, "HW_REG_TBA_LO"),
    (17, "HW_REG_TBA_HI"),
    (18, "HW_REG_TMA_LO"),
    (19, "HW_REG_TMA_HI"),
    (20, "HW_REG_XCC_ID"),
    (21, "HW_REG_SQ_PERF_SNAPSHOT_DATA"),
    (22, "HW_REG_SQ_PERF_SNAPSHOT_DATA1"),
    (23, "HW_REG_SQ_PERF_SNAPSHOT_PC_LO"),
    (24, "HW_REG_SQ_PERF_SNAPSHOT_PC_HI"),
];
/// How many of them every chip has.
const COMMON_REGISTERS: usize = 12;

fn hardware_registers(family: Family) -> &'static [(u8, &'static str)] {
    if family == Family::Cdna3 { HARDWARE_REGISTERS } else { &HARDWARE_REGISTERS[..COMMON_REGISTERS] }
}

/// s_waitcnt: the counters that are waited for, or all if none is.
fn write_wait_count(text: &mut String, imm: u32) -> std::fmt::Result {
    let vector = imm & 15 | imm >> 10 & 0x30;
    let fields = [("vmcnt", vector, 63), ("expcnt", imm >> 4 & 7, 7), ("lgkmcnt", imm >> 8 & 15, 15)];
    write_fields(text, &fields)
}

/// Which operands of vector instructions s_set_gpr_idx indexes.
fn write_indexed(text: &mut String, imm: u32) -> std::fmt::Result {
    const OPERANDS: [&str; 4] = ["SRC0", "SRC1", "SRC2", "DST"];
    if imm > 15 {
        return write!(text, "0x{imm:x}");
    }
    let chosen: Vec<&str> = (0..4).filter(|at| imm >> at & 1 != 0).map(|at| OPERANDS[at]).collect();
    write!(text, "gpr_idx({})", chosen.join(","))
}
