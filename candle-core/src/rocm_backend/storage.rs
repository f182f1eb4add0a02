//! What a tensor on a ROCm device holds: a typed buffer and its device.
use super::device::{DeviceState, RocmDevice};
use super::error::unsupported_dtype;
use super::layout::extent;
use super::stream::{across, Buffer, DeviceElement, Stream};
use super::RocmError;
use crate::{CpuStorage, CpuStorageRef, DType, Layout, Result};
use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels::contract::{DevicePtr, Element};
use std::sync::Arc;

/// One device buffer of a tensor's elements, by dtype.
#[derive(Debug)]
pub enum RocmStorageSlice {
    /// Elements of this dtype.
    U8(Buffer<u8>),
    /// Elements of this dtype.
    U32(Buffer<u32>),
    /// Elements of this dtype.
    I16(Buffer<i16>),
    /// Elements of this dtype.
    I32(Buffer<i32>),
    /// Elements of this dtype.
    I64(Buffer<i64>),
    /// Elements of this dtype.
    BF16(Buffer<bf16>),
    /// Elements of this dtype.
    F16(Buffer<f16>),
    /// Elements of this dtype.
    F32(Buffer<f32>),
    /// Elements of this dtype.
    F64(Buffer<f64>),
    /// Elements of this dtype.
    F8E4M3(Buffer<F8E4M3>),
    /// A packed dtype: raw bytes, to be moved but not computed with.
    F6E2M3(Buffer<u8>),
    /// A packed dtype.
    F6E3M2(Buffer<u8>),
    /// A packed dtype.
    F4(Buffer<u8>),
    /// A packed dtype.
    F8E8M0(Buffer<u8>),
}

use RocmStorageSlice as S;

/// Evaluates one expression for whichever buffer the slice holds.
macro_rules! each_buffer {
    ($slice:expr, $buffer:ident => $result:expr) => {
        match $slice {
            S::U8($buffer) => $result,
            S::U32($buffer) => $result,
            S::I16($buffer) => $result,
            S::I32($buffer) => $result,
            S::I64($buffer) => $result,
            S::BF16($buffer) => $result,
            S::F16($buffer) => $result,
            S::F32($buffer) => $result,
            S::F64($buffer) => $result,
            S::F8E4M3($buffer) => $result,
            S::F6E2M3($buffer) => $result,
            S::F6E3M2($buffer) => $result,
            S::F4($buffer) => $result,
            S::F8E8M0($buffer) => $result,
        }
    };
}

/// The same, wrapping the result in the slice's (or another enum's) variant of the same dtype.
macro_rules! map_buffer {
    ($slice:expr, $from:ident, $buffer:ident => $result:expr, $to:ident) => {
        match $slice {
            $from::U8($buffer) => $to::U8($result),
            $from::U32($buffer) => $to::U32($result),
            $from::I16($buffer) => $to::I16($result),
            $from::I32($buffer) => $to::I32($result),
            $from::I64($buffer) => $to::I64($result),
            $from::BF16($buffer) => $to::BF16($result),
            $from::F16($buffer) => $to::F16($result),
            $from::F32($buffer) => $to::F32($result),
            $from::F64($buffer) => $to::F64($result),
            $from::F8E4M3($buffer) => $to::F8E4M3($result),
            $from::F6E2M3($buffer) => $to::F6E2M3($result),
            $from::F6E3M2($buffer) => $to::F6E3M2($result),
            $from::F4($buffer) => $to::F4($result),
            $from::F8E8M0($buffer) => $to::F8E8M0($result),
        }
    };
}

