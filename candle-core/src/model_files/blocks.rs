//! Sizes of quantized tensors, and checked, aligned access to the bytes of their blocks.

use std::ops::Deref;

use zerocopy::IntoBytes;

use crate::quantized::GgmlDType;
use crate::{Error, Result};

/// Returns the size in bytes of a tensor of `dims` elements of `dtype`.
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

/// Bytes of blocks, at an address that is aligned for every block type.
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

/// Checks that `data` consists of whole blocks of `dtype`, and copies it only if its address is not aligned.
pub(crate) fn blocks(dtype: GgmlDType, data: &[u8]) -> Result<Blocks<'_>> {
    let (len, block) = (data.len(), dtype.type_size());
    if !len.is_multiple_of(block) {
        return Err(Error::msg(format!(
            "{len} bytes are not whole blocks of {block} bytes, the block size of {dtype:?}"
        )));
    }
    // No block type has a field wider than an f32.
    if (data.as_ptr() as usize).is_multiple_of(align_of::<u32>()) {
        return Ok(Blocks::InPlace(data));
    }
    let mut words = vec![0u32; len.div_ceil(size_of::<u32>())];
    words.as_mut_bytes()[..len].copy_from_slice(data);
    Ok(Blocks::Copied { words, len })
}

/// Returns the blocks of a tensor of dimensions `dims` from the start of `data`, which may be longer.
pub(crate) fn blocks_of_tensor<'a>(dtype: GgmlDType, data: &'a [u8], dims: &[usize]) -> Result<Blocks<'a>> {
    let size = size_in_bytes(dtype, dims)?;
    let data = data.get(..size).ok_or_else(|| {
        Error::msg(format!("{} bytes are given for {dims:?} of {dtype:?}, which takes {size}", data.len()))
    })?;
    blocks(dtype, data)
}
