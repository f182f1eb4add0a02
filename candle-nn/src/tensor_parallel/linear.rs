//! Linear layers whose features are divided.
use super::shard::{own, shard, Weight};
use super::Communicator;
use crate::var_builder::{Shard, ShardedVarBuilder};
use candle::rocm::collective::ReduceOp;
use candle::{bail, Module, Result, Tensor};

/// A linear layer of which each rank computes some output features.
#[derive(Clone, Debug)]
pub struct ColumnParallelLinear {
    weight: Weight,
    bias: Option<Tensor>,
    /// Gathers the outputs; `None` if each rank keeps its own.
    gather: Option<Communicator>,
}

impl ColumnParallelLinear {
    /// Divides a weight (n, k) and a bias (n) of the whole layer along n. If `gather` is true, every rank returns all
    /// output features, otherwise only its own.
    ///
    /// # Errors
    /// If n is not divisible by the number of ranks.
    pub fn new(
        weight: &Weight,
        bias: Option<&Tensor>,
        gather: bool,
        communicator: &Communicator,
    ) -> Result<Self> {
        let part = own(0, communicator);
        let bias = match bias {
            Some(bias) => Some(shard(bias, part)?.to_device(communicator.device())?),
            None => None,
        };
        let gather = gather.then(|| communicator.clone());
        Ok(Self { weight: weight.shard(0, communicator)?, bias, gather })
    }

    /// Reads this rank's part of `weight`, and of `bias` if there is one.
    ///
    /// # Errors
    /// If a tensor is missing, or n is not divisible by the number of ranks.
    pub fn load(vb: ShardedVarBuilder, gather: bool, communicator: &Communicator) -> Result<Self> {
        let part = own(0, communicator);
        let weight = Weight::Dense(vb.get_with_hints((), "weight", part)?);
        let bias = match vb.contains_tensor("bias") {
            true => Some(vb.get_with_hints((), "bias", part)?),
            false => None,
        };
        Ok(Self { weight, bias, gather: gather.then(|| communicator.clone()) })
    }
}

impl Module for ColumnParallelLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = self.weight.product(x)?;
        if let Some(bias) = &self.bias {
            y = y.broadcast_add(bias)?;
        }
        match &self.gather {
            Some(communicator) => gather_last_dim(&y, communicator),
            None => Ok(y),
        }
    }
}

/// Concatenates the ranks' tensors along the last dimension, on each rank.
///
/// # Errors
/// If `y` is a scalar, or the operation between ranks fails.
pub fn gather_last_dim(y: &Tensor, communicator: &Communicator) -> Result<Tensor> {
    if communicator.world_size() == 1 {
        return Ok(y.clone());
    }
    let Some((width, outer)) = y.dims().split_last() else { bail!("a scalar has no features to gather") };
    let rows: usize = outer.iter().product();
    let gathered = communicator.all_gather(&y.reshape((1, rows, *width))?)?;
    let dims = [outer, &[width * communicator.world_size()]].concat();
    gathered.transpose(0, 1)?.contiguous()?.reshape(dims)
}

/// A linear layer of which each rank computes with some input features. All ranks return the sum.
#[derive(Clone, Debug)]
pub struct RowParallelLinear {
    weight: Weight,
    /// The whole bias, which is added to the sum.
    bias: Option<Tensor>,
    communicator: Communicator,
}

impl RowParallelLinear {
    /// Divides a weight (n, k) of the whole layer along k. The bias (n) is not divided.
    ///
    /// # Errors
    /// If k, or its number of blocks, is not divisible by the number of ranks.
    pub fn new(weight: &Weight, bias: Option<&Tensor>, communicator: &Communicator) -> Result<Self> {
        let bias = bias.map(|bias| bias.to_device(communicator.device())).transpose()?;
        Ok(Self { weight: weight.shard(1, communicator)?, bias, communicator: communicator.clone() })
    }

    /// Reads this rank's part of `weight`, and `bias` if there is one.
    ///
    /// # Errors
    /// If a tensor is missing, or k is not divisible by the number of ranks.
    pub fn load(vb: ShardedVarBuilder, communicator: &Communicator) -> Result<Self> {
        let part = own(1, communicator);
        let weight = Weight::Dense(vb.get_with_hints((), "weight", part)?);
        let bias = match (vb.contains_tensor("bias"), &weight) {
            (true, Weight::Dense(tensor)) => {
                Some(vb.get_with_hints(tensor.dim(0)?, "bias", Shard::default())?)
            }
            _ => None,
        };
        Ok(Self { weight, bias, communicator: communicator.clone() })
    }
}

impl Module for RowParallelLinear {
    /// Computes the layer from this rank's input features (..., k / ranks).
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let sum = self.communicator.all_reduce(&self.weight.product(x)?, ReduceOp::Sum)?;
        match &self.bias {
            Some(bias) => sum.broadcast_add(bias),
            None => Ok(sum),
        }
    }
}
