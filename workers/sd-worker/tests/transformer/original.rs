//! Files of a transformer alone.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use sd_worker::Error;
use sd_worker::model::{FileOptions, LoadOptions, Model};
use sd_worker::pipeline::Pipeline;

use crate::fixture::{Outcome, generate, request, table, weights, write};
use crate::tiny_model::{self, Kind};

/// Original names of models; see `pictures.py`.
pub const NAMES: [(&str, &str); 2] =
    [("flux_dev", include_str!("data/flux_dev.txt")), ("sd35", include_str!("data/sd35.txt"))];
/// Like [`NAMES`], for the models from which single files are made.
pub const FILE_NAMES: [(&str, &str); 2] = [
    ("flux_files", include_str!("data/flux_files.txt")),
    ("sd35_files", include_str!("data/sd35_files.txt")),
];
pub type Weights = HashMap<String, Tensor>;

/// Returns weights with original names.
pub fn original(own: &Weights, names: &str) -> Outcome<Weights> {
    let mut parts: BTreeMap<&str, BTreeMap<usize, Tensor>> = BTreeMap::new();
    for line in names.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let weight = &own[words[1]];
        let (first, part) = match words[2] {
            "swapped" => {
                let half = weight.dim(0)? / 2;
                let halves = [weight.narrow(0, half, half)?, weight.narrow(0, 0, half)?];
                (0, Tensor::cat(&halves, 0)?)
            }
            first => (first.parse()?, weight.clone()),
        };
        parts.entry(words[0]).or_default().insert(first, part);
    }
    let whole = parts.into_iter().map(|(name, parts)| {
        let parts: Vec<Tensor> = parts.into_values().collect();
        Ok((name.to_owned(), Tensor::cat(&parts, 0)?))
    });
    whole.collect()
}

fn load(folder: &Path, transformer: &Path) -> sd_worker::Result<Pipeline> {
    let files = FileOptions { transformer: Some(transformer.to_owned()), ..FileOptions::default() };
    let options = LoadOptions { files, ..LoadOptions::default() };
    Ok(Pipeline::new(Model::load(folder, &Device::Cpu, options, |_| ())?))
}

#[test]
fn files_with_original_names_equal_folders() -> Outcome {
    for (kind, names) in NAMES {
        let folder = tempfile::tempdir()?;
        write(folder.path(), kind)?;
        let path = folder.path().join("transformer/diffusion_pytorch_model.safetensors");
        let own = candle_core::safetensors::load(&path, &Device::Cpu)?;
        let pipeline =
            Pipeline::new(Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ())?);
        let expected = generate(&pipeline, &request(&pipeline))?;
        // The folder does not need its transformer.
        let moved = folder.path().join("own.safetensors");
        std::fs::rename(&path, &moved)?;
        let bare = original(&own, names)?;
        // Files with a whole model have a prefix, and other networks.
        let mut whole: Weights = bare
            .iter()
            .map(|(name, weight)| (format!("model.diffusion_model.{name}"), weight.clone()))
            .collect();
        whole.insert("text_encoders.a".to_owned(), Tensor::zeros(3, DType::F32, &Device::Cpu)?);
        for (i, file) in [bare, whole].iter().enumerate() {
            let path = folder.path().join(format!("{i}.safetensors"));
            candle_core::safetensors::save(file, &path)?;
            let pipeline = load(folder.path(), &path)?;
            assert!(generate(&pipeline, &request(&pipeline))? == expected, "{kind}, file {i}");
        }
        let pipeline = load(folder.path(), &moved)?;
        assert!(generate(&pipeline, &request(&pipeline))? == expected, "{kind}, names of diffusers");
    }
    Ok(())
}

#[test]
fn other_files_are_refused() -> Outcome {
    let folder = tempfile::tempdir()?;
    write(folder.path(), "flux_dev")?;
    let file = folder.path().join("file.safetensors");
    let [flux, sd3] = NAMES.map(|(kind, names)| -> Outcome<Weights> {
        original(&weights(&table(kind)?["shapes"]["transformer"], 0)?, names)
    });
    let (flux, sd3) = (flux?, sd3?);
    let zeros = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    let last = "single_blocks.1.linear1.weight";
    let mut changed = Vec::new();
    for (change, part) in [
        ("missing", format!("no tensor {last}")),
        ("misshapen", format!("{last} has shape [3]")),
        ("extra", format!("{last}.more")),
    ] {
        let mut weights = flux.clone();
        match change {
            "missing" => drop(weights.remove(last)),
            "misshapen" => drop(weights.insert(last.to_owned(), zeros.clone())),
            _ => drop(weights.insert(format!("{last}.more"), zeros.clone())),
        }
        changed.push((weights, part));
    }
    changed.push((sd3.clone(), "holds Stable Diffusion 3; the transformer of Flux is required".to_owned()));
    changed.push((HashMap::from([("a".to_owned(), zeros)]), "no known network".to_owned()));
    for (weights, part) in changed {
        candle_core::safetensors::save(&weights, &file)?;
        let error = load(folder.path(), &file).err().ok_or("the model was loaded")?.to_string();
        assert!(error.contains(&part) && error.contains("file.safetensors"), "{part}: {error}");
    }
    // A file of a transformer is no whole model, and other models have none.
    candle_core::safetensors::save(&sd3, &file)?;
    let alone = Model::load(&file, &Device::Cpu, LoadOptions::default(), |_| ());
    assert!(matches!(alone, Err(Error::Model(message)) if message.contains("without a text encoder; set")));
    let unet = tempfile::tempdir()?;
    tiny_model::write(unet.path(), Kind::Plain)?;
    for path in [unet.path(), &file] {
        let error = load(path, &file).err().ok_or("the model was loaded")?.to_string();
        assert!(error.contains("--transformer requires"), "{error}");
    }
    std::fs::write(&file, b"GGUF\x03\0\0\0")?;
    let alone = Model::load(&file, &Device::Cpu, LoadOptions::default(), |_| ());
    assert!(matches!(alone, Err(Error::Model(message)) if message.contains("damaged or cut")));
    Ok(())
}
