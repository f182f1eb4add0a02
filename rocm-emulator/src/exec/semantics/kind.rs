//! Operand kinds of formulas, and the notation of signatures.
use super::number::{self, Format};

/// Interpretation of an operand's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Float: sign modifiers apply, and denormals are flushed as the mode requires.
    F16,
    F32,
    F64,
    /// Float as bits: sign modifiers apply, but denormals are not flushed.
    Raw16,
    Raw32,
    Raw64,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    /// Two f16 or two 16-bit integers, selected by op_sel and op_sel_hi.
    PairF16,
    Pair16,
    /// Two f32 in a register pair, selected by op_sel and op_sel_hi.
    PairF32,
    /// Two 32-bit values in a register pair, selected by op_sel and op_sel_hi.
    Pair32,
    /// f32, or an f16 that is converted to f32 (v_fma_mix).
    Mix,
    /// One bit per lane in scalar registers.
    Mask,
    /// The instruction's immediate.
    Immediate,
    /// No destination.
    None,
}

/// Sources and result in the notation `f32 f32 +f32 -> f32`, where `+` marks the destination's old value.
#[derive(Clone, Debug)]
pub struct Signature {
    pub sources: Vec<(Kind, bool)>,
    pub result: Kind,
}

impl Signature {
    pub fn parse(text: &str) -> Self {
        let (sources, result) = text.split_once("->").expect("an arrow");
        let sources = sources.split_whitespace().map(|word| match word.strip_prefix('+') {
            Some(rest) => (Kind::parse(rest), true),
            None => (Kind::parse(word), false),
        });
        Self { sources: sources.collect(), result: Kind::parse(result.trim()) }
    }
}

impl Kind {
    fn parse(word: &str) -> Self {
        match word {
            "f16" => Self::F16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "r16" => Self::Raw16,
            "r32" => Self::Raw32,
            "r64" => Self::Raw64,
            "u16" => Self::U16,
            "i16" => Self::I16,
            "u32" => Self::U32,
            "i32" => Self::I32,
            "u64" => Self::U64,
            "i64" => Self::I64,
            "2f16" => Self::PairF16,
            "2x16" => Self::Pair16,
            "2f32" => Self::PairF32,
            "2x32" => Self::Pair32,
            "mix" => Self::Mix,
            "mask" => Self::Mask,
            "imm" => Self::Immediate,
            "none" => Self::None,
            _ => panic!("unknown operand kind: {word}"),
        }
    }

    /// Returns the float format of a value, or of each half.
    pub fn format(self) -> Option<Format> {
        match self {
            Self::F16 | Self::Raw16 | Self::PairF16 => Some(number::F16),
            Self::F32 | Self::Raw32 | Self::Mix | Self::PairF32 => Some(number::F32),
            Self::F64 | Self::Raw64 => Some(number::F64),
            _ => None,
        }
    }

    /// Returns true if the mode register's denormal bits apply.
    pub fn is_flushed(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::PairF16 | Self::PairF32 | Self::Mix)
    }

    pub fn is_wide(self) -> bool {
        matches!(self, Self::F64 | Self::Raw64 | Self::U64 | Self::I64 | Self::PairF32 | Self::Pair32)
    }

    pub fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Raw16 | Self::U16 | Self::I16)
    }

    /// Returns the bits per value if the operand holds two values.
    pub fn part(self) -> Option<u32> {
        match self {
            Self::PairF16 | Self::Pair16 => Some(16),
            Self::PairF32 | Self::Pair32 => Some(32),
            _ => None,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Self::I16 | Self::I32 | Self::I64 | Self::Immediate)
    }

    pub fn bits(self) -> u32 {
        if self.is_wide() {
            64
        } else if self.is_half() {
            16
        } else {
            32
        }
    }
}
