//! Registers, constants and literals.
use super::super::super::{Encoding, InlineFloat, Inst, Operand, sreg};
use super::super::table::{Class, Slot};
use super::super::vector::is_mixed;
use std::fmt::Write;

/// What a constant means to the operation, which decides how it is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Any 32-bit operand.
    Word,
    Int16,
    Float16,
    Bfloat16,
    /// Pairs of halves with one literal.
    PackedFloat16,
    PackedBfloat16,
    Int64,
    Float64,
}

/// Source `at` with its modifiers.
pub fn write_source(text: &mut String, inst: &Inst, slot: &Slot, at: usize) {
    let operand = inst.src[at];
    if slot.class == Class::Literal {
        return write_embedded_literal(text, operand, inst.encoding);
    }
    let bit = 1u8 << at;
    let named = takes_named_modifiers(inst, at);
    let neg = named && inst.mods.neg & bit != 0;
    let abs = named && inst.mods.abs & bit != 0;
    let kind = kind(inst, slot, at);
    let constant = match operand {
        Operand::Int(_) | Operand::Float(_) => true,
        Operand::Literal(value) => !is_marked(value, kind),
        _ => false,
    };
    // neg(1) is not -1.
    let spelled = neg && !abs && constant;
    text.push_str(if spelled {
        "neg("
    } else if neg {
        "-"
    } else {
        ""
    });
    text.push_str(if abs { "|" } else { "" });
    write_operand(text, operand, slot.dwords, kind);
    write_half(text, operand, slot, inst.mods.op_sel & bit != 0);
    text.push_str(if abs { "|" } else { "" });
    text.push_str(if spelled { ")" } else { "" });
}

/// Destination `at`: 0 or 1.
pub fn write_destination(text: &mut String, inst: &Inst, slot: &Slot, at: usize) {
    let operand = if at == 0 { inst.dst } else { inst.dst2 };
    write_operand(text, operand, slot.dwords, kind(inst, slot, at));
    write_half(text, operand, slot, inst.mods.op_sel & 8 != 0);
}

fn write_half(text: &mut String, operand: Operand, slot: &Slot, high: bool) {
    if slot.is_half() && matches!(operand, Operand::Vgpr(_)) {
        text.push_str(if high { ".h" } else { ".l" });
    }
}

/// Whether a sign or absolute value of source `at` is printed with the operand. Packed operations list them
/// after the operands; integer operands ignore them.
fn takes_named_modifiers(inst: &Inst, at: usize) -> bool {
    let name = inst.name;
    if inst.encoding == Encoding::Vop3p {
        return is_mixed(name);
    }
    if ["v_ldexp_", "v_trig_preop_", "v_cvt_pk_u8_", "v_cmpx_class_f32", "v_cmpx_class_f64"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        return at == 0;
    }
    let integer = ["_i16", "_u16", "_b16"].iter().any(|suffix| name.ends_with(suffix));
    !(integer && name != "v_cndmask_b16" || name.starts_with("v_align"))
}

fn kind(inst: &Inst, slot: &Slot, at: usize) -> Kind {
    let name = inst.name;
    // The type of the sources is the last one of the name; a conversion's first type is its result's.
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
        _ if name.contains("_f64") => Kind::Float64,
        _ => Kind::Int64,
    }
}

/// An operand that is no constant, or whose constants are 32-bit integers.
pub fn write_register(text: &mut String, operand: Operand, dwords: u8) {
    write_operand(text, operand, dwords, Kind::Word);
}

fn write_operand(text: &mut String, operand: Operand, dwords: u8, kind: Kind) {
    // Writing into a String cannot fail.
    let _ = match operand {
        Operand::None => write!(text, "off"),
        Operand::Vgpr(n) => write_numbered(text, 'v', n, dwords),
        Operand::Scalar(n) => write_scalar(text, n, dwords),
        Operand::Scc => write!(text, "src_scc"),
        Operand::VccZ => write!(text, "src_vccz"),
        Operand::ExecZ => write!(text, "src_execz"),
        Operand::SharedBase => write!(text, "src_shared_base"),
        Operand::SharedLimit => write!(text, "src_shared_limit"),
        Operand::PrivateBase => write!(text, "src_private_base"),
        Operand::PrivateLimit => write!(text, "src_private_limit"),
        Operand::Int(value) => write!(text, "{value}"),
        Operand::Float(value) => write!(text, "{}", float_text(value, kind)),
        Operand::Literal(value) => write_literal(text, value, kind),
        Operand::HwReg { .. } => write!(text, "hwreg"),
    };
}

fn write_numbered(text: &mut String, letter: char, n: u16, dwords: u8) -> std::fmt::Result {
    match dwords {
        0 | 1 => write!(text, "{letter}{n}"),
        _ => write!(text, "{letter}[{n}:{}]", n + u16::from(dwords) - 1),
    }
}

