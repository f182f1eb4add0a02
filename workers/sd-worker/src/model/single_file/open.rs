//! Formats of files.
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::super::weights::Weights;
use crate::safetensors_folder::{PICKLED_ENDINGS, has_ending};
use crate::{Error, Result};

/// Opens a safetensors or GGUF file.
///
/// # Errors
/// The file cannot be read, or has another format, which is recognised by its first bytes or its ending.
pub(in super::super) fn open(path: &Path) -> Result<Arc<Weights>> {
    Ok(Arc::new(if is_gguf(path)? { Weights::open_gguf(path)? } else { Weights::open(&[path.to_owned()])? }))
}

/// Returns true if a file is a GGUF file.
///
/// # Errors
/// The file cannot be read, or is a pickled file.
fn is_gguf(path: &Path) -> Result<bool> {
    let bad = |what: String| Error::model(format!("{} {what}", path.display()));
    let mut start = Vec::new();
    let file = std::fs::File::open(path);
    file.and_then(|file| file.take(8).read_to_end(&mut start))
        .map_err(|e| bad(format!("cannot be read: {e}")))?;
    let is_pickled = start.starts_with(b"PK\x03\x04")
        || matches!(start[..], [0x80, 2..=5, ..])
        || has_ending(path, &PICKLED_ENDINGS);
    if is_pickled {
        return Err(bad("is a pickled PyTorch file, which can run code when it is loaded; convert it to \
                        safetensors"
            .to_owned()));
    }
    Ok(start.starts_with(b"GGUF"))
}
