//! State of a wave: everything that it can read or change, as plain data.
use crate::exec::wave::Mode;
use crate::isa::{Family, sreg};

/// Sizes in bytes of the global buffer, of LDS and of a lane's private memory.
pub const GLOBAL_BYTES: usize = 4 << 10;
pub const LDS_BYTES: usize = 64 << 10;
pub const PRIVATE_BYTES: usize = 8 << 10;

/// Mode at the start of a HIP kernel.
pub const DEFAULT_MODE: Mode =
    Mode { round_32: 0, round_16_64: 0, denorm_32: 3, denorm_16_64: 3, dx10_clamp: true, ieee: true };

/// A wave and its memories.
#[derive(Clone)]
pub struct State {
    pub family: Family,
    /// Number of lanes: 32 or 64.
    pub lanes: usize,
    pub sgpr: [u32; 128],
    pub scc: bool,
    pub mode: Mode,
    pub vgpr: Vec<[u32; 64]>,
    /// Program counter, in bytes relative to the instruction under test.
    pub pc: i64,
    /// Address of the instruction under test.
    pub address: u64,
    pub global_base: u64,
    /// Memories, which are empty unless the instruction accesses them.
    pub global: Vec<u8>,
    pub lds: Vec<u8>,
    pub private: Vec<Vec<u8>>,
}

impl State {
    pub fn full(&self) -> u64 {
        if self.lanes == 64 { u64::MAX } else { u64::from(u32::MAX) }
    }

    pub fn exec(&self) -> u64 {
        self.pair(sreg::EXEC_LO) & self.full()
    }

    pub fn is_active(&self, lane: usize) -> bool {
        self.exec() >> lane & 1 != 0
    }

    /// Returns the active lanes in ascending order.
    pub fn active(&self) -> Vec<usize> {
        (0..self.lanes).filter(|lane| self.is_active(*lane)).collect()
    }

    pub fn scalar(&self, n: u8) -> u32 {
        if n == sreg::NULL { 0 } else { self.sgpr[usize::from(n)] }
    }

    pub fn pair(&self, n: u8) -> u64 {
        if n == sreg::NULL {
            return 0;
        }
        let high = self.sgpr[(usize::from(n) + 1) % 128];
        u64::from(self.sgpr[usize::from(n)]) | u64::from(high) << 32
    }

    pub fn set_scalar(&mut self, n: u8, value: u32) {
        if n != sreg::NULL {
            self.sgpr[usize::from(n)] = value;
        }
    }

    pub fn set_pair(&mut self, n: u8, value: u64) {
        if n != sreg::NULL {
            self.sgpr[usize::from(n)] = value as u32;
            self.sgpr[(usize::from(n) + 1) % 128] = (value >> 32) as u32;
        }
    }

    /// Returns a lane mask: one register for 32 lanes, two for 64.
    pub fn mask(&self, n: u8) -> u64 {
        if self.lanes == 64 { self.pair(n) } else { u64::from(self.scalar(n)) }
    }

    pub fn set_mask(&mut self, n: u8, mask: u64) {
        if self.lanes == 64 { self.set_pair(n, mask) } else { self.set_scalar(n, mask as u32) }
    }

    pub fn vector(&self, n: u16, lane: usize) -> u32 {
        self.vgpr[usize::from(n)][lane]
    }

    pub fn set_vector(&mut self, n: u16, lane: usize, value: u32) {
        self.vgpr[usize::from(n)][lane] = value;
    }

    pub fn vector_pair(&self, n: u16, lane: usize) -> u64 {
        u64::from(self.vector(n, lane)) | u64::from(self.vector(n + 1, lane)) << 32
    }

    /// Describes the first difference that a program could observe.
    pub fn difference(&self, expected: &Self) -> Option<String> {
        if self.pc != expected.pc {
            return Some(format!("pc {:+}, expected {:+}", self.pc, expected.pc));
        }
        if self.scc != expected.scc {
            return Some(format!("scc {}, expected {}", self.scc, expected.scc));
        }
        if self.mode != expected.mode {
            return Some(format!("mode {:?}, expected {:?}", self.mode, expected.mode));
        }
        for n in 0..128 {
            let (found, wanted) = (self.sgpr[n], expected.sgpr[n]);
            if found != wanted {
                return Some(format!("scalar register {n}: {found:#x}, expected {wanted:#x}"));
            }
        }
        for (n, (found, wanted)) in self.vgpr.iter().zip(&expected.vgpr).enumerate() {
            if found == wanted {
                continue;
            }
            if let Some(lane) = (0..self.lanes).find(|lane| found[*lane] != wanted[*lane]) {
                return Some(format!("v{n} lane {lane}: {:#x}, expected {:#x}", found[lane], wanted[lane]));
            }
        }
        let differ = |found: &[u8], wanted: &[u8], name: &str| {
            if found == wanted {
                return None;
            }
            let at = (0..found.len()).find(|at| found[*at] != wanted[*at])?;
            Some(format!("{name} byte {at}: {:#x}, expected {:#x}", found[at], wanted[at]))
        };
        let of_lanes =
            || self.private.iter().zip(&expected.private).find_map(|(a, b)| differ(a, b, "private"));
        differ(&self.global, &expected.global, "global")
            .or_else(|| differ(&self.lds, &expected.lds, "LDS"))
            .or_else(of_lanes)
    }
}
