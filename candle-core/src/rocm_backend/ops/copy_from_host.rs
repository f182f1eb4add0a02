//! Copies of host data into an existing tensor.
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::stream::upload;
use crate::rocm_backend::RocmError;
use crate::{CpuStorage, InplaceOp1, Layout, Result, Tensor, WithDType};

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
/// This sets the inputs of a graph, see [`RocmDevice::capture`](crate::RocmDevice::capture). All views of the tensor's
/// memory change; gradients do not know about the change.
///
/// # Errors
/// If the dtype or the number of elements differs, the tensor is not contiguous or not on a ROCm device, or during a
/// capture of the tensor's device.
pub fn copy_to_tensor<T: WithDType>(data: &[T], tensor: &Tensor) -> Result<()> {
    tensor.inplace_op1(&CopyFromHost(data))
}
