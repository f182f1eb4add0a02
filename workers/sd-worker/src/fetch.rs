//! Models by path or by their name on the Hub.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use worker_core::hub::{self, Hub, Report, Snapshot};

const INDEX: &str = "model_index.json";

/// The folder of a model: itself if it is a path, else fetched from the Hub (org/name) into the cache that other programs
/// share. `half` prefers weights in half precision where there are two.
///
/// # Errors
/// Says whether the path or the name is wrong, a token is missing (HF_TOKEN), or the Hub cannot be reached.
pub fn model(hub: &Hub, model: &str, revision: Option<&str>, half: bool, report: Report) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        ensure!(revision.is_none(), "--model-ref is for models on the Hub; {model} is a path");
        return Ok(path.to_owned());
    }
    if model.split('/').count() != 2 || !model.split('/').all(hub::is_name) {
        bail!("there is no {model}, and it is no name on the Hub (org/name)");
    }
    let revision = revision.unwrap_or("main");
    let folder =
        |index: PathBuf| Ok(index.parent().context("a file of the Hub's cache lies nowhere")?.to_owned());
    match hub.snapshot(model, revision) {
        Ok(snapshot) => folder(fetch(&snapshot, half, report)?),
        Err(error) => match hub.kept(model, revision, INDEX) {
            Some(index) => {
                tracing::warn!(error = format!("{error:#}"), "what was fetched before is used");
                folder(index)
            }
            None => Err(error),
        },
    }
}

fn fetch(snapshot: &Snapshot, half: bool, report: Report) -> Result<PathBuf> {
    let index = snapshot.get(INDEX, "", report)?;
    let text = std::fs::read_to_string(&index).with_context(|| format!("cannot read {}", index.display()))?;
    let parts: Value = serde_json::from_str(&text).with_context(|| format!("{INDEX} is no JSON"))?;
    let wanted = files(snapshot.files(), &parts, half);
    for (i, file) in wanted.iter().enumerate() {
        snapshot.get(file, &format!(" ({} of {})", i + 1, wanted.len()), report)?;
    }
    Ok(index)
}

/// What is needed of a repository: of each component of the index what is small, and one set of its weights.
fn files(all: &BTreeSet<String>, index: &Value, half: bool) -> Vec<String> {
    const COMPONENTS: [&str; 7] =
        ["scheduler", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2", "unet", "vae"];
    let mut wanted: Vec<String> = all.get("preview.json").cloned().into_iter().collect();
    for component in COMPONENTS.into_iter().filter(|component| index[component][1].is_string()) {
        let own = || {
            all.iter().filter(|file| file.strip_prefix(component).is_some_and(|rest| rest.starts_with('/')))
        };
        wanted.extend(own().filter(|file| file.ends_with(".json") || file.ends_with(".txt")).cloned());
        let weights = || own().filter(|file| file.ends_with(".safetensors") && !file.contains(".non_ema"));
        let of = |half: bool| weights().filter(move |file| file.contains(".fp16") == half);
        let half = if of(half).next().is_some() { half } else { !half };
        wanted.extend(of(half).cloned());
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_set_of_weights_is_fetched_and_nothing_else() {
        let all: BTreeSet<String> = [
            "README.md",
            "model_index.json",
            "sd_xl_base.safetensors",
            "scheduler/scheduler_config.json",
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
        for half in [true, false] {
            let expected = [
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
            assert_eq!(files(&all, &index, half), expected, "{half}");
        }
    }

    #[test]
    fn paths_are_taken_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let find = |name: &str, revision| model(&Hub::default(), name, revision, false, &mut |_, _| ());
        assert_eq!(find(path, None).unwrap(), folder.path());
        assert!(find(path, Some("main")).is_err());
        for wrong in ["/no/such/model", "name", "a/b/c", "../name", "org/na me"] {
            let error = find(wrong, None).unwrap_err();
            assert!(error.to_string().contains("no name on the Hub"), "{wrong}: {error:#}");
        }
    }
}
