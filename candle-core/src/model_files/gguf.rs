//! What a GGUF file says of its arrays, its alignment, its tensors and its tokenizer.

use std::collections::HashMap;

use crate::quantized::gguf_file::{TensorInfo, Value};
use crate::{Error, Result};

use super::{in_tensor, size_in_bytes};

/// An empty list with room for `len` values, of which the file was seen to have at least the bytes.
pub(crate) fn room_for(len: u64) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    match usize::try_from(len).ok().and_then(|len| values.try_reserve_exact(len).ok()) {
        Some(()) => Ok(values),
        None => Err(Error::msg(format!("there is no memory for an array of {len} values"))),
    }
}

/// `alignment`, which upstream reads out of `value`, or else takes to be the default.
pub(crate) fn checked_alignment(value: Option<&Value>, alignment: u64) -> Result<u64> {
    let is_read = match value {
        None | Some(Value::U8(_) | Value::U16(_) | Value::U32(_)) => true,
        Some(Value::I8(number)) => *number >= 0,
        Some(Value::I16(number)) => *number >= 0,
        Some(Value::I32(number)) => *number >= 0,
        Some(_) => false,
    };
    if is_read && alignment.is_power_of_two() {
        return Ok(alignment);
    }
    let found = match value {
        Some(long @ (Value::String(_) | Value::Array(_))) => format!("{:?}", long.value_type()),
        short => format!("{short:?}"),
    };
    Err(Error::msg(format!("must be a power of two as U32, but is {found}")))
}

/// Fails if the tensors do not lie one behind the other. That the file holds all of them is only seen when
/// they are read: a header may be read without its tensors.
pub(crate) fn check_tensors(infos: &HashMap<String, TensorInfo>, start: u64, alignment: u64) -> Result<()> {
    let mut infos: Vec<_> = infos.iter().collect();
    infos.sort_unstable_by_key(|(name, info)| (info.offset, *name));
    let (mut end, mut before) = (0, "");
    for (name, info) in infos {
        let offset = info.offset;
        let fail = |text: String| Err(in_tensor(name, Error::msg(text)));
        let size =
            size_in_bytes(info.ggml_dtype, info.shape.dims()).map_err(|error| in_tensor(name, error))?;
        if !offset.is_multiple_of(alignment) {
            return fail(format!("offset {offset} is not a multiple of the alignment {alignment}"));
        }
        if offset < end {
            return fail(format!("offset {offset} lies in tensor `{before}`, which ends at {end}"));
        }
        match offset.checked_add(size as u64).filter(|end| start.checked_add(*end).is_some()) {
            Some(its_end) => (end, before) = (its_end, name),
            None => return fail(format!("offset {offset} is beyond any file")),
        }
    }
    Ok(())
}

/// Fails if a merge makes a token that is longer than all of the vocabulary: the tokenizer has no room for it.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn check_merges(tokens: &[String], merges: &[(String, String)]) -> Result<()> {
    let longest = tokens.iter().map(String::len).max().unwrap_or(0);
    match merges.iter().position(|(left, right)| left.len() + right.len() > longest) {
        Some(at) => {
            let (left, right) = &merges[at];
            let text = format!(
                "`tokenizer.ggml.merges`, entry {at}: `{left}{right}` is not in `tokenizer.ggml.tokens`"
            );
            Err(Error::msg(text))
        }
        None => Ok(()),
    }
}
