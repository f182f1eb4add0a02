//! Reads a safetensors header, and says which tensor is wrong where the crate `safetensors` does not.

use std::collections::BTreeMap;

use ::safetensors::tensor::TensorInfo;
use ::safetensors::SafeTensors;
use serde_json::Value;

use crate::{Error, Result};

use super::in_tensor;

/// The bytes that the length of the header takes.
const LENGTH: usize = size_of::<u64>();

/// Why a file was refused. Upstream's readers turn it into [`Error`], as they do the crate's own.
pub(crate) struct Refusal(Error);

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.0
    }
}

/// The tensors of a file.
pub(crate) fn deserialize(data: &[u8]) -> std::result::Result<SafeTensors<'_>, Refusal> {
    read(data).map_err(Refusal)
}

fn read(data: &[u8]) -> Result<SafeTensors<'_>> {
    let tensors = SafeTensors::deserialize(data).map_err(|error| match fault(data) {
        Some(fault) => Error::from(error).context(format!("safetensors: {fault}")),
        None => Error::from(error),
    })?;
    // A tensor without elements may have dimensions whose strides no integer holds.
    for (name, view) in tensors.iter() {
        let sizes = view.shape().iter().map(|&dim| dim.max(1));
        if sizes.into_iter().try_fold(1usize, usize::checked_mul).is_none() {
            let text = format!("safetensors: the strides of shape {:?} overflow", view.shape());
            return Err(in_tensor(name, Error::msg(text)));
        }
    }
    Ok(tensors)
}

/// What is wrong with a file that was refused; `None` where the error says it by itself.
fn fault(data: &[u8]) -> Option<String> {
    let Some((length, rest)) = data.split_first_chunk::<LENGTH>() else {
        return Some(format!("the length of the header needs {LENGTH} bytes, the file has {}", data.len()));
    };
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
    let Some((header, data)) = header else {
        return Some(format!(
            "a header of {length} bytes in a file that has {} after its length",
            rest.len()
        ));
    };
    let entries: BTreeMap<String, Value> = serde_json::from_slice(header).ok()?;
    let mut infos = Vec::new();
    for (name, entry) in entries.into_iter().filter(|(name, _)| name != "__metadata__") {
        match serde_json::from_value::<TensorInfo>(entry) {
            Ok(info) => infos.push((name, info)),
            Err(error) => return Some(format!("tensor `{name}`: {error}")),
        }
    }
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let mut expected = 0;
    for (name, TensorInfo { dtype, shape, data_offsets: (start, end) }) in infos {
        if start != expected || end < start {
            return Some(format!(
                "tensor `{name}`: data_offsets [{start}, {end}], where the one before ends at {expected}"
            ));
        }
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bitsize()));
        if bits != (end - start).checked_mul(8) {
            let bytes = bits.map_or("more bytes than can be counted".to_owned(), |bits| {
                format!("{} bytes", bits as f64 / 8.)
            });
            return Some(format!(
                "tensor `{name}`: shape {shape:?} of {dtype} takes {bytes}, data_offsets [{start}, {end}] give {}",
                end - start
            ));
        }
        expected = end;
    }
    (expected != data.len()).then(|| {
        format!("the tensors' data_offsets end at {expected}, the file has {} bytes of data", data.len())
    })
}
