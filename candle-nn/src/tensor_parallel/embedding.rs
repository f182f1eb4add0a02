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
        let flat = ids.flatten_all()?.to_dtype(DType::U32)?;
        let sum = look_up(&flat, tokens, &self.communicator, |own| self.table.index_select(own, 0))?;
        sum.reshape([ids.dims(), &[features]].concat())
    }
}

/// Returns the rows of tokens, u32 (ids), from a table of any format of which each rank has `tokens` rows. `rows` returns
/// the rows (ids, features) of tokens that are numbered from this rank's first one.
///
/// # Errors
/// If `rows` or the operation between ranks fails.
pub fn look_up(
    ids: &Tensor,
    tokens: usize,
    communicator: &Communicator,
    rows: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    // Nothing is copied from the host, so that graphs can contain it.
    let number = |value: usize| Tensor::full(value as u32, ids.shape(), ids.device());
    // Tokens before the first one wrap around to large numbers.
    let local = (ids - number(communicator.rank() * tokens)?)?;
    let is_own = local.lt(&number(tokens)?)?;
    let rows = rows(&is_own.where_cond(&local, &local.zeros_like()?)?)?;
    let is_own = is_own.unsqueeze(1)?.broadcast_as(rows.shape())?;
    let rows = is_own.where_cond(&rows, &rows.zeros_like()?)?;
    communicator.all_reduce(&rows, ReduceOp::Sum)
}
