//! Estimates the time of a launch from counts and from published constants.
//!
//! A launch takes a dispatch, and then as long as the busiest of the resources that work in parallel: memory at the
//! level that the bytes come from, the caches, each kind of instruction, LDS, matrix units, the launch of workgroups, and
//! the waves themselves, of which only so many are in flight (Little's law). `cargo xtask paper --check` compares the
//! model with published measurements.
use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Bytes of a line of memory.
pub const LINE: f64 = 128.;
const CONSTANTS: &str = include_str!("gpus.toml");
/// Source of a constant that is a guess.
pub const ASSUMED: &str = "assumed";

/// Value of a constant, and the key of its source.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Constant(pub f64, pub String);

#[derive(Deserialize)]
pub struct Constants {
    /// Description of each source, by its key.
    pub sources: BTreeMap<String, String>,
    #[serde(rename = "gpu")]
    pub gpus: Vec<Gpu>,
}

/// Constants of a GPU. Intervals are in cycles, rates in GB/s of the whole GPU, latencies in ns.
#[derive(Debug, Deserialize, Serialize)]
pub struct Gpu {
    pub name: String,
    pub arch: String,
    /// Architecture whose counts serve this GPU; `None` if it is only compared with measurements.
    pub counts: Option<String>,
    dies: Constant,
    units: Constant,
    /// Vector units (SIMDs) per compute unit, and lanes per vector unit.
    simds: Constant,
    lanes: Constant,
    /// Clock in GHz.
    clock: Constant,
    /// Maximum number of waves per vector unit.
    pub waves: Constant,
    /// Bytes of LDS per compute unit.
    lds_bytes: Constant,
    /// Cycles between two instructions of one kind from one vector unit, and between two instructions of one wave.
    issue_interval: Constant,
    wave_interval: Constant,
    /// Time of an f64 instruction relative to f32.
    f64_cost: Constant,
    /// Cycles of a product of 16 x 16 x 16 16-bit floats on a vector unit's matrix unit.
    matrix_cycles: Constant,
    /// Microseconds of a dispatch in a graph and in a stream.
    pub dispatch_graph: Constant,
    pub dispatch_stream: Constant,
    /// Cycles between two workgroups that a die launches.
    workgroup_cycles: Constant,
    /// First-level cache of a compute unit, and the rate of all of them.
    l1_bytes: Constant,
    l1_rate: Constant,
    l2_bytes: Constant,
    l2_rate: Constant,
    l2_latency: Constant,
    /// Infinity Cache.
    cache_bytes: Constant,
    cache_rate: Constant,
    cache_latency: Constant,
    pub memory_rate: Constant,
    memory_latency: Constant,
}

/// Work of one launch. Sums are over all waves.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub wave_size: f64,
    pub workgroups: f64,
    pub waves: f64,
    /// Waves per vector unit that registers allow.
    pub occupancy: f64,
    /// LDS of a workgroup.
    pub lds_bytes: f64,
    /// Bytes of the different lines that are loaded and stored.
    pub footprint: f64,
    /// Bytes of the lines that all accesses touch.
    pub accessed: f64,
    /// Bytes that lanes request.
    pub requested: f64,
    /// Instructions of waves, by kind.
    pub accesses: f64,
    pub vector: f64,
    pub quarter_rate: f64,
    pub double_precision: f64,
    pub products: f64,
    pub scalar: f64,
    pub branches: f64,
    /// Steps of LDS, including those for bank conflicts.
    pub lds_steps: f64,
    /// Times that a wave waits for memory.
    pub waits: f64,
}

impl Constants {
    /// # Errors
    /// If `gpus.toml` is incomplete.
    pub fn published() -> Result<Self> {
        toml::from_str(CONSTANTS).context("gpus.toml")
    }
}

impl Gpu {
    /// Returns all constants by name.
    pub fn constants(&self) -> BTreeMap<String, Constant> {
        let table = toml::Table::try_from(self).unwrap_or_default();
        table.into_iter().filter_map(|(name, value)| Some((name, value.try_into().ok()?))).collect()
    }

    /// Returns rate, latency and name of the level of memory that holds this many bytes.
    fn level(&self, bytes: f64) -> (f64, f64, &'static str) {
        let levels = [
            (self.l2_bytes.0, &self.l2_rate, &self.l2_latency, "L2"),
            (self.cache_bytes.0, &self.cache_rate, &self.cache_latency, "Infinity Cache"),
            (f64::INFINITY, &self.memory_rate, &self.memory_latency, "memory"),
        ];
        let level = levels.into_iter().find(|level| bytes <= level.0);
        level.map(|(_, rate, latency, name)| (rate.0, latency.0, name)).unwrap_or_default()
    }

    /// Returns the waves of a launch that fit on a vector unit.
    pub fn occupancy(&self, node: &Node) -> f64 {
        let by_registers = node.occupancy.min(self.waves.0);
        if node.lds_bytes == 0. {
            return by_registers;
        }
        let groups = (self.lds_bytes.0 / node.lds_bytes).floor();
        by_registers.min((groups * node.waves / node.workgroups / self.simds.0).ceil())
    }

    /// Returns the microseconds of a launch after its dispatch, and the resource that they are spent on.
    pub fn time(&self, node: &Node) -> (f64, &'static str) {
        let cycles_per_us = self.clock.0 * 1e3;
        let units = self.units.0 * cycles_per_us;
        let simds = units * self.simds.0;
        let (rate, latency, level) = self.level(node.footprint);
        let resident = self.units.0 * self.simds.0 * self.occupancy(node);
        // L1 keeps the lines of a wave until its next access if those of all resident waves fit.
        let lines_per_unit = node.accessed / node.accesses.max(1.) * resident.min(node.waves) / self.units.0;
        let from_l2 = if lines_per_unit > self.l1_bytes.0 { node.accessed } else { node.footprint };
        let slower = 3. * node.quarter_rate + (self.f64_cost.0 - 1.) * node.double_precision;
        let passes = (node.wave_size / self.lanes.0).max(1.);
        let instructions = node.vector + slower + node.scalar + node.accesses + node.lds_steps;
        let of_wave = instructions / node.waves.max(1.) * self.wave_interval.0 / cycles_per_us
            + node.waits * latency / 1e3;
        let times = [
            (node.footprint / rate / 1e3, level),
            (from_l2 / self.l2_rate.0 / 1e3, "L2"),
            (node.requested / self.l1_rate.0 / 1e3, "L1"),
            ((node.vector + slower) * passes / simds, "vector"),
            (node.scalar * self.issue_interval.0 / simds, "scalar"),
            (node.branches * self.issue_interval.0 / simds, "branches"),
            (node.accesses / units, "loads and stores"),
            (node.lds_steps / units, "LDS"),
            (node.products * self.matrix_cycles.0 / simds, "matrix"),
            (node.workgroups * self.workgroup_cycles.0 / (self.dies.0 * cycles_per_us), "workgroups"),
            (of_wave * (node.waves / resident).max(1.), "latency"),
        ];
        times.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
    }

    /// Returns the microseconds of one dispatch in a graph, and of this many bytes from the level that holds the
    /// footprint: no launch is faster.
    pub fn bound(&self, bytes: f64, footprint: f64) -> f64 {
        self.dispatch_graph.0 + bytes / self.level(footprint).0 / 1e3
    }
}
