//! Utilization of lanes and memory by a launch, with the counters of a hardware profiler. They are exact.
mod banks;
mod footprint;
mod lines;
mod rate;

pub(super) use footprint::Footprint;
pub(super) use rate::Rate;

use super::Access;
use super::memory::{Accesses, MemoryKind};
use super::program::Step;
use super::wave::Wave;

/// Defines a structure of sums, with its addition.
macro_rules! sums {
    ($(#[$attribute:meta])* $name:ident {$($(#[$doc:meta])* $field:ident: $type:ty,)*}) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}
pub(super) use sums;

sums! {
    /// Sums over all waves of one launch, or of several launches (`+=`).
    Profile {
        /// Lanes of all vector and vector memory instructions, active or not.
        lanes: u64,
        /// Active lanes of all vector and vector memory instructions.
        active_lanes: u64,
        /// Vector instructions at a quarter of the full rate: transcendental functions, and multiplications of
        /// 32-bit integers.
        quarter_rate: u64,
        /// Vector instructions on f64.
        double_precision: u64,
        /// Matrix products and dot products, except those on f64.
        products: u64,
        /// Conditional branches.
        branches: u64,
        /// Instructions that disabled some, but not all, of the active lanes: divergent branches.
        splits: u64,
        /// Barriers, counted once per wave.
        barriers: u64,
        /// Wave accesses to global memory with at least one active lane.
        accesses: u64,
        /// Bytes that lanes loaded from and stored to global memory; an atomic counts twice.
        bytes: u64,
        /// Lines of 64 bytes that the accesses touched, summed over accesses.
        lines_64: u64,
        /// Minimum number of lines of 64 bytes that could hold the accesses' bytes, summed over accesses.
        min_lines_64: u64,
        /// Like `lines_64`, for lines of 128 bytes.
        lines_128: u64,
        /// Like `min_lines_64`, for lines of 128 bytes.
        min_lines_128: u64,
        /// Distinct lines of 128 bytes that a launch loaded from.
        lines_loaded: u64,
        /// Distinct lines of 128 bytes that a launch stored to.
        lines_stored: u64,
        /// Wave accesses to LDS with at least one active lane.
        lds_accesses: u64,
        /// Bytes that lanes loaded from LDS.
        lds_bytes_loaded: u64,
        /// Bytes that lanes stored to LDS.
        lds_bytes_stored: u64,
        /// Cycles that the LDS accesses would take without bank conflicts.
        lds_steps: u64,
        /// Additional cycles because of bank conflicts.
        bank_conflicts: u64,
        /// Bytes that lanes loaded from private memory.
        scratch_bytes_loaded: u64,
        /// Bytes that lanes stored to private memory.
        scratch_bytes_stored: u64,
    }
}

/// Updates a profile as waves execute instructions.
#[derive(Default)]
pub(super) struct Profiler {
    pub(super) sums: Profile,
    pub(super) footprint: Footprint,
    /// Active lanes of the previous instruction.
    exec: u64,
}

impl Profiler {
    /// Switches to another wave.
    pub(super) fn resume<const W: usize>(&mut self, wave: &Wave<W>) {
        self.exec = wave.exec();
    }

    /// Detects a divergent branch in the instructions executed since the last call.
    pub(super) fn arrive<const W: usize>(&mut self, wave: &Wave<W>) {
        let exec = wave.exec();
        let is_divergent = exec != 0 && exec != self.exec && exec & !self.exec == 0;
        self.sums.splits += u64::from(is_divergent);
        self.exec = exec;
    }

    /// Counts an instruction that is about to be executed.
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
                step.accesses(wave, |accesses| self.count_accesses(&accesses));
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

    fn count_accesses<const W: usize>(&mut self, accesses: &Accesses<W>) {
        let sums = &mut self.sums;
        let bytes = accesses.bytes * u64::from(accesses.lanes.count_ones());
        let loaded = if accesses.access == Access::Store { 0 } else { bytes };
        let stored = if accesses.access == Access::Load { 0 } else { bytes };
        match accesses.memory_kind {
            MemoryKind::Global => {
                sums.accesses += 1;
                sums.bytes += loaded + stored;
                self.footprint.record(accesses);
                let lines = lines::count_lines(accesses);
                sums.lines_64 += lines.touched[0];
                sums.min_lines_64 += lines.minimum[0];
                sums.lines_128 += lines.touched[1];
                sums.min_lines_128 += lines.minimum[1];
            }
            MemoryKind::Lds => {
                sums.lds_accesses += 1;
                sums.lds_bytes_loaded += loaded;
                sums.lds_bytes_stored += stored;
                let steps = banks::count_steps(accesses);
                sums.lds_steps += steps.conflict_free;
                sums.bank_conflicts += steps.conflicts;
            }
            MemoryKind::Private => {
                sums.scratch_bytes_loaded += loaded;
                sums.scratch_bytes_stored += stored;
            }
        }
    }
}
