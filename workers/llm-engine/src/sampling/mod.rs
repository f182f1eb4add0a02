//! Batched sampling on the device.
//!
//! | file | subject |
//! |---|---|
//! | `row` | sampling parameters of one row |
//! | `sampler` | sampling of a whole batch with one read back |
//! | `settings` | table of the settings |
//! | `check` | validation of the settings |
//! | `penalties` | occurrences of tokens |
//! | `words` | settings and results of a batch as 32-bit words |
//! | `op` | the operation on the CPU and on ROCm |
//! | `cpu` | sampling of a row on the CPU |
//!
//! A row's token depends only on its own logits and parameters, never on the rest of the batch or on the device.
//! Weights are integers, whose sums do not depend on their order. Truncation keeps all tokens that are as likely as
//! the last one kept.
mod check;
mod cpu;
mod op;
mod penalties;
mod row;
mod sampler;
pub mod settings;
mod words;

pub use check::check;
pub use penalties::{Occurrences, TokenCounts};
pub use row::Row;
pub use sampler::{SampleBatch, Sampled, launch, sample};
