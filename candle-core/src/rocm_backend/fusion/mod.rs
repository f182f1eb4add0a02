//! Fusion: launches that are held back until it is known what follows them, so that one does what several would.
//!
//! Products of one row with a matrix of blocks, `silu` of such a product, its product with another tensor, and the sum of a
//! product and another tensor wait for what follows. `docs/fusion.md` is the contract: what is held and merged, its order
//! on the stream, results, memory and errors. An observer sees a difference only in the number of launches; while nothing
//! is held back, an operation pays one atomic load.
//!
//! | file | subject |
//! |---|---|
//! | `merge` | which launches are merged, and the switch |
//! | `held` | the held launches, and the memory that they need |
//! | `enqueue` | launching them |
mod enqueue;
mod held;
mod merge;

pub use merge::FUSION_VARIABLE;
pub(crate) use merge::{binary, unary, RowProduct};
