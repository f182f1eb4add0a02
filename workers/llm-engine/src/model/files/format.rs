//! Formats of tensors' elements.
use std::fmt;

use candle_core::DType;
use candle_core::quantized::GgmlDType;

/// Storage format of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    /// Individual numbers.
    Floats(DType),
    /// GGML-quantized blocks.
    Blocks(GgmlDType),
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floats(dtype) => write!(f, "{dtype:?}"),
            Self::Blocks(dtype) => write!(f, "{dtype:?}"),
        }
    }
}

impl Format {
    /// Returns the size of `elements` elements in bytes; `None` if they do not fill whole blocks.
    pub(super) fn bytes(self, elements: usize) -> Option<usize> {
        let (block, size) = self.unit();
        elements.is_multiple_of(block).then(|| (elements / block).checked_mul(size))?
    }

    /// Returns the number of elements that are stored together, and their size in bytes.
    pub(super) fn unit(self) -> (usize, usize) {
        match self {
            Self::Floats(dtype) => (1, dtype.size_in_bytes()),
            Self::Blocks(dtype) => (dtype.block_size(), dtype.type_size()),
        }
    }
}
