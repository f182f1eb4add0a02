//! Low-rank changes of linear layers. Their outputs are added to the outputs of the layers, so that quantized
//! matrices need not be converted to floats.
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::fused_image::FusedLinear;

/// Matrices of a change: (rank, in) and (out, rank).
#[derive(Debug, Clone)]
pub(super) struct LowRank {
    /// Projection to the rank.
    pub down: Tensor,
    /// Projection to the output, with all factors.
    pub up: Tensor,
}

impl LowRank {
    /// Returns `product` (.., out) plus the product of `x` (.., in) with both matrices.
    ///
    /// # Errors
    /// Shapes or dtypes do not match, or the device fails.
    pub fn add_to(&self, product: &Tensor, x: &Tensor) -> Result<Tensor> {
        let linear = FusedLinear { x, weight: &self.down, bias: None, gelu: false, residual: None };
        let inner = linear.forward()?;
        FusedLinear { x: &inner, weight: &self.up, residual: Some(product), ..linear }.forward()
    }
}

/// Change of a linear layer that is in effect, if there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot(Arc<RwLock<Option<LowRank>>>);

impl Slot {
    /// Returns the change.
    pub fn get(&self) -> Option<LowRank> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, change: Option<LowRank>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = change;
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A weight of a network as a part of the rows of a linear layer.
#[derive(Debug, Clone)]
pub(super) struct LayerPart {
    pub slot: Slot,
    /// First row of the weight.
    pub first_row: usize,
    /// Shape of the weight: (rows, columns).
    pub shape: (usize, usize),
    /// Number of rows of the layer.
    pub layer_rows: usize,
    /// Dtype of states.
    pub dtype: DType,
    pub device: Device,
}

/// Changes that are to be put into effect, by layer.
#[derive(Default)]
pub(super) struct Changes(Vec<(LayerPart, Vec<LowRank>)>);

impl Changes {
    /// Adds the change of a weight, in f32 on the CPU.
    ///
    /// # Errors
    /// Shapes do not match.
    pub fn add(&mut self, part: &LayerPart, LowRank { down, up }: LowRank) -> Result<()> {
        let after = part.layer_rows - part.first_row - part.shape.0;
        let change = LowRank { down, up: up.pad_with_zeros(0, part.first_row, after)? };
        match self.0.iter_mut().find(|(known, _)| known.slot.is(&part.slot)) {
            Some((_, changes)) => changes.push(change),
            None => self.0.push((part.clone(), vec![change])),
        }
        Ok(())
    }

    /// Puts the changes into effect, and returns the slots of the layers. On an error, none is in effect.
    ///
    /// # Errors
    /// The device is out of memory, or `check`, which is called between layers, fails.
    pub fn apply(self, check: crate::Check) -> crate::Result<Vec<Slot>> {
        let mut slots = Vec::new();
        for (part, changes) in self.0 {
            let joined = |dim: usize, of: fn(&LowRank) -> &Tensor| {
                let all = Tensor::cat(&changes.iter().map(of).collect::<Vec<_>>(), dim)?;
                all.to_dtype(part.dtype)?.to_device(&part.device)
            };
            let matrices = || {
                check()?;
                Ok::<_, crate::Error>(LowRank { down: joined(0, |c| &c.down)?, up: joined(1, |c| &c.up)? })
            };
            match matrices() {
                Ok(change) => part.slot.set(Some(change)),
                Err(error) => {
                    clear(&slots);
                    return Err(error);
                }
            }
            slots.push(part.slot);
        }
        Ok(slots)
    }
}

/// Removes the changes of these layers.
pub(super) fn clear(slots: &[Slot]) {
    slots.iter().for_each(|slot| slot.set(None));
}
