//! Flux and Stable Diffusion 3: images agree with those of diffusers, and invalid files and requests are refused.
//!
//! `pictures.py` writes the tables of names and the images in `data`.
mod files;
mod fixture;
mod gguf;
mod loras;
mod memory;
mod original;
mod refused;
mod scaled;
#[path = "../tiny_model/mod.rs"]
mod tiny_model;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use candle_core::{Device, Tensor};
use fixture::{
    FILE_KINDS, KINDS, Outcome, SEED, SIZE, expected, generate, levels, mask, model, picture, request, write,
};
use sd_worker::Error;
use sd_worker::model::{BlockCache, Network, Version};
use sd_worker::picture::Picture;
use sd_worker::pipeline::{Hires, Pipeline, Request, Start, Upscaler};
use sd_worker::schedulers::{Purpose, normal};
use tiny_model::together::Together;

/// Writes what `pictures.py` needs to the folder in SD_FOLDER.
#[test]
#[ignore = "prepares the input of pictures.py"]
fn write_models() -> Outcome {
    let folder = PathBuf::from(std::env::var("SD_FOLDER")?);
    for (kind, _) in KINDS.into_iter().chain(FILE_KINDS) {
        write(&folder.join(kind), kind)?;
    }
    files::write_encoders(&folder, &folder.join("flux_files"))?;
    gguf::write_files(&folder)?;
    scaled::write_files(&folder)?;
    for name in ["given", "mask"] {
        fs::write(folder.join(name).with_extension("png"), picture(name)?.png()?)?;
    }
    let (columns, rows) = (SIZE.0 / 8, SIZE.1 / 8);
    let noise = |purpose: Purpose| {
        let noise = normal(SEED, purpose, 16 * rows * columns);
        Tensor::from_vec(noise, (1, 16, rows, columns), &Device::Cpu)
    };
    let noise = HashMap::from([
        ("start".to_owned(), noise(Purpose::Start)?),
        ("encode".to_owned(), noise(Purpose::Encode)?),
    ]);
    Ok(candle_core::safetensors::save(&noise, folder.join("noise.safetensors"))?)
}

/// Compares an image with that of diffusers, and checks that another prompt changes it.
fn compare(pipeline: &Pipeline, name: &str, request: &Request) -> Outcome {
    let expected = expected(name)?;
    let (most, mean) = levels(&generate(pipeline, request)?, &expected);
    println!("{name}: at most {most} levels, {mean:.4} on average");
    assert!(most <= 1, "{name}: {most} levels away");
    let other = Request { prompt: "blue".to_owned(), ..request.clone() };
    let (most, _) = levels(&generate(pipeline, &other)?, &expected);
    assert!(most > 5, "{name}: the prompt has an effect of {most} levels only");
    Ok(())
}

#[test]
fn images_of_flux_agree_with_diffusers() -> Outcome {
    let (_folder, dev) = model("flux_dev")?;
    assert_eq!((dev.model.version, dev.model.turbo, dev.model.multiple()), (Version::Flux, false, 16));
    let plain = Request { guidance: 3.5, ..request(&dev) };
    compare(&dev, "flux_dev", &plain)?;
    let start = Start { picture: picture("given")?, strength: 0.5, mask: None };
    compare(&dev, "flux_dev_edit", &Request { guidance: 2.0, start: Some(start), ..request(&dev) })?;
    let start = Start { picture: picture("given")?, strength: 0.75, mask: Some(mask()?) };
    compare(&dev, "flux_dev_mask", &Request { guidance: 2.0, start: Some(start), ..request(&dev) })?;
    // Guidance is an input of dev, and has no effect on schnell.
    let stronger = Request { guidance: 20.0, ..plain.clone() };
    assert!(levels(&generate(&dev, &stronger)?, &expected("flux_dev")?).0 > 1);
    let (_folder, schnell) = model("flux_schnell")?;
    assert!(schnell.model.turbo);
    compare(&schnell, "flux_schnell", &request(&schnell))?;
    compare(&schnell, "flux_schnell", &Request { guidance: 20.0, ..request(&schnell) })
}

