//! Estimates times from counted bytes and instructions and published peak rates. The model is not validated on hardware.
//!
//! It computes two lower bounds. Memory time: every 128-byte line that a launch touches is moved once, at peak bandwidth.
//! Issue time: every kind of instruction is issued at its peak rate by all units, and the slowest kind counts. The model
//! ignores latencies, cache rates, launch overhead and the partly filled last round of workgroups.
use super::counts::{Case, Kernel};

pub const LINE: u64 = 128;

/// Published peak rates and sizes of a chip.
pub struct Chip {
    pub arch: &'static str,
    pub name: &'static str,
    /// Number of compute units.
    pub units: u64,
    /// Vector units (SIMDs) per compute unit, and lanes per vector unit.
    pub simds: u64,
    pub lanes: u64,
    /// Cycles between two instructions of one kind from the same vector unit.
    pub issue_interval: u64,
    /// Time of an f64 instruction relative to f32.
    pub f64_cost: u64,
    /// Clock in GHz, and memory bandwidth in GB/s.
    pub clock: f64,
    pub bandwidth: f64,
    /// Maximum number of waves per vector unit, and bytes of LDS per compute unit.
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
        issue_interval: 4,
        f64_cost: 1,
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
        issue_interval: 1,
        f64_cost: 16,
        clock: 2.5,
        bandwidth: 960.,
        waves: 16,
        lds_bytes: 64 << 10,
    },
];

/// Kinds of instructions that are issued in parallel.
const KINDS: [&str; 5] = ["vector", "scalar", "branches", "loads and stores", "LDS"];

/// Estimated times of a case on a chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Memory time and issue time, in microseconds.
    pub memory: f64,
    pub issue: f64,
    /// Kind of instruction that takes most of the issue time.
    pub kind: &'static str,
}

impl Chip {
    /// Estimates a case. Kernels run one after the other, so their times add up.
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

    /// Returns the microseconds that the chip needs to issue the instructions of each kind.
    fn issue_times(&self, kernel: &Kernel) -> [f64; KINDS.len()] {
        let counts = &kernel.instructions;
        let slower = 3 * kernel.rates.quarter_rate + (self.f64_cost - 1) * kernel.rates.double_precision;
        let per_simd = [
            (counts.vector + slower) * (kernel.resources.wave_size / self.lanes).max(1),
            (counts.scalar + counts.scalar_memory) * self.issue_interval,
            counts.flow * self.issue_interval,
        ];
        let per_unit = [counts.global_memory + counts.scratch, kernel.lds.steps + kernel.lds.bank_conflicts];
        let per_us = self.units as f64 * self.clock * 1e3;
        let [vector, scalar, branches] = per_simd.map(|cycles| cycles as f64 / (per_us * self.simds as f64));
        let [memory, lds] = per_unit.map(|cycles| cycles as f64 / per_us);
        [vector, scalar, branches, memory, lds]
    }

    /// Returns the waves of the kernel that fit on a vector unit; `by_registers` is the limit set by registers.
    pub fn occupancy(&self, kernel: &Kernel, by_registers: u64) -> u64 {
        let group_waves = kernel.waves.div_ceil(kernel.workgroups.max(1)).max(1);
        let by_lds = self.lds_bytes.checked_div(kernel.resources.lds_bytes);
        by_lds.map_or(by_registers, |groups| by_registers.min((groups * group_waves).div_ceil(self.simds)))
    }
}

/// Returns the bytes that memory moves: every line that a launch touches, once for loads and once for stores.
pub fn bytes(case: &Case) -> u64 {
    LINE * case.sum(|kernel| kernel.coalescing.lines_loaded + kernel.coalescing.lines_stored)
}
