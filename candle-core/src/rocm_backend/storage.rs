//! Storage of a tensor on a ROCm device: a typed buffer and its device.
use super::device::{DeviceState, RocmDevice};
use super::error::unsupported_dtype;
use super::layout::extent;
use super::stream::{copy_to_stream, Buffer, DeviceElement, Stream};
use super::RocmError;
use crate::{CpuStorage, CpuStorageRef, DType, Layout, Result};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{DevicePtr, Element};
use std::sync::Arc;

/// Declares the enum of buffers of all dtypes, and the methods that match on it.
macro_rules! storage_slice {
    ($($dtype:ident($element:ty)),*) => {
        /// A device buffer with the elements of a tensor, by dtype.
        #[derive(Debug)]
        pub enum RocmStorageSlice {
            $(
                /// Elements of this dtype. Packed dtypes (F6E2M3, F6E3M2, F4, F8E8M0) are raw bytes, which can only be
                /// copied.
                $dtype(Buffer<$element>),
            )*
        }

        impl RocmStorageSlice {
            /// Allocates uninitialized memory for `len` elements. Packed dtypes return an error, as on the CPU device.
            pub(crate) fn alloc(
                device: &RocmDevice,
                dtype: DType,
                len: usize,
                op: &'static str,
            ) -> Result<Self> {
                let stream = &device.state().stream;
                Ok(match dtype {
                    dtype if is_packed(dtype) => return Err(unsupported_dtype(op, dtype)),
                    $(DType::$dtype => S::$dtype(Buffer::on(stream, len)?),)*
                })
            }

            /// Returns the dtype of the elements.
            pub fn dtype(&self) -> DType {
                match self {
                    $(S::$dtype(_) => DType::$dtype,)*
                }
            }

            /// Returns the number of elements, or of bytes for packed dtypes.
            pub fn len(&self) -> usize {
                match self {
                    $(S::$dtype(buffer) => buffer.len(),)*
                }
            }

            pub(crate) fn size_in_bytes(&self) -> usize {
                match self {
                    $(S::$dtype(buffer) => buffer.size_in_bytes(),)*
                }
            }

            /// Records that work on `stream` uses this memory.
            pub(crate) fn record_stream(&self, stream: &Arc<Stream>) {
                match self {
                    $(S::$dtype(buffer) => buffer.record_stream(stream),)*
                }
            }

            pub(crate) fn ptr(&self) -> DevicePtr {
                match self {
                    $(S::$dtype(buffer) => buffer.ptr(),)*
                }
            }

            fn ptr_at(&self, offset: usize) -> Result<DevicePtr> {
                match self {
                    $(S::$dtype(buffer) => buffer.ptr_at(offset),)*
                }
            }

            pub(crate) fn upload(device: &RocmDevice, data: CpuStorageRef<'_>) -> Result<Self> {
                Ok(match data {
                    $(CpuStorageRef::$dtype(host) => S::$dtype(device.clone_htod(host)?),)*
                })
            }

            pub(crate) fn download(&self, state: &DeviceState) -> Result<CpuStorage> {
                Ok(match self {
                    $(S::$dtype(buffer) => CpuStorage::$dtype(state.download(buffer)?),)*
                })
            }

            /// Allocates uninitialized memory with the same dtype, length and device.
            pub(crate) fn alloc_like(&self) -> Result<Self> {
                Ok(match self {
                    $(S::$dtype(buffer) => S::$dtype(Buffer::on(buffer.stream(), buffer.len())?),)*
                })
            }

            fn copy_to(&self, to: &RocmDevice) -> Result<Self> {
                Ok(match self {
                    $(S::$dtype(buffer) => S::$dtype(copy_to_stream(buffer, &to.state().stream)?),)*
                })
            }
        }
    };
}

use RocmStorageSlice as S;
storage_slice!(
    U8(u8),
    U32(u32),
    I16(i16),
    I32(i32),
    I64(i64),
    BF16(bf16),
    F16(f16),
    F32(f32),
    F64(f64),
    F8E4M3(F8E4M3),
    F6E2M3(u8),
    F6E3M2(u8),
    F4(u8),
    F8E8M0(u8)
);

