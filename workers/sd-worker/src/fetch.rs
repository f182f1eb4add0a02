//! Download of image models from the Hub.
use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use worker_core::hub::{HubName, ModelFiles, Report, Snapshot};

const INDEX: &str = "model_index.json";

/// Selection of the files of an image model.
#[derive(Clone, Copy, Debug)]
pub struct ImageModel {
    /// If true, weights in half precision are preferred if both are available.
    pub half: bool,
    /// If true, the safety checker is not downloaded.
    pub without_safety_checker: bool,
}

impl ModelFiles for ImageModel {
    fn accepts(&self, name: &HubName) -> bool {
        name.file.is_none()
    }

    fn fetch(&self, _: &HubName, snapshot: &Snapshot, report: Report) -> Result<PathBuf> {
        let index = snapshot.get(INDEX, "", report)?;
        let text =
            std::fs::read_to_string(&index).with_context(|| format!("cannot read {}", index.display()))?;
        let parts: Value = serde_json::from_str(&text).with_context(|| format!("{INDEX} is not JSON"))?;
        snapshot.get_all(&self.files(snapshot.files(), &parts), report)?;
        Ok(index.parent().context("the path of a cached file has no parent folder")?.to_owned())
    }

    fn find(&self, _: &HubName, cached: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        Some(cached(INDEX)?.parent()?.to_owned())
    }
}

impl ImageModel {
    /// Returns the required files: for each component of the index its small files and one set of weights.
    fn files(&self, all: &BTreeSet<String>, index: &Value) -> Vec<String> {
        const COMPONENTS: [&str; 11] = [
            "scheduler",
            "tokenizer",
            "tokenizer_2",
            "tokenizer_3",
            "text_encoder",
            "text_encoder_2",
            "text_encoder_3",
            "transformer",
            "unet",
            "vae",
            "safety_checker",
        ];
        let is_wanted = |component: &&str| {
            index[component][1].is_string()
                && !(self.without_safety_checker && *component == "safety_checker")
        };
        let mut wanted: Vec<String> = all.get("preview.json").cloned().into_iter().collect();
        for component in COMPONENTS.into_iter().filter(is_wanted) {
            let is_own =
                |file: &&String| file.strip_prefix(component).is_some_and(|rest| rest.starts_with('/'));
            let own = || all.iter().filter(is_own);
            wanted.extend(own().filter(|file| file.ends_with(".json") || file.ends_with(".txt")).cloned());
            let weights =
                || own().filter(|file| file.ends_with(".safetensors") && !file.contains(".non_ema"));
            let of = |half: bool| weights().filter(move |file| file.contains(".fp16") == half);
            let half = if of(self.half).next().is_some() { self.half } else { !self.half };
            wanted.extend(of(half).cloned());
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use worker_core::hub::Hub;

    #[test]
    fn one_set_of_weights_is_selected() {
        let all: BTreeSet<String> = [
            "README.md",
            "model_index.json",
            "sd_xl_base.safetensors",
            "scheduler/scheduler_config.json",
            "safety_checker/config.json",
            "safety_checker/model.safetensors",
            "tokenizer/vocab.json",
            "tokenizer/merges.txt",
            "tokenizer_2/vocab.json",
            "text_encoder/config.json",
            "text_encoder/model.safetensors",
            "text_encoder/model.fp16.safetensors",
            "text_encoder/pytorch_model.bin",
            "unet/config.json",
            "unet/diffusion_pytorch_model.safetensors",
            "unet/diffusion_pytorch_model.non_ema.safetensors",
            "vae/config.json",
            "vae/diffusion_pytorch_model-00001-of-00002.fp16.safetensors",
            "vae/diffusion_pytorch_model-00002-of-00002.fp16.safetensors",
        ]
        .map(String::from)
        .into();
        let part = json!(["diffusers", "Class"]);
        let index = json!({"scheduler": part, "tokenizer": part, "text_encoder": part, "unet": part, "vae": part,
            "safety_checker": part, "tokenizer_2": [null, null]});
        let text = |half: bool| {
            if half { "text_encoder/model.fp16.safetensors" } else { "text_encoder/model.safetensors" }
        };
        for (half, without_safety_checker) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut expected = vec![
                "scheduler/scheduler_config.json",
                "tokenizer/merges.txt",
                "tokenizer/vocab.json",
                "text_encoder/config.json",
                text(half),
                "unet/config.json",
                "unet/diffusion_pytorch_model.safetensors",
                "vae/config.json",
                "vae/diffusion_pytorch_model-00001-of-00002.fp16.safetensors",
                "vae/diffusion_pytorch_model-00002-of-00002.fp16.safetensors",
            ];
            if !without_safety_checker {
                expected.extend(["safety_checker/config.json", "safety_checker/model.safetensors"]);
            }
            let model = ImageModel { half, without_safety_checker };
            assert_eq!(model.files(&all, &index), expected, "{model:?}");
        }
    }

    #[test]
    fn local_paths_are_not_resolved_on_the_hub() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let files = ImageModel { half: false, without_safety_checker: false };
        let find = |name: &str, revision| Hub::default().model(name, revision, &files, &mut |_, _| ());
        assert_eq!(find(path, None).unwrap(), folder.path());
        for wrong in ["/no/such/model", "name", "a/b/c", "../name", "org/na me"] {
            let error = find(wrong, None).unwrap_err();
            assert!(error.to_string().contains("not a name on the Hub"), "{wrong}: {error:#}");
        }
    }
}
