//! What each chip can decode: its rows by opcode and by name.
use super::Encoding;
use super::scalar::Sop;
use super::table::{Names, Row, Table};
use std::sync::LazyLock;

/// An encoding and the lists with its rows, of which a chip has those that are marked with it.
pub type Lists = (Encoding, &'static [&'static [Row]]);

/// The tables of a chip. Those of encodings that it does not have are empty.
pub struct Tables {
    pub sop: Sop,
    pub smem: Table<256>,
    pub vop1: Table<128>,
    pub vop2: Table<64>,
    pub vopd: Table<32>,
    pub vopc: Table<256>,
    /// Opcodes that exist only as VOP3.
    vop3: Table<1024>,
    pub vop3p: Table<128>,
    pub vinterp: Table<128>,
    pub ldsdir: Table<4>,
    pub ds: Table<256>,
    pub flat: Table<256>,
    pub scratch: Table<256>,
    pub global: Table<256>,
    pub mubuf: Table<256>,
    lists: &'static [Lists],
    chip: u8,
    /// The opcode of VOP3 at which VOP1 is repeated.
    vop1_in_vop3: u32,
    /// The rows by name.
    pub names: LazyLock<Names>,
}

impl Tables {
    /// `names` has to build the names of [`Self::rows`].
    pub const fn new(lists: &'static [Lists], chip: u8, vop1_in_vop3: u32, names: fn() -> Names) -> Self {
        Self {
            sop: Sop {
                sop1: Table::new(of(lists, Encoding::Sop1), chip),
                sop2: Table::new(of(lists, Encoding::Sop2), chip),
                sopc: Table::new(of(lists, Encoding::Sopc), chip),
                sopk: Table::new(of(lists, Encoding::Sopk), chip),
                sopp: Table::new(of(lists, Encoding::Sopp), chip),
            },
            smem: Table::new(of(lists, Encoding::Smem), chip),
            vop1: Table::new(of(lists, Encoding::Vop1), chip),
            vop2: Table::new(of(lists, Encoding::Vop2), chip),
            vopd: Table::new(of(lists, Encoding::Vopd), chip),
            vopc: Table::new(of(lists, Encoding::Vopc), chip),
            vop3: Table::new(of(lists, Encoding::Vop3), chip),
            vop3p: Table::new(of(lists, Encoding::Vop3p), chip),
            vinterp: Table::new(of(lists, Encoding::Vinterp), chip),
            ldsdir: Table::new(of(lists, Encoding::LdsDir), chip),
            ds: Table::new(of(lists, Encoding::Ds), chip),
            flat: Table::new(of(lists, Encoding::Flat), chip),
            scratch: Table::new(of(lists, Encoding::Scratch), chip),
            global: Table::new(of(lists, Encoding::Global), chip),
            mubuf: Table::new(of(lists, Encoding::Mubuf), chip),
            lists,
            chip,
            vop1_in_vop3,
            names: LazyLock::new(names),
        }
    }

    /// The row of a VOP3 opcode: the low ones repeat VOPC, VOP2 and VOP1.
    pub fn vop3(&self, op: u32) -> Option<&'static Row> {
        match op {
            0..0x100 => self.vopc.get(op),
            0x100..0x140 => self.vop2.get(op - 0x100),
            _ => match op.checked_sub(self.vop1_in_vop3) {
                Some(op @ 0..0x80) => self.vop1.get(op),
                _ => self.vop3.get(op),
            },
        }
    }

    /// Every row of the chip under the encoding in which it appears.
    pub fn rows(&self) -> impl Iterator<Item = (Encoding, &'static Row)> {
        self.lists.iter().flat_map(|(encoding, lists)| {
            let rows = lists.iter().copied().flatten().filter(|row| row.is_on(self.chip));
            rows.map(|row| match encoding {
                Encoding::Vop3 if row.destinations().count() == 2 => (Encoding::Vop3Sd, row),
                _ => (*encoding, row),
            })
        })
    }
}

/// The lists of an encoding.
const fn of(lists: &[Lists], encoding: Encoding) -> &'static [&'static [Row]] {
    let mut n = 0;
    while n < lists.len() {
        if lists[n].0 as u8 == encoding as u8 {
            return lists[n].1;
        }
        n += 1;
    }
    &[]
}
