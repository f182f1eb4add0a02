//! Rows of the vector compares; in VOP3 the opcode is the same.
use crate::isa::table::{RDNA4, Row, row};

/// Compares of one type under consecutive opcodes: the first opcode, the name without condition and type, the type,
/// the operands, the conditions.
macro_rules! compares {
    ($first:literal $name:ident $type:ident $operands:literal: $($condition:ident)*) => {
        &numbered($first, [$(compare(
            concat!(stringify!($name), "_", stringify!($condition), "_", stringify!($type)),
            stringify!($condition),
            $operands,
        )),*])
    };
}

/// The row of a compare without its opcode. gfx12 has none whose result is constant.
const fn compare(name: &'static str, condition: &str, operands: &'static str) -> Row {
    let row = row(0, name, operands);
    if matches!(condition.as_bytes(), b"f" | b"t") { row.on(!RDNA4) } else { row }
}

/// Gives rows opcodes from `first` on.
const fn numbered<const N: usize>(first: u16, mut rows: [Row; N]) -> [Row; N] {
    let mut n = 0;
    while n < N {
        rows[n].op = first + n as u16;
        n += 1;
    }
    rows
}

/// VOPC of gfx9: the mask is an operand, of v_cmpx too.
pub(crate) const CDNA_VOPC: &[&[Row]] = &[
    compares!(0x10 v_cmp f32 "=b2 x1 v1": class),
    compares!(0x11 v_cmpx f32 "=b2 x1 v1": class),
    compares!(0x12 v_cmp f64 "=b2 x2 v1": class),
    compares!(0x13 v_cmpx f64 "=b2 x2 v1": class),
    compares!(0x14 v_cmp f16 "=b2 xh vh": class),
    compares!(0x15 v_cmpx f16 "=b2 xh vh": class),
    compares!(0x20 v_cmp f16 "=b2 xh vh": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x30 v_cmpx f16 "=b2 xh vh": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x40 v_cmp f32 "=b2 x1 v1": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x50 v_cmpx f32 "=b2 x1 v1": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x60 v_cmp f64 "=b2 x2 v2": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x70 v_cmpx f64 "=b2 x2 v2": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0xa0 v_cmp i16 "=b2 xh vh": f lt eq le gt ne ge t),
    compares!(0xa8 v_cmp u16 "=b2 xh vh": f lt eq le gt ne ge t),
    compares!(0xb0 v_cmpx i16 "=b2 xh vh": f lt eq le gt ne ge t),
    compares!(0xb8 v_cmpx u16 "=b2 xh vh": f lt eq le gt ne ge t),
    compares!(0xc0 v_cmp i32 "=b2 x1 v1": f lt eq le gt ne ge t),
    compares!(0xc8 v_cmp u32 "=b2 x1 v1": f lt eq le gt ne ge t),
    compares!(0xd0 v_cmpx i32 "=b2 x1 v1": f lt eq le gt ne ge t),
    compares!(0xd8 v_cmpx u32 "=b2 x1 v1": f lt eq le gt ne ge t),
    compares!(0xe0 v_cmp i64 "=b2 x2 v2": f lt eq le gt ne ge t),
    compares!(0xe8 v_cmp u64 "=b2 x2 v2": f lt eq le gt ne ge t),
    compares!(0xf0 v_cmpx i64 "=b2 x2 v2": f lt eq le gt ne ge t),
    compares!(0xf8 v_cmpx u64 "=b2 x2 v2": f lt eq le gt ne ge t),
];

