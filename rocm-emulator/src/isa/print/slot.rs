//! Printer of vector ALU operands: their modifiers, and the types of constants.
use super::super::fields::is_mixed;
use super::super::table::{Class, Slot};
use super::super::{Encoding, Family, Inst, Operand};
use super::operand::{Kind, Signs, write_embedded_literal, write_operand, write_signed};

/// Writes source `at` with its modifiers.
pub fn write_source(text: &mut String, family: Family, inst: &Inst, slot: &Slot, at: usize) {
    let operand = inst.src[at];
    if slot.class == Class::Literal {
        return write_embedded_literal(text, family, operand, inst.encoding);
    }
    let bit = 1u8 << at;
    let signed = takes_signs(family, inst, at);
    let signs = Signs {
        neg: signed && inst.mods.neg & bit != 0,
        abs: signed && inst.mods.abs & bit != 0,
        sext: inst.sdwa.as_ref().is_some_and(|sdwa| sdwa.sext & bit != 0),
        half: half(operand, slot, family, inst, inst.mods.op_sel & bit != 0),
    };
    write_signed(text, family, operand, slot.dwords, kind(inst, slot, at), signs);
}

/// Writes destination `at`: 0 or 1.
pub fn write_destination(text: &mut String, family: Family, inst: &Inst, slot: &Slot, at: usize) {
    let operand = if at == 0 { inst.dst } else { inst.dst2 };
    write_operand(text, family, operand, slot.dwords, kind(inst, slot, at));
    text.push_str(half(operand, slot, family, inst, inst.mods.op_sel & 8 != 0));
}

fn half(operand: Operand, slot: &Slot, family: Family, inst: &Inst, high: bool) -> &'static str {
    match operand {
        Operand::Vgpr(_) if slot.is_half() && shows_halves(family, inst) => [".l", ".h"][usize::from(high)],
        _ => "",
    }
}

/// Returns true if LLVM prints `.l` or `.h`: always on gfx11; on gfx12 if a high half is selected, and for
/// instructions whose purpose is the selection of halves.
fn shows_halves(family: Family, inst: &Inst) -> bool {
    match family {
        Family::Rdna3 | Family::Rdna35 => true,
        Family::Rdna4 => inst.mods.op_sel != 0 || matches!(inst.name, "v_mov_b16" | "v_swap_b16"),
        _ => false,
    }
}

/// Returns true if the sign and absolute value of source `at` are printed with it. Packed operations list
/// them after the operands. Integer operands have none, or on gfx11 ignore them.
fn takes_signs(family: Family, inst: &Inst, at: usize) -> bool {
    let name = inst.name;
    if inst.encoding == Encoding::Vop3p {
        return is_mixed(name);
    }
    let starts_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let true16 = family.has_true16();
    if starts_with(&["v_ldexp_", "v_trig_preop_", "v_cvt_pk_u8_", "v_cmpx_class_f32", "v_cmpx_class_f64"])
        || !true16 && starts_with(&["v_cmp_class_", "v_cmpx_class_"])
    {
        return at == 0;
    }
    let integer = ["_i16", "_u16", "_b16"].iter().any(|suffix| name.ends_with(suffix));
    !(true16 && (integer && name != "v_cndmask_b16" || name.starts_with("v_align")))
}

fn kind(inst: &Inst, slot: &Slot, at: usize) -> Kind {
    let name = inst.name;
    // The sources' type is the last one in the name; a conversion's first type is its result's.
    let bfloat16 = name.ends_with("_bf16");
    let float16 = name.ends_with("_f16") || name.starts_with("v_interp_");
    let packed = name.starts_with("v_dot2") || name.starts_with("v_pk_") && inst.encoding == Encoding::Vop3p;
    match slot.dwords {
        0 if bfloat16 => Kind::Bfloat16,
        0 if name == "v_ldexp_f16" && at == 1 => Kind::Int16,
        0 if float16 => Kind::Float16,
        0 => Kind::Int16,
        1 if is_mixed(name) => Kind::Float16,
        1 if packed && bfloat16 => Kind::PackedBfloat16,
        1 if packed && float16 => Kind::PackedFloat16,
        1 => Kind::Word,
        _ if name.contains("f64") => Kind::Float64,
        // A constant applies to every element of a matrix or pair of words.
        _ if slot.class == Class::Matrix || name.starts_with("v_pk_") => Kind::Word,
        _ => Kind::Int64,
    }
}
