//! Files of a language model on the Hugging Face Hub.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use llm_engine::model::files::GgufPart;
use serde_json::Value;
use worker_core::hub::{HubName, ModelFiles, Report, Snapshot, is_name};

const INDEX: &str = "model.safetensors.index.json";
/// Folder of additional chat templates.
const TEMPLATES: &str = "additional_chat_templates/";
/// Files of the modules of embedding models, in folders such as `1_Pooling`.
const MODULE_FILES: [&str; 2] = ["config.json", "model.safetensors"];

/// Files of a language model: a GGUF file with all its parts, or the configuration, tokenizer and weights of a folder.
#[derive(Clone, Copy, Debug)]
pub struct LanguageModel;

impl ModelFiles for LanguageModel {
    fn accepts(&self, name: &HubName) -> bool {
        name.file.as_ref().is_none_or(|file| file.ends_with(".gguf"))
    }

    fn fetch(&self, name: &HubName, snapshot: &Snapshot, report: Report) -> Result<PathBuf> {
        match &name.file {
            Some(file) => {
                if let Some(part) = GgufPart::parse(file) {
                    let names: Vec<_> = part.all().map(|part| part.to_string()).collect();
                    snapshot.get_all(&names, report)?;
                }
                snapshot.get(file, "", report)
            }
            None => fetch_folder(snapshot, &name.repository, report),
        }
    }

    fn find(&self, name: &HubName, kept: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        if let Some(file) = &name.file {
            let parts = GgufPart::parse(file);
            // All parts of a divided model must be there.
            parts
                .iter()
                .flat_map(|part| part.all())
                .try_for_each(|part| kept(&part.to_string()).map(drop))?;
            return kept(file);
        }
        kept(INDEX).or_else(|| kept("model.safetensors"))?;
        Some(kept("config.json")?.parent()?.to_owned())
    }
}

/// Fetches a model's folder with the weights listed in the index, or otherwise all safetensors files.
fn fetch_folder(snapshot: &Snapshot, repository: &str, report: Report) -> Result<PathBuf> {
    let files = snapshot.files();
    let root = || files.iter().filter(|file| !file.contains('/'));
    let template = |file: &&String| {
        file.strip_prefix(TEMPLATES).is_some_and(|name| name.ends_with(".jinja") && is_name(name))
    };
    let extra = files.iter().filter(template).chain(files.iter().filter(|file| is_module_file(file)));
    for file in root().filter(|file| file.ends_with(".json") || file.ends_with(".jinja")).chain(extra) {
        snapshot.get(file, "", report)?;
    }
    let config = snapshot.get("config.json", "", report).context("the model has no config.json")?;
    let weights: BTreeSet<String> = match files.contains(INDEX) {
        true => files_in_index(&snapshot.get(INDEX, "", report)?)?,
        false if files.contains("model.safetensors") => ["model.safetensors".to_owned()].into(),
        false => root().filter(|file| file.ends_with(".safetensors")).cloned().collect(),
    };
    ensure!(
        !weights.is_empty(),
        "{repository} has no safetensors; for a GGUF file, pass {repository}/FILE.gguf"
    );
    snapshot.get_all(&weights, report)?;
    Ok(config.parent().context("internal error: a cached file has no parent folder")?.to_owned())
}

/// Returns true for the files of a module, such as `1_Pooling/config.json`.
fn is_module_file(path: &str) -> bool {
    let Some((folder, file)) = path.split_once('/') else { return false };
    let number = folder.split_once('_').map_or("", |(number, _)| number);
    let is_numbered = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    is_numbered && is_name(folder) && MODULE_FILES.contains(&file)
}

fn files_in_index(path: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let index: Value = serde_json::from_str(&text).with_context(|| format!("{INDEX} is not valid JSON"))?;
    let map = index["weight_map"].as_object().with_context(|| format!("{INDEX} has no \"weight_map\""))?;
    map.values()
        .map(|file| {
            let file = file.as_str().filter(|file| !file.contains('/'));
            Ok(file.with_context(|| format!("{INDEX} lists files outside of its folder"))?.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_core::hub::Hub;

    #[test]
    fn local_paths_are_used_as_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let find =
            |name: &str, revision| Hub::default().model(name, revision, &LanguageModel, &mut |_, _| ());
        assert_eq!(find(path, None).unwrap(), folder.path());
        assert!(find(path, Some("main")).is_err());
        for wrong in ["/no/such/model", "org/name/model.bin"] {
            let missing = find(wrong, None).unwrap_err();
            assert!(format!("{missing:#}").contains("not a name on the Hub"), "{missing:#}");
        }
    }

    #[test]
    fn modules_have_numbered_folders() {
        for module in ["1_Pooling/config.json", "2_Dense/model.safetensors", "10_Dense/config.json"] {
            assert!(is_module_file(module), "{module}");
        }
        let others =
            ["config.json", "onnx/config.json", "1_Pooling/x.py", "_x/config.json", "1_a/b/config.json"];
        for other in others {
            assert!(!is_module_file(other), "{other}");
        }
    }

    #[test]
    fn an_index_lists_files_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(INDEX);
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(r#"{"weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "x.safetensors"}}"#);
        assert_eq!(files_in_index(&path).unwrap().len(), 2);
        for wrong in [r#"{"weight_map": {"a": "../x"}}"#, r#"{"weight_map": {"a": 1}}"#, "{}", "["] {
            write(wrong);
            assert!(files_in_index(&path).is_err(), "{wrong}");
        }
    }
}