impl RocmStorageSlice {
    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A tensor's elements on a ROCm device.
#[derive(Debug)]
pub struct RocmStorage {
    /// The elements.
    pub slice: RocmStorageSlice,
    /// The device that operations are enqueued on.
    pub device: RocmDevice,
}

/// A Rust type that is the element type of a dtype.
pub trait RocmDType: DeviceElement {
    /// Returns the typed buffer, see [`RocmStorage::as_rocm_slice`].
    ///
    /// # Errors
    /// [`crate::Error::UnexpectedDType`] if the storage holds another dtype.
    fn as_rocm_slice(storage: &RocmStorage) -> Result<&Buffer<Self>>;
    /// Like [`Self::as_rocm_slice`], mutable.
    ///
    /// # Errors
    /// See [`Self::as_rocm_slice`].
    fn as_rocm_slice_mut(storage: &mut RocmStorage) -> Result<&mut Buffer<Self>>;

    /// Creates a storage from a typed buffer, see [`RocmStorage::wrap_rocm_slice`].
    fn wrap_rocm_slice(slice: Buffer<Self>, device: RocmDevice) -> RocmStorage;
}

macro_rules! rocm_dtype {
    ($t:ty, $dtype:ident) => {
        impl RocmDType for $t {
            fn as_rocm_slice(storage: &RocmStorage) -> Result<&Buffer<Self>> {
                match &storage.slice {
                    S::$dtype(buffer) => Ok(buffer),
                    other => Err(unexpected_dtype(DType::$dtype, other.dtype())),
                }
            }

            fn as_rocm_slice_mut(storage: &mut RocmStorage) -> Result<&mut Buffer<Self>> {
                match &mut storage.slice {
                    S::$dtype(buffer) => Ok(buffer),
                    other => Err(unexpected_dtype(DType::$dtype, other.dtype())),
                }
            }

            fn wrap_rocm_slice(slice: Buffer<Self>, device: RocmDevice) -> RocmStorage {
                RocmStorage { slice: S::$dtype(slice), device }
            }
        }
    };
}
rocm_dtype!(u8, U8);
rocm_dtype!(u32, U32);
rocm_dtype!(i16, I16);
rocm_dtype!(i32, I32);
rocm_dtype!(i64, I64);
rocm_dtype!(bf16, BF16);
rocm_dtype!(f16, F16);
rocm_dtype!(f32, F32);
rocm_dtype!(f64, F64);
rocm_dtype!(F8E4M3, F8E4M3);

fn unexpected_dtype(expected: DType, got: DType) -> crate::Error {
    crate::Error::UnexpectedDType { msg: "unexpected dtype", expected, got }.bt()
}

impl RocmStorage {
    /// Returns the typed buffer, for custom operations.
    ///
    /// # Errors
    /// [`crate::Error::UnexpectedDType`] if the storage holds another dtype.
    pub fn as_rocm_slice<T: RocmDType>(&self) -> Result<&Buffer<T>> {
        T::as_rocm_slice(self)
    }

    /// Returns the typed buffer mutably, for custom in-place operations.
    ///
    /// # Errors
    /// [`crate::Error::UnexpectedDType`] if the storage holds another dtype.
    pub fn as_rocm_slice_mut<T: RocmDType>(&mut self) -> Result<&mut Buffer<T>> {
        T::as_rocm_slice_mut(self)
    }

    /// Creates a storage from a typed buffer, for the result of a custom operation.
    pub fn wrap_rocm_slice<T: RocmDType>(slice: Buffer<T>, device: RocmDevice) -> Self {
        T::wrap_rocm_slice(slice, device)
    }

    /// Allocates an uninitialized storage of `elements` elements; errors name the operation `op`.
    ///
    /// # Errors
    /// [`RocmError::OutOfMemory`] or [`RocmError::BeyondReserve`] if there is not enough memory, or
    /// [`crate::Error::UnsupportedDTypeForOp`] for packed dtypes.
    ///
    /// # Safety
    /// The storage must be written before it is read.
    pub unsafe fn alloc(
        device: &RocmDevice,
        dtype: DType,
        elements: usize,
        op: &'static str,
    ) -> Result<Self> {
        let slice = RocmStorageSlice::alloc(device, dtype, elements, op)?;
        Ok(Self { slice, device: device.clone() })
    }

