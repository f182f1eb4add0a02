//! What a launch is checked for besides what is always checked.
mod freed;

pub use freed::{FreedRange, FreedRanges};

/// The checks that cost time or memory, and are therefore asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Freed memory stays unused for a while, and wide red zones part allocations.
    pub memory: bool,
    /// Accesses that nothing orders: between the waves of a workgroup, and between workgroups.
    pub race: bool,
    /// Reads of device memory and LDS that nobody has written.
    pub init: bool,
}