#[test]
fn images_of_version_3_agree_with_diffusers() -> Outcome {
    for (kind, version) in [("sd3", Version::Sd3), ("sd35", Version::Sd35)] {
        let (_folder, pipeline) = model(kind)?;
        assert_eq!((pipeline.model.version, pipeline.model.turbo), (version, false));
        let request = Request { guidance: 5.0, negative: "blue".to_owned(), ..request(&pipeline) };
        compare(&pipeline, kind, &request)?;
    }
    let (_folder, pipeline) = model("sd3")?;
    let start = Start { picture: picture("given")?, strength: 0.5, mask: None };
    compare(&pipeline, "sd3_edit", &Request { guidance: 1.0, start: Some(start), ..request(&pipeline) })
}

/// With a threshold, steps whose first block changes its input as before reuse the changes of the other blocks.
#[test]
fn a_first_block_cache_agrees_with_diffusers() -> Outcome {
    let (_folder, pipeline) = model("flux_dev")?;
    // The change of the first block of random weights differs much from step to step.
    let plain = Request { steps: 12, guidance: 3.5, ..request(&pipeline) };
    compare(&pipeline, "flux_dev_cached", &Request { block_cache: 0.8, ..plain.clone() })?;
    let without = generate(&pipeline, &plain)?;
    for threshold in [0.6, 0.8, 1.0] {
        let cached = generate(&pipeline, &Request { block_cache: threshold, ..plain.clone() })?;
        let (most, mean) = levels(&without, &cached);
        println!(
            "threshold {threshold}: {most} levels, {mean:.2} on average, {:.1} dB",
            psnr(&without, &cached)
        );
    }
    // Each image of a request has its own cache.
    let cached = Request { block_cache: 0.8, ..plain.clone() };
    let mut go_on = |_: &sd_worker::pipeline::Progress| std::ops::ControlFlow::Continue(());
    let both = pipeline.run(&Request { seeds: vec![1, SEED], ..cached.clone() }, &mut go_on)?;
    assert!(both[1] == generate(&pipeline, &cached)?);
    assert!(both[0] == generate(&pipeline, &Request { seeds: vec![1], ..cached })?);
    for threshold in [-0.1, 1.1, f64::NAN] {
        let request = Request { block_cache: threshold, ..plain.clone() };
        let error = generate(&pipeline, &request).err().ok_or("no error")?.to_string();
        assert!(error.contains("block cache"), "{error}");
    }
    Ok(())
}

/// Requests that share steps get the images of diffusers, too, with a guidance scale for each that is an input of Flux.
#[test]
fn requests_share_steps() -> Outcome {
    for (kind, guidance) in [("flux_dev", [3.5, 20.0, 1.0]), ("sd3", [5.0, 3.0, 2.0])] {
        let (_folder, pipeline) = model(kind)?;
        let negative = if kind == "sd3" { "blue" } else { "" };
        let first = Request { guidance: guidance[0], negative: negative.to_owned(), ..request(&pipeline) };
        let second = Request { guidance: guidance[1], seeds: vec![1], ..request(&pipeline) };
        let third = Request { guidance: guidance[2], steps: 3, prompt: "red".into(), ..request(&pipeline) };
        let requests = [(0, first), (0, second), (1, third)];
        let together = Together::run(&pipeline, &requests, None)?;
        assert_eq!(together.most(), [3; 3], "{kind}");
        let (most, _) = levels(&together.pictures(0)?[0], &expected(kind)?);
        assert!(most <= 1, "{kind}: {most} levels away");
        for (i, (_, request)) in requests.iter().enumerate() {
            let most = together.levels(i, &[generate(&pipeline, request)?])?;
            assert!(most <= 1, "{kind}, request {i}: {most} levels away");
        }
    }
    Ok(())
}

/// A second pass whose schedule would fill the memory is refused.
#[test]
fn schedules_have_a_maximum_length() -> Outcome {
    let (_folder, pipeline) = model("flux_dev")?;
    for strength in [1e-3, 1e-9, 1e-300, f64::MIN_POSITIVE] {
        let hires =
            Hires { scaled: (128, 96), size: (128, 96), steps: 2, strength, upscaler: Upscaler::Lanczos };
        let error = generate(&pipeline, &Request { hires: Some(hires), ..request(&pipeline) }).err();
        let Some(Error::Request(message)) = error else {
            return Err(format!("{strength}: {error:?}").into());
        };
        for part in ["strength", "2 steps", "at most 1000", "at least 0.002"] {
            assert!(message.contains(part), "{strength}: {message}");
        }
    }
    Ok(())
}

