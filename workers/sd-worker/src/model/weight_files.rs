//! Files of the weights of a component.
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// File name stems of weights.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];

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
            "{} contains no safetensors named {}",
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