/// VOPC of gfx10.3.
pub(crate) const RDNA2_VOPC: &[&[Row]] = &[
    compares!(0x00 v_cmp f32 "=b x1 v1": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x10 v_cmpx f32 "=e x1 v1": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x20 v_cmp f64 "=b x2 v2": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x30 v_cmpx f64 "=e x2 v2": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt tru),
    compares!(0x80 v_cmp i32 "=b x1 v1": f lt eq le gt ne ge t),
    compares!(0x88 v_cmp f32 "=b x1 v1": class),
    compares!(0x89 v_cmp i16 "=b xh vh": lt eq le gt ne ge),
    compares!(0x8f v_cmp f16 "=b xh vh": class),
    compares!(0x90 v_cmpx i32 "=e x1 v1": f lt eq le gt ne ge t),
    compares!(0x98 v_cmpx f32 "=e x1 v1": class),
    compares!(0x99 v_cmpx i16 "=e xh vh": lt eq le gt ne ge),
    compares!(0x9f v_cmpx f16 "=e xh vh": class),
    compares!(0xa0 v_cmp i64 "=b x2 v2": f lt eq le gt ne ge t),
    compares!(0xa8 v_cmp f64 "=b x2 v1": class),
    compares!(0xa9 v_cmp u16 "=b xh vh": lt eq le gt ne ge),
    compares!(0xb0 v_cmpx i64 "=e x2 v2": f lt eq le gt ne ge t),
    compares!(0xb8 v_cmpx f64 "=e x2 v1": class),
    compares!(0xb9 v_cmpx u16 "=e xh vh": lt eq le gt ne ge),
    compares!(0xc0 v_cmp u32 "=b x1 v1": f lt eq le gt ne ge t),
    compares!(0xc8 v_cmp f16 "=b xh vh": f lt eq le gt lg ge o),
    compares!(0xd0 v_cmpx u32 "=e x1 v1": f lt eq le gt ne ge t),
    compares!(0xd8 v_cmpx f16 "=e xh vh": f lt eq le gt lg ge o),
    compares!(0xe0 v_cmp u64 "=b x2 v2": f lt eq le gt ne ge t),
    compares!(0xe8 v_cmp f16 "=b xh vh": u nge nlg ngt nle neq nlt tru),
    compares!(0xf0 v_cmpx u64 "=e x2 v2": f lt eq le gt ne ge t),
    compares!(0xf8 v_cmpx f16 "=e xh vh": u nge nlg ngt nle neq nlt tru),
];

/// VOPC of gfx11; gfx12 has them too, but for the constant ones.
pub(crate) const RDNA3_VOPC: &[&[Row]] = &[
    compares!(0x00 v_cmp f16 "=b xh vh": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t),
    compares!(0x10 v_cmp f32 "=b x1 v1": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t),
    compares!(0x20 v_cmp f64 "=b x2 v2": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t),
    compares!(0x31 v_cmp i16 "=b xh vh": lt eq le gt ne ge),
    compares!(0x39 v_cmp u16 "=b xh vh": lt eq le gt ne ge),
    compares!(0x40 v_cmp i32 "=b x1 v1": f lt eq le gt ne ge t),
    compares!(0x48 v_cmp u32 "=b x1 v1": f lt eq le gt ne ge t),
    compares!(0x50 v_cmp i64 "=b x2 v2": f lt eq le gt ne ge t),
    compares!(0x58 v_cmp u64 "=b x2 v2": f lt eq le gt ne ge t),
    compares!(0x7d v_cmp f16 "=b xh vh": class),
    compares!(0x7e v_cmp f32 "=b x1 v1": class),
    compares!(0x7f v_cmp f64 "=b x2 v1": class),
    compares!(0x80 v_cmpx f16 "=e xh vh": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t),
    compares!(0x90 v_cmpx f32 "=e x1 v1": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t),
    compares!(0xa0 v_cmpx f64 "=e x2 v2": f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t),
    compares!(0xb1 v_cmpx i16 "=e xh vh": lt eq le gt ne ge),
    compares!(0xb9 v_cmpx u16 "=e xh vh": lt eq le gt ne ge),
    compares!(0xc0 v_cmpx i32 "=e x1 v1": f lt eq le gt ne ge t),
    compares!(0xc8 v_cmpx u32 "=e x1 v1": f lt eq le gt ne ge t),
    compares!(0xd0 v_cmpx i64 "=e x2 v2": f lt eq le gt ne ge t),
    compares!(0xd8 v_cmpx u64 "=e x2 v2": f lt eq le gt ne ge t),
    compares!(0xfd v_cmpx f16 "=e xh vh": class),
    compares!(0xfe v_cmpx f32 "=e x1 v1": class),
    compares!(0xff v_cmpx f64 "=e x2 v1": class),
];
