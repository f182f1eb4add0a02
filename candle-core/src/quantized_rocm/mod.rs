//! Quantized storage on ROCm: tensors in GGML's block formats, stored as in files, and their operations.
//!
//! | file | subject |
//! |---|---|
//! | `values` | dequantization of a whole tensor, and embedding lookup |
//! | `quantize` | quantization, bit for bit like the CPU device |
//! | `product` | matrix products with activations, and the choice of the kernel |
//! | `few` | products of a few rows, on matrix units |
//! | `tiles` | products of many rows, on matrix units |
//! | `library` | products of many rows, by rocBLAS |
//! | `decoded` | decoded copies of matrices, which products of many rows read |
//! | `experts` | mixture-of-experts products: each row selects a matrix of a stack |
//!
//! F32, F16 and BF16 tensors, which GGML counts among its formats, are ordinary storages here.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod decoded;
mod experts;
mod few;
pub(crate) mod grouped;
mod library;
mod product;
mod quantize;
mod tiles;
mod values;

use crate::backend::{BackendDevice, BackendStorage};
use crate::quantized::{GgmlDType, GgmlType, QStorage, QTensor};
use crate::rocm_backend::hip_kernels::contract::{BlockFormat, DevicePtr};
use crate::rocm_backend::{read_storage, Buffer, DeviceElement, ReadBytes, RocmStorageSlice};
use crate::{CpuStorage, DType, Error, Layout, Result, RocmDevice, RocmStorage, Shape};
pub use decoded::decodes_for_products;
pub use experts::{experts_forward, Routing};
use half::{bf16, f16};
use std::sync::OnceLock;

/// Blocks of a quantized tensor on a ROCm device, consecutive as in a GGUF file.
#[derive(Debug)]
pub struct QRocmStorage {
    dtype: GgmlDType,
    device: RocmDevice,
    data: Data,
    /// Values of the blocks as products of many rows read them, dense in f16 or bf16.
    decoded: OnceLock<Box<RocmStorage>>,
}

#[derive(Debug)]
enum Data {
    Blocks(BlockFormat, Buffer<u8>),
    Floats(RocmStorage),
}

/// Representation of a GGML type on the device: a block format or an ordinary dtype.
enum Kind {
    Blocks(BlockFormat),
    Floats(DType),
}

impl Kind {
    fn of(dtype: GgmlDType) -> Result<Self> {
        let format = || block_types().find(|(known, _)| *known == dtype).map(|(_, format)| format);
        Ok(match dtype {
            GgmlDType::F32 => Kind::Floats(DType::F32),
            GgmlDType::F16 => Kind::Floats(DType::F16),
            GgmlDType::BF16 => Kind::Floats(DType::BF16),
            _ => Kind::Blocks(format().ok_or_else(|| invalid(format!("ROCm has no kernels for {dtype:?}")))?),
        })
    }
}

/// Returns the GGML types for which there are ROCm kernels, with their block formats.
pub fn block_types() -> impl Iterator<Item = (GgmlDType, BlockFormat)> {
    let of = |format: BlockFormat| Some((GgmlDType::from_u32(format.ggml_type() as u32).ok()?, format));
    BlockFormat::ALL.into_iter().filter_map(of)
}

impl QRocmStorage {
    fn new(dtype: GgmlDType, device: &RocmDevice, data: Data) -> Self {
        Self { dtype, device: device.clone(), data, decoded: OnceLock::new() }
    }

    /// Allocates zeroed blocks for `elem_count` elements of `dtype`.
    ///
    /// # Errors
    /// If there are no ROCm kernels for `dtype`, or device memory runs out.
    pub fn zeros(device: &RocmDevice, elem_count: usize, dtype: GgmlDType) -> Result<Self> {
        let bytes = elem_count.div_ceil(dtype.block_size()) * dtype.type_size();
        let data = match Kind::of(dtype)? {
            Kind::Blocks(format) => Data::Blocks(format, device.alloc_zeros(bytes)?),
            Kind::Floats(dtype) => Data::Floats(device.zeros_impl(&elem_count.into(), dtype)?),
        };
        Ok(Self::new(dtype, device, data))
    }

    /// Returns the GGML type.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// Returns the device that holds the blocks.
    pub fn device(&self) -> &RocmDevice {
        &self.device
    }

    /// Returns the device address of the first block.
    ///
    /// # Errors
    /// Never returns an error; the `Result` matches upstream's CUDA storage.
    pub fn device_ptr(&self) -> Result<*const u8> {
        Ok(self.ptr().0.cast_const().cast())
    }

    fn ptr(&self) -> DevicePtr {
        match &self.data {
            Data::Blocks(_, blocks) => blocks.ptr(),
            Data::Floats(floats) => floats.slice.ptr(),
        }
    }

    /// Returns the total size of the blocks in bytes.
    pub fn storage_size_in_bytes(&self) -> usize {
        match &self.data {
            Data::Blocks(_, blocks) => blocks.len(),
            Data::Floats(floats) => floats.slice.size_in_bytes(),
        }
    }

