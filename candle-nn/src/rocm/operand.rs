//! Operands of fused operations: tensors whose storages are locked for reading.
use super::contiguous;
use candle::backend::{BackendDevice, BackendStorage};
use candle::rocm::{AttentionOperand, DevicePtr, RocmStorage};
use candle::{bail, DType, Layout, Result, Storage, StorageRef, Tensor};

/// A tensor whose storage is locked for reading.
pub(super) struct Operand<'a> {
    op: &'static str,
    name: &'static str,
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(super) fn of(op: &'static str, name: &'static str, tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { op, name, storage, layout }
    }

    /// Returns the storage, or `None` on other devices.
    pub(super) fn rocm(&self) -> Option<&RocmStorage> {
        match &*self.storage {
            Storage::Rocm(storage) => Some(storage),
            _ => None,
        }
    }

    /// Returns the storage, which work on the stream of `first` may use from now on.
    pub(super) fn storage(&self, first: &RocmStorage) -> Result<&RocmStorage> {
        let Self { op, name, .. } = *self;
        let Storage::Rocm(storage) = &*self.storage else {
            bail!("{op}: {name} is on {:?}", self.storage.device().location())
        };
        if storage.device().ordinal() != first.device().ordinal() {
            bail!("{op}: {name} is on {:?}", storage.device().location());
        }
        first.order_after(storage)?;
        Ok(storage)
    }

    /// Returns the operand's name in errors.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn layout(&self) -> &Layout {
        self.layout
    }

    /// Returns the storage and the layout.
    pub(super) fn of_attention(&self, first: &RocmStorage) -> Result<AttentionOperand<'_>> {
        Ok((self.storage(first)?, self.layout))
    }

    /// Returns the address of a contiguous operand of `dtype`.
    pub(super) fn address(&self, first: &RocmStorage, dtype: DType) -> Result<DevicePtr> {
        let storage = self.storage(first)?;
        let Self { op, name, .. } = *self;
        if storage.dtype() != dtype {
            bail!("{op}: {name} is {:?}, expected {dtype:?}", storage.dtype());
        }
        contiguous(op, name, storage, self.layout)
    }

    /// Returns the address of rows whose elements are contiguous, and the number of elements between them.
    pub(super) fn rows(&self, first: &RocmStorage) -> Result<(DevicePtr, usize)> {
        let storage = self.storage(first)?;
        let Self { op, name, .. } = *self;
        if storage.dtype() != first.dtype() {
            bail!("{op}: {name} is {:?}, expected {:?}", storage.dtype(), first.dtype());
        }
        match self.layout.stride() {
            [row, 1] => Ok((storage.ptr(self.layout, op)?, *row)),
            _ if self.layout.is_contiguous() => Ok((storage.ptr(self.layout, op)?, self.layout.dims()[1])),
            _ => bail!("{op}: the elements of each row of {name} must be contiguous"),
        }
    }
}