fn write_scalar(text: &mut String, n: u8, dwords: u8) -> std::fmt::Result {
    let wide = dwords > 1;
    match n {
        sreg::VCC_LO if wide => write!(text, "vcc"),
        sreg::VCC_LO => write!(text, "vcc_lo"),
        sreg::VCC_HI => write!(text, "vcc_hi"),
        sreg::NULL => write!(text, "null"),
        sreg::M0 => write!(text, "m0"),
        sreg::EXEC_LO if wide => write!(text, "exec"),
        sreg::EXEC_LO => write!(text, "exec_lo"),
        sreg::EXEC_HI => write!(text, "exec_hi"),
        sreg::TTMP0..sreg::NULL if wide => {
            let first = n - sreg::TTMP0;
            write!(text, "ttmp[{first}:{}]", first + dwords - 1)
        }
        sreg::TTMP0..sreg::NULL => write!(text, "ttmp{}", n - sreg::TTMP0),
        _ => write_numbered(text, 's', u16::from(n), dwords),
    }
}

fn float_text(value: InlineFloat, kind: Kind) -> &'static str {
    match value {
        InlineFloat::Half => "0.5",
        InlineFloat::NegHalf => "-0.5",
        InlineFloat::One => "1.0",
        InlineFloat::NegOne => "-1.0",
        InlineFloat::Two => "2.0",
        InlineFloat::NegTwo => "-2.0",
        InlineFloat::Four => "4.0",
        InlineFloat::NegFour => "-4.0",
        InlineFloat::InvTwoPi if matches!(kind, Kind::Int64 | Kind::Float64) => "0.15915494309189532",
        InlineFloat::InvTwoPi => "0.15915494",
    }
}

/// The inline float constants.
const FLOATS: [InlineFloat; 9] = [
    InlineFloat::Half,
    InlineFloat::NegHalf,
    InlineFloat::One,
    InlineFloat::NegOne,
    InlineFloat::Two,
    InlineFloat::NegTwo,
    InlineFloat::Four,
    InlineFloat::NegFour,
    InlineFloat::InvTwoPi,
];

/// The literal that an instruction always has: nothing else could stand there, so it is not marked.
fn write_embedded_literal(text: &mut String, operand: Operand, encoding: Encoding) {
    let Operand::Literal(value) = operand else { return write_operand(text, operand, 1, Kind::Word) };
    let as_constant = encoding == Encoding::Sopk;
    let float = FLOATS.iter().find(|f| f.bits_32() == value);
    // Writing into a String cannot fail.
    let _ = match (value as i32, float) {
        (small @ -16..=64, _) if as_constant => write!(text, "{small}"),
        (_, Some(float)) if as_constant => write!(text, "{}", float_text(*float, Kind::Word)),
        _ => write!(text, "0x{value:x}"),
    };
}

/// Writes a literal of this kind.
fn write_literal(text: &mut String, value: u32, kind: Kind) -> std::fmt::Result {
    if kind == Kind::Float64 {
        // The literal is the high half; one that is an inline constant's is printed as that.
        if value == 0 {
            return write!(text, "0");
        }
        if let Some(float) = FLOATS.iter().find(|f| f.bits_64() == u64::from(value) << 32) {
            return write!(text, "{}", float_text(*float, kind));
        }
    }
    if is_marked(value, kind) {
        return write!(text, "lit(0x{value:x})");
    }
    let halves = matches!(kind, Kind::Int16 | Kind::Float16 | Kind::Bfloat16);
    write!(text, "0x{:x}", if halves { value & 0xffff } else { value })
}

/// A literal that an inline constant could have stood for is marked `lit(...)`, so that assembling the text gives
/// the same bytes again.
fn is_marked(value: u32, kind: Kind) -> bool {
    let is_float = |half: u16| {
        let bits = |float: &InlineFloat| match kind {
            // The upper half of an f32 is a bf16.
            Kind::Bfloat16 | Kind::PackedBfloat16 => (float.bits_32() >> 16) as u16,
            _ => float.bits_16(),
        };
        FLOATS.iter().any(|float| bits(float) == half)
    };
    let small = (-16..=64).contains(&(value as i32));
    match kind {
        Kind::Word | Kind::Int16 => small || FLOATS.iter().any(|f| f.bits_32() == value),
        Kind::Float16 | Kind::Bfloat16 => (-16..=64).contains(&(value as i16)) || is_float(value as u16),
        Kind::PackedFloat16 | Kind::PackedBfloat16 => small || u16::try_from(value).is_ok_and(is_float),
        Kind::Int64 => value <= 64,
        Kind::Float64 => false,
    }
}
