//! The next tokens of a batch, drawn on the device.
//!
//! | file | subject |
//! |---|---|
//! | `row` | what one row is sampled with |
//! | `sampler` | a step for a whole batch, with one read back |
//! | `settings` | the settings, one row each |
//! | `check` | which values they may have |
//! | `penalties` | bias and penalties of the tokens that they touch |
//! | `mask` | tokens that a grammar allows |
//! | `cuts` | top-k, top-p and min-p as the least value that stays |
//! | `cumulative` | the token where the sum of weights passes a share of the whole |
//! | `largest` | the likeliest tokens, for log probabilities |
//!
//! A row's token depends on its own logits and parameters alone, never on what else is in the batch: weights are summed
//! in the order of the vocabulary, and cuts keep all tokens as likely as the last one that stays.
mod check;
mod cumulative;
mod cuts;
mod largest;
mod mask;
mod penalties;
mod row;
mod sampler;
pub mod settings;

pub use check::check;
pub use row::Row;
pub use sampler::{Sampled, Sampler};
