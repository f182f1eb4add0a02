//! Matrices of a loaded adapter.
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{D, DType, Device, Result, Tensor, bail};
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

/// [`LowRank`] of a rank, on its device or in the host's memory.
#[derive(Clone, Debug)]
pub struct LowRankProduct {
    pub(super) down: Linear,
    pub(super) up: Linear,
}

/// Matrices of an adapter on the CPU.
pub struct AdapterFiles {
    /// Path of the files.
    pub folder: String,
    pub(super) digest: [u8; 32],
    pub(super) dtype: DType,
    pub(super) layers: Vec<[Option<LowRank>; TARGETS]>,
}

/// A loaded adapter. Adapters with the same files are equal.
pub struct Adapter {
    /// Path of its files.
    pub folder: String,
    digest: [u8; 32],
    /// Device of each rank.
    devices: Vec<Device>,
    /// Replaced when they are moved.
    matrices: RwLock<Arc<AdapterMatrices>>,
    bytes: usize,
}

/// Matrices of an adapter.
pub(super) struct AdapterMatrices {
    pub(super) dtype: DType,
    /// True if they are on the devices of the model.
    is_on_devices: bool,
    /// Layers of each rank.
    ranks: Vec<Vec<[Option<LowRankProduct>; TARGETS]>>,
}

impl AdapterFiles {
    /// Shards the matrices among the ranks of the model for which they were read. They stay in host memory until
    /// [`Adapter::move_to_devices`] is called.
    ///
    /// # Errors
    /// Returns an error if memory runs out.
    pub fn shard(self, targets: &AdapterTargets) -> Result<Adapter> {
        let mut bytes = 0;
        let mut linear = |matrix: Tensor| -> Result<Linear> {
            bytes += matrix.elem_count() * matrix.dtype().size_in_bytes();
            let dtype = matrix.dtype();
            Ok(Linear::float(matrix.contiguous()?, None, dtype))
        };
        let mut product =
            |low_rank: &LowRank, share: &TargetShare, target: usize| -> Result<LowRankProduct> {
                let (inputs, outputs) = (&share.inputs[target], &share.outputs[target]);
                let down = low_rank.down.narrow(D::Minus1, inputs.start, inputs.len())?;
                let rows = outputs.iter().map(|rows| low_rank.up.narrow(D::Minus2, rows.start, rows.len()));
                let up = Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, D::Minus2)?;
                Ok(LowRankProduct { down: linear(down)?, up: linear(up)? })
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
        let devices = targets.shares.iter().map(|share| share.device.clone()).collect();
        let matrices = AdapterMatrices { dtype: self.dtype, is_on_devices: false, ranks };
        let matrices = RwLock::new(Arc::new(matrices));
        Ok(Adapter { folder: self.folder, digest: self.digest, devices, matrices, bytes })
    }
}

impl LowRankProduct {
    fn to_device(&self, device: &Device) -> Result<Self> {
        let copied = |linear: &Linear| match linear.matrix() {
            Matrix::Float(matrix) => Ok(Linear::float(matrix.to_device(device)?, None, matrix.dtype())),
            Matrix::Quantized(_) => bail!("internal error: adapter matrices are quantized, expected floats"),
        };
        Ok(Self { down: copied(&self.down)?, up: copied(&self.up)? })
    }
}

impl AdapterMatrices {
    /// Returns a rank's matrices of a layer's projections, if the adapter changes them.
    pub(super) fn product(&self, rank: usize, layer: usize, target: Target) -> Option<&LowRankProduct> {
        self.ranks.get(rank)?.get(layer)?[target as usize].as_ref()
    }

    /// Copies the matrices of rank i to `devices[i % devices.len()]`, which are those of the model or the host's.
    fn to_devices(&self, devices: &[Device], is_on_devices: bool) -> Result<Self> {
        let mut ranks = Vec::with_capacity(self.ranks.len());
        for (layers, device) in self.ranks.iter().zip(devices.iter().cycle()) {
            let mut copied = Vec::with_capacity(layers.len());
            for layer in layers {
                let mut products = [const { None }; TARGETS];
                for (copy, product) in products.iter_mut().zip(layer) {
                    *copy = product.as_ref().map(|product| product.to_device(device)).transpose()?;
                }
                copied.push(products);
            }
            ranks.push(copied);
        }
        Ok(Self { dtype: self.dtype, is_on_devices, ranks })
    }
}

impl Adapter {
    /// Returns the matrices where they are now.
    pub(super) fn matrices(&self) -> Arc<AdapterMatrices> {
        self.matrices.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn move_to(&self, devices: &[Device], is_on_devices: bool) -> Result<()> {
        let moved = Arc::new(self.matrices().to_devices(devices, is_on_devices)?);
        *self.matrices.write().unwrap_or_else(PoisonError::into_inner) = moved;
        Ok(())
    }

    /// Moves the matrices to the devices of the model, where steps need them.
    ///
    /// # Errors
    /// Returns an error if a device fails or its memory runs out. The matrices then stay where they are.
    pub fn move_to_devices(&self) -> Result<()> {
        self.move_to(&self.devices, true)
    }

    /// Moves the matrices to the host's memory.
    ///
    /// # Errors
    /// See [`Self::move_to_devices`].
    pub fn move_to_host(&self) -> Result<()> {
        self.move_to(&[Device::Cpu], false)
    }

    /// Returns true if the matrices are on the devices of the model.
    pub fn is_on_devices(&self) -> bool {
        self.matrices().is_on_devices
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