impl RocmStorageSlice {
    /// Uninitialised memory for `len` elements of `dtype`. The packed dtypes are refused, as on the CPU device.
    pub(crate) fn alloc(device: &RocmDevice, dtype: DType, len: usize, op: &'static str) -> Result<Self> {
        let stream = &device.state().stream;
        Ok(match dtype {
            DType::U8 => S::U8(Buffer::on(stream, len)?),
            DType::U32 => S::U32(Buffer::on(stream, len)?),
            DType::I16 => S::I16(Buffer::on(stream, len)?),
            DType::I32 => S::I32(Buffer::on(stream, len)?),
            DType::I64 => S::I64(Buffer::on(stream, len)?),
            DType::BF16 => S::BF16(Buffer::on(stream, len)?),
            DType::F16 => S::F16(Buffer::on(stream, len)?),
            DType::F32 => S::F32(Buffer::on(stream, len)?),
            DType::F64 => S::F64(Buffer::on(stream, len)?),
            DType::F8E4M3 => S::F8E4M3(Buffer::on(stream, len)?),
            DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
                return Err(unsupported_dtype(op, dtype));
            }
        })
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            S::U8(_) => DType::U8,
            S::U32(_) => DType::U32,
            S::I16(_) => DType::I16,
            S::I32(_) => DType::I32,
            S::I64(_) => DType::I64,
            S::BF16(_) => DType::BF16,
            S::F16(_) => DType::F16,
            S::F32(_) => DType::F32,
            S::F64(_) => DType::F64,
            S::F8E4M3(_) => DType::F8E4M3,
            S::F6E2M3(_) => DType::F6E2M3,
            S::F6E3M2(_) => DType::F6E3M2,
            S::F4(_) => DType::F4,
            S::F8E8M0(_) => DType::F8E8M0,
        }
    }

    /// Number of elements; bytes for the packed dtypes.
    pub fn len(&self) -> usize {
        each_buffer!(self, b => b.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        each_buffer!(self, b => b.size_in_bytes())
    }

    /// Notes that work on `stream` uses this memory.
    pub(crate) fn used_by(&self, stream: &Arc<Stream>) {
        each_buffer!(self, b => b.used_by(stream))
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        each_buffer!(self, b => b.ptr())
    }

    fn ptr_at(&self, offset: usize) -> Result<DevicePtr> {
        each_buffer!(self, b => b.ptr_at(offset))
    }

    pub(crate) fn upload(device: &RocmDevice, data: CpuStorageRef<'_>) -> Result<Self> {
        use CpuStorageRef as C;
        Ok(map_buffer!(data, C, host => device.clone_htod(host)?, S))
    }

    pub(crate) fn download(&self, state: &DeviceState) -> Result<CpuStorage> {
        Ok(map_buffer!(self, S, b => state.download(b)?, CpuStorage))
    }

    /// Uninitialised memory of the same dtype, length and device.
    pub(crate) fn alloc_like(&self) -> Result<Self> {
        Ok(map_buffer!(self, S, b => Buffer::on(b.stream(), b.len())?, S))
    }

    fn across(&self, to: &RocmDevice) -> Result<Self> {
        Ok(map_buffer!(self, S, b => across(b, &to.state().stream)?, S))
    }
}

/// A tensor's elements on a ROCm device.
#[derive(Debug)]
pub struct RocmStorage {
    /// The elements.
    pub slice: RocmStorageSlice,
    /// Where operations on them are enqueued.
    pub device: RocmDevice,
}

/// A Rust type that is the element of one dtype.
pub trait RocmDType: DeviceElement {
    /// See [`RocmStorage::as_rocm_slice`].
    ///
    /// # Errors
    /// [`crate::Error::UnexpectedDType`] if the storage holds another dtype.
    fn as_rocm_slice(storage: &RocmStorage) -> Result<&Buffer<Self>>;
    /// The same for writing.
    ///
    /// # Errors
    /// As [`Self::as_rocm_slice`].
    fn as_rocm_slice_mut(storage: &mut RocmStorage) -> Result<&mut Buffer<Self>>;

    /// See [`RocmStorage::wrap_rocm_slice`].
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
    /// The typed buffer, for custom ops.
    ///
    /// # Errors
    /// [`crate::Error::UnexpectedDType`] if the storage holds another dtype.
    pub fn as_rocm_slice<T: RocmDType>(&self) -> Result<&Buffer<T>> {
        T::as_rocm_slice(self)
    }

