//! What a path holds: a GGUF file, or safetensors with a config.json.
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::DType;
use candle_core::quantized::gguf_file::Content;
use candle_core::safetensors::MmapedSafetensors;
use serde_json::Value;

const INDEX: &str = "model.safetensors.index.json";

/// The files of a model, their headers read.
pub enum ModelFiles {
    Gguf { path: PathBuf, content: Content },
    Safetensors { path: PathBuf, folder: PathBuf, config: Value, weights: MmapedSafetensors },
}

impl ModelFiles {
    /// Reads what `path` says about itself, no weights yet.
    pub fn open(path: &Path) -> Result<Self> {
        ensure!(path.exists(), "there is no {}", path.display());
        if path.is_dir() {
            return Self::safetensors(path, path, &weights_of(path)?);
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") => {
                let content = Content::read(&mut reader(path)?)
                    .with_context(|| format!("{} cannot be read as GGUF", path.display()))?;
                let parts = content.metadata.get("split.count").and_then(|parts| parts.to_u64().ok());
                ensure!(
                    parts.unwrap_or(1) <= 1,
                    "{} is one part of several; join them first (llama-gguf-split --merge)",
                    path.display()
                );
                Ok(Self::Gguf { path: path.into(), content })
            }
            Some("safetensors") => {
                let folder = path.parent().unwrap_or(Path::new(""));
                Self::safetensors(path, folder, &[path.into()])
            }
            _ => bail!("{} is neither a folder nor a .gguf or .safetensors file", path.display()),
        }
    }

    fn safetensors(path: &Path, folder: &Path, files: &[PathBuf]) -> Result<Self> {
        let config = json(&folder.join("config.json"))?;
        // SAFETY: nobody writes to the weights of a model that is in use; all that reads them reads floats.
        let weights = unsafe { MmapedSafetensors::multi(files) }
            .with_context(|| format!("the weights of {} cannot be read", path.display()))?;
        for (name, view) in weights.tensors() {
            // Other types would be converted silently and give wrong results.
            let dtype = DType::try_from(view.dtype()).with_context(|| format!("tensor '{name}'"))?;
            ensure!(
                dtype.is_float() || name.ends_with("position_ids"),
                "tensor '{name}' of {} has dtype {dtype:?}, expected floats",
                path.display()
            );
        }
        Ok(Self::Safetensors { path: path.into(), folder: folder.into(), config, weights })
    }

    /// What the user gave.
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf { path, .. } | Self::Safetensors { path, .. } => path,
        }
    }

    /// Where tokenizer.json and other files of the model lie.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Gguf { path, .. } => path.parent().unwrap_or(Path::new("")),
            Self::Safetensors { folder, .. } => folder,
        }
    }

    /// A JSON file of a safetensors model, if it is there. A GGUF file says everything itself.
    pub fn json_beside(&self, name: &str) -> Result<Option<Value>> {
        match self {
            Self::Safetensors { folder, .. } if folder.join(name).exists() => {
                json(&folder.join(name)).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// A file to read tensors from.
pub fn reader(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(BufReader::new(file))
}

fn json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// The safetensors of a folder: those of its index, or the only one.
fn weights_of(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.join(INDEX).exists() {
        return weights_of_index(folder);
    }
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let with = |wanted| paths.iter().filter(move |path| path.extension().is_some_and(|e| e == wanted));
    match with("safetensors").collect::<Vec<_>>()[..] {
        [only] => Ok(vec![only.clone()]),
        [] if with("gguf").next().is_some() => {
            bail!("{} holds GGUF files: give one of them", folder.display())
        }
        [] => bail!("{} holds no safetensors and no {INDEX}", folder.display()),
        _ => bail!("{} holds several safetensors and no {INDEX}: give one of them", folder.display()),
    }
}

fn weights_of_index(folder: &Path) -> Result<Vec<PathBuf>> {
    let path = folder.join(INDEX);
    let index = json(&path)?;
    let map = index["weight_map"].as_object();
    let map = map.with_context(|| format!("{} has no \"weight_map\"", path.display()))?;
    let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
    let names = names.with_context(|| format!("{} names files that are no text", path.display()))?;
    ensure!(!names.is_empty(), "{} names no files", path.display());
    names
        .into_iter()
        .map(|name| {
            let file = folder.join(name);
            let inside = Path::new(name).file_name().is_some_and(|last| last == name);
            ensure!(inside && file.exists(), "{} names {name:?}, which is not beside it", path.display());
            Ok(file)
        })
        .collect()
}
