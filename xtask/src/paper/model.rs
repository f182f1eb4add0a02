//! Times that published peaks make of counted bytes and instructions: a model, which nobody has measured.
//!
//! It knows two times. Memory moves every line of 128 bytes that a launch touches, once, at its full rate. Every kind
//! of instruction is issued at its full rate, by all units, and the slowest kind counts. Latencies, caches' rates, the
//! launch itself and the last, partly filled round of workgroups are left out: both are bounds from below.
use super::counts::{Case, Kernel};

pub const LINE: u64 = 128;

/// A chip, by its published peaks.
pub struct Chip {
    pub arch: &'static str,
    pub name: &'static str,
    /// Compute units.
    pub units: u64,
    /// Vector units of one of them, and lanes of a vector unit.
    pub simds: u64,
    pub lanes: u64,
    /// Cycles until a vector unit's waves may issue another instruction of one kind.
    pub turn: u64,
    /// Ratio of the times of f64 and f32.
    pub double: u64,
    /// In GHz, and GB/s.
    pub clock: f64,
    pub bandwidth: f64,
    /// Waves that a vector unit holds, and bytes of LDS that as many of them share as `units` says.
    pub waves: u64,
    pub lds_bytes: u64,
}

pub const CHIPS: [Chip; 2] = [
    Chip {
        arch: "gfx942",
        name: "MI300X",
        units: 304,
        simds: 4,
        lanes: 16,
        turn: 4,
        double: 1,
        clock: 2.1,
        bandwidth: 5300.,
        waves: 8,
        lds_bytes: 64 << 10,
    },
    Chip {
        arch: "gfx1100",
        name: "RX 7900 XTX",
        units: 96,
        simds: 2,
        lanes: 32,
        turn: 1,
        double: 16,
        clock: 2.5,
        bandwidth: 960.,
        waves: 16,
        lds_bytes: 64 << 10,
    },
];

/// Kinds of instructions, of which each wave's next ones are issued side by side.
const KINDS: [&str; 5] = ["vector", "scalar", "branches", "loads and stores", "LDS"];

/// Time that a case takes on a chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Microseconds.
    pub memory: f64,
    pub issue: f64,
    /// Which kind of instruction the issue time is mostly of.
    pub kind: &'static str,
}

impl Chip {
    /// Kernels follow one another: their times add up.
    pub fn cost(&self, case: &Case) -> Cost {
        let memory = bytes(case) as f64 / (self.bandwidth * 1e3);
        let mut kinds = [0.; KINDS.len()];
        for kernel in &case.kernels {
            let times = self.issue_times(kernel);
            let slowest = (0..KINDS.len()).max_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
            kinds[slowest] += times[slowest];
        }
        let most = (0..KINDS.len()).max_by(|&a, &b| kinds[a].total_cmp(&kinds[b])).unwrap_or(0);
        Cost { memory, issue: kinds.iter().sum(), kind: KINDS[most] }
    }

    /// Microseconds that the chip takes to issue the instructions of each kind.
    fn issue_times(&self, kernel: &Kernel) -> [f64; KINDS.len()] {
        let of = &kernel.instructions;
        let slower = 3 * kernel.rates.quarter_rate + (self.double - 1) * kernel.rates.double_precision;
        let of_simds = [
            (of.vector + slower) * (kernel.resources.wave_size / self.lanes).max(1),
            (of.scalar + of.scalar_memory) * self.turn,
            of.flow * self.turn,
        ];
        let of_units = [of.global_memory + of.scratch, kernel.lds.steps + kernel.lds.bank_conflicts];
        let per_us = self.units as f64 * self.clock * 1e3;
        let [vector, scalar, branches] = of_simds.map(|cycles| cycles as f64 / (per_us * self.simds as f64));
        let [memory, lds] = of_units.map(|cycles| cycles as f64 / per_us);
        [vector, scalar, branches, memory, lds]
    }

    /// Waves of the kernel that a vector unit holds, if registers let it hold `by_registers`.
    pub fn occupancy(&self, kernel: &Kernel, by_registers: u64) -> u64 {
        let of_group = kernel.waves.div_ceil(kernel.workgroups.max(1)).max(1);
        let by_lds = self.lds_bytes.checked_div(kernel.resources.lds_bytes);
        by_lds.map_or(by_registers, |groups| by_registers.min((groups * of_group).div_ceil(self.simds)))
    }
}

/// Bytes that memory moves: every line that a launch touches, once for loads and once for stores.
pub fn bytes(case: &Case) -> u64 {
    LINE * case.sum(|kernel| kernel.coalescing.lines_loaded + kernel.coalescing.lines_stored)
}
