//! Formats of tensors in files.
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::Dtype;

/// Format of the elements of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Floats, or integers.
    Floats(Dtype),
    /// GGML-quantized blocks along the rows.
    Blocks(GgmlDType),
}

/// A tensor in a file.
#[derive(Debug)]
pub(super) struct StoredTensor {
    pub format: Format,
    pub shape: Vec<usize>,
    /// Offset of the data in the file.
    pub offset: u64,
    /// Size of the data.
    pub bytes: usize,
    /// Factor of all elements, if the file has one (see `scaled`).
    pub scale: Option<f32>,
}

impl StoredTensor {
    /// Returns the block format of a matrix whose rows consist of whole blocks, so that products can be computed from
    /// them.
    pub fn block_rows(&self) -> Option<GgmlDType> {
        match (self.format, &self.shape[..]) {
            (Format::Blocks(format), [_, columns]) if columns.is_multiple_of(format.block_size()) => {
                Some(format)
            }
            _ => None,
        }
    }

    /// Returns true if the data consists of this number of equal parts of whole elements and blocks.
    pub fn has_parts(&self, count: usize) -> bool {
        let Format::Blocks(format) = self.format else { return true };
        self.shape.iter().product::<usize>().is_multiple_of(format.block_size() * count)
    }

    /// Converts bytes of the tensor to a tensor on the CPU. f8 becomes f16, and blocks and scaled elements become f32.
    pub fn decode(&self, bytes: Vec<u8>, shape: &[usize]) -> candle_core::Result<Tensor> {
        let stored = self.decode_stored(bytes, shape)?;
        match self.scale {
            // Products with small factors are not representable in f16.
            Some(scale) => stored.to_dtype(DType::F32)? * f64::from(scale),
            None => Ok(stored),
        }
    }

    fn decode_stored(&self, bytes: Vec<u8>, shape: &[usize]) -> candle_core::Result<Tensor> {
        match self.format {
            Format::Blocks(format) => {
                // Blocks of reshaped tensors may lie in several rows.
                let elements = shape.iter().product();
                let flat = qtensor_from_ggml(format, &bytes, vec![elements], &Device::Cpu)?;
                flat.dequantize(&Device::Cpu)?.reshape(shape)
            }
            // These are the upper bytes of f16.
            Format::Floats(Dtype::F8_E5M2) => {
                let wide: Vec<u8> = bytes.into_iter().flat_map(|byte| [0, byte]).collect();
                Tensor::from_raw_buffer(&wide, DType::F16, shape, &Device::Cpu)
            }
            Format::Floats(Dtype::F8_E4M3) => {
                Tensor::from_raw_buffer(&bytes, DType::F8E4M3, shape, &Device::Cpu)?.to_dtype(DType::F16)
            }
            Format::Floats(dtype) => {
                Tensor::from_raw_buffer(&bytes, DType::try_from(dtype)?, shape, &Device::Cpu)
            }
        }
    }
}
