//! Batched sampling on the device.
//!
//! | file | subject |
//! |---|---|
//! | `row` | sampling parameters of one row |
//! | `sampler` | sampling of a whole batch with one read back |
//! | `settings` | table of the settings |
//! | `check` | validation of the settings |
//! | `penalties` | logit bias and penalties |
//! | `mask` | grammar masks |
//! | `thresholds` | top-k, top-p and min-p as thresholds |
//! | `cumulative` | search in cumulative weights |
//! | `largest` | the most likely tokens, for log probabilities |
//!
//! A row's token depends only on its own logits and parameters, never on the rest of the batch: weights are
//! summed in the order of the vocabulary, and truncation keeps all tokens that are as likely as the last one
//! kept.
mod check;
mod cumulative;
mod largest;
mod mask;
mod penalties;
mod row;
mod sampler;
pub mod settings;
mod thresholds;

pub use check::check;
pub use row::Row;
pub use sampler::{Sampled, Sampler};
