//! Second pass at a larger size: images agree with those of diffusers, which `hires.py` writes to `data`.
#[path = "../tiny_model/mod.rs"]
mod tiny_model;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use candle_core::{Device, Tensor};
use sd_worker::Error;
use sd_worker::model::LoadOptions;
use sd_worker::picture::{Limits, Picture};
use sd_worker::pipeline::{Hires, Pipeline, Request, Start, Upscaler};
use sd_worker::schedulers::{Method, Purpose, normal_batch};
use tempfile::TempDir;
use tiny_model::published::{self, SEED, V1, configs};
use tiny_model::{Outcome, write_configs};

/// Side of a cell of the latents in pixels.
const FACTOR: usize = 4;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hires/data").join(name).with_extension("png")
}

fn model() -> Outcome<(TempDir, Pipeline)> {
    let folder = tempfile::tempdir()?;
    write_configs(folder.path(), &configs(V1))?;
    let pipeline = tiny_model::load(folder.path(), LoadOptions::default())?;
    Ok((folder, pipeline))
}

fn hires(upscaler: &str, scaled: (usize, usize), size: (usize, usize)) -> Outcome<Hires> {
    let upscaler = Upscaler::of(upscaler).ok_or("unknown upscaler")?;
    Ok(Hires { scaled, size, steps: 3, strength: 0.7, upscaler })
}

/// Returns the request of `hires.py`.
fn request(pipeline: &Pipeline, hires: Option<Hires>) -> Request {
    Request { hires, ..published::request(pipeline) }
}

fn levels(picture: &Picture, expected: &Picture) -> Option<u8> {
    assert_eq!((picture.width(), picture.height()), (expected.width(), expected.height()));
    picture.rgb().iter().zip(expected.rgb()).map(|(a, b)| a.abs_diff(*b)).max()
}

/// Writes what `hires.py` needs to the folder in SD_FOLDER.
#[test]
#[ignore = "prepares the input of hires.py"]
fn write_models() -> Outcome {
    let folder = PathBuf::from(std::env::var("SD_FOLDER")?);
    write_configs(&folder.join("v1"), &configs(V1))?;
    let noise = |purpose, height, width| normal_batch(&[SEED], purpose, (4, height, width), &Device::Cpu);
    let mut all: HashMap<String, Tensor> =
        HashMap::from([("first".to_owned(), noise(Purpose::Start, 8, 8)?)]);
    for (height, width) in [(16, 16), (12, 12), (12, 16)] {
        all.insert(format!("start_{height}_{width}"), noise(Purpose::Start, height, width)?);
        all.insert(format!("encode_{height}_{width}"), noise(Purpose::Encode, height, width)?);
    }
    Ok(candle_core::safetensors::save(&all, folder.join("noise.safetensors"))?)
}

#[test]
fn images_agree_with_diffusers() -> Outcome {
    let (_folder, pipeline) = model()?;
    assert_eq!(pipeline.model.vae_config.factor(), FACTOR);
    for (file, upscaler, scaled, size) in [
        ("latent", "Latent", (64, 64), (64, 64)),
        ("bicubic_antialiased", "Latent (bicubic antialiased)", (64, 64), (64, 64)),
        ("nearest_exact", "Latent (nearest-exact)", (48, 48), (48, 48)),
        ("cut", "Latent (bicubic)", (64, 64), (64, 48)),
        ("lanczos", "Lanczos", (48, 48), (48, 48)),
        ("nearest", "Nearest", (64, 64), (64, 64)),
    ] {
        let request = request(&pipeline, Some(hires(upscaler, scaled, size)?));
        let mut steps = Vec::new();
        let mut on_step = |progress: &sd_worker::pipeline::Progress| {
            steps.push((progress.step, progress.total));
            ControlFlow::Continue(())
        };
        let picture = pipeline.run(&request, &mut on_step)?.remove(0);
        assert_eq!(steps, (1..=7).map(|step| (step, 7)).collect::<Vec<_>>());
        let expected = Picture::decode(&std::fs::read(data(file))?, Limits::default())?;
        let most = levels(&picture, &expected);
        println!("{file}: {most:?} levels");
        assert!(most <= Some(1), "{file}: {most:?} levels away");
    }
    Ok(())
}

#[test]
fn batches_equal_single_images() -> Outcome {
    let (_folder, mut pipeline) = model()?;
    let hires = Some(hires("Lanczos", (48, 48), (48, 48))?);
    let single = Request { method: Some(Method::EulerAncestral), steps: 2, ..request(&pipeline, hires) };
    let both = Request { seeds: vec![1, SEED], ..single.clone() };
    let mut go_on = |_: &sd_worker::pipeline::Progress| ControlFlow::Continue(());
    let expected = pipeline.run(&single, &mut go_on)?.remove(0);
    for cells in [1, 1 << 20] {
        pipeline.batch_cells = cells;
        let pictures = pipeline.run(&both, &mut go_on)?;
        assert!(levels(&pictures[1], &expected) <= Some(1));
        assert!(levels(&pictures[0], &expected) > Some(5), "two seeds have the same image");
    }
    Ok(())
}

#[test]
fn invalid_passes_are_refused() -> Outcome {
    let (_folder, pipeline) = model()?;
    let valid = hires("Latent", (64, 64), (64, 64))?;
    let run = |request: &Request| pipeline.run(request, &mut |_| ControlFlow::Continue(()));
    for (change, part) in [
        (Hires { strength: 0.0, ..valid.clone() }, "strength 0: must be above 0"),
        (Hires { strength: f64::NAN, ..valid.clone() }, "strength NaN"),
        (Hires { steps: 0, ..valid.clone() }, "0 steps: must be 1 to"),
        (Hires { steps: 1000, ..valid.clone() }, "1000 steps"),
        (Hires { size: (0, 64), ..valid.clone() }, "size 0 x 64"),
        (Hires { size: (64, 63), ..valid.clone() }, "multiples of"),
        (Hires { scaled: (4096, 64), ..valid.clone() }, "size 4096 x 64: at most"),
        (Hires { size: (128, 64), ..valid.clone() }, "at most 64 x 64, to which"),
        (Hires { strength: 0.001, ..valid.clone() }, "steps"),
    ] {
        let error = run(&request(&pipeline, Some(change))).err().ok_or("no error")?;
        assert!(matches!(&error, Error::Request(why) if why.contains(part)), "{part}: {error}");
    }
    let start = Start { picture: Picture::black(32, 32), strength: 0.5, mask: None };
    let with_input = Request { start: Some(start), ..request(&pipeline, Some(valid.clone())) };
    assert!(run(&with_input).is_err_and(|error| error.to_string().contains("input image")));
    // Cancelled in the second pass.
    let cancelled = Arc::new(AtomicBool::new(false));
    let request = Request { cancelled: Some(cancelled), ..request(&pipeline, Some(valid)) };
    let stopped = pipeline.run(&request, &mut |progress| match progress.step {
        6 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(Error::Cancelled { step: 6, total: 7 })));
    Ok(())
}