/// Returns the peak signal-to-noise ratio of an image in decibels.
fn psnr(a: &Picture, b: &Picture) -> f64 {
    let squares = a.rgb().iter().zip(b.rgb()).map(|(a, b)| f64::from(a.abs_diff(*b)).powi(2));
    let peak: f64 = 255.0;
    10.0 * (peak * peak * a.rgb().len() as f64 / squares.sum::<f64>()).log10()
}

/// A step with the inputs of the last one skips all blocks after the first.
#[test]
fn blocks_are_counted() -> Outcome {
    let (_folder, pipeline) = model("sd35")?;
    let Network::Dit(dit) = &pipeline.model.network else { return Err("no transformer".into()) };
    let values = |dims: &[usize], seed| {
        Tensor::from_vec(normal(seed, Purpose::Start, dims.iter().product()), dims, &Device::Cpu)
    };
    let (latents, text, pooled) = (
        values(&[1, 16, 6, 8], 1)?,
        values(&[1, 9, dit.config().text_width], 2)?,
        values(&[1, dit.config().pooled_width], 3)?,
    );
    let step = |cache: &mut BlockCache, timestep: f64| {
        dit.forward_cached(&latents, &[timestep], &text, &pooled, &[1.0], Some(cache))
    };
    let mut cache = BlockCache::new(0.0);
    let first = step(&mut cache, 500.0)?;
    assert_eq!((cache.computed, cache.skipped), (3, 0));
    // If the inputs are the same, nothing changes, and all blocks after the first are skipped.
    let second = step(&mut cache, 500.0)?;
    assert_eq!((cache.computed, cache.skipped), (4, 2));
    let difference = (first - second)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 1e-5, "{difference}");
    step(&mut cache, 100.0)?;
    assert_eq!((cache.computed, cache.skipped), (7, 2));
    assert!((cache.skipped_share() - 2.0 / 9.0).abs() < 1e-12);
    assert_eq!(BlockCache::new(1.0).skipped_share(), 0.0);
    Ok(())
}

#[test]
fn batches_equal_single_images() -> Outcome {
    for (kind, _) in KINDS {
        let (_folder, pipeline) = model(kind)?;
        let request = Request { steps: 2, ..request(&pipeline) };
        let mut go_on = |_: &sd_worker::pipeline::Progress| std::ops::ControlFlow::Continue(());
        let both = pipeline.run(&Request { seeds: vec![1, SEED], ..request.clone() }, &mut go_on)?;
        let (most, _) = levels(&both[1], &generate(&pipeline, &request)?);
        assert!(most <= 1, "{kind}: {most} levels away in a batch");
        assert!(levels(&both[0], &both[1]).0 > 5, "{kind}: two seeds have the same image");
    }
    Ok(())
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_software_gpu_agrees() -> Outcome {
    use candle_core::DType;
    use sd_worker::model::LoadOptions;

    let device = tiny_model::software_gpu()?;
    for (kind, _) in KINDS {
        let name = if kind.starts_with("flux") { "" } else { "blue" };
        let expected = expected(kind)?;
        for (dtype, bound) in [(DType::F32, 0.01), (DType::F16, 0.6), (DType::BF16, 2.0)] {
            let options = LoadOptions { dtype: Some(dtype), ..LoadOptions::default() };
            let (_folder, pipeline) = fixture::model_on(kind, &device, options)?;
            let guidance = if kind == "flux_dev" { 3.5 } else { 5.0 };
            let request = Request { guidance, negative: name.to_owned(), ..request(&pipeline) };
            let (most, mean) = levels(&generate(&pipeline, &request)?, &expected);
            println!("{kind} in {dtype:?}: at most {most} levels, {mean:.4} on average");
            assert!(dtype != DType::F32 || most <= 1, "{kind}: {most} levels away from diffusers");
            assert!(mean <= bound, "{kind}: {mean} levels away in {dtype:?} on average");
        }
    }
    // Without a dtype, transformers compute in bf16.
    let (_folder, pipeline) = fixture::model_on("flux_schnell", &device, LoadOptions::default())?;
    assert_eq!((pipeline.model.dtype, pipeline.model.vae_dtype), (DType::BF16, DType::BF16));
    Ok(())
}