    /// The typed buffer for writing, for custom in-place ops.
    ///
    /// # Errors
    /// [`crate::Error::UnexpectedDType`] if the storage holds another dtype.
    pub fn as_rocm_slice_mut<T: RocmDType>(&mut self) -> Result<&mut Buffer<T>> {
        T::as_rocm_slice_mut(self)
    }

    /// Makes a storage of a typed buffer, for the result of a custom op.
    pub fn wrap_rocm_slice<T: RocmDType>(slice: Buffer<T>, device: RocmDevice) -> Self {
        T::wrap_rocm_slice(slice, device)
    }

    /// Uninitialised storage for `elements` elements of `dtype`; `op` is named in errors.
    ///
    /// # Errors
    /// [`RocmError::OutOfMemory`], or [`crate::Error::UnsupportedDTypeForOp`] for the packed dtypes.
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

    /// The address of the first element of `layout`, after a check that all of it lies within the buffer.
    ///
    /// # Errors
    /// [`RocmError::OutOfBounds`] if it does not.
    pub fn ptr(&self, layout: &Layout, op: &'static str) -> Result<DevicePtr> {
        let len = self.slice.len();
        match extent(layout) {
            Some(extent) if extent <= len => self.slice.ptr_at(layout.start_offset().min(len)),
            _ => Err(RocmError::OutOfBounds { op, layout: layout.clone(), len }.into()),
        }
    }

    /// The address of the first of `rows` rows of dense elements, `stride` elements apart, after a check that all of
    /// them lie within the buffer. There is at least one row.
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

    /// The address of the first element of a contiguous `layout`.
    ///
    /// # Errors
    /// [`crate::Error::RequiresContiguous`] naming `op`, or [`RocmError::OutOfBounds`].
    pub fn contiguous_ptr(&self, layout: &Layout, op: &'static str) -> Result<DevicePtr> {
        if !layout.is_contiguous() {
            return Err(crate::Error::RequiresContiguous { op }.bt());
        }
        self.ptr(layout, op)
    }

    /// Lets the stream of `self` come after all that `other` still waits for, if they are not on the same
    /// one. Tensors of one GPU may meet in an operation even if they were made through different streams: an
    /// operation of several operands calls this for each further one.
    ///
    /// # Errors
    /// What went wrong in work that `other` waited for.
    pub fn order_after(&self, other: &Self) -> Result<()> {
        let (mine, theirs) = (self.device.state(), &other.device.state());
        if mine.id() != theirs.id() {
            mine.order_after(theirs)?;
            other.slice.used_by(&mine.stream);
        }
        Ok(())
    }

    /// Copies the storage to another device, or to another stream of the same GPU, in the order of both streams. The
    /// host does not wait, unless the GPUs cannot reach each other.
    ///
    /// # Errors
    /// If the other device has not the memory, or the copy fails; what fails later is reported when `dst` is waited for.
    pub fn transfer_to_device(&self, dst: &RocmDevice) -> Result<Self> {
        dst.state().take_over_reports(self.device.state());
        Ok(Self { slice: self.slice.across(dst)?, device: dst.clone() })
    }
}

/// Whether `dtype` is one whose bytes are only moved: no operation computes with them.
pub(crate) fn is_packed(dtype: DType) -> bool {
    matches!(dtype, DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0)
}

/// The element that kernels compute with; none for the packed dtypes.
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

/// The element whose kernels move those of `dtype`: one of the same size. Packed dtypes are moved by bytes.
#[inline]
pub(crate) fn carrier(dtype: DType) -> Element {
    carrier_of(dtype.size_in_bytes())
}

/// The one for elements of so many bytes.
pub(crate) fn carrier_of(size: usize) -> Element {
    match size {
        8 => Element::I64,
        4 => Element::U32,
        2 => Element::F16,
        _ => Element::U8,
    }
}

/// The address `elements` elements after `ptr`.
#[inline]
pub fn offset_by_elements(ptr: DevicePtr, dtype: DType, elements: usize) -> DevicePtr {
    DevicePtr(ptr.0.wrapping_byte_add(elements * dtype.size_in_bytes().max(1)))
}
