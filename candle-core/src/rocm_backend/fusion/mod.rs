//! Fusion: some launches are deferred until the next operation, so that one kernel computes several operations.
//!
//! Deferred are products of one row with a quantized matrix, `silu` of such a product, its product with another tensor, and
//! the sum of a product and another tensor. `docs/explanation/fusion.md` specifies what is deferred and fused, the order on the stream,
//! results, memory and errors. Fusion only changes the number of launches. If nothing is deferred, an operation costs one
//! additional atomic load.
//!
//! | file | subject |
//! |---|---|
//! | `merge` | which launches are deferred and fused, and the switch |
//! | `deferred` | the deferred launches, and the memory that they need |
//! | `enqueue` | enqueueing the deferred launches |
mod deferred;
mod enqueue;
mod merge;

pub use merge::FUSION_VARIABLE;
pub(crate) use merge::{binary, unary, RowProduct};
