//! Modules of sentence-transformers, which convert the states of a text to one vector or score. GGUF files contain the
//! pooling in their metadata.
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
        // The files do not state whether vectors are normalized; llama.cpp always normalizes them.
        Some(Self { poolings: vec![pooling], dense: Vec::new(), normalize: true })
    }

    fn of_folder(folder: &Path) -> Result<Option<Self>> {
        let mut found = Self { poolings: Vec::new(), dense: Vec::new(), normalize: false };
        for (kind, path) in modules(folder)? {
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {
                    ensure!(path == folder, "a model in {} is not supported", path.display());
                }
                "Pooling" => found.poolings = poolings(&path.join("config.json"))?,
                "Dense" => found.dense.push(path),
                "Normalize" => found.normalize = true,
                LOGIT_SCORE => {}
                _ => bail!(
                    "modules.json: the module {kind:?} is not known; supported are Transformer, Pooling, Dense, Normalize \
                     and {LOGIT_SCORE}"
                ),
            }
        }
        Ok((!found.poolings.is_empty()).then_some(found))
    }
}

/// Name of the module that scores a pair of texts by logits.
const LOGIT_SCORE: &str = "LogitScore";

/// Returns the types and folders of the modules in modules.json; none if there is no such file.
fn modules(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let path = folder.join("modules.json");
    let modules = optional_json(&path)?.unwrap_or_else(|| Value::Array(Vec::new()));
    let modules = modules.as_array().with_context(|| format!("{} is not a list", path.display()))?;
    let read = |module: &Value| {
        let text = |key: &str| {
            let text = module[key].as_str();
            text.with_context(|| format!("{}: a module has no {key:?}", path.display()))
        };
        let (kind, name) = (text("type")?, text("path")?);
        let inside = name.is_empty() || Path::new(name).file_name().is_some_and(|last| last == name);
        ensure!(inside, "{}: the path {name:?} is not in its folder", path.display());
        let folder = if name.is_empty() { folder.to_owned() } else { folder.join(name) };
        Ok((kind.to_owned(), folder))
    };
    modules.iter().map(read).collect()
}

/// Score of a pair of texts by a decoder. It is the product of the last token's state with a row of a matrix, minus
/// its product with another row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreRows {
    /// Name of the matrix; `None` for the projection to logits.
    pub matrix: Option<&'static str>,
    /// Row of a match.
    pub yes: usize,
    /// Row of texts that do not match.
    pub no: Option<usize>,
    /// If true, the score is the sigmoid of the difference.
    pub sigmoid: bool,
}

impl ScoreRows {
    /// Reads the files of a decoder. Returns `None` if it does not score pairs of texts.
    ///
    /// # Errors
    /// Returns an error for invalid files, and for classifiers with several labels other than yes and no.
    pub fn of(files: &ModelFiles) -> Result<Option<Self>> {
        match &files.description {
            Description::Config(config) => Self::of_folder(files, config),
            Description::Metadata(content) if is_reranker(content) => Self::of_metadata(content).map(Some),
            Description::Metadata(_) => Ok(None),
        }
    }

    fn of_folder(files: &ModelFiles, config: &Value) -> Result<Option<Self>> {
        let modules = modules(files.path())?;
        if let Some((_, folder)) = modules.iter().find(|(kind, _)| kind.ends_with(LOGIT_SCORE)) {
            let path = folder.join("config.json");
            let tokens = optional_json(&path)?.with_context(|| format!("there is no {}", path.display()))?;
            let row = |key: &str| tokens[key].as_u64().and_then(|row| usize::try_from(row).ok());
            let yes = row("true_token_id");
            let yes = yes.with_context(|| format!("{}: \"true_token_id\" is not a token", path.display()))?;
            let (no, sigmoid) = (row("false_token_id"), is_sigmoid(files, config)?);
            return Ok(Some(Self { matrix: None, yes, no, sigmoid }));
        }
        let names = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if !names.into_iter().any(|name| name.ends_with(CLASSIFIER)) {
            return Ok(None);
        }
        let labels = config["id2label"].as_object().map_or(2, |labels| labels.len());
        ensure!(labels == 1, "the classifier has {labels} labels; models that score texts have 1");
        let sigmoid = is_sigmoid(files, config)?;
        Ok(Some(Self { matrix: Some("score.weight"), yes: 0, no: None, sigmoid }))
    }

    fn of_metadata(content: &Content) -> Result<Self> {
        let arch = content.metadata.get("general.architecture").and_then(|arch| arch.to_string().ok());
        let key = format!("{}.classifier.output_labels", arch.map_or("", String::as_str));
        let labels = content.metadata.get(&key).and_then(|labels| labels.to_vec().ok());
        let labels = labels.map_or(&[][..], Vec::as_slice);
        let row = |name: &str| labels.iter().position(|label| label.to_string().is_ok_and(|it| it == name));
        let (yes, no) = match (row("yes"), row("no")) {
            (Some(yes), Some(no)) => (yes, Some(no)),
            _ if labels.len() < 2 => (0, None),
            _ => bail!("{key} has {} labels; models that score texts have 1, or yes and no", labels.len()),
        };
        Ok(Self { matrix: Some("cls.output.weight"), yes, no, sigmoid: true })
    }
}

/// Suffix of the architectures of classifiers.
pub(super) const CLASSIFIER: &str = "ForSequenceClassification";

/// Returns true unless the files of sentence-transformers specify that scores have no sigmoid.
pub(super) fn is_sigmoid(files: &ModelFiles, config: &Value) -> Result<bool> {
    let path = files.path().join("config_sentence_transformers.json");
    let file = optional_json(&path)?.unwrap_or_default();
    let names =
        [&file["activation_fn"], &config["sentence_transformers"]["activation_fn"], &config[OLD_ACTIVATION]];
    let Some(name) = names.into_iter().find_map(Value::as_str) else { return Ok(true) };
    match name.rsplit('.').next().unwrap_or_default() {
        "Sigmoid" => Ok(true),
        "Identity" => Ok(false),
        _ => bail!("the activation of scores {name:?} is not known; use Sigmoid or Identity"),
    }
}

/// Field of config.json in older files.
const OLD_ACTIVATION: &str = "sbert_ce_default_activation_function";

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
