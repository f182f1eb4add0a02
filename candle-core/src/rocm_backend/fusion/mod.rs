//! Fusion: launches that are held back until it is known what follows them, so that one does what several would.
//!
//! Decoding a language model with quantized weights consists of products of one row of activations and the steps around
//! them. Models ask for each by itself; a layer of unmodified candle-transformers code is 14 launches instead of 21.
//!
//! Held back are products of one row with a matrix of blocks, `silu` of such a product, its product with another tensor,
//! and the sum of a product and another tensor. They become one launch where they fit each other:
//!
//! - products of up to three matrices with the same row;
//! - the product with a row that is `silu(x) * gate`;
//! - a product that another tensor is added to.
//!
//! The contract, which `docs/fusion.md` explains:
//!
//! 1. **Order.** Everything else that is enqueued, waited for, copied or recorded on the stream has the held launches
//!    enqueued before ([`Stream::begin`](crate::rocm_backend::stream::Stream::begin)). An observer sees a difference only
//!    in the number of launches; every element has the bits that separate launches give it.
//! 2. **Results.** A result that another held launch uses is not computed for itself if its tensor is dropped before. All
//!    others are computed, whether or not they are looked at.
//! 3. **Memory.** What a held launch reads or writes is kept until it is enqueued, also if its tensor is dropped.
//! 4. **Errors.** An error of a held launch comes from the call that has it enqueued, or from the next one if that
//!    call returns none.
//! 5. **Cost.** While nothing is held back, an operation pays one atomic load.
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
