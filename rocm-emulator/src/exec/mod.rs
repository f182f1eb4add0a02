//! Execution of kernels. Workgroups run on the host's cores, waves in lockstep, and lanes are array elements.
//!
//! [`run`] executes one [`Launch`]: a [`KernelSpec`] of a [`Program`] over a grid, on the memory that an
//! [`AddressSpace`] describes. It returns counters of the executed instructions ([`Counters`]) or the first
//! [`Fault`]. It has no notion of streams, modules or HIP.

mod address_space;
mod canonical;
mod check;
mod counters;
mod fault;
mod initial_state;
mod launch;
mod matrix;
mod memory;
mod profile;
mod program;
mod random;
mod report;
mod scalar;
#[cfg(test)]
mod semantics;
#[cfg(test)]
mod shipped;
mod shuffle;
mod vector;
mod watch;
mod wave;
mod wave_size;
mod workgroup;

pub use address_space::{AddressSpace, PRIVATE_APERTURE, Range, SHARED_APERTURE};
pub use check::{Checks, FreedRange, FreedRanges, Missing, RangeHistories, RangeHistory, Written};
pub use counters::Counters;
pub use fault::{Access, EarlierAccess, Fault, FaultKind, Location, Site};
pub use launch::{
    DEFAULT_INSTRUCTION_LIMIT, Instrumentation, KernelSpec, Launch, can_launch_on_this_thread, run,
};
pub use profile::Profile;
pub use program::Program;
pub(crate) use random::Random;
