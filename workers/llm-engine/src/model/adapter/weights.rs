//! Matrices of a loaded adapter.
use std::fmt;

use candle_core::{D, DType, Device, Result, Tensor};
use sha2::{Digest, Sha256};

use super::targets::{AdapterTargets, TARGETS, Target, TargetShare};
use crate::model::layers::{Linear, Matrix};

/// Two matrices whose product is added to a weight, or stacks with two for each expert.
#[derive(Clone, Debug)]
pub(super) struct LowRank {
    /// Matrix A (rank, in), or those of several projections, concatenated.
    pub(super) down: Tensor,
    /// Matrix B (out, rank), multiplied by the adapter's scale. With several projections, their blocks are on the diagonal.
    pub(super) up: Tensor,
}

/// [`LowRank`] on a device of the model, or the part of a rank.
#[derive(Clone, Debug)]
pub struct LowRankProduct {
    pub(super) down: Linear,
    pub(super) up: Linear,
}

/// Matrices of an adapter on the CPU.
pub struct AdapterFiles {
    pub(super) digest: [u8; 32],
    pub(super) dtype: DType,
    pub(super) layers: Vec<[Option<LowRank>; TARGETS]>,
}

/// A loaded adapter. Adapters with the same files are equal.
pub struct Adapter {
    digest: [u8; 32],
    /// Data type of the matrices.
    pub(super) dtype: DType,
    /// Layers of each rank.
    ranks: Vec<Vec<[Option<LowRankProduct>; TARGETS]>>,
    bytes: usize,
}

impl AdapterFiles {
    /// Copies the matrices to the devices of the model for which they were read.
    ///
    /// # Errors
    /// Returns an error if a device fails or its memory runs out.
    pub fn upload(self, targets: &AdapterTargets) -> Result<Adapter> {
        let mut bytes = 0;
        let mut linear = |matrix: Tensor, device: &Device| -> Result<Linear> {
            bytes += matrix.elem_count() * matrix.dtype().size_in_bytes();
            let matrix = matrix.contiguous()?.to_device(device)?;
            let dtype = matrix.dtype();
            Ok(Linear::new(Matrix::Float(matrix), None, dtype))
        };
        let mut product =
            |low_rank: &LowRank, share: &TargetShare, target: usize| -> Result<LowRankProduct> {
                let (inputs, outputs) = (&share.inputs[target], &share.outputs[target]);
                let down = low_rank.down.narrow(D::Minus1, inputs.start, inputs.len())?;
                let rows = outputs.iter().map(|rows| low_rank.up.narrow(D::Minus2, rows.start, rows.len()));
                let up = Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, D::Minus2)?;
                Ok(LowRankProduct { down: linear(down, &share.device)?, up: linear(up, &share.device)? })
            };
        let mut layers = |share: &TargetShare| -> Result<Vec<_>> {
            let mut layers = Vec::with_capacity(self.layers.len());
            for layer in &self.layers {
                let mut products = [const { None }; TARGETS];
                for (target, (place, low_rank)) in products.iter_mut().zip(layer).enumerate() {
                    *place = low_rank.as_ref().map(|own| product(own, share, target)).transpose()?;
                }
                layers.push(products);
            }
            Ok(layers)
        };
        let ranks = targets.shares.iter().map(&mut layers).collect::<Result<_>>()?;
        Ok(Adapter { digest: self.digest, dtype: self.dtype, ranks, bytes })
    }
}

impl Adapter {
    /// Returns a rank's matrices of a layer's projections, if the adapter changes them.
    pub(super) fn product(&self, rank: usize, layer: usize, target: Target) -> Option<&LowRankProduct> {
        self.ranks.get(rank)?.get(layer)?[target as usize].as_ref()
    }

    /// Returns true if it was loaded from these files.
    pub fn is_of(&self, files: &AdapterFiles) -> bool {
        self.digest == files.digest
    }

    /// Returns the size of the matrices on all devices in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the cache salt of requests with the adapter, derived from their salt without it. Equal files result in equal
    /// salts in all processes.
    pub fn cache_salt(&self, salt: u128) -> u128 {
        let hash = Sha256::new().chain_update(salt.to_be_bytes()).chain_update(self.digest).finalize();
        hash.iter().take(size_of::<u128>()).fold(0, |bits, &byte| bits << 8 | u128::from(byte))
    }
}

impl PartialEq for Adapter {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
