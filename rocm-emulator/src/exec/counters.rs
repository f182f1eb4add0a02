//! Counters of executed instructions, workgroups and bytes. They are exactly reproducible.
use super::Profile;

/// Sums over all waves of one launch, or of several launches (`+=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Kernel launches.
    pub launches: u64,
    /// Workgroups that completed.
    pub workgroups: u64,
    /// Waves that completed.
    pub waves: u64,
    /// Wave instructions on vector registers.
    pub vector: u64,
    /// Wave instructions on scalar registers.
    pub scalar: u64,
    /// Scalar memory loads.
    pub scalar_memory: u64,
    /// Flat, global and buffer accesses.
    pub global_memory: u64,
    /// LDS accesses.
    pub lds: u64,
    /// Private (scratch) accesses.
    pub scratch: u64,
    /// Branches, calls, barriers and program ends. Waits, hints and no-ops are not counted anywhere.
    pub flow: u64,
    /// Bytes that lanes and scalar loads read from global memory.
    pub bytes_loaded: u64,
    /// Bytes that lanes wrote to global memory; an atomic counts as both loaded and stored.
    pub bytes_stored: u64,
    /// Profile; all zeros unless [`Instrumentation::profile`](super::Instrumentation::profile) is set.
    pub profile: Profile,
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

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.launches += other.launches;
        self.workgroups += other.workgroups;
        self.waves += other.waves;
        self.vector += other.vector;
        self.scalar += other.scalar;
        self.scalar_memory += other.scalar_memory;
        self.global_memory += other.global_memory;
        self.lds += other.lds;
        self.scratch += other.scratch;
        self.flow += other.flow;
        self.bytes_loaded += other.bytes_loaded;
        self.bytes_stored += other.bytes_stored;
        self.profile += other.profile;
    }
}
