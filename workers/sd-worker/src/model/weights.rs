//! Weights of a component, loaded from safetensors files one tensor at a time to limit host memory.
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::{Error, Result};

/// File name stems of weights.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];
/// Maximum header size in bytes according to the safetensors format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Returns the weight files of a component.
///
/// # Errors
/// There are no weight files, or some of several parts are missing.
pub(super) fn files(folder: &Path, half: bool) -> Result<Vec<PathBuf>> {
    let cannot = |e| Error::model(format!("cannot list {}: {e}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(cannot)?;
    let mut found: Vec<(ShardName, PathBuf)> =
        entries.flatten().filter_map(|entry| Some((part(&entry.path())?, entry.path()))).collect();
    found.sort();
    // If both precisions are available, use the one that needs no conversion.
    let wanted = [half, !half].into_iter().find(|half| found.iter().any(|(part, _)| part.half == *half));
    found.retain(|(part, _)| Some(part.half) == wanted);
    let Some((first, _)) = found.first() else {
        return Err(Error::model(format!(
            "{} holds no safetensors named {}",
            folder.display(),
            STEMS.map(|stem| format!("{stem}.safetensors or {stem}.fp16.safetensors")).join(", ")
        )));
    };
    let (stem, of) = (first.stem, first.of);
    found.retain(|(part, _)| part.stem == stem && part.of == of);
    if found.len() != of {
        return Err(Error::model(format!(
            "{} holds {} of {of} parts of its weights",
            folder.display(),
            found.len()
        )));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Parsed file name: `stem[.fp16][-00001-of-00002][.fp16].safetensors`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ShardName {
    half: bool,
    stem: usize,
    of: usize,
    number: usize,
}

fn part(path: &Path) -> Option<ShardName> {
    let name = path.file_name()?.to_str()?.strip_suffix(".safetensors")?;
    let (stem, rest) = STEMS.iter().enumerate().find_map(|(i, stem)| Some((i, name.strip_prefix(stem)?)))?;
    let half = rest.contains(".fp16");
    let rest = rest.replacen(".fp16", "", 1);
    if rest.is_empty() {
        return Some(ShardName { half, stem, of: 1, number: 1 });
    }
    let (number, of) = rest.strip_prefix('-')?.split_once("-of-")?;
    Some(ShardName { half, stem, of: of.parse().ok()?, number: number.parse().ok()? })
}

/// Opens the weights of a component. Each tensor is converted to `dtype` when it is loaded.
///
/// # Errors
/// A file is missing or is not a safetensors file.
pub(super) fn open(
    files: &[PathBuf],
    dtype: DType,
    device: &Device,
    read: Box<dyn Fn(usize) + Send + Sync>,
) -> Result<VarBuilder<'static>> {
    let mut weights = Weights { files: Vec::new(), tensors: HashMap::new(), read };
    for path in files {
        let bad = |e: &dyn std::fmt::Display| Error::model(format!("{}: {e}", path.display()));
        let mut file = File::open(path).map_err(|e| bad(&e))?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|e| bad(&e))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES {
            return Err(bad(&"not a safetensors file: its header exceeds 100000000 bytes"));
        }
        let mut header = Vec::new();
        file.by_ref().take(length).read_to_end(&mut header).map_err(|e| bad(&e))?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| bad(&e))?;
        for (name, info) in metadata.tensors() {
            weights.tensors.insert(name, (weights.files.len(), info.clone()));
        }
        weights.files.push((path.clone(), 8 + length, Mutex::new(file)));
    }
    Ok(VarBuilder::from_backend(Box::new(weights), dtype, device.clone()))
}

struct Weights {
    /// Path, offset of the data, and open file.
    files: Vec<(PathBuf, u64, Mutex<File>)>,
    tensors: HashMap<String, (usize, TensorInfo)>,
    /// Callback that receives the number of bytes after each read.
    read: Box<dyn Fn(usize) + Send + Sync>,
}

impl SimpleBackend for Weights {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        if let Some((file, info)) = self.tensors.get(name)
            && info.shape != shape.dims()
        {
            candle_core::bail!(
                "{}: {name} has shape {:?}, but the configuration requires {shape:?}",
                self.files[*file].0.display(),
                info.shape
            )
        }
        self.get_unchecked(name, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        let Some((file, info)) = self.tensors.get(name) else {
            let folder = self.files.first().and_then(|(path, ..)| path.parent()).unwrap_or(Path::new(""));
            candle_core::bail!("{} has no tensor {name}", folder.display())
        };
        let (path, start, file) = &self.files[*file];
        let (from, to) = info.data_offsets;
        let stored = DType::try_from(info.dtype)?;
        let size = info.shape.iter().try_fold(stored.size_in_bytes(), |size, dim| size.checked_mul(*dim));
        let Some(size) = size.filter(|size| from.checked_add(*size) == Some(to)) else {
            candle_core::bail!(
                "{}: {name} has bytes {from} to {to}, which do not match shape {:?} of {stored:?}",
                path.display(),
                info.shape
            )
        };
        let mut bytes = vec![0; size];
        {
            // A poisoned lock is harmless, because each read starts with a seek.
            let mut file = file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let read =
                file.seek(SeekFrom::Start(start + from as u64)).and_then(|_| file.read_exact(&mut bytes));
            read.map_err(|e| candle_core::Error::msg(format!("{}: {name}: {e}", path.display())))?;
        }
        (self.read)(size);
        Tensor::from_raw_buffer(&bytes, stored, &info.shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}
