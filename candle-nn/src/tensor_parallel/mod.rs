//! Layers that are divided among the ranks of a [`Communicator`], which are GPUs of this machine (tensor parallelism).
//!
//! | layer | each rank has | operation between ranks |
//! |---|---|---|
//! | [`ColumnParallelLinear`] | some output features | none, or all-gather of the outputs |
//! | [`RowParallelLinear`] | some input features | all-reduce of the outputs |
//! | [`VocabParallelEmbedding`] | some rows of the table | all-reduce of the embeddings |
//! | [`ParallelExperts`] | a part of each expert | all-reduce of the outputs |
//!
//! A feed-forward block is a column-parallel layer without all-gather, an elementwise function, and a row-parallel layer.
//! Weights are dense or quantized. A quantized weight is divided between blocks. If a size is not divisible, the error
//! names it.
//!
//! All ranks call the layers in the same order, each on a thread or in a process of its own.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod embedding;
mod experts;
mod linear;
mod shard;

pub use candle::rocm::collective::Communicator;
pub use embedding::{look_up, VocabParallelEmbedding};
pub use experts::ParallelExperts;
pub use linear::{gather_last_dim, ColumnParallelLinear, RowParallelLinear};
pub use shard::{shard, shard_quantized, Weight};
