//! Dividing weights among ranks.
use super::Communicator;
use crate::var_builder::Shard;
use candle::quantized::{QMatMul, QStorage, QTensor};
use candle::{bail, Module, Result, Tensor};
use std::borrow::Cow;
use std::sync::Arc;

/// A weight of a linear layer or of a stack of experts.
#[derive(Clone, Debug)]
pub enum Weight {
    /// A dense tensor.
    Dense(Tensor),
    /// A quantized tensor.
    Quantized(Arc<QTensor>),
}

impl Weight {
    /// Returns the sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Dense(tensor) => tensor.dims(),
            Self::Quantized(tensor) => tensor.shape().dims(),
        }
    }

    /// Returns a rank's part along a dimension, on the device of the communicator.
    ///
    /// # Errors
    /// See [`shard`] and [`shard_quantized`].
    pub fn shard(&self, dim: usize, communicator: &Communicator) -> Result<Self> {
        let part = own(dim, communicator);
        Ok(match self {
            Self::Dense(tensor) => Self::Dense(shard(tensor, part)?.to_device(communicator.device())?),
            Self::Quantized(tensor) => {
                Self::Quantized(Arc::new(shard_quantized(tensor, part, communicator.device())?))
            }
        })
    }

    /// Multiplies `x` (..., k) by the transpose of the weight (n, k).
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(tensor) => crate::Linear::new(tensor.clone(), None).forward(x),
            Self::Quantized(tensor) => QMatMul::QTensor(tensor.clone()).forward(&x.contiguous()?),
        }
    }
}

/// Describes the part of the communicator's rank along a dimension.
pub(super) fn own(dim: usize, communicator: &Communicator) -> Shard {
    Shard { dim, rank: communicator.rank(), world_size: communicator.world_size() }
}

/// Returns the number of elements, or blocks, of each rank.
fn part_of(size: usize, unit: usize, what: &str, Shard { dim, rank, world_size }: Shard) -> Result<usize> {
    let count = size / unit;
    if rank >= world_size {
        bail!("there is no rank {rank} of {world_size}")
    }
    if !count.is_multiple_of(world_size) {
        let blocks = if unit > 1 { format!(" in {count} blocks of {unit}") } else { String::new() };
        bail!(
            "{what}: dimension {dim} has {size} elements{blocks}, which {world_size} ranks cannot divide; use a number \
             of ranks that divides {count}"
        )
    }
    Ok(count / world_size)
}

/// Returns a rank's part of a tensor, contiguous on the same device.
///
/// # Errors
/// If the dimension does not exist or is not divisible by the number of ranks.
pub fn shard(tensor: &Tensor, part: Shard) -> Result<Tensor> {
    let len = part_of(tensor.dim(part.dim)?, 1, "a weight", part)?;
    tensor.narrow(part.dim, part.rank * len, len)?.contiguous()
}

/// Returns a rank's part of a quantized tensor, on the given device. Blocks are along the last dimension.
///
/// # Errors
/// If the dimension does not exist, or its elements (for the last one, its blocks) are not divisible by the number of
/// ranks.
pub fn shard_quantized(tensor: &QTensor, part: Shard, device: &candle::Device) -> Result<QTensor> {
    let (dtype, dims) = (tensor.dtype(), tensor.shape().dims());
    let Some((last, size)) = dims.len().checked_sub(1).zip(dims.get(part.dim)) else {
        bail!("a weight of shape {:?} has no dimension {}", tensor.shape(), part.dim)
    };
    let unit = if part.dim == last { dtype.block_size() } else { 1 };
    let len = part_of(*size, unit, &format!("a weight in {dtype:?}"), part)?;
    // Sizes in blocks: of one unit along the dimension, of a rank's part, and of all parts.
    let inner = match part.dim == last {
        true => 1,
        false => dims[part.dim + 1..].iter().product::<usize>() / dtype.block_size(),
    };
    let own = len * inner * dtype.type_size();
    let bytes = tensor.data()?;
    let rows = bytes.chunks_exact((own * part.world_size).max(1));
    let data: Vec<u8> = rows.flat_map(|row| &row[part.rank * own..][..own]).copied().collect();
    let mut dims = dims.to_vec();
    dims[part.dim] = len * unit;
    QTensor::new(QStorage::from_data(Cow::Owned(data), device, dtype)?, dims)
}
