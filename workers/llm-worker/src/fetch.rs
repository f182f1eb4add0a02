//! Models by path or by their name on the Hub.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use worker_core::hub::{self, Report, Snapshot};

pub use worker_core::hub::Hub;

const INDEX: &str = "model.safetensors.index.json";
/// Where chat templates beside the usual one lie.
const TEMPLATES: &str = "additional_chat_templates/";

/// The folder or file of a model: itself if it is a path, else fetched from the Hub (org/name, or org/name/file.gguf) into
/// the cache that other programs share.
///
/// # Errors
/// Says whether the path or the name is wrong, a token is missing (HF_TOKEN), or the Hub cannot be reached.
pub fn model(hub: &Hub, model: &str, revision: Option<&str>, report: Report) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        ensure!(revision.is_none(), "--model-ref is for models on the Hub; {model} is a path");
        return Ok(path.to_owned());
    }
    let name = HubName::parse(model)
        .with_context(|| format!("there is no {model}, and it is no name on the Hub (org/name)"))?;
    fetch(hub, &name, revision.unwrap_or("main"), report)
}

/// A name on the Hub.
#[derive(Debug, PartialEq, Eq)]
struct HubName {
    repository: String,
    /// One GGUF file of it.
    file: Option<String>,
}

impl HubName {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let file = match parts[..] {
            [_, _] => None,
            [_, _, file] if file.ends_with(".gguf") => Some(file.to_owned()),
            _ => return None,
        };
        parts.iter().all(|part| hub::is_name(part)).then(|| Self { repository: parts[..2].join("/"), file })
    }
}

fn fetch(hub: &Hub, name: &HubName, revision: &str, report: Report) -> Result<PathBuf> {
    let snapshot = match hub.snapshot(&name.repository, revision) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let Some(known) = known(hub, name, revision) else { return Err(error) };
            tracing::warn!(error = format!("{error:#}"), path = %known.display(), "what was fetched before is used");
            return Ok(known);
        }
    };
    match &name.file {
        Some(file) => snapshot.get(file, "", report),
        None => folder(&snapshot, name, revision, report),
    }
}

/// A model that was fetched before, if its weights seem to be there.
fn known(hub: &Hub, name: &HubName, revision: &str) -> Option<PathBuf> {
    let kept = |file: &str| hub.kept(&name.repository, revision, file);
    match &name.file {
        Some(file) => kept(file),
        None => {
            kept(INDEX).or_else(|| kept("model.safetensors"))?;
            Some(kept("config.json")?.parent()?.to_owned())
        }
    }
}

/// The configuration, the tokenizer and the weights: those of the index, or all safetensors.
fn folder(snapshot: &Snapshot, name: &HubName, revision: &str, report: Report) -> Result<PathBuf> {
    let files = snapshot.files();
    let top = || files.iter().filter(|file| !file.contains('/'));
    let template = |file: &&String| {
        file.strip_prefix(TEMPLATES).is_some_and(|name| name.ends_with(".jinja") && hub::is_name(name))
    };
    let more = files.iter().filter(template);
    for file in top().filter(|file| file.ends_with(".json") || file.ends_with(".jinja")).chain(more) {
        snapshot.get(file, "", report)?;
    }
    let config = snapshot.get("config.json", "", report).context("a model needs a config.json")?;
    let weights: BTreeSet<String> = match files.contains(INDEX) {
        true => named_by_index(&snapshot.get(INDEX, "", report)?)?,
        false if files.contains("model.safetensors") => ["model.safetensors".to_owned()].into(),
        false => top().filter(|file| file.ends_with(".safetensors")).cloned().collect(),
    };
    ensure!(
        !weights.is_empty(),
        "{0} at {revision} has no safetensors; of GGUF files name one: {0}/FILE.gguf",
        name.repository
    );
    for (i, file) in weights.iter().enumerate() {
        snapshot.get(file, &format!(" ({} of {})", i + 1, weights.len()), report)?;
    }
    Ok(config.parent().context("a file of the Hub's cache lies nowhere")?.to_owned())
}

fn named_by_index(path: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let index: Value = serde_json::from_str(&text).with_context(|| format!("{INDEX} is no JSON"))?;
    let map = index["weight_map"].as_object().with_context(|| format!("{INDEX} has no \"weight_map\""))?;
    map.values()
        .map(|file| {
            let file = file.as_str().filter(|file| !file.contains('/'));
            Ok(file.with_context(|| format!("{INDEX} names files that are not beside it"))?.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_hub_are_told_from_paths() {
        let name = |repository: &str, file: Option<&str>| {
            Some(HubName { repository: repository.to_owned(), file: file.map(str::to_owned) })
        };
        for (text, expected) in [
            ("org/name-1.5", name("org/name-1.5", None)),
            ("org/name/model.Q4.gguf", name("org/name", Some("model.Q4.gguf"))),
            ("org/name/model.bin", None),
            ("name", None),
            ("/models/llama", None),
            ("../name", None),
            ("org/na me", None),
            ("a/b/c/d.gguf", None),
        ] {
            assert_eq!(HubName::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn paths_are_taken_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(model(&Hub::default(), path, None, &mut |_, _| ()).unwrap(), folder.path());
        assert!(model(&Hub::default(), path, Some("main"), &mut |_, _| ()).is_err());
        let missing = model(&Hub::default(), "/no/such/model", None, &mut |_, _| ()).unwrap_err();
        assert!(format!("{missing:#}").contains("no name on the Hub"), "{missing:#}");
    }

    #[test]
    fn an_index_names_files_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(INDEX);
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(r#"{"weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "x.safetensors"}}"#);
        assert_eq!(named_by_index(&path).unwrap().len(), 2);
        for wrong in [r#"{"weight_map": {"a": "../x"}}"#, r#"{"weight_map": {"a": 1}}"#, "{}", "["] {
            write(wrong);
            assert!(named_by_index(&path).is_err(), "{wrong}");
        }
    }
}
