//! The safety checker, compared with diffusers' scores for a tiny one with random weights. `checker.py` wrote the data.
#[path = "../tiny_model/mod.rs"]
mod tiny_model;

use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor, safetensors};
use sd_worker::model::{FileOptions, LoadOptions, Model};
use sd_worker::picture::Picture;
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::queue::{Event, Images, Options, Queue};
use serde_json::Value;
use tiny_model::{Kind, Outcome};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/safety_checker/data");

/// Writes a model with the safety checker to `folder`, and a changed value of its thresholds.
fn write(folder: &Path, threshold: Option<f32>) -> Outcome {
    tiny_model::write(folder, Kind::Plain)?;
    let checker = folder.join("safety_checker");
    fs::create_dir_all(&checker)?;
    fs::copy(Path::new(DATA).join("config.json"), checker.join("config.json"))?;
    let mut weights = safetensors::load(Path::new(DATA).join("model.safetensors"), &Device::Cpu)?;
    if let Some(threshold) = threshold {
        let thresholds = Tensor::full(threshold, 17, &Device::Cpu)?.to_dtype(DType::F16)?;
        weights.insert("concept_embeds_weights".to_owned(), thresholds);
    }
    safetensors::save(&weights, checker.join("model.safetensors"))?;
    let index = folder.join("model_index.json");
    let mut parts: Value = serde_json::from_str(&fs::read_to_string(&index)?)?;
    parts["safety_checker"] = serde_json::json!(["stable_diffusion", "StableDiffusionSafetyChecker"]);
    Ok(fs::write(index, parts.to_string())?)
}

fn load(folder: &Path, options: LoadOptions) -> sd_worker::Result<Model> {
    Model::load(folder, &Device::Cpu, options, |_| ())
}

fn disabled() -> LoadOptions {
    let files = FileOptions { without_safety_checker: true, ..FileOptions::default() };
    LoadOptions { files, ..LoadOptions::default() }
}

/// Returns the image of checker.py.
fn image(width: usize, height: usize) -> sd_worker::Result<Picture> {
    let places = (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..3).map(move |c| (x, y, c))));
    let value = |(x, y, c): (usize, usize, usize)| ((7 * x + 13 * y + 50 * c + 3 * x * y / 16) % 256) as u8;
    Picture::new(width, height, places.map(value).collect())
}

#[test]
fn scores_equal_those_of_diffusers() -> Outcome {
    let folder = tempfile::tempdir()?;
    write(folder.path(), None)?;
    let checker = load(folder.path(), LoadOptions::default())?.safety_checker.ok_or("no checker")?;
    let cases: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(Path::new(DATA).join("expected.json"))?)?;
    for case in &cases {
        let side = |name: &str| case[name].as_u64().unwrap() as usize;
        let scores = checker.scores(&image(side("width"), side("height"))?)?;
        for (name, found) in
            [("special_care_embeds", &scores.special_care), ("concept_embeds", &scores.concepts)]
        {
            let expected: Vec<f32> = serde_json::from_value(case[name].clone())?;
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                // Scaled images may differ by a level of 255 in a pixel.
                assert!((found - expected).abs() < 0.01, "{name}: {found} {expected}");
            }
        }
        assert_eq!(scores.is_flagged(), case["flagged"].as_bool().unwrap(), "{scores:?}");
    }
    let flagged = cases.iter().filter(|case| case["flagged"] == true).count();
    assert!((1..cases.len()).contains(&flagged), "{flagged} of {} images are flagged", cases.len());
    Ok(())
}

/// Generates two images, and returns them.
fn generate(pipeline: Pipeline) -> Outcome<Images> {
    let request = Request { steps: 1, seeds: vec![1, 2], ..Request::of(&pipeline.model, "red") };
    let queue = Queue::start(Box::new(pipeline), Options::default(), |reason| panic!("{reason}"))?;
    let mut job = queue.submit(request).map_err(|_| "the queue is full")?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    while let Some(event) = runtime.block_on(job.next()) {
        match event {
            Event::Done { images, .. } => return Ok(images),
            Event::Failed(failure) => return Err(failure.message.into()),
            _ => {}
        }
    }
    Err("no images".into())
}

#[test]
fn flagged_images_are_black() -> Outcome {
    let folder = tempfile::tempdir()?;
    write(folder.path(), Some(-2.0))?;
    let plain = generate(Pipeline::new(load(folder.path(), disabled())?))?;
    assert!(
        plain.flagged.is_empty() && plain.pictures.iter().all(|picture| picture.rgb().iter().any(|x| *x > 0))
    );
    let images = generate(Pipeline::new(load(folder.path(), LoadOptions::default())?))?;
    assert_eq!(images.flagged, [true, true]);
    for (picture, plain) in images.pictures.iter().zip(&plain.pictures) {
        assert_eq!((picture.width(), picture.height()), (plain.width(), plain.height()));
        assert!(picture.rgb().iter().all(|x| *x == 0));
    }
    write(folder.path(), Some(2.0))?;
    let images = generate(Pipeline::new(load(folder.path(), LoadOptions::default())?))?;
    assert_eq!(images, Images { flagged: vec![false, false], ..plain });
    Ok(())
}

#[test]
fn damaged_checkers_are_refused_by_name() -> Outcome {
    let folder = tempfile::tempdir()?;
    let error = |change: &dyn Fn(&Path) -> Outcome| -> Outcome<String> {
        write(folder.path(), None)?;
        change(&folder.path().join("safety_checker"))?;
        assert!(load(folder.path(), disabled()).is_ok());
        Ok(load(folder.path(), LoadOptions::default()).expect_err("a damaged checker").to_string())
    };
    for name in ["config.json", "model.safetensors"] {
        let missing = error(&|folder| Ok(fs::remove_file(folder.join(name))?))?;
        assert!(missing.contains("safety_checker") && missing.contains("--no-safety-checker"), "{missing}");
    }
    let config = fs::read_to_string(Path::new(DATA).join("config.json"))?;
    for (from, to, named) in [
        ("\"num_attention_heads\": 2", "\"num_attention_heads\": 3", "3 heads"),
        ("\"patch_size\": 8", "\"patch_size\": 0", "patches of 0"),
        ("\"patch_size\": 8", "\"hidden_act\": \"gelu\"", "gelu"),
        ("\"projection_dim\": 16", "\"projection_dim\": 17", "visual_projection"),
    ] {
        assert!(config.contains(from), "{from}");
        let found =
            error(&|folder| Ok(fs::write(folder.join("config.json"), config.replacen(from, to, 1))?))?;
        assert!(found.contains(named), "{named}: {found}");
    }
    let cut = |folder: &Path| -> Outcome {
        let bytes = fs::read(folder.join("model.safetensors"))?;
        Ok(fs::write(folder.join("model.safetensors"), &bytes[..bytes.len() / 2])?)
    };
    assert!(error(&cut)?.contains("cut"));
    Ok(())
}
