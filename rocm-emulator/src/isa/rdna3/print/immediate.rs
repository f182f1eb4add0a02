//! The immediates of scalar instructions: counters, dependencies, messages, hardware registers.
use super::super::super::print::immediate::{
    write_decimal, write_depctr, write_fields, write_hardware_register,
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
        Class::HwReg if family == Family::Rdna4 => {
            write_hardware_register(text, inst, GFX12_HARDWARE_REGISTERS)
        }
        Class::HwReg => write_hardware_register(text, inst, HARDWARE_REGISTERS),
        Class::Delay => write_delay(text, imm),
        Class::WaitCount => write_wait_count(text, imm),
        Class::Depctr => write_depctr(text, imm),
        _ => return false,
    };
    true
}

fn write_message(text: &mut String, family: Family, imm: u32) -> std::fmt::Result {
    let name = match imm & 0xff {
        1 => "MSG_INTERRUPT",
        2 => "MSG_HS_TESSFACTOR",
        3 => "MSG_DEALLOC_VGPRS",
        5 if family == Family::Rdna3 => "MSG_STALL_WAVE_GEN",
        6 if family == Family::Rdna3 => "MSG_HALT_WAVES",
        9 => "MSG_GS_ALLOC_REQ",
        0x80 => "MSG_RTN_GET_DOORBELL",
        0x81 => "MSG_RTN_GET_DDID",
        0x82 => "MSG_RTN_GET_TMA",
        0x83 => "MSG_RTN_GET_REALTIME",
        0x84 => "MSG_RTN_SAVE_WAVE",
        0x85 => "MSG_RTN_GET_TBA",
        0x86 => "MSG_RTN_GET_TBA_TO_PC",
        0x87 if family == Family::Rdna4 => "MSG_RTN_GET_SE_AID_ID",
        _ if imm <= 0xff => return write!(text, "sendmsg({imm}, 0, 0)"),
        _ => return write!(text, "{imm}"),
    };
    write!(text, "sendmsg({name})")
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
    (18, "HW_REG_PERF_SNAPSHOT_PC_LO"),
    (19, "HW_REG_PERF_SNAPSHOT_PC_HI"),
    (20, "HW_REG_FLAT_SCR_LO"),
    (21, "HW_REG_FLAT_SCR_HI"),
    (23, "HW_REG_HW_ID1"),
    (24, "HW_REG_HW_ID2"),
    (27, "HW_REG_PERF_SNAPSHOT_DATA"),
    (29, "HW_REG_SHADER_CYCLES"),
];

const GFX12_HARDWARE_REGISTERS: &[(u8, &str)] = &[
    (1, "HW_REG_WAVE_MODE"),
    (2, "HW_REG_WAVE_STATUS"),
    (4, "HW_REG_WAVE_STATE_PRIV"),
    (5, "HW_REG_WAVE_GPR_ALLOC"),
    (6, "HW_REG_WAVE_LDS_ALLOC"),
    (7, "HW_REG_IB_STS"),
    (10, "HW_REG_PERF_SNAPSHOT_DATA"),
    (11, "HW_REG_PERF_SNAPSHOT_PC_LO"),
    (12, "HW_REG_PERF_SNAPSHOT_PC_HI"),
    (15, "HW_REG_PERF_SNAPSHOT_DATA1"),
    (16, "HW_REG_PERF_SNAPSHOT_DATA2"),
    (17, "HW_REG_WAVE_EXCP_FLAG_PRIV"),
    (18, "HW_REG_WAVE_EXCP_FLAG_USER"),
    (19, "HW_REG_WAVE_TRAP_CTRL"),
    (20, "HW_REG_WAVE_SCRATCH_BASE_LO"),
    (21, "HW_REG_WAVE_SCRATCH_BASE_HI"),
    (23, "HW_REG_WAVE_HW_ID1"),
    (24, "HW_REG_WAVE_HW_ID2"),
    (26, "HW_REG_WAVE_SCHED_MODE"),
    (29, "HW_REG_SHADER_CYCLES_LO"),
    (30, "HW_REG_SHADER_CYCLES_HI"),
    (31, "HW_REG_WAVE_DVGPR_ALLOC_LO"),
    (32, "HW_REG_WAVE_DVGPR_ALLOC_HI"),
];

/// s_delay_alu: two dependencies and how many instructions lie between.
fn write_delay(text: &mut String, imm: u32) -> std::fmt::Result {
    const DEPENDENCIES: [&str; 12] = [
        "NO_DEP",
        "VALU_DEP_1",
        "VALU_DEP_2",
        "VALU_DEP_3",
        "VALU_DEP_4",
        "TRANS32_DEP_1",
        "TRANS32_DEP_2",
        "TRANS32_DEP_3",
        "FMA_ACCUM_CYCLE_1",
        "SALU_CYCLE_1",
        "SALU_CYCLE_2",
        "SALU_CYCLE_3",
    ];
    const SKIPS: [&str; 6] = ["SAME", "NEXT", "SKIP_1", "SKIP_2", "SKIP_3", "SKIP_4"];
    let fields = [
        ("instid0", imm & 15, &DEPENDENCIES[..], "/* invalid instid value */"),
        ("instskip", imm >> 4 & 7, &SKIPS[..], "/* invalid instskip value */"),
        ("instid1", imm >> 7 & 15, &DEPENDENCIES[..], "/* invalid instid value */"),
    ];
    let mut separator = "";
    for (field, value, names, invalid) in fields {
        if value != 0 {
            let name = names.get(value as usize).copied().unwrap_or(invalid);
            write!(text, "{separator}{field}({name})")?;
            separator = " | ";
        }
    }
    if separator.is_empty() { write!(text, "0") } else { Ok(()) }
}

/// s_waitcnt: the counters that are waited for, or all if none is.
fn write_wait_count(text: &mut String, imm: u32) -> std::fmt::Result {
    let fields = [("vmcnt", imm >> 10 & 63, 63), ("expcnt", imm & 7, 7), ("lgkmcnt", imm >> 4 & 63, 63)];
    write_fields(text, &fields)
}
