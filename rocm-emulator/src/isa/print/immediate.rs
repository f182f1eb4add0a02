//! Printer of scalar immediates: counters, dependencies, messages, hardware registers, GPR indexing.
use super::super::table::Class;
use super::super::{Family, Inst, Operand};
use std::fmt::Write;
use std::ops::RangeInclusive;

/// Returns true for s_endpgm with an immediate of 0, which is not printed.
pub fn is_hidden(inst: &Inst, class: Class) -> bool {
    class == Class::Immediate && inst.name == "s_endpgm" && inst.imm == 0
}

/// Writes the immediate of a slot's class. Returns false if the class is not an immediate.
pub fn write(text: &mut String, family: Family, inst: &Inst, class: Class) -> bool {
    let imm = inst.imm as u32 & 0xffff;
    // Writing into a String cannot fail.
    let _ = match class {
        Class::Immediate if inst.name == "s_endpgm" => write!(text, "{imm}"),
        Class::Immediate => write!(text, "0x{imm:x}"),
        Class::Decimal => write_decimal(text, imm),
        Class::Branch => write!(text, "{imm}"),
        Class::Message if family.has_true16() => write_short_message(text, family, imm),
        Class::Message => write_message(text, family, imm),
        Class::HwReg => write_hardware_register(text, family, inst),
        Class::WaitCount => write_wait_count(text, family, imm),
        Class::Delay => write_delay(text, imm),
        Class::Depctr => write_depctr(text, imm),
        Class::GprIndex => write_indexed(text, imm),
        _ => return false,
    };
    true
}

/// Writes inline constants in decimal, and other numbers in hexadecimal.
pub fn write_decimal(text: &mut String, imm: u32) -> std::fmt::Result {
    if imm <= 64 { write!(text, "{imm}") } else { write!(text, "0x{imm:x}") }
}

/// Names of hardware registers without `HW_REG_`, and the instruction-set versions that use them.
const HARDWARE_REGISTERS: &[(u8, &str, RangeInclusive<u16>)] = &[
    (1, "MODE", 90..=110),
    (1, "WAVE_MODE", 120..=120),
    (2, "STATUS", 90..=110),
    (2, "WAVE_STATUS", 120..=120),
    (3, "TRAPSTS", 90..=110),
    (4, "HW_ID", 90..=94),
    (4, "WAVE_STATE_PRIV", 120..=120),
    (5, "GPR_ALLOC", 90..=110),
    (5, "WAVE_GPR_ALLOC", 120..=120),
    (6, "LDS_ALLOC", 90..=110),
    (6, "WAVE_LDS_ALLOC", 120..=120),
    (7, "IB_STS", 90..=120),
    (10, "PERF_SNAPSHOT_DATA", 120..=120),
    (11, "PERF_SNAPSHOT_PC_LO", 120..=120),
    (12, "PERF_SNAPSHOT_PC_HI", 120..=120),
    (15, "SH_MEM_BASES", 90..=110),
    (15, "PERF_SNAPSHOT_DATA1", 120..=120),
    (16, "TBA_LO", 90..=103),
    (16, "PERF_SNAPSHOT_DATA2", 120..=120),
    (17, "TBA_HI", 90..=103),
    (17, "WAVE_EXCP_FLAG_PRIV", 120..=120),
    (18, "TMA_LO", 90..=103),
    (18, "PERF_SNAPSHOT_PC_LO", 110..=110),
    (18, "WAVE_EXCP_FLAG_USER", 120..=120),
    (19, "TMA_HI", 90..=103),
    (19, "PERF_SNAPSHOT_PC_HI", 110..=110),
    (19, "WAVE_TRAP_CTRL", 120..=120),
    (20, "XCC_ID", 94..=94),
    (20, "FLAT_SCR_LO", 103..=110),
    (20, "WAVE_SCRATCH_BASE_LO", 120..=120),
    (21, "SQ_PERF_SNAPSHOT_DATA", 94..=94),
    (21, "FLAT_SCR_HI", 103..=110),
    (21, "WAVE_SCRATCH_BASE_HI", 120..=120),
    (22, "SQ_PERF_SNAPSHOT_DATA1", 94..=94),
    (23, "SQ_PERF_SNAPSHOT_PC_LO", 94..=94),
    (23, "HW_ID1", 103..=110),
    (23, "WAVE_HW_ID1", 120..=120),
    (24, "SQ_PERF_SNAPSHOT_PC_HI", 94..=94),
    (24, "HW_ID2", 103..=110),
    (24, "WAVE_HW_ID2", 120..=120),
    (25, "POPS_PACKER", 103..=103),
    (26, "WAVE_SCHED_MODE", 120..=120),
    (27, "PERF_SNAPSHOT_DATA", 110..=110),
    (29, "SHADER_CYCLES", 103..=110),
    (29, "SHADER_CYCLES_LO", 120..=120),
    (30, "SHADER_CYCLES_HI", 120..=120),
    (31, "WAVE_DVGPR_ALLOC_LO", 120..=120),
    (32, "WAVE_DVGPR_ALLOC_HI", 120..=120),
];

