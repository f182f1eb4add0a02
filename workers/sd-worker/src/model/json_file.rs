//! Reads configuration files, with errors that name them.
use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

/// Reads a text file.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::model(format!("cannot read {}: {e}", path.display())))
}

/// Reads a JSON file.
///
/// # Errors
/// The file cannot be read, or is not JSON.
pub(super) fn json(path: &Path) -> Result<Value> {
    serde_json::from_str(&read(path)?).map_err(|e| Error::model(format!("{}: {e}", path.display())))
}
