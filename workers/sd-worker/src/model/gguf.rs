//! Headers of GGUF files.
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, Value};
use model_thread::error_summary;
use safetensors::tensor::Dtype;

use super::stored_tensor::{Format, StoredTensor};
use crate::{Error, Result};

/// Key of the metadata that names the network.
pub(super) const ARCHITECTURE: &str = "general.architecture";

/// Tensors of a file, and its metadata that are texts.
pub(super) type Header = (HashMap<String, StoredTensor>, HashMap<String, String>);

/// Reads the header of a file of `size` bytes.
///
/// # Errors
/// The header is damaged, or the file is shorter than it requires.
pub(super) fn header(path: &Path, file: &mut File, size: u64) -> Result<Header> {
    let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
    let content = Content::read(file)
        .map_err(|e| bad(format!("the header of the GGUF file is damaged or cut: {}", with_causes(&e))))?;
    let mut tensors = HashMap::new();
    for (name, info) in content.tensor_infos {
        let shape = info.shape.into_dims();
        let block = info.ggml_dtype.block_size();
        let columns = shape.last().copied().unwrap_or(1);
        if !columns.is_multiple_of(block) {
            return Err(bad(format!(
                "{name} has rows of {columns} elements, which do not consist of whole blocks of {block} in {:?}",
                info.ggml_dtype
            )));
        }
        let bytes = shape.iter().product::<usize>() / block * info.ggml_dtype.type_size();
        let offset = content.tensor_data_offset + info.offset;
        let end = offset + bytes as u64;
        if size < end {
            return Err(bad(format!("the file is cut: {size} bytes, but {name} ends at {end}")));
        }
        let format = match info.ggml_dtype {
            GgmlDType::F32 => Format::Floats(Dtype::F32),
            GgmlDType::F16 => Format::Floats(Dtype::F16),
            GgmlDType::BF16 => Format::Floats(Dtype::BF16),
            blocks => Format::Blocks(blocks),
        };
        tensors.insert(name, StoredTensor { format, shape, offset, bytes });
    }
    let text = |(key, value)| match value {
        Value::String(text) => Some((key, text)),
        _ => None,
    };
    Ok((tensors, content.metadata.into_iter().filter_map(text).collect()))
}

/// Returns an error and its causes in one line, without a backtrace.
fn with_causes(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::Context { inner, context } => format!("{context}: {}", with_causes(inner)),
        candle_core::Error::WithBacktrace { inner, .. } => with_causes(inner),
        error => error_summary(error),
    }
}
