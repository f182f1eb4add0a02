//! An embedding whose vocabulary is divided.
use super::shard::{own, shard};
use super::Communicator;
use crate::var_builder::ShardedVarBuilder;
use candle::rocm::collective::ReduceOp;
use candle::{DType, Module, Result, Tensor};

/// An embedding of which each rank has the rows of some tokens.
///
/// The output layer of a model with this vocabulary is a [`ColumnParallelLinear`](super::ColumnParallelLinear).
#[derive(Clone, Debug)]
pub struct VocabParallelEmbedding {
    table: Tensor,
    communicator: Communicator,
}

impl VocabParallelEmbedding {
    /// Divides the table (tokens, features) of the whole layer along the tokens.
    ///
    /// # Errors
    /// If the number of tokens is not divisible by the number of ranks.
    pub fn new(table: &Tensor, communicator: &Communicator) -> Result<Self> {
        let part = own(0, communicator);
        let table = shard(table, part)?.to_device(communicator.device())?;
        Ok(Self { table, communicator: communicator.clone() })
    }

    /// Reads this rank's part of `weight`.
    ///
    /// # Errors
    /// If the tensor is missing, or the number of tokens is not divisible by the number of ranks.
    pub fn load(vb: ShardedVarBuilder, communicator: &Communicator) -> Result<Self> {
        let part = own(0, communicator);
        Ok(Self { table: vb.get_with_hints((), "weight", part)?, communicator: communicator.clone() })
    }
}

impl Module for VocabParallelEmbedding {
    /// Returns the rows of tokens. A token beyond the vocabulary has a row of zeros.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (tokens, features) = self.table.dims2()?;
        let first = (self.communicator.rank() * tokens) as u32;
        let flat = ids.flatten_all()?.to_dtype(DType::U32)?;
        let is_own = (flat.ge(first)? * flat.lt(first + tokens as u32)?)?;
        let first = Tensor::new(first, flat.device())?.broadcast_as(flat.shape())?;
        let local = is_own.where_cond(&(&flat - &first)?, &flat.zeros_like()?)?;
        let rows = self.table.index_select(&local, 0)?;
        let is_own = is_own.unsqueeze(1)?.broadcast_as(rows.shape())?;
        let rows = is_own.where_cond(&rows, &rows.zeros_like()?)?;
        let sum = self.communicator.all_reduce(&rows, ReduceOp::Sum)?;
        sum.reshape([ids.dims(), &[features]].concat())
    }
}
