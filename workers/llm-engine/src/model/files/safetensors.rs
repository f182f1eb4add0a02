//! Safetensors folders: the files of the weights, and their headers.
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::DType;
use serde::Deserialize;
use serde_json::Value;

use super::format::Format;
use super::python_json;
use super::tensor_info::{Encoding, TensorInfo};

const INDEX: &str = "model.safetensors.index.json";
/// Maximum length of a header, a limit of the format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Entry of a header.
#[derive(Deserialize)]
struct HeaderEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// Reads the header of file number `number`.
///
/// # Errors
/// Returns an error if the file is truncated, or names the tensor that is invalid.
pub(super) fn header(file: &mut File, number: usize) -> Result<Vec<(String, TensorInfo)>> {
    let mut length = [0; 8];
    file.read_exact(&mut length).context("the file is shorter than a header")?;
    let length = u64::from_le_bytes(length);
    let size = file.metadata()?.len();
    ensure!(length <= MAX_HEADER_BYTES.min(size.saturating_sub(8)), "its header would have {length} bytes");
    let mut text = vec![0; usize::try_from(length)?];
    file.read_exact(&mut text)?;
    let header: HashMap<String, Value> = serde_json::from_slice(&text).context("its header is not JSON")?;
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let location = |(name, entry): (String, Value)| {
        let named = || format!("tensor '{name}'");
        let entry: HeaderEntry = serde_json::from_value(entry).with_context(named)?;
        let format = Format::Floats(match entry.dtype.as_str() {
            "F64" => DType::F64,
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "F8_E4M3" => DType::F8E4M3,
            // Types of packed weights, and of auxiliary tensors, such as position tables, that are never loaded.
            "I64" => DType::I64,
            "I32" => DType::I32,
            "U32" => DType::U32,
            "U8" | "I8" | "BOOL" => DType::U8,
            other => bail!("{} has the unsupported dtype {other}; use F16, BF16, F32 or F64", named()),
        });
        let [start, end] = entry.data_offsets;
        let (offset, encoding, shape) = (start.saturating_add(8 + length), Encoding::Same, entry.shape);
        let location = TensorInfo { file: number, offset, encoding, format, shape };
        let bytes = location.bytes().with_context(named)?;
        ensure!(
            start.checked_add(bytes as u64) == Some(end),
            "{} of shape {:?} has bytes {start} to {end}, but needs {bytes} bytes",
            named(),
            location.shape
        );
        Ok((name, location))
    };
    tensors.map(location).collect()
}

/// Reads a JSON file.
///
/// # Errors
/// Returns an error that names the file if it cannot be read or is not JSON.
pub(super) fn json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    python_json::parse(&text).with_context(|| format!("{} is not JSON", path.display()))
}

/// Returns the safetensors files of a folder: those listed in its index, or the only one.
///
/// # Errors
/// Returns an error if there are none or several without an index, or a file of the index is missing.
pub(super) fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join(INDEX);
    if index.exists() {
        return weight_files_of_index(folder, &index);
    }
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let with = |wanted| paths.iter().filter(move |path| path.extension().is_some_and(|e| e == wanted));
    match with("safetensors").collect::<Vec<_>>()[..] {
        [only] => Ok(vec![only.clone()]),
        [] if with("gguf").next().is_some() => {
            bail!("{} contains GGUF files; pass the path of one of them", folder.display())
        }
        [] => bail!("{} contains neither safetensors files nor {INDEX}", folder.display()),
        _ => bail!("{} has several safetensors files, but no {INDEX}; download it, too", folder.display()),
    }
}

fn weight_files_of_index(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    let index_json = json(index)?;
    let map = index_json["weight_map"].as_object();
    let map = map.with_context(|| format!("{} has no \"weight_map\"", index.display()))?;
    let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
    let names = names.with_context(|| format!("{} has a file name that is not text", index.display()))?;
    ensure!(!names.is_empty(), "{} names no files; download it again", index.display());
    let path = |name: &str| {
        let path = folder.join(name);
        let inside = Path::new(name).file_name().is_some_and(|last| last == name);
        ensure!(inside && path.exists(), "{} names {name:?}, which is not in its folder", index.display());
        Ok(path)
    };
    names.into_iter().map(path).collect()
}
