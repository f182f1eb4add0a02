//! How a launch uses lanes and memory: what a profiler counts, here exactly and repeatably.
mod banks;
mod footprint;
mod lines;
mod rate;

pub(super) use footprint::Footprint;
pub(super) use rate::Rate;

use super::Access;
use super::memory::{MemoryKind, Touch};
use super::program::Step;
use super::wave::Wave;

/// Sums over all waves of a launch, or of many (`+=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Lanes of all instructions on vector registers and vector memory.
    pub lanes: u64,
    /// How many of them were active.
    pub active_lanes: u64,
    /// Vector instructions that take four times as long as others: transcendental functions and multiplications of
    /// 32-bit integers.
    pub quarter_rate: u64,
    /// Vector instructions on f64.
    pub double_precision: u64,
    /// Products of matrices or of short vectors, other than on f64.
    pub products: u64,
    /// Conditional branches.
    pub branches: u64,
    /// Instructions that turned off some, but not all, of the active lanes: where lanes part.
    pub splits: u64,
    /// Barriers that waves have reached.
    pub barriers: u64,
    /// Accesses of waves to global memory that touched something.
    pub accesses: u64,
    /// Bytes that their lanes asked for; an atomic's count twice.
    pub bytes: u64,
    /// Lines of 64 bytes that each access touched.
    pub lines_64: u64,
    /// The fewest that could hold what the accesses touched.
    pub fewest_lines_64: u64,
    /// The same for lines of 128 bytes.
    pub lines_128: u64,
    /// The same for lines of 128 bytes.
    pub fewest_lines_128: u64,
    /// Different lines of 128 bytes that a launch loaded from.
    pub lines_loaded: u64,
    /// Different lines of 128 bytes that a launch stored to.
    pub lines_stored: u64,
    /// Accesses of waves to LDS.
    pub lds_accesses: u64,
    /// Bytes that lanes loaded from LDS.
    pub lds_bytes_loaded: u64,
    /// Bytes that lanes stored to LDS.
    pub lds_bytes_stored: u64,
    /// Steps in which LDS serves an access without conflicts.
    pub lds_steps: u64,
    /// Further steps because of conflicts.
    pub bank_conflicts: u64,
    /// Bytes that lanes loaded from private memory.
    pub scratch_bytes_loaded: u64,
    /// Bytes that lanes stored to private memory.
    pub scratch_bytes_stored: u64,
}

impl std::ops::AddAssign for Profile {
    fn add_assign(&mut self, other: Self) {
        self.lanes += other.lanes;
        self.active_lanes += other.active_lanes;
        self.quarter_rate += other.quarter_rate;
        self.double_precision += other.double_precision;
        self.products += other.products;
        self.branches += other.branches;
        self.splits += other.splits;
        self.barriers += other.barriers;
        self.accesses += other.accesses;
        self.bytes += other.bytes;
        self.lines_64 += other.lines_64;
        self.fewest_lines_64 += other.fewest_lines_64;
        self.lines_128 += other.lines_128;
        self.fewest_lines_128 += other.fewest_lines_128;
        self.lines_loaded += other.lines_loaded;
        self.lines_stored += other.lines_stored;
        self.lds_accesses += other.lds_accesses;
        self.lds_bytes_loaded += other.lds_bytes_loaded;
        self.lds_bytes_stored += other.lds_bytes_stored;
        self.lds_steps += other.lds_steps;
        self.bank_conflicts += other.bank_conflicts;
        self.scratch_bytes_loaded += other.scratch_bytes_loaded;
        self.scratch_bytes_stored += other.scratch_bytes_stored;
    }
}

/// Counts what waves do, one instruction after the other.
#[derive(Default)]
pub(super) struct Profiler {
    pub(super) sums: Profile,
    pub(super) footprint: Footprint,
    /// The lanes that were active at the instruction before.
    exec: u64,
}

impl Profiler {
    /// Another wave goes on.
    pub(super) fn resume<const W: usize>(&mut self, wave: &Wave<W>) {
        self.exec = wave.exec();
    }

    /// The instructions before this point have been executed.
    pub(super) fn arrive<const W: usize>(&mut self, wave: &Wave<W>) {
        let exec = wave.exec();
        let part_left = exec != 0 && exec != self.exec && exec & !self.exec == 0;
        self.sums.splits += u64::from(part_left);
        self.exec = exec;
    }

    /// An instruction is executed.
    pub(super) fn count<const W: usize>(&mut self, step: &Step<W>, rate: Rate, wave: &Wave<W>) {
        match step {
            Step::Vector(_) | Step::RareVector(_) => {
                self.count_lanes(wave);
                self.sums.quarter_rate += u64::from(rate == Rate::Quarter);
                self.sums.double_precision += u64::from(rate == Rate::Double);
                self.sums.products += u64::from(rate == Rate::Product);
            }
            Step::Memory(step) => {
                self.count_lanes(wave);
                step.touches(wave, |touch| self.count_touch(&touch));
            }
            Step::BranchIf(..) => self.sums.branches += 1,
            Step::Barrier => self.sums.barriers += 1,
            _ => {}
        }
    }

    fn count_lanes<const W: usize>(&mut self, wave: &Wave<W>) {
        self.sums.lanes += W as u64;
        self.sums.active_lanes += u64::from(wave.exec().count_ones());
    }

    fn count_touch<const W: usize>(&mut self, touch: &Touch<W>) {
        let sums = &mut self.sums;
        let bytes = touch.bytes * u64::from(touch.lanes.count_ones());
        let loaded = if touch.access == Access::Store { 0 } else { bytes };
        let stored = if touch.access == Access::Load { 0 } else { bytes };
        match touch.memory_kind {
            MemoryKind::Global => {
                sums.accesses += 1;
                sums.bytes += loaded + stored;
                self.footprint.touch(touch);
                let lines = lines::of(touch);
                sums.lines_64 += lines.touched[0];
                sums.fewest_lines_64 += lines.fewest[0];
                sums.lines_128 += lines.touched[1];
                sums.fewest_lines_128 += lines.fewest[1];
            }
            MemoryKind::Lds => {
                sums.lds_accesses += 1;
                sums.lds_bytes_loaded += loaded;
                sums.lds_bytes_stored += stored;
                let steps = banks::of(touch);
                sums.lds_steps += steps.fewest;
                sums.bank_conflicts += steps.conflicts;
            }
            MemoryKind::Private => {
                sums.scratch_bytes_loaded += loaded;
                sums.scratch_bytes_stored += stored;
            }
        }
    }
}
