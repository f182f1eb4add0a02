//! Operands of gfx9's and gfx10's vector ALU: which modifiers they are printed with, and what a constant means.
use super::super::fields::is_mixed;
use super::super::table::{Class, Slot};
use super::super::{Encoding, Family, Inst};
use super::operand::{Kind, Signs, write_embedded_literal, write_operand, write_signed};

/// Source `at` with its modifiers.
pub fn write_source(text: &mut String, family: Family, inst: &Inst, slot: &Slot, at: usize) {
    let operand = inst.src[at];
    if slot.class == Class::Literal {
        return write_embedded_literal(text, family, operand, inst.encoding);
    }
    let bit = 1u8 << at;
    let named = takes_signs(inst, at);
    let signs = Signs {
        neg: named && inst.mods.neg & bit != 0,
        abs: named && inst.mods.abs & bit != 0,
        sext: inst.sdwa.as_ref().is_some_and(|sdwa| sdwa.sext & bit != 0),
        half: "",
    };
    write_signed(text, family, operand, slot.dwords, kind(inst, slot, at), signs);
}

/// Destination `at`: 0 or 1.
pub fn write_destination(text: &mut String, family: Family, inst: &Inst, slot: &Slot, at: usize) {
    let operand = if at == 0 { inst.dst } else { inst.dst2 };
    write_operand(text, family, operand, slot.dwords, kind(inst, slot, at));
}

/// Whether a sign or absolute value of source `at` is printed with the operand. Packed operations list them
/// after the operands; integer operands have none.
fn takes_signs(inst: &Inst, at: usize) -> bool {
    let name = inst.name;
    if inst.encoding == Encoding::Vop3p {
        return is_mixed(name);
    }
    let first_only = ["v_ldexp_", "v_trig_preop_", "v_cvt_pk_u8_", "v_cmp_class_", "v_cmpx_class_"];
    if first_only.iter().any(|prefix| name.starts_with(prefix)) {
        return at == 0;
    }
    true
}

fn kind(inst: &Inst, slot: &Slot, at: usize) -> Kind {
    let name = inst.name;
    // The type of the sources is the last one of the name; a conversion's first type is its result's.
    let float16 = name.ends_with("_f16");
    let packed = name.starts_with("v_dot2") || name.starts_with("v_pk_") && inst.encoding == Encoding::Vop3p;
    match slot.dwords {
        0 if name == "v_ldexp_f16" && at == 1 => Kind::Int16,
        0 if float16 => Kind::Float16,
        0 => Kind::Int16,
        1 if is_mixed(name) => Kind::Float16,
        1 if packed && float16 => Kind::PackedFloat16,
        1 => Kind::Word,
        _ if name.contains("f64") => Kind::Float64,
        // A constant stands for every element of a matrix or pair of words.
        _ if slot.class == Class::Matrix || name.starts_with("v_pk_") => Kind::Word,
        _ => Kind::Int64,
    }
}
