//! Reads a safetensors header, with errors that name the faulty tensor where those of the crate `safetensors` do not.

use std::collections::BTreeMap;

use ::safetensors::tensor::TensorInfo;
use ::safetensors::SafeTensors;
use serde_json::Value;

use crate::{Error, Result};

use super::in_tensor;

/// Size in bytes of the header's length, which begins the file.
const PREFIX: usize = size_of::<u64>();

/// Error of an invalid file. Upstream's readers convert it to [`Error`], like the crate's own error.
pub(crate) struct InvalidFile(Error);

impl From<InvalidFile> for Error {
    fn from(invalid: InvalidFile) -> Self {
        invalid.0
    }
}

/// Parses the header of a file and returns its tensors.
pub(crate) fn deserialize(data: &[u8]) -> std::result::Result<SafeTensors<'_>, InvalidFile> {
    read(data).map_err(InvalidFile)
}

fn read(data: &[u8]) -> Result<SafeTensors<'_>> {
    let tensors = SafeTensors::deserialize(data).map_err(|error| match diagnose(data) {
        Some(cause) => Error::from(error).context(format!("safetensors: {cause}")),
        None => Error::from(error),
    })?;
    // The strides of a tensor with a dimension of 0 may overflow although its size does not.
    for (name, view) in tensors.iter() {
        let sizes = view.shape().iter().map(|&dim| dim.max(1));
        if sizes.into_iter().try_fold(1usize, usize::checked_mul).is_none() {
            let text = format!("safetensors: the strides of shape {:?} overflow", view.shape());
            return Err(in_tensor(name, Error::msg(text)));
        }
    }
    Ok(tensors)
}

/// Finds the cause for which a file was rejected; `None` if the error of the crate `safetensors` is specific enough.
fn diagnose(data: &[u8]) -> Option<String> {
    let Some((length, rest)) = data.split_first_chunk::<PREFIX>() else {
        return Some(format!("the length of the header needs {PREFIX} bytes, the file has {}", data.len()));
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
                "tensor `{name}`: data_offsets [{start}, {end}], but the previous tensor ends at {expected}"
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
