//! Checks of a GGUF file's arrays, alignment, tensor offsets and tokenizer.

use std::collections::HashMap;

use crate::quantized::gguf_file::{TensorInfo, Value};
use crate::{Error, Result};

use super::{in_tensor, size_in_bytes};

/// Allocates an empty list for `len` values. Callers have checked that the file is long enough to hold them.
pub(crate) fn reserve_values(len: u64) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    match usize::try_from(len).ok().and_then(|len| values.try_reserve_exact(len).ok()) {
        Some(()) => Ok(values),
        None => Err(Error::msg(format!("out of host memory for an array of {len} values"))),
    }
}

/// Checks `alignment`, which upstream reads from `value` or sets to the default if `value` has another type.
pub(crate) fn checked_alignment(value: Option<&Value>, alignment: u64) -> Result<u64> {
    let is_accepted = match value {
        None | Some(Value::U8(_) | Value::U16(_) | Value::U32(_)) => true,
        Some(Value::I8(number)) => *number >= 0,
        Some(Value::I16(number)) => *number >= 0,
        Some(Value::I32(number)) => *number >= 0,
        Some(_) => false,
    };
    if is_accepted && alignment.is_power_of_two() {
        return Ok(alignment);
    }
    let found = match value {
        Some(value @ (Value::String(_) | Value::Array(_))) => format!("{:?}", value.value_type()),
        value => format!("{value:?}"),
    };
    Err(Error::msg(format!("must be a power of two as U32, but is {found}")))
}

/// Returns an error if tensors overlap or their offsets are not aligned. It does not check that the file holds their
/// data, since a header may be read without it; reading a tensor does.
pub(crate) fn check_tensors(infos: &HashMap<String, TensorInfo>, start: u64, alignment: u64) -> Result<()> {
    let mut infos: Vec<_> = infos.iter().collect();
    infos.sort_unstable_by_key(|(name, info)| (info.offset, *name));
    let (mut end, mut previous) = (0, "");
    for (name, info) in infos {
        let offset = info.offset;
        let fail = |text: String| Err(in_tensor(name, Error::msg(text)));
        let size =
            size_in_bytes(info.ggml_dtype, info.shape.dims()).map_err(|error| in_tensor(name, error))?;
        if !offset.is_multiple_of(alignment) {
            return fail(format!("offset {offset} is not a multiple of the alignment {alignment}"));
        }
        if offset < end {
            return fail(format!("offset {offset} lies in tensor `{previous}`, which ends at {end}"));
        }
        match offset.checked_add(size as u64).filter(|end| start.checked_add(*end).is_some()) {
            Some(tensor_end) => (end, previous) = (tensor_end, name),
            None => return fail(format!("offset {offset} is beyond any file")),
        }
    }
    Ok(())
}

/// Returns an error if a merge makes a token longer than any of the vocabulary, which would panic in the tokenizer.
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