/// Writes `hwreg(name, offset, size)` of s_getreg and s_setreg.
fn write_hardware_register(text: &mut String, family: Family, inst: &Inst) -> std::fmt::Result {
    let operand = if inst.dst == Operand::None || matches!(inst.src[0], Operand::HwReg { .. }) {
        inst.src[0]
    } else {
        inst.dst
    };
    let Operand::HwReg { id, offset, size } = operand else {
        return write!(text, "hwreg(?)");
    };
    let names = |(known, _, versions): &&(u8, &str, RangeInclusive<u16>)| {
        *known == id && versions.contains(&family.version())
    };
    match HARDWARE_REGISTERS.iter().find(names) {
        Some((_, name, _)) => write!(text, "hwreg(HW_REG_{name}")?,
        None => write!(text, "hwreg({id}")?,
    }
    if (offset, size) == (0, 32) { write!(text, ")") } else { write!(text, ", {offset}, {size})") }
}

/// Writes `name(value)` of every field that differs from its maximum, or of all fields if none does.
fn write_fields(text: &mut String, fields: &[(&str, u32, u32)]) -> std::fmt::Result {
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

/// Writes gfx9's and gfx10's s_sendmsg. Bits outside its fields affect only unnamed messages.
fn write_message(text: &mut String, family: Family, imm: u32) -> std::fmt::Result {
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

/// Writes s_waitcnt_depctr, as a number if bits outside its fields are set.
fn write_depctr(text: &mut String, imm: u32) -> std::fmt::Result {
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

/// Writes gfx11's and gfx12's s_sendmsg.
fn write_short_message(text: &mut String, family: Family, imm: u32) -> std::fmt::Result {
    let name = match imm & 0xff {
        1 => "MSG_INTERRUPT",
        2 => "MSG_HS_TESSFACTOR",
        3 => "MSG_DEALLOC_VGPRS",
        5 if family.is_gfx11() => "MSG_STALL_WAVE_GEN",
        6 if family.is_gfx11() => "MSG_HALT_WAVES",
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

/// Writes s_delay_alu: two dependencies, and the number of instructions between.
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

/// Writes s_waitcnt: the counters that are waited for, or all if there are none.
fn write_wait_count(text: &mut String, family: Family, imm: u32) -> std::fmt::Result {
    let low_vector = imm & 15 | imm >> 10 & 0x30;
    let [vector, export, scalar] = match family {
        _ if family.has_true16() => [(imm >> 10 & 63, 63), (imm & 7, 7), (imm >> 4 & 63, 63)],
        Family::Rdna2 => [(low_vector, 63), (imm >> 4 & 7, 7), (imm >> 8 & 63, 63)],
        _ => [(low_vector, 63), (imm >> 4 & 7, 7), (imm >> 8 & 15, 15)],
    };
    let field = |name, (value, maximum)| (name, value, maximum);
    write_fields(text, &[field("vmcnt", vector), field("expcnt", export), field("lgkmcnt", scalar)])
}

/// Writes which operands of vector instructions s_set_gpr_idx indexes.
fn write_indexed(text: &mut String, imm: u32) -> std::fmt::Result {
    const OPERANDS: [&str; 4] = ["SRC0", "SRC1", "SRC2", "DST"];
    if imm > 15 {
        return write!(text, "0x{imm:x}");
    }
    let selected: Vec<&str> = (0..4).filter(|at| imm >> at & 1 != 0).map(|at| OPERANDS[at]).collect();
    write!(text, "gpr_idx({})", selected.join(","))
}
