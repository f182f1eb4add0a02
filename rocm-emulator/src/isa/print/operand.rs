//! Printer of registers, constants and literals.
use super::super::{Encoding, Family, InlineFloat, Operand, sreg};
use std::fmt::Write;

/// Type of an operand, which determines the format of constants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any 32-bit operand.
    Word,
    Int16,
    Float16,
    Bfloat16,
    /// Pairs of halves that share one literal.
    PackedFloat16,
    PackedBfloat16,
    Int64,
    Float64,
}

/// Modifiers that are printed around a register or value.
#[derive(Clone, Copy, Default)]
pub struct Signs {
    pub neg: bool,
    pub abs: bool,
    /// SDWA's `sext(...)`.
    pub sext: bool,
    /// Suffix `.l` or `.h` of a register.
    pub half: &'static str,
}

/// Writes a source with its modifiers.
pub fn write_signed(
    text: &mut String,
    family: Family,
    operand: Operand,
    dwords: u8,
    kind: Kind,
    signs: Signs,
) {
    let Signs { neg, abs, sext, half } = signs;
    let constant = match operand {
        Operand::Int(_) | Operand::Float(_) => true,
        Operand::Literal(value) => !is_marked(value, kind),
        _ => false,
    };
    // LLVM distinguishes a negated constant, neg(1), from the constant -1.
    let uses_neg = neg && !abs && constant;
    text.push_str(match (uses_neg, neg) {
        (true, _) => "neg(",
        (false, true) => "-",
        (false, false) => "",
    });
    text.push_str(if abs { "|" } else { "" });
    text.push_str(if sext { "sext(" } else { "" });
    write_operand(text, family, operand, dwords, kind);
    text.push_str(half);
    text.push_str(if sext { ")" } else { "" });
    text.push_str(if abs { "|" } else { "" });
    text.push_str(if uses_neg { ")" } else { "" });
}

/// Writes an operand that is not a constant, or a 32-bit integer constant.
pub fn write_register(text: &mut String, family: Family, operand: Operand, dwords: u8) {
    write_operand(text, family, operand, dwords, Kind::Word);
}

pub fn write_operand(text: &mut String, family: Family, operand: Operand, dwords: u8, kind: Kind) {
    // Writing into a String cannot fail.
    let _ = match operand {
        Operand::None => write!(text, "off"),
        Operand::Vgpr(n) => write_numbered(text, 'v', n, dwords),
        Operand::Agpr(n) => write_numbered(text, 'a', n, dwords),
        Operand::Scalar(n) => write_scalar(text, family, n, dwords),
        Operand::Scc => write!(text, "src_scc"),
        Operand::VccZ => write!(text, "src_vccz"),
        Operand::ExecZ => write!(text, "src_execz"),
        Operand::SharedBase => write!(text, "src_shared_base"),
        Operand::SharedLimit => write!(text, "src_shared_limit"),
        Operand::PrivateBase => write!(text, "src_private_base"),
        Operand::PrivateLimit => write!(text, "src_private_limit"),
        Operand::Int(value) => write!(text, "{value}"),
        Operand::Float(value) => write!(text, "{}", float_text(value.value(), kind)),
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

fn write_scalar(text: &mut String, family: Family, n: u8, dwords: u8) -> std::fmt::Result {
    let wide = dwords > 1;
    match n {
        102..106 if family.is_gfx9() => {
            let name = if n < 104 { "flat_scratch" } else { "xnack_mask" };
            let part = if wide { "" } else { ["_lo", "_hi"][usize::from(n & 1)] };
            write!(text, "{name}{part}")
        }
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

/// Returns the shortest text of a constant in its type.
fn float_text(value: f64, kind: Kind) -> String {
    match kind {
        Kind::Int64 | Kind::Float64 => format!("{value:?}"),
        _ => format!("{:?}", value as f32),
    }
}

/// Returns true if an inline float constant satisfies `f`.
fn is_any_float(f: impl Fn(InlineFloat) -> bool) -> bool {
    InlineFloat::ALL.iter().any(|(float, _)| f(*float))
}

/// Writes a literal that is a mandatory part of the instruction, and thus not marked with `lit`.
pub fn write_embedded_literal(text: &mut String, family: Family, operand: Operand, encoding: Encoding) {
    let Operand::Literal(value) = operand else { return write_register(text, family, operand, 1) };
    let as_constant = encoding == Encoding::Sopk;
    let float = f64::from(f32::from_bits(value));
    let is_float = is_any_float(|constant| constant.bits_32() == value);
    // Writing into a String cannot fail.
    let _ = match value as i32 {
        small @ -16..=64 if as_constant => write!(text, "{small}"),
        _ if as_constant && is_float => write!(text, "{}", float_text(float, Kind::Word)),
        _ => write!(text, "0x{value:x}"),
    };
}

/// Writes an optional literal.
fn write_literal(text: &mut String, value: u32, kind: Kind) -> std::fmt::Result {
    if kind == Kind::Float64 {
        // The literal is the high half. If it equals an inline constant, that is printed.
        if value == 0 {
            return write!(text, "0");
        }
        let bits = u64::from(value) << 32;
        if is_any_float(|constant| constant.bits_64() == bits) {
            return write!(text, "{}", float_text(f64::from_bits(bits), kind));
        }
    }
    if is_marked(value, kind) {
        return write!(text, "lit(0x{value:x})");
    }
    let halves = matches!(kind, Kind::Int16 | Kind::Float16 | Kind::Bfloat16);
    write!(text, "0x{:x}", if halves { value & 0xffff } else { value })
}

/// Returns true if an inline constant has the value of a literal. LLVM prints such a literal as `lit(...)`,
/// so that assembling the text reproduces the encoding.
fn is_marked(value: u32, kind: Kind) -> bool {
    let is_float = |half: u16| {
        is_any_float(|float| match kind {
            // bf16 is the upper half of f32.
            Kind::Bfloat16 | Kind::PackedBfloat16 => (float.bits_32() >> 16) as u16 == half,
            _ => float.bits_16() == half,
        })
    };
    let small = (-16..=64).contains(&(value as i32));
    match kind {
        Kind::Word | Kind::Int16 => small || is_any_float(|float| float.bits_32() == value),
        Kind::Float16 | Kind::Bfloat16 => (-16..=64).contains(&(value as i16)) || is_float(value as u16),
        Kind::PackedFloat16 | Kind::PackedBfloat16 => small || u16::try_from(value).is_ok_and(is_float),
        Kind::Int64 => value <= 64,
        Kind::Float64 => false,
    }
}
