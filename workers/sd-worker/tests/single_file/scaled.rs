//! Whole checkpoints whose UNet is in scaled f8.
use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::{DType, Tensor};
use sd_worker::picture::{Limits, Picture};
use sd_worker::pipeline::Pipeline;

use crate::Fixture;
use crate::tiny_model::Outcome;
use crate::tiny_model::published::{V1, XL, request};
use crate::tiny_model::scaled::scaled;

const UNET: &str = "model.diffusion_model.";

fn file(fixture: &Fixture) -> Outcome<HashMap<String, Tensor>> {
    let mut file = scaled(&fixture.weights, UNET)?;
    // Convolutions in f8 have no factors.
    let name = format!("{UNET}input_blocks.0.0.weight");
    let weight = file.get(&name).ok_or("no convolution")?.to_dtype(DType::F8E4M3)?;
    file.insert(name, weight);
    Ok(file)
}

/// Writes the files that `pictures.py` reads to a folder.
pub fn write_files(folder: &Path) -> Outcome {
    for kind in [V1, XL] {
        let path = folder.join(format!("{}_scaled.safetensors", kind.version));
        candle_core::safetensors::save(&file(&Fixture::of(kind)?)?, path)?;
    }
    Ok(())
}

#[test]
fn images_of_scaled_checkpoints_agree_with_diffusers() -> Outcome {
    for kind in [V1, XL] {
        let fixture = Fixture::of(kind)?;
        let mut weights = file(&fixture)?;
        candle_core::safetensors::save(&weights, &fixture.file)?;
        let pipeline = Pipeline::new(fixture.load()?);
        let picture = pipeline.run(&request(&pipeline), &mut |_| ControlFlow::Continue(()))?.remove(0);
        let name = format!("{}_scaled.png", kind.version);
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/single_file/data").join(&name);
        let expected = Picture::decode(&fs::read(data)?, Limits::default())?;
        let most = picture.rgb().iter().zip(expected.rgb()).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
        println!("{name}: at most {most} levels");
        assert!(most <= 1, "{name}: {most} levels away");
        let layer = format!("{UNET}middle_block.1.transformer_blocks.0.attn1.to_q");
        weights.remove(&format!("{layer}.scale_weight")).ok_or("no factor")?;
        candle_core::safetensors::save(&weights, &fixture.file)?;
        let error = fixture.load().err().ok_or("the model was loaded")?.to_string();
        let part = format!("{layer}.weight is stored in f8 and has no factor {layer}.scale_weight");
        assert!(error.contains(&part) && error.contains(&format!("{UNET}scaled_fp8")), "{error}");
    }
    Ok(())
}
