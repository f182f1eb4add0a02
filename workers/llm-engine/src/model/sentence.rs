//! Modules of sentence-transformers: how a checkpoint turns the states of a text into one vector. GGUF files contain
//! the pooling in their metadata.
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::Content;
use serde_json::Value;

use super::files::{Description, ModelFiles};

/// Reduction of the states of a text to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's state.
    Cls,
    /// The maximum of each element.
    Max,
    /// The mean.
    Mean,
    /// The sum divided by the square root of the number of tokens.
    MeanSqrtLength,
    /// The mean, weighted by the position, which starts at 1.
    WeightedMean,
    /// The last token's state.
    Last,
}

/// Poolings with their names in `pooling_mode` and their flags in older files, in the order in which sentence-transformers
/// concatenates them.
const POOLINGS: [(Pooling, &str, &str); 6] = [
    (Pooling::Cls, "cls", "pooling_mode_cls_token"),
    (Pooling::Max, "max", "pooling_mode_max_tokens"),
    (Pooling::Mean, "mean", "pooling_mode_mean_tokens"),
    (Pooling::MeanSqrtLength, "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    (Pooling::WeightedMean, "weightedmean", "pooling_mode_weightedmean_tokens"),
    (Pooling::Last, "lasttoken", "pooling_mode_lasttoken"),
];

/// Values of `pooling_type` in GGUF metadata.
const GGUF_POOLINGS: [(u64, Pooling); 3] = [(1, Pooling::Mean), (2, Pooling::Cls), (3, Pooling::Last)];
/// Value of `pooling_type` for a classifier.
const GGUF_RANK: u64 = 4;

/// Modules that follow a model.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceModules {
    /// Poolings whose results are concatenated.
    pub poolings: Vec<Pooling>,
    /// Folders of linear layers, in order.
    pub dense: Vec<PathBuf>,
    /// If true, vectors are scaled to length 1.
    pub normalize: bool,
}

impl SentenceModules {
    /// Reads modules.json or the metadata of a GGUF file. Returns `None` if they describe no embeddings.
    ///
    /// # Errors
    /// Returns an error for invalid files and unsupported modules.
    pub fn of(files: &ModelFiles) -> Result<Option<Self>> {
        match &files.description {
            Description::Config(_) => Self::of_folder(files.path()),
            Description::Metadata(content) => Ok(Self::of_metadata(content)),
        }
    }

    fn of_metadata(content: &Content) -> Option<Self> {
        let kind = pooling_type(content)?;
        let (_, pooling) = GGUF_POOLINGS.into_iter().find(|(number, _)| *number == kind)?;
        // The files do not contain whether vectors are normalized; llama.cpp always does.
        Some(Self { poolings: vec![pooling], dense: Vec::new(), normalize: true })
    }

    fn of_folder(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("modules.json");
        let Some(modules) = optional_json(&path)? else { return Ok(None) };
        let modules = modules.as_array().with_context(|| format!("{} is not a list", path.display()))?;
        let mut found = Self { poolings: Vec::new(), dense: Vec::new(), normalize: false };
        for module in modules {
            let text = |key: &str| {
                let text = module[key].as_str();
                text.with_context(|| format!("{}: a module has no {key:?}", path.display()))
            };
            let kind = text("type")?;
            let name = text("path")?;
            let inside = name.is_empty() || Path::new(name).file_name().is_some_and(|last| last == name);
            ensure!(inside, "{}: the path {name:?} is not a folder beside it", path.display());
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {
                    ensure!(name.is_empty(), "{}: a model in {name:?} is not supported", path.display());
                }
                "Pooling" => found.poolings = poolings(&folder.join(name).join("config.json"))?,
                "Dense" => found.dense.push(folder.join(name)),
                "Normalize" => found.normalize = true,
                _ => bail!(
                    "{}: the module {kind:?} is not known; known are Transformer, Pooling, Dense and Normalize",
                    path.display()
                ),
            }
        }
        Ok((!found.poolings.is_empty()).then_some(found))
    }
}

/// Returns true if the metadata of a GGUF file describes a classifier of pairs of texts.
pub fn is_reranker(content: &Content) -> bool {
    pooling_type(content) == Some(GGUF_RANK)
}

fn pooling_type(content: &Content) -> Option<u64> {
    let arch = content.metadata.get("general.architecture")?.to_string().ok()?;
    content.metadata.get(&format!("{arch}.pooling_type"))?.to_u64().ok()
}

/// Reads the poolings in a module's config.json: `pooling_mode`, or a flag for each in older files.
fn poolings(path: &Path) -> Result<Vec<Pooling>> {
    let config = optional_json(path)?.with_context(|| format!("there is no {}", path.display()))?;
    let modes = &config["pooling_mode"];
    if modes.is_null() {
        let set = POOLINGS.iter().filter(|(_, _, flag)| config[*flag] == true);
        let set: Vec<Pooling> = set.map(|(pooling, ..)| *pooling).collect();
        return Ok(if set.is_empty() { vec![Pooling::Mean] } else { set });
    }
    let modes = modes.as_array().map_or(std::slice::from_ref(modes), Vec::as_slice);
    let named = |mode: &Value| {
        let known = POOLINGS.iter().find(|(_, name, _)| mode == name);
        let (pooling, ..) =
            known.with_context(|| format!("{}: the pooling {mode} is not known", path.display()))?;
        Ok(*pooling)
    };
    ensure!(!modes.is_empty(), "{}: \"pooling_mode\" is empty", path.display());
    modes.iter().map(named).collect()
}

/// Returns the maximum number of tokens of a text in a folder's sentence_bert_config.json and tokenizer_config.json.
///
/// # Errors
/// Returns an error if one of them exists but is not JSON.
pub fn max_tokens(folder: &Path) -> Result<Option<usize>> {
    let sentence = optional_json(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
    let tokenizer = optional_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let limits = [&sentence["max_seq_length"], &tokenizer["model_max_length"]];
    let limits = limits.into_iter().filter_map(Value::as_u64).filter(|limit| *limit > 0);
    Ok(limits.min().map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

/// Reads a JSON file, if it exists.
pub(super) fn optional_json(path: &Path) -> Result<Option<Value>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let json = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    Ok(Some(json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poolings_are_read_in_both_formats() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            poolings(&path)
        };
        assert_eq!(read(r#"{"pooling_mode_cls_token": true}"#).unwrap(), [Pooling::Cls]);
        assert_eq!(read("{}").unwrap(), [Pooling::Mean]);
        let several = r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}"#;
        assert_eq!(read(several).unwrap(), [Pooling::Max, Pooling::Mean]);
        assert_eq!(read(r#"{"pooling_mode": "lasttoken"}"#).unwrap(), [Pooling::Last]);
        let several = r#"{"pooling_mode": ["mean", "cls"]}"#;
        assert_eq!(read(several).unwrap(), [Pooling::Mean, Pooling::Cls]);
        for wrong in [r#"{"pooling_mode": "median"}"#, r#"{"pooling_mode": []}"#, "x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modules_outside_of_the_folder_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let read = |kind: &str, path: &str| {
            let text = format!(r#"[{{"type": "a.b.{kind}", "path": {path:?}}}]"#);
            fs::write(folder.path().join("modules.json"), text).unwrap();
            SentenceModules::of_folder(folder.path())
        };
        assert_eq!(read("Transformer", "").unwrap(), None);
        for (kind, path) in [("Dense", "../x"), ("Dense", "/x"), ("Pooling", "1_Pooling"), ("LSTM", "1_LSTM")]
        {
            assert!(read(kind, path).is_err(), "{kind} {path}");
        }
    }
}
