//! Headers of GGUF files.
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, Value};
use model_thread::{catch_panic, error_summary};
use safetensors::tensor::Dtype;

use super::stored_tensor::{Format, StoredTensor};
use crate::{Error, Result};

/// Key of the metadata that names the network.
pub(super) const ARCHITECTURE: &str = "general.architecture";

/// Start of the keys of the shapes of tensors that were reshaped, so that their rows consist of whole blocks.
const ORIGINAL_SHAPE: &str = "comfy.gguf.orig_shape.";

/// Tensors and metadata of a file.
pub(super) type Header = (HashMap<String, StoredTensor>, HashMap<String, Value>);

/// Reads the header of a file of `size` bytes.
///
/// # Errors
/// The header is damaged, or the file is shorter than it requires.
pub(super) fn header(path: &Path, file: &mut File, size: u64) -> Result<Header> {
    let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
    let damaged = |why: String| bad(format!("the header of the GGUF file is damaged or cut: {why}"));
    // Candle divides by the alignment in the file, which may be 0.
    let content = catch_panic(|| Content::read(file)).map_err(damaged)?;
    let content = content.map_err(|e| damaged(with_causes(&e)))?;
    let mut tensors = HashMap::new();
    for (name, info) in content.tensor_infos {
        let mut shape = info.shape.into_dims();
        let block = info.ggml_dtype.block_size();
        let columns = shape.last().copied().unwrap_or(1);
        if !columns.is_multiple_of(block) {
            return Err(bad(format!(
                "{name} has rows of {columns} elements, which do not consist of whole blocks of {block} in {:?}",
                info.ggml_dtype
            )));
        }
        let elements = shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let bytes = elements.and_then(|elements| (elements / block).checked_mul(info.ggml_dtype.type_size()));
        let offset = content.tensor_data_offset.checked_add(info.offset);
        let end = offset.zip(bytes).and_then(|(offset, bytes)| offset.checked_add(bytes as u64));
        let (Some(bytes), Some(offset), Some(end)) = (bytes, offset, end) else {
            return Err(damaged(format!("{name} has shape {shape:?} and begins at {}", info.offset)));
        };
        if size < end {
            return Err(bad(format!("the file is cut: {size} bytes, but {name} ends at {end}")));
        }
        if let Some(original) = content.metadata.get(&format!("{ORIGINAL_SHAPE}{name}")) {
            let Some(dims) = original_shape(original, elements.unwrap_or_default()) else {
                return Err(bad(format!(
                    "{ORIGINAL_SHAPE}{name} is {original:?}, which is no shape of {shape:?}"
                )));
            };
            shape = dims;
        }
        let format = match info.ggml_dtype {
            GgmlDType::F32 => Format::Floats(Dtype::F32),
            GgmlDType::F16 => Format::Floats(Dtype::F16),
            GgmlDType::BF16 => Format::Floats(Dtype::BF16),
            blocks => Format::Blocks(blocks),
        };
        tensors.insert(name, StoredTensor { format, shape, offset, bytes, scale: None });
    }
    Ok((tensors, content.metadata))
}

/// Returns the shape in a value of the metadata, if it has this number of elements.
fn original_shape(value: &Value, elements: usize) -> Option<Vec<usize>> {
    let dims = value.to_vec().ok()?.iter().map(|dim| match dim {
        Value::I32(dim) => usize::try_from(*dim).ok(),
        Value::I64(dim) => usize::try_from(*dim).ok(),
        dim => usize::try_from(dim.to_u64().ok()?).ok(),
    });
    let dims: Vec<usize> = dims.collect::<Option<_>>()?;
    let product = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
    (product == Some(elements)).then_some(dims)
}

/// Returns an error and its causes in one line, without a backtrace.
fn with_causes(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::Context { inner, context } => format!("{context}: {}", with_causes(inner)),
        candle_core::Error::WithBacktrace { inner, .. } => with_causes(inner),
        error => error_summary(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    /// Returns the error of a file with one tensor of f32, and an alignment.
    fn error(alignment: u32, dims: [u64; 2], offset: u64) -> String {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let counts = [1u64, 1].map(u64::to_le_bytes).concat();
        // The type 4 is u32.
        let key = [text("general.alignment"), [4, alignment].map(u32::to_le_bytes).concat()].concat();
        let shape = [2u32.to_le_bytes().to_vec(), dims.map(u64::to_le_bytes).concat()].concat();
        let tensor = [text("a"), shape, 0u32.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat();
        let all = [b"GGUF".to_vec(), 3u32.to_le_bytes().to_vec(), counts, key, tensor, vec![0; 64]].concat();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&all).unwrap();
        file.rewind().unwrap();
        let read = header(Path::new("a.gguf"), &mut file, all.len() as u64);
        read.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert!(error(32, [1 << 20, 1], 0).contains("the file is cut"));
        for (alignment, dims, offset) in [(32, [1 << 40; 2], 0), (32, [1; 2], u64::MAX), (0, [1; 2], 0)] {
            let error = error(alignment, dims, offset);
            assert!(error.contains("damaged or cut"), "{alignment}, {dims:?}, {offset}: {error}");
        }
    }
}
