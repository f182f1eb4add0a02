//! A mixture of experts of which each rank has a part of each expert.
use super::shard::Weight;
use super::Communicator;
use crate::moe;
use crate::ops::silu;
use candle::rocm::collective::ReduceOp;
use candle::{DType, Result, Tensor};

/// Gated experts: `down(silu(gate(x)) * up(x))`, weighted and summed over the experts of a row. The hidden features of each
/// expert are divided.
#[derive(Clone, Debug)]
pub struct ParallelExperts {
    gate: Weight,
    up: Weight,
    down: Weight,
    communicator: Communicator,
}

impl ParallelExperts {
    /// Divides the stacks of all experts: `gate` and `up` (experts, hidden, features), `down` (experts, features, hidden).
    /// Dense stacks must be f16 or bf16.
    ///
    /// # Errors
    /// If hidden, or its number of blocks in `down`, is not divisible by the number of ranks.
    pub fn new(gate: &Weight, up: &Weight, down: &Weight, communicator: &Communicator) -> Result<Self> {
        Ok(Self {
            gate: gate.shard(1, communicator)?,
            up: up.shard(1, communicator)?,
            down: down.shard(2, communicator)?,
            communicator: communicator.clone(),
        })
    }

    /// Computes the rows `x` (rows, features) with `experts` (rows, k) in u32 and their `weights` (rows, k) in f32.
    ///
    /// # Errors
    /// If shapes or dtypes do not match. An expert that does not exist is reported by the next call that waits for the
    /// device.
    pub fn forward(&self, x: &Tensor, experts: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let (rows, features) = x.dims2()?;
        let topk = experts.dim(1)?;
        let (sorted, order) = experts.flatten_all()?.sort_last_dim(true)?;
        let product = |x: &Tensor, stack: &Weight, factors: Option<&Tensor>| {
            let factors = factors.cloned();
            match stack {
                Weight::Dense(stack) => moe::moe_gemm(x, stack, &factors, &order, &sorted, topk, true),
                Weight::Quantized(stack) => {
                    let x = x.to_dtype(DType::F32)?;
                    moe::moe_gemm_gguf(&x, stack, &factors, &order, &sorted, topk, true, DType::F32)
                }
            }
        };
        let hidden = (silu(&product(x, &self.gate, None)?)? * product(x, &self.up, None)?)?;
        let factors = weights.flatten_all()?;
        let parts = product(&hidden, &self.down, Some(&factors))?.reshape((rows, topk, features))?;
        // Summed over the experts first, so that the ranks exchange less.
        let sum = self.communicator.all_reduce(&parts.sum(1)?, ReduceOp::Sum)?;
        sum.to_dtype(x.dtype())
    }
}
