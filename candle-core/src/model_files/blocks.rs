//! The blocks of quantized tensors: their size, and bytes that may be taken for them.

use std::ops::Deref;

use zerocopy::IntoBytes;

use crate::quantized::GgmlDType;
use crate::{Error, Result};

/// How many bytes the blocks of a tensor take.
pub(crate) fn size_in_bytes(dtype: GgmlDType, dims: &[usize]) -> Result<usize> {
    if dims.contains(&0) {
        return Err(Error::msg(format!("a tensor of dimensions {dims:?} has no elements")));
    }
    let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    let too_many = || Error::msg(format!("dimensions {dims:?} of {dtype:?} are more than memory can be"));
    let elements = elements.ok_or_else(too_many)?;
    let block = dtype.block_size();
    if !elements.is_multiple_of(block) {
        return Err(Error::msg(format!(
            "the number of elements {elements} is not divisible by the block size {block} of {dtype:?}"
        )));
    }
    (elements / block).checked_mul(dtype.type_size()).ok_or_else(too_many)
}

/// Bytes at an address that blocks may have.
pub(crate) enum Blocks<'a> {
    InPlace(&'a [u8]),
    Copied { words: Vec<u32>, len: usize },
}

impl Deref for Blocks<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::InPlace(data) => data,
            Self::Copied { words, len } => &words.as_bytes()[..*len],
        }
    }
}

/// The bytes of whole blocks of `dtype`, copied only where they lie at an odd address.
pub(crate) fn blocks(dtype: GgmlDType, data: &[u8]) -> Result<Blocks<'_>> {
    let (len, block) = (data.len(), dtype.type_size());
    if !len.is_multiple_of(block) {
        return Err(Error::msg(format!(
            "{len} bytes are not whole blocks of {block} bytes, which {dtype:?} has"
        )));
    }
    // No block holds anything wider than an f32.
    if (data.as_ptr() as usize).is_multiple_of(align_of::<u32>()) {
        return Ok(Blocks::InPlace(data));
    }
    let mut words = vec![0u32; len.div_ceil(size_of::<u32>())];
    words.as_mut_bytes()[..len].copy_from_slice(data);
    Ok(Blocks::Copied { words, len })
}

/// The blocks of a tensor of these dimensions, which `data` starts with.
pub(crate) fn blocks_of_tensor<'a>(dtype: GgmlDType, data: &'a [u8], dims: &[usize]) -> Result<Blocks<'a>> {
    let size = size_in_bytes(dtype, dims)?;
    let data = data.get(..size).ok_or_else(|| {
        Error::msg(format!("{} bytes are given for {dims:?} of {dtype:?}, which takes {size}", data.len()))
    })?;
    blocks(dtype, data)
}
