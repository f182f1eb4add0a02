//! Instruction tables of each family, indexed by opcode and by name.
use super::rows;
use super::table::{Row, parse_line};
use super::{Encoding, Family};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Number of families.
const FAMILIES: usize = Family::Gcn5 as usize + 1;

/// Instruction rows of a family.
pub struct Tables {
    /// Rows by encoding and opcode.
    by_opcode: Vec<Vec<Option<&'static Row>>>,
    by_name: HashMap<(Encoding, &'static str), &'static Row>,
    /// First VOP3 opcode of the instructions of VOP1.
    vop1_in_vop3: u32,
}

/// Returns the tables of a family.
pub fn tables(family: Family) -> &'static Tables {
    static TABLES: [OnceLock<Tables>; FAMILIES] = [const { OnceLock::new() }; FAMILIES];
    TABLES[family as usize].get_or_init(|| Tables::new(family))
}

/// Returns the opcode column of a family.
const fn column(family: Family) -> usize {
    match family {
        Family::Gcn5 | Family::Cdna1 => 0,
        Family::Cdna2 => 1,
        Family::Cdna3 | Family::Cdna4 => 2,
        Family::Rdna2 => 3,
        Family::Rdna3 | Family::Rdna35 => 4,
        Family::Rdna4 => 5,
    }
}

/// Returns true if a family lacks an instruction of its opcode column.
fn lacks(family: Family, name: &str) -> bool {
    /// Parts of the names of instructions that gfx908 and gfx950 add.
    const GFX908: &str = "_mfma_ _accvgpr_ _dot2c_ _dot4c_ _dot8c_ _pk_fmac_ _atomic_pk_";
    const GFX950: &str = "_bitop3_ _cvt_pk_bf16_ _cvt_pk_f16_ _f32_bf16 imum3_ 16x16x32_f16 \
         16x16x32_bf16 32x32x16_f16 32x32x16_bf16 16x16x64_i8 32x32x32_i8";
    let has_any = |parts: &str| parts.split_whitespace().any(|part| name.contains(part));
    match family {
        Family::Rdna3 => name.starts_with("s_") && has_any("_f32 _f16"),
        Family::Gcn5 => has_any(GFX908) || name.ends_with("_atomic_add_f32"),
        Family::Cdna3 => has_any(GFX950) && !name.starts_with("v_smfmac_"),
        Family::Cdna4 => name.ends_with("_xf32"),
        _ => false,
    }
}

impl Tables {
    fn new(family: Family) -> Self {
        let vop1_in_vop3 = if family.is_gfx9() { 0x140 } else { 0x180 };
        let mut tables = Self { by_opcode: Vec::new(), by_name: HashMap::new(), vop1_in_vop3 };
        for (encodings, text) in rows::TABLES {
            for encoding in *encodings {
                let lines =
                    text.lines().filter_map(|line| parse_line(line, prefix(*encoding), column(family)));
                let rows = lines.flatten().filter(|row| !lacks(family, row.name)).collect::<Vec<_>>();
                // Tables are built once and live as long as the process.
                tables.add(*encoding, rows.leak());
            }
        }
        tables
    }

    fn add(&mut self, encoding: Encoding, rows: &'static [Row]) {
        let at = encoding as usize;
        self.by_opcode.resize(self.by_opcode.len().max(at + 1), Vec::new());
        let by_opcode = &mut self.by_opcode[at];
        for row in rows {
            let op = usize::from(row.op);
            by_opcode.resize(by_opcode.len().max(op + 1), None);
            by_opcode[op] = Some(row);
            let encoding = match encoding {
                Encoding::Vop3 if row.destinations().count() == 2 => Encoding::Vop3Sd,
                other => other,
            };
            self.by_name.insert((encoding, row.name), row);
        }
    }

    /// Returns the row of an opcode. The low opcodes of VOP3 repeat VOPC, VOP2 and VOP1.
    pub fn get(&self, encoding: Encoding, op: u32) -> Option<&'static Row> {
        let get = |encoding, op: u32| *self.by_opcode.get(encoding as usize)?.get(op as usize)?;
        match (encoding, op) {
            (Encoding::Vop3, 0..0x100) => get(Encoding::Vopc, op),
            (Encoding::Vop3, 0x100..0x140) => get(Encoding::Vop2, op - 0x100),
            (Encoding::Vop3, _) => match op.checked_sub(self.vop1_in_vop3) {
                Some(op @ 0..0x80) => get(Encoding::Vop1, op),
                _ => get(Encoding::Vop3, op),
            },
            _ => get(encoding, op),
        }
    }

    /// Returns the row of a decoded instruction.
    pub fn named(&self, encoding: Encoding, name: &str) -> Option<&'static Row> {
        let row = self.by_name.get(&(encoding, name)).copied();
        match encoding {
            // VOP3 repeats the rows of the 32-bit encodings.
            Encoding::Vop3 | Encoding::Vop3Sd => row.or_else(|| self.short(name)),
            _ => row,
        }
    }

    /// Returns the row of a name in VOP1, VOP2 or VOPC.
    pub fn short(&self, name: &str) -> Option<&'static Row> {
        const SHORT: [Encoding; 3] = [Encoding::Vop1, Encoding::Vop2, Encoding::Vopc];
        SHORT.into_iter().find_map(|encoding| self.by_name.get(&(encoding, name)).copied())
    }

    /// Returns all rows, each with its encoding.
    #[cfg(test)]
    pub fn rows(&self) -> impl Iterator<Item = (Encoding, &'static Row)> {
        self.by_name.iter().map(|((encoding, _), row)| (*encoding, *row))
    }
}

/// Returns the name prefix of a memory encoding.
const fn prefix(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Flat => "flat",
        Encoding::Global => "global",
        Encoding::Scratch => "scratch",
        _ => "buffer",
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::CHIPS;
    use super::*;

    #[test]
    fn every_line_is_well_formed_and_no_opcode_or_name_appears_twice() {
        for column in 0..CHIPS {
            let (mut opcodes, mut names) = (HashMap::new(), HashMap::new());
            for (encodings, text) in rows::TABLES {
                for (encoding, line) in
                    encodings.iter().flat_map(|e| text.trim().lines().map(move |l| (*e, l)))
                {
                    let opcode = line.split_whitespace().rev().nth(CHIPS - 1 - column).expect("a column");
                    let Some(rows) = parse_line(line, prefix(encoding), column) else {
                        assert!(opcode.bytes().all(|byte| byte == b'-'), "{line}");
                        continue;
                    };
                    for row in rows {
                        let other = opcodes.insert((encoding, row.op), line);
                        assert_eq!(other, None, "{encoding:?} {:#x}: {line}", row.op);
                        let with_mask = row.destinations().count() == 2;
                        let other = names.insert((encoding, with_mask, row.name), line);
                        assert_eq!(other, None, "{encoding:?} {}: {line}", row.name);
                    }
                }
            }
            assert!(opcodes.len() > 900, "{}", opcodes.len());
        }
    }
}
