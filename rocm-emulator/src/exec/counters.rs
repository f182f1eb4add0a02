//! What a launch executed: repeatable to the digit.
use super::Profile;

/// Sums over all waves of a launch, or of many launches (`+=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Kernel launches.
    pub launches: u64,
    /// Workgroups that ran to their end.
    pub workgroups: u64,
    /// Waves that ran to their end.
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
    /// Branches, calls, barriers and ends. Waits, hints and no-ops are not counted anywhere.
    pub flow: u64,
    /// Bytes that lanes and scalar loads read from global memory.
    pub bytes_loaded: u64,
    /// Bytes that lanes wrote to global memory; an atomic counts on both sides.
    pub bytes_stored: u64,
    /// What is counted only if it is asked for; zeros otherwise.
    pub profile: Profile,
}

impl Counters {
    /// All wave instructions.
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
