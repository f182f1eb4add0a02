//! Instructions of every GPU. A table lists those of one or several encodings, one run of opcodes per line:
//!
//! ```text
//! name                      operands         gfx908 gfx90a gfx942 gfx10.3 gfx11 gfx12
//! s_{and,or,xor}_{b32,b64}  =s1,2 c1,2 c1,2  0c     0c     0c     0e      16    16
//! ```
//!
//! - Names in braces have consecutive opcodes; `-` skips one. `*` is the encoding's own prefix: `flat`, `global`,
//!   `scratch` or `buffer`.
//! - Operands are one word each, in printed order: the role (`=`, `?` or nothing: see
//!   [`Role`](super::table::Role)), the class (a letter: see [`Class`](super::table::Class)), and the number of
//!   dwords or `h` for half a register. A list such as `=s1,2` has the numbers of successive names, cyclically.
//! - The columns are the opcode of the first name on each GPU, in hexadecimal, or `--` if the GPU has none.
//!   gfx906 and gfx908, gfx942 and gfx950, and gfx110x and gfx115x share columns; `lacks` in `tables.rs`
//!   lists the differences.
use super::Encoding;

mod compare;
mod lds;
mod memory;
mod scalar;
mod vector;

/// Encodings, and a table of the instructions that they share.
pub type Table = (&'static [Encoding], &'static str);

pub const TABLES: &[Table] = &[
    (&[Encoding::Sop1], scalar::SOP1),
    (&[Encoding::Sop2], scalar::SOP2),
    (&[Encoding::Sopc], scalar::SOPC),
    (&[Encoding::Sopk], scalar::SOPK),
    (&[Encoding::Sopp], scalar::SOPP),
    (&[Encoding::Smem], scalar::SMEM),
    (&[Encoding::Vop1], vector::VOP1),
    (&[Encoding::Vop2], vector::VOP2),
    (&[Encoding::Vopc], compare::VOPC),
    (&[Encoding::Vop3], vector::VOP3),
    (&[Encoding::Vop3p], vector::VOP3P),
    (&[Encoding::Vopd], vector::VOPD),
    (&[Encoding::Vinterp], vector::VINTERP),
    (&[Encoding::LdsDir], vector::LDSDIR),
    (&[Encoding::Ds], lds::DS),
    (&[Encoding::Flat, Encoding::Global, Encoding::Scratch, Encoding::Mubuf], memory::ALL_SEGMENTS),
    (&[Encoding::Flat, Encoding::Global, Encoding::Mubuf], memory::ATOMICS),
    (&[Encoding::Flat, Encoding::Global], memory::FLAT_AND_GLOBAL),
    (&[Encoding::Global, Encoding::Scratch], memory::GLOBAL_AND_SCRATCH),
    (&[Encoding::Global, Encoding::Mubuf], memory::GLOBAL_AND_MUBUF),
    (&[Encoding::Flat], memory::FLAT),
    (&[Encoding::Global], memory::GLOBAL),
    (&[Encoding::Mubuf], memory::MUBUF),
];
