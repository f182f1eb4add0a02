//! Counters of executed instructions, workgroups and bytes. They are exactly reproducible.
use super::Profile;
use super::profile::sums;

sums! {
    /// Sums over all waves of one launch, or of several launches (`+=`).
    Counters {
        /// Kernel launches.
        launches: u64,
        /// Workgroups that completed.
        workgroups: u64,
        /// Waves that completed.
        waves: u64,
        /// Wave instructions on vector registers.
        vector: u64,
        /// Wave instructions on scalar registers.
        scalar: u64,
        /// Scalar memory loads.
        scalar_memory: u64,
        /// Flat, global and buffer accesses.
        global_memory: u64,
        /// LDS accesses.
        lds: u64,
        /// Private (scratch) accesses.
        scratch: u64,
        /// Branches, calls, barriers and program ends. Waits, hints and no-ops are not counted anywhere.
        flow: u64,
        /// Bytes that lanes and scalar loads read from global memory.
        bytes_loaded: u64,
        /// Bytes that lanes wrote to global memory; an atomic counts as both loaded and stored.
        bytes_stored: u64,
        /// Profile; all zeros unless [`Instrumentation::profile`](super::Instrumentation::profile) is set.
        profile: Profile,
    }
}

impl Counters {
    /// Returns the number of all wave instructions.
    pub fn instructions(&self) -> u64 {
        self.vector
            + self.scalar
            + self.scalar_memory
            + self.global_memory
            + self.lds
            + self.scratch
            + self.flow
    }
}
