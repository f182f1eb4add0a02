//! Low-rank adapters (LoRA) of a decoder, which each request chooses.
//!
//! | file | subject |
//! |---|---|
//! | `weights` | matrices of a loaded adapter |
//! | `targets` | projections of a decoder that adapters may change, and the limits of adapters |
//! | `peft` | reading of PEFT's files |
//! | `rows` | rows of a step by adapter, and the products with its matrices |
//! | `expert_targets` | projections of experts that adapters may change |
//! | `experts` | stacks of an adapter's matrices, for the projections of experts |
//! | `feed_forward` | feed-forward layers of rows with adapters |
mod expert_targets;
mod experts;
mod feed_forward;
mod peft;
mod rows;
mod targets;
mod weights;

pub use experts::{ExpertRows, ExpertStacks};
pub use feed_forward::inner;
pub use peft::read;
pub use rows::{AdapterRows, Deltas};
pub use targets::{AdapterLimits, AdapterTargets, Target};
pub use weights::{Adapter, AdapterFiles};
