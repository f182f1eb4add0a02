//! Transformers and T5 in scaled f8.
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use sd_worker::model::FileOptions;

use crate::files::Files;
use crate::fixture::Outcome;
use crate::tiny_model::scaled::{scaled, with_layer_marks};

const NAMES: [&str; 2] = ["transformer", "t5xxl"];

/// Writes the files that `pictures.py` reads to a folder.
pub fn write_files(folder: &Path) -> Outcome {
    let files = Files::of("flux_files")?;
    for name in NAMES {
        let path = folder.join(format!("scaled_{name}.safetensors"));
        candle_core::safetensors::save(&scaled(files.weights(name), "")?, path)?;
    }
    Ok(())
}

#[test]
fn images_of_scaled_files_agree_with_diffusers() -> Outcome {
    let files = Files::of("flux_files")?;
    for name in NAMES {
        candle_core::safetensors::save(&scaled(files.weights(name), "")?, files.path(name))?;
    }
    let pipeline = files.load(files.options())?;
    let (most, _) = files.levels(&pipeline, "flux_scaled")?;
    assert!(most <= 1, "{most} levels away");
    for name in NAMES {
        let file = with_layer_marks(&scaled(files.weights(name), "")?)?;
        candle_core::safetensors::save(&file, files.path(name))?;
    }
    let (most, _) = files.levels(&files.load(files.options())?, "flux_scaled")?;
    assert!(most <= 1, "{most} levels away with marks of layers");
    // The factors have an effect, and so has f8.
    assert!(files.levels(&pipeline, "flux_files")?.0 > 1);
    Ok(())
}

#[test]
fn wrong_marks_of_layers_are_refused() -> Outcome {
    let files = Files::of("flux_files")?;
    let whole = with_layer_marks(&scaled(files.weights("transformer"), "")?)?;
    let layer = "double_blocks.1.img_attn.qkv";
    let (mark, factor) = (format!("{layer}.comfy_quant"), format!("{layer}.weight_scale"));
    let text = |text: &str| Tensor::new(text.as_bytes(), &Device::Cpu);
    let only = "but only float8_e4m3fn and float8_e5m2 are supported";
    for (changed, value, part) in [
        (&factor, None, format!("{layer}.weight is stored in f8 and has no factor {factor}, which {mark}")),
        (&mark, Some(text(r#"{"format": "nvfp4"}"#)?), format!("{mark} names the format \"nvfp4\", {only}")),
        (&mark, Some(text("{}")?), format!("{mark} names the format null, {only}")),
        (&mark, Some(text("{")?), format!("{mark}: EOF while parsing")),
        (&mark, Some(text(&" ".repeat(70_000))?), format!("{mark} has 70000 bytes; at most 65536")),
        (&mark, Some(Tensor::ones(2, DType::F32, &Device::Cpu)?), format!("{mark}: unexpected dtype")),
    ] {
        let mut file = whole.clone();
        match value {
            Some(value) => file.insert(changed.clone(), value),
            None => file.remove(changed),
        };
        candle_core::safetensors::save(&file, files.path("transformer"))?;
        let error = files.error(files.options())?;
        assert!(error.contains(&part), "{part}: {error}");
    }
    Ok(())
}

#[test]
fn wrong_factors_are_refused() -> Outcome {
    let files = Files::of("flux_files")?;
    let number = |value: f32| Tensor::full(value, (), &Device::Cpu);
    for (name, layer) in [
        ("transformer", "double_blocks.1.img_attn.qkv"),
        ("t5xxl", "encoder.block.1.layer.0.SelfAttention.q"),
    ] {
        let whole = scaled(files.weights(name), "")?;
        let factor = format!("{layer}.scale_weight");
        let weight = format!("{layer}.weight");
        for (changed, value, part) in [
            (&factor, None, format!("{weight} is stored in f8 and has no factor {factor}")),
            (&weight, None, format!("{factor} is the factor of {weight}, which is missing")),
            (
                &factor,
                Some(number(f32::NAN)?),
                format!("{factor} is NaN, but must be a finite number above 0"),
            ),
            (&factor, Some(number(f32::INFINITY)?), format!("{factor} is inf")),
            (&factor, Some(number(0.0)?), format!("{factor} is 0")),
            (&factor, Some(number(-1.0)?), format!("{factor} is -1")),
            (
                &factor,
                Some(Tensor::ones((192, 1), DType::F32, &Device::Cpu)?),
                format!("{factor} has shape [192, 1], but a factor with one element is required"),
            ),
            (
                &factor,
                Some(Tensor::zeros(0, DType::F32, &Device::Cpu)?),
                format!("{factor} has shape [0], but a factor with one element"),
            ),
        ] {
            let mut file = whole.clone();
            match value {
                Some(value) => file.insert(changed.clone(), value),
                None => file.remove(changed),
            };
            candle_core::safetensors::save(&file, files.path(name))?;
            let error = files.error(files.options())?;
            let path = files.path(name);
            assert!(error.contains(&part) && error.contains(&*path.to_string_lossy()), "{part}: {error}");
        }
        candle_core::safetensors::save(files.weights(name), files.path(name))?;
    }
    // Factors count without a mark, too, and those of inputs need one of a weight.
    let mut file = scaled(files.weights("t5xxl"), "")?;
    file.remove("scaled_fp8");
    candle_core::safetensors::save(&file, files.path("t5xxl"))?;
    assert!(files.load(files.options()).is_ok());
    file.insert("encoder.other.scale_input".to_owned(), number(1.0)?);
    candle_core::safetensors::save(&file, files.path("t5xxl"))?;
    let error = files.error(FileOptions { clip_g: None, ..files.options() })?;
    assert!(error.contains("encoder.other.scale_input"), "{error}");
    Ok(())
}