    /// Checks that `layout` lies within the buffer, and returns the address of its first element.
    ///
    /// # Errors
    /// [`RocmError::OutOfBounds`] if the layout exceeds the buffer.
    pub fn ptr(&self, layout: &Layout, op: &'static str) -> Result<DevicePtr> {
        let len = self.slice.len();
        match extent(layout) {
            Some(extent) if extent <= len => self.slice.ptr_at(layout.start_offset().min(len)),
            _ => Err(RocmError::OutOfBounds { op, layout: layout.clone(), len }.into()),
        }
    }

    /// Checks that dense rows with a stride of `stride` elements lie within the buffer, and returns the address of the
    /// first. There must be at least one row.
    pub(crate) fn rows_ptr(
        &self,
        (rows, columns): (usize, usize),
        stride: usize,
        offset: usize,
        op: &'static str,
    ) -> Result<DevicePtr> {
        let len = self.slice.len();
        let end = || (rows - 1).checked_mul(stride)?.checked_add(columns)?.checked_add(offset);
        match end() {
            Some(end) if end <= len => self.slice.ptr_at(offset),
            _ => {
                let layout = Layout::new((rows, columns).into(), vec![stride, 1], offset);
                Err(RocmError::OutOfBounds { op, layout, len }.into())
            }
        }
    }

    /// Like [`Self::ptr`], for a layout that must be contiguous.
    ///
    /// # Errors
    /// [`crate::Error::RequiresContiguous`] with the name `op`, or [`RocmError::OutOfBounds`].
    pub fn contiguous_ptr(&self, layout: &Layout, op: &'static str) -> Result<DevicePtr> {
        if !layout.is_contiguous() {
            return Err(crate::Error::RequiresContiguous { op }.bt());
        }
        self.ptr(layout, op)
    }

    /// Orders later work on the stream of `self` after the work enqueued on the stream of `other`. Operands of one GPU
    /// may have different streams; an operation must call this for each operand after the first.
    ///
    /// # Errors
    /// If HIP fails, for example because work on the other stream has failed.
    pub fn order_after(&self, other: &Self) -> Result<()> {
        let (mine, theirs) = (self.device.state(), &other.device.state());
        if mine.id() != theirs.id() {
            mine.order_after(theirs)?;
            other.slice.record_stream(&mine.stream);
        }
        Ok(())
    }

    /// Copies the storage to another device, or to another stream of the same GPU, ordered on both streams. The host
    /// only waits if the GPUs have no peer access.
    ///
    /// # Errors
    /// If memory on `dst` runs out or the copy cannot be enqueued. Later errors are returned when `dst` is waited for.
    pub fn transfer_to_device(&self, dst: &RocmDevice) -> Result<Self> {
        dst.state().inherit_faults(self.device.state());
        Ok(Self { slice: self.slice.copy_to(dst)?, device: dst.clone() })
    }
}

/// Returns true if `dtype` is packed: its bytes can be copied, but no operation computes with it.
pub(crate) fn is_packed(dtype: DType) -> bool {
    matches!(dtype, DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0)
}

/// Returns the element type with which kernels compute; `None` for packed dtypes.
#[inline]
pub fn element(dtype: DType) -> Option<Element> {
    Some(match dtype {
        DType::U8 => Element::U8,
        DType::U32 => Element::U32,
        DType::I16 => Element::I16,
        DType::I32 => Element::I32,
        DType::I64 => Element::I64,
        DType::BF16 => Element::Bf16,
        DType::F16 => Element::F16,
        DType::F32 => Element::F32,
        DType::F64 => Element::F64,
        DType::F8E4M3 => Element::F8e4m3,
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => return None,
    })
}

/// Returns the element type whose kernels copy `dtype`, one of the same size. Packed dtypes are copied as bytes.
#[inline]
pub(crate) fn copy_element(dtype: DType) -> Element {
    copy_element_of_size(dtype.size_in_bytes())
}

/// Returns the element type whose kernels copy elements of `size` bytes.
pub(crate) fn copy_element_of_size(size: usize) -> Element {
    match size {
        8 => Element::I64,
        4 => Element::U32,
        2 => Element::F16,
        _ => Element::U8,
    }
}

/// Returns `ptr` advanced by `elements` elements of `dtype`.
#[inline]
pub fn offset_by_elements(ptr: DevicePtr, dtype: DType, elements: usize) -> DevicePtr {
    DevicePtr(ptr.0.wrapping_byte_add(elements * dtype.size_in_bytes().max(1)))
}
