//! What a tensor on a ROCm device holds: a typed buffer and its device.
use super::buffer::Buffer;
use super::device::{DeviceState, RocmDevice};
use super::error::unsupported_dtype;
use super::launch::DevicePtr;
use super::layout::extent;
use super::{copy, RocmError};
use crate::{CpuStorage, CpuStorageRef, DType, Layout, Result};
use float8::F8E4M3;
use half::{bf16, f16};

/// One device buffer of a tensor's elements, by dtype.
#[derive(Debug)]
pub enum RocmStorageSlice {
    U8(Buffer<u8>),
    U32(Buffer<u32>),
    I16(Buffer<i16>),
    I32(Buffer<i32>),
    I64(Buffer<i64>),
    BF16(Buffer<bf16>),
    F16(Buffer<f16>),
    F32(Buffer<f32>),
    F64(Buffer<f64>),
    F8E4M3(Buffer<F8E4M3>),
    // The packed dtypes: raw bytes, to be moved but not computed with.
    F6E2M3(Buffer<u8>),
    F6E3M2(Buffer<u8>),
    F4(Buffer<u8>),
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
    pub(super) fn alloc(device: &RocmDevice, dtype: DType, len: usize, op: &'static str) -> Result<Self> {
        let state = &device.state;
        Ok(match dtype {
            DType::U8 => S::U8(Buffer::new(state, len)?),
            DType::U32 => S::U32(Buffer::new(state, len)?),
            DType::I16 => S::I16(Buffer::new(state, len)?),
            DType::I32 => S::I32(Buffer::new(state, len)?),
            DType::I64 => S::I64(Buffer::new(state, len)?),
            DType::BF16 => S::BF16(Buffer::new(state, len)?),
            DType::F16 => S::F16(Buffer::new(state, len)?),
            DType::F32 => S::F32(Buffer::new(state, len)?),
            DType::F64 => S::F64(Buffer::new(state, len)?),
            DType::F8E4M3 => S::F8E4M3(Buffer::new(state, len)?),
            DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
                return Err(unsupported_dtype(op, dtype));
            }
        })
    }

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

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        each_buffer!(self, b => b.size_in_bytes())
    }

    /// Notes that work on the stream of `state` uses this memory.
    pub(super) fn used_by(&self, state: &std::sync::Arc<DeviceState>) {
        each_buffer!(self, b => b.used_by(state))
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        each_buffer!(self, b => b.ptr())
    }

    fn ptr_at(&self, offset: usize) -> Result<DevicePtr> {
        each_buffer!(self, b => b.ptr_at(offset))
    }

    pub(super) fn upload(device: &RocmDevice, data: CpuStorageRef<'_>) -> Result<Self> {
        use CpuStorageRef as C;
        Ok(map_buffer!(data, C, host => device.clone_htod(host)?, S))
    }

    pub(super) fn download(&self, state: &DeviceState) -> Result<CpuStorage> {
        Ok(map_buffer!(self, S, b => copy::download(state, b)?, CpuStorage))
    }

    /// Uninitialised memory of the same dtype, length and device.
    pub(super) fn alloc_like(&self) -> Result<Self> {
        Ok(map_buffer!(self, S, b => Buffer::new(b.state(), b.len())?, S))
    }

    fn across(&self, to: &RocmDevice) -> Result<Self> {
        Ok(map_buffer!(self, S, b => copy::across(b, &to.state)?, S))
    }
}

/// A tensor's elements on a ROCm device.
#[derive(Debug)]
pub struct RocmStorage {
    pub slice: RocmStorageSlice,
    pub device: RocmDevice,
}

/// A Rust type that is the element of one dtype.
pub trait RocmDType: Copy + Sized {
    fn as_rocm_slice(storage: &RocmStorage) -> Result<&Buffer<Self>>;
    fn as_rocm_slice_mut(storage: &mut RocmStorage) -> Result<&mut Buffer<Self>>;
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
        self.device.state.order_after(&other.device.state)?;
        other.slice.used_by(&self.device.state);
        Ok(())
    }

    /// Copies the storage to another device, or to another stream of the same GPU. Waits for the copy.
    ///
    /// # Errors
    /// If the other device has not the memory, or the copy fails.
    pub fn transfer_to_device(&self, dst: &RocmDevice) -> Result<Self> {
        Ok(Self { slice: self.slice.across(dst)?, device: dst.clone() })
    }

    /// A dense copy of what `layout` shows.
    pub(super) fn dense(&self, layout: &Layout, op: &'static str) -> Result<Self> {
        let elements = layout.shape().elem_count();
        // SAFETY: written by the copy below.
        let mut dst = unsafe { Self::alloc(&self.device, self.slice.dtype(), elements, op)? };
        super::strided::copy_strided(self, layout, &mut dst, 0)?;
        Ok(dst)
    }
}

/// Whether `dtype` is one whose bytes are only moved: no operation computes with them.
pub(super) fn is_packed(dtype: DType) -> bool {
    matches!(dtype, DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0)
}

/// The dtype whose kernels move the elements of `dtype`: one of the same size. Packed dtypes are moved by bytes.
pub(super) fn carrier(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 | DType::I16 => "f16",
        DType::U32 | DType::I32 | DType::F32 => "u32",
        DType::I64 | DType::F64 => "i64",
        DType::U8 | DType::F8E4M3 => "u8",
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => "u8",
    }
}
