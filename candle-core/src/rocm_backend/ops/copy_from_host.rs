//! Copies of host data into an existing tensor, and of files into a created one.
use crate::op::BackpropOp;
use crate::rocm_backend::device::RocmDevice;
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::stream::{upload, upload_files, ReadBytes};
use crate::rocm_backend::RocmError;
use crate::{CpuStorage, DType, InplaceOp1, Layout, Result, Shape, Storage, Tensor, WithDType};

const OP: &str = "copy_to_tensor";

struct CopyFromHost<'a, T>(&'a [T]);

impl<T: WithDType> InplaceOp1 for CopyFromHost<'_, T> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        Err(RocmError::Unsupported(format!("{OP}: the tensor is not on a ROCm device")).into())
    }

    fn rocm_fwd(&self, storage: &mut RocmStorage, layout: &Layout) -> Result<()> {
        let elements = layout.shape().elem_count();
        if storage.slice.dtype() != T::DTYPE {
            let (expected, got) = (storage.slice.dtype(), T::DTYPE);
            return Err(crate::Error::UnexpectedDType { msg: OP, expected, got }.bt());
        }
        if elements != self.0.len() {
            let got = self.0.len();
            return Err(RocmError::Unsupported(format!("{OP}: {got} values for {elements} elements")).into());
        }
        let dst = storage.contiguous_ptr(layout, OP)?;
        // SAFETY: the elements are numbers, which have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>(), size_of_val(self.0)) };
        // SAFETY: the layout lies within the buffer and has as many elements of this type.
        unsafe { upload(&storage.device.state().stream, bytes, dst) }
    }
}

/// Copies host data into an existing contiguous tensor on a ROCm device, in place. `data` may be modified as soon as the
/// function returns. No memory is allocated, and the host only waits if the ring of pinned memory is full.
///
/// This sets the inputs of a graph, see [`RocmDevice::capture`](crate::RocmDevice::capture). All views of the
/// tensor's memory change; gradients do not take the change into account.
///
/// # Errors
/// If the dtype or the number of elements differs, the tensor is not contiguous or not on a ROCm device, or during a
/// capture of the tensor's device.
pub fn copy_to_tensor<T: WithDType>(data: &[T], tensor: &Tensor) -> Result<()> {
    tensor.inplace_op1(&CopyFromHost(data))
}

/// Creates a contiguous tensor from little-endian elements that `read` reads. They go straight into pinned memory, in parts
/// of up to 4 MiB and in order; while `read` fills a part, earlier parts are copied to the device.
///
/// The pinned memory is locked while `read` runs: `read` must not copy to the same device, nor wait for a thread that does.
/// If `read` uses rayon, call this function from a thread that is not one of rayon's.
///
/// ```no_run
/// use std::{fs::File, os::unix::fs::FileExt};
/// use candle_core::{rocm::{read_tensor, RocmDevice}, DType};
/// # fn read(device: &RocmDevice) -> candle_core::Result<()> {
/// let file = File::open("weights.bin")?;
/// let read = |offset: usize, part: &mut [u8]| file.read_exact_at(part, offset as u64);
/// let weights = read_tensor(device, DType::F16, &(4096, 4096).into(), &read)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If memory runs out, during a capture of the device, or with the error of `read`.
pub fn read_tensor(device: &RocmDevice, dtype: DType, shape: &Shape, read: &ReadBytes) -> Result<Tensor> {
    let storage = read_storage(device, dtype, shape.elem_count(), read)?;
    Ok(crate::tensor::from_storage(Storage::Rocm(storage), shape, BackpropOp::none(), false))
}

/// Like [`read_tensor`], for the storage of `elements` elements.
pub(crate) fn read_storage(
    device: &RocmDevice,
    dtype: DType,
    elements: usize,
    read: &ReadBytes,
) -> Result<RocmStorage> {
    // SAFETY: every element is written by the copy, or the storage is dropped.
    let storage = unsafe { RocmStorage::alloc(device, dtype, elements, "read_tensor")? };
    let bytes = storage.slice.size_in_bytes();
    // SAFETY: the storage has this many bytes, and all bit patterns of its numbers are valid.
    unsafe { upload_files(&device.state().stream, bytes, storage.slice.ptr(), read)? };
    Ok(storage)
}
