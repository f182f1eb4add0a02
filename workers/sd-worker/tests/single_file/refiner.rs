//! XL's refiner: alone, and for the last steps of a base model.
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::Device;
use sd_worker::Error;
use sd_worker::model::{LoadOptions, Model, Version};
use sd_worker::picture::{Limits, Picture};
use sd_worker::pipeline::{Hires, Pipeline, Refiner, Request, Start, Upscaler};
use sd_worker::schedulers::Method;

use crate::Fixture;
use crate::tiny_model::published::{REFINER, SIDE, V1, XL, configs, request};
use crate::tiny_model::{Outcome, write_configs};

fn given() -> Outcome<Picture> {
    Ok(Picture::new(SIDE, SIDE, (0..SIDE * SIDE * 3).map(|i| (i * 7 % 251) as u8).collect())?)
}

/// Writes the files that `pictures.py` reads to a folder.
pub fn write_files(folder: &Path) -> Outcome {
    write_configs(&folder.join("refiner"), &configs(REFINER))?;
    Ok(fs::write(folder.join("given.png"), given()?.png()?)?)
}

fn run(pipeline: &Pipeline, request: &Request) -> sd_worker::Result<Picture> {
    Ok(pipeline.run(request, &mut |_| ControlFlow::Continue(()))?.remove(0))
}

fn levels(picture: &Picture, name: &str) -> Outcome<u8> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/single_file/data").join(name);
    let expected = Picture::decode(&fs::read(data)?, Limits::default())?;
    let most = picture.rgb().iter().zip(expected.rgb()).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
    println!("{name}: at most {most} levels");
    Ok(most)
}

fn folder(fixture: &Fixture) -> sd_worker::Result<Model> {
    Model::load(fixture.folder.path(), &Device::Cpu, LoadOptions::default(), |_| ())
}

#[test]
fn a_refiner_changes_images_as_diffusers_does() -> Outcome {
    let fixture = Fixture::of(REFINER)?;
    let mut pictures = Vec::new();
    for model in [fixture.load()?, folder(&fixture)?] {
        assert_eq!(
            (model.version, model.is_refiner(), model.zeros_for_empty),
            (Version::XlRefiner, true, false)
        );
        let pipeline = Pipeline::new(model);
        let start = Start { picture: given()?, strength: 0.5, mask: None };
        let request = Request { steps: 8, start: Some(start), ..request(&pipeline) };
        let picture = run(&pipeline, &request)?;
        assert!(levels(&picture, "refiner_edit.png")? <= 1);
        pictures.push(picture);
        let error = run(&pipeline, &Request { start: None, ..request });
        assert!(matches!(error, Err(Error::Request(message)) if message.contains("an image is required")));
    }
    assert!(pictures[0] == pictures[1]);
    Ok(())
}

#[test]
fn a_refiner_computes_the_last_steps_as_in_diffusers() -> Outcome {
    let (base, refiner) = (Fixture::of(XL)?, Fixture::of(REFINER)?);
    let refiner =
        || -> Outcome<Refiner> { Ok(Refiner { name: "refiner".to_owned(), model: refiner.load()? }) };
    let plain = Pipeline::new(base.load()?);
    let asked =
        Request { steps: 6, method: Some(Method::Euler), refiner_switch_at: Some(0.4), ..request(&plain) };
    let error = run(&plain, &asked);
    assert!(matches!(error, Err(Error::Request(message)) if message.contains("--refiner")));
    let alone = run(&plain, &Request { refiner_switch_at: None, ..asked.clone() })?;
    let pipeline = plain.with_refiner(refiner()?)?;
    let mut steps = Vec::new();
    let mut report = |progress: &sd_worker::pipeline::Progress| {
        steps.push((progress.step, progress.total));
        ControlFlow::Continue(())
    };
    let picture = pipeline.run(&asked, &mut report)?.remove(0);
    assert_eq!(steps, (1..=6).map(|step| (step, 6)).collect::<Vec<_>>());
    assert!(levels(&picture, "refiner_stage.png")? <= 1);
    // The base model computes all steps without a refiner, or if it takes over after the last one.
    for switch_at in [None, Some(1.0)] {
        assert!(run(&pipeline, &Request { refiner_switch_at: switch_at, ..asked.clone() })? == alone);
    }
    assert!(picture != alone);
    // With a mask, both restore the rest of the image.
    let half = (0..SIDE * SIDE).map(|i| i % SIDE < SIDE / 2).collect();
    let mask = Some(sd_worker::picture::Mask::new(SIDE, SIDE, half)?);
    let start = Some(Start { picture: given()?, strength: 0.75, mask });
    let masked = run(&pipeline, &Request { start, ..asked.clone() })?;
    assert!(masked.rgb()[SIDE / 2 * 3..SIDE * 3] == given()?.rgb()[SIDE / 2 * 3..SIDE * 3]);
    let hires =
        Hires { scaled: (64, 64), size: (64, 64), steps: 2, strength: 0.5, upscaler: Upscaler::Lanczos };
    for (request, part) in [
        (Request { refiner_switch_at: Some(0.0), ..asked.clone() }, "switch at 0"),
        (Request { refiner_switch_at: Some(1.5), ..asked.clone() }, "switch at 1.5"),
        (Request { refiner_switch_at: Some(f64::NAN), ..asked.clone() }, "switch at NaN"),
        (Request { hires: Some(hires), ..asked.clone() }, "second pass"),
        (Request { method: Some(Method::Heun), ..asked.clone() }, "scheduler heun"),
    ] {
        let error = run(&pipeline, &request);
        assert!(
            matches!(&error, Err(Error::Request(message)) if message.contains(part)),
            "{part}: {error:?}"
        );
    }
    // Other models are no refiners, and other base models have none.
    let other = Refiner { name: "other".to_owned(), model: base.load()? };
    let error = pipeline.with_refiner(other).err().ok_or("no error")?.to_string();
    assert!(error.contains("other is not XL's refiner, which --refiner requires"), "{error}");
    let error = Pipeline::new(Fixture::of(V1)?.load()?).with_refiner(refiner()?).err().ok_or("no error")?;
    assert!(error.to_string().contains("requires a base model of Stable Diffusion XL"), "{error}");
    Ok(())
}