    /// Returns the format and the address of the blocks; `None` for floats.
    ///
    /// # Errors
    /// If there are fewer than `elements` elements.
    pub(crate) fn blocks(&self, elements: usize, op: &str) -> Result<Option<(BlockFormat, DevicePtr)>> {
        self.check_holds(elements, op)?;
        Ok(match &self.data {
            Data::Blocks(format, blocks) => Some((*format, blocks.ptr())),
            Data::Floats(_) => None,
        })
    }

    fn elements(&self) -> usize {
        self.storage_size_in_bytes() / self.dtype.type_size() * self.dtype.block_size()
    }

    /// Returns an error if the tensor has fewer than `wanted` elements.
    fn check_holds(&self, wanted: usize, op: &str) -> Result<()> {
        match self.elements() {
            held if wanted <= held => Ok(()),
            held => Err(invalid(format!(
                "{op}: {wanted} elements of {:?} are requested on {:?}, the tensor holds {held}",
                self.dtype, self.device
            ))),
        }
    }

    /// Copies the bytes of the blocks to the host.
    ///
    /// # Errors
    /// If the copy fails, or if work enqueued earlier has failed.
    pub fn data(&self) -> Result<Vec<u8>> {
        let floats = match &self.data {
            Data::Blocks(_, blocks) => return self.device.clone_dtoh(blocks),
            Data::Floats(floats) => floats.to_cpu_storage()?,
        };
        Ok(match floats {
            CpuStorage::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            CpuStorage::F16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            CpuStorage::BF16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            other => return Err(unexpected(DType::F32, other.dtype())),
        })
    }

    /// Multiplies `storage` (.., k) with the transpose of this matrix (n, k). Returns (.., n) in the dtype of `storage`.
    ///
    /// # Errors
    /// If the dtype is not f32, f16 or bf16, or shapes or strides do not match; the errors are those of the CPU device.
    pub fn fwd(
        &self,
        self_shape: &Shape,
        storage: &RocmStorage,
        layout: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        product::forward(self, self_shape, storage, layout)
    }

    /// Multiplies each row of `storage` with the experts that `ids` selects for it.
    ///
    /// # Errors
    /// See [`experts_forward`].
    pub fn indexed_moe_forward(
        &self,
        self_shape: &Shape,
        storage: &RocmStorage,
        layout: &Layout,
        ids: &RocmStorage,
        ids_l: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        experts::indexed_forward(self, self_shape, (storage, layout), (ids, ids_l))
    }
}

fn invalid(text: String) -> Error {
    Error::Msg(text).bt()
}

fn unexpected(expected: DType, got: DType) -> Error {
    Error::UnexpectedDType { msg: "quantized storage", expected, got }.bt()
}

/// Copies blocks from the host to the device. `data` may be modified as soon as the function returns.
///
/// # Errors
/// If there are no ROCm kernels for the type, device memory runs out, or the copy fails.
pub fn load_quantized<T: GgmlType + Send + Sync + 'static>(
    device: &RocmDevice,
    data: &[T],
) -> Result<QStorage> {
    let dtype = T::DTYPE;
    let data = match Kind::of(dtype)? {
        Kind::Blocks(format) => Data::Blocks(format, device.clone_htod(as_elements::<T, u8>(data))?),
        Kind::Floats(DType::F32) => Data::Floats(device.storage_from_slice(as_elements::<T, f32>(data))?),
        Kind::Floats(DType::F16) => Data::Floats(device.storage_from_slice(as_elements::<T, f16>(data))?),
        Kind::Floats(_) => Data::Floats(device.storage_from_slice(as_elements::<T, bf16>(data))?),
    };
    Ok(QStorage::Rocm(QRocmStorage::new(dtype, device, data)))
}

/// Creates a quantized tensor from blocks that `read` reads, as they are in a GGUF file. See
/// [`read_tensor`](crate::rocm_backend::read_tensor).
///
/// # Errors
/// If there are no ROCm kernels for the type, the last dim is no whole number of blocks, or see `read_tensor`.
pub fn read_quantized(
    device: &RocmDevice,
    dtype: GgmlDType,
    shape: &Shape,
    read: &ReadBytes,
) -> Result<QTensor> {
    let elements = shape.elem_count();
    let data = match Kind::of(dtype)? {
        Kind::Blocks(format) => {
            let blocks =
                read_storage(device, DType::U8, elements / dtype.block_size() * dtype.type_size(), read)?;
            let RocmStorageSlice::U8(blocks) = blocks.slice else {
                return Err(unexpected(DType::U8, blocks.dtype()));
            };
            Data::Blocks(format, blocks)
        }
        Kind::Floats(dtype) => Data::Floats(read_storage(device, dtype, elements, read)?),
    };
    QTensor::new(QStorage::Rocm(QRocmStorage::new(dtype, device, data)), shape)
}

/// Reinterprets blocks as elements of a type for which every bit pattern is valid.
fn as_elements<T: GgmlType, E: DeviceElement>(data: &[T]) -> &[E] {
    let bytes = size_of_val(data);
    debug_assert_eq!((align_of::<T>() % align_of::<E>(), bytes % size_of::<E>()), (0, 0));
    // SAFETY: blocks and floats have no padding, and their alignment is at least that of the requested elements.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), bytes / size_of::<E>()) }
}
