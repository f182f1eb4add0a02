//! LoRA files of a folder, by name, and their tags in prompts.
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::model::LoraChoice;
use crate::safetensors_folder;

/// Maximum number of LoRA files of a request.
const MAX_LORAS: usize = 16;
/// Maximum absolute weight of a LoRA.
const MAX_WEIGHT: f64 = 10.0;
const TAG: &str = "<lora:";

/// A LoRA in a request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraRequest {
    /// Name of the file without its ending.
    pub name: String,
    /// Factor of the changes.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

/// Folder of LoRA files; `None` if the worker has none.
#[derive(Clone, Debug, Default)]
pub struct LoraFolder(pub Option<PathBuf>);

impl LoraFolder {
    /// Returns the path of each `.safetensors` file in the folder and its subfolders, by its name without ending.
    pub fn files(&self) -> BTreeMap<String, PathBuf> {
        self.0.as_deref().map(safetensors_folder::files).unwrap_or_default()
    }

    /// Finds the files of a request.
    ///
    /// # Errors
    /// Returns a message about a name that does not exist, a weight out of range, or too many files.
    pub fn choose(&self, requests: Vec<LoraRequest>) -> Result<Vec<LoraChoice>, String> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        if self.0.is_none() {
            return Err("LoRA files require --lora-dir, which this worker was started without".to_owned());
        }
        if requests.len() > MAX_LORAS {
            return Err(format!("{} LoRA files: at most {MAX_LORAS} are supported", requests.len()));
        }
        let files = self.files();
        let choose = |LoraRequest { name, weight }| {
            if !(-MAX_WEIGHT..=MAX_WEIGHT).contains(&weight) {
                return Err(format!(
                    "LoRA {name:?} has weight {weight}, but must have -{MAX_WEIGHT} to {MAX_WEIGHT}"
                ));
            }
            match files.get(&name) {
                Some(path) => Ok(LoraChoice { path: path.clone(), weight }),
                None => {
                    let known: Vec<&str> = files.keys().take(20).map(String::as_str).collect();
                    Err(format!("there is no LoRA named {name:?}; the folder has: {}", known.join(", ")))
                }
            }
        };
        requests.into_iter().map(choose).collect()
    }
}

/// Removes tags of the form `<lora:name:weight>` from a prompt and returns them.
///
/// # Errors
/// Returns a message about a malformed tag.
pub fn take_tags(prompt: &str) -> Result<(String, Vec<LoraRequest>), String> {
    let (mut text, mut tags) = (String::new(), Vec::new());
    let mut rest = prompt;
    while let Some((before, tag)) = rest.split_once(TAG) {
        let bad = || {
            format!("{TAG}{} is not of the form <lora:name:weight>", tag.chars().take(40).collect::<String>())
        };
        let (inner, after) = tag.split_once('>').ok_or_else(bad)?;
        let (name, weight) = match inner.split_once(':') {
            None => (inner, 1.0),
            Some((name, weight)) => (name, weight.trim().parse().map_err(|_| bad())?),
        };
        tags.push(LoraRequest { name: name.trim().to_owned(), weight });
        text.push_str(before);
        rest = after;
    }
    text.push_str(rest);
    Ok((text, tags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lora(name: &str, weight: f64) -> LoraRequest {
        LoraRequest { name: name.to_owned(), weight }
    }

    #[test]
    fn tags_are_removed() {
        for (prompt, text, tags) in [
            ("a cat", "a cat", vec![]),
            ("a <lora:ink:0.8>cat", "a cat", vec![lora("ink", 0.8)]),
            ("<lora:a>x<lora: b c :-1>", "x", vec![lora("a", 1.0), lora("b c", -1.0)]),
            ("<b> & <lora", "<b> & <lora", vec![]),
        ] {
            assert_eq!(take_tags(prompt), Ok((text.to_owned(), tags)), "{prompt}");
        }
        for bad in ["<lora:a:x>", "<lora:a:1:2>", "<lora:a", "<lora:a:>", "é<lora:é:ü"] {
            assert!(take_tags(bad).unwrap_err().contains("<lora:name:weight>"), "{bad}");
        }
    }

    #[test]
    fn files_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        for name in ["a.safetensors", "inner/b c.safetensors", "d.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let loras = LoraFolder(Some(folder.path().to_owned()));
        assert_eq!(loras.files().into_keys().collect::<Vec<_>>(), ["a", "b c"]);
        let chosen = loras.choose(vec![lora("b c", 0.5)]).unwrap();
        assert_eq!(chosen, [LoraChoice { path: folder.path().join("inner/b c.safetensors"), weight: 0.5 }]);
        for (requests, message) in [
            (vec![lora("d", 1.0)], "no LoRA named \"d\"; the folder has: a, b c"),
            (vec![lora("../a", 1.0)], "no LoRA named"),
            (vec![lora("a", f64::NAN)], "weight NaN"),
            (vec![lora("a", 11.0)], "weight 11"),
            (vec![lora("a", 1.0); 17], "17 LoRA files"),
        ] {
            let error = loras.choose(requests).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        let error = LoraFolder::default().choose(vec![lora("a", 1.0)]).unwrap_err();
        assert!(error.contains("--lora-dir"), "{error}");
        assert_eq!(LoraFolder::default().choose(Vec::new()), Ok(Vec::new()));
    }
}
