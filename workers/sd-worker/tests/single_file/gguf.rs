//! GGUF files of UNets, as stable-diffusion.cpp and the tools of ComfyUI write them.
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use sd_worker::model::{FileOptions, LoadOptions, LoraChoice, Model};
use sd_worker::picture::{Limits, Picture};
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::schedulers::{Purpose, normal};

use crate::Fixture;
use crate::tiny_model::Outcome;
use crate::tiny_model::published::{Kind, SEED, V1, V2, XL, configs, request};
use crate::tiny_model::write_configs;

const KINDS: [Kind; 3] = [V1, V2, XL];
const UNET: &str = "model.diffusion_model.";
/// Smallest tensor that ComfyUI's tools reshape.
const RESHAPED: usize = 512;

/// Writes a whole checkpoint as stable-diffusion.cpp does: matrices in this format, convolutions in f16, others in f32.
fn save_whole(path: &Path, fixture: &Fixture, format: GgmlDType) -> Outcome {
    let mut tensors = Vec::new();
    for (name, weight) in &fixture.weights {
        let format = match weight.dims() {
            [_, columns] if columns.is_multiple_of(format.block_size()) => format,
            [_, _, _, _] => GgmlDType::F16,
            _ => GgmlDType::F32,
        };
        let weight = if weight.rank() == 0 { weight.reshape(1)? } else { weight.clone() };
        tensors.push((name.as_str(), QTensor::quantize(&weight, format)?));
    }
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    Ok(gguf_file::write(&mut File::create(path)?, &[], &tensors)?)
}

/// Writes the UNet alone as ComfyUI's tools do: tensors whose rows do not consist of blocks of 256 are reshaped.
fn save_unet(path: &Path, fixture: &Fixture, format: GgmlDType) -> Outcome {
    let (mut tensors, mut shapes) = (Vec::new(), Vec::new());
    for (name, weight) in &fixture.weights {
        let Some(name) = name.strip_prefix(UNET) else { continue };
        let (count, columns) = (weight.elem_count(), weight.dims().last().copied().unwrap_or(1));
        let mut weight = weight.clone();
        let mut own = if weight.rank() == 1 { GgmlDType::F32 } else { GgmlDType::F16 };
        if weight.rank() > 1 && count >= RESHAPED && count.is_multiple_of(256) {
            own = format;
            if !columns.is_multiple_of(256) {
                let dims = weight.dims().iter().map(|dim| Value::I32(*dim as i32)).collect();
                shapes.push((format!("comfy.gguf.orig_shape.{name}"), Value::Array(dims)));
                weight = weight.reshape((count / 256, 256))?;
            }
        }
        tensors.push((name, QTensor::quantize(&weight, own)?));
    }
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let architecture = Value::String("sd1".to_owned());
    let mut metadata = vec![("general.architecture", &architecture)];
    metadata.extend(shapes.iter().map(|(key, value)| (key.as_str(), value)));
    Ok(gguf_file::write(&mut File::create(path)?, &metadata, &tensors)?)
}

/// Writes the text encoders and the VAE of a checkpoint to files of their own, and returns options with them.
fn others(fixture: &Fixture) -> Outcome<FileOptions> {
    let part = |file: &str, prefixes: &[&str]| -> Outcome<Option<PathBuf>> {
        let mut weights = HashMap::new();
        for (name, weight) in &fixture.weights {
            let bare = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
            bare.map(|bare| weights.insert(bare.to_owned(), weight.clone()));
        }
        let path = fixture.folder.path().join(file);
        if weights.is_empty() {
            return Ok(None);
        }
        candle_core::safetensors::save(&weights, &path)?;
        Ok(Some(path))
    };
    let first = ["cond_stage_model.transformer.", "conditioner.embedders.0.transformer."];
    Ok(FileOptions {
        clip_l: part("clip_l.safetensors", &first)?,
        clip_g: part("clip_g.safetensors", &["cond_stage_model.model.", "conditioner.embedders.1.model."])?,
        vae: part("vae.safetensors", &["first_stage_model."])?,
        ..FileOptions::default()
    })
}

/// Returns the name of a file in the folder of `pictures.py`.
fn name(kind: Kind, whole: bool) -> String {
    format!("{}_{}", kind.version, if whole { "whole" } else { "unet" })
}

fn save(path: &Path, fixture: &Fixture, whole: bool) -> Outcome {
    match whole {
        true => save_whole(path, fixture, GgmlDType::Q8_0),
        false => save_unet(path, fixture, GgmlDType::Q4K),
    }
}

/// Writes what `pictures.py` needs to the folder in SD_FOLDER.
#[test]
#[ignore = "prepares the input of pictures.py"]
fn write_models() -> Outcome {
    let folder = PathBuf::from(std::env::var("SD_FOLDER")?);
    for kind in KINDS {
        write_configs(&folder.join(kind.version), &configs(kind))?;
        let fixture = Fixture::of(kind)?;
        for whole in [true, false] {
            save(&folder.join(name(kind, whole)).with_extension("gguf"), &fixture, whole)?;
        }
    }
    crate::scaled::write_files(&folder)?;
    crate::refiner::write_files(&folder)?;
    let noise =
        |purpose: Purpose| Tensor::from_vec(normal(SEED, purpose, 4 * 8 * 8), (1, 4, 8, 8), &Device::Cpu);
    let noise = HashMap::from([
        ("noise".to_owned(), noise(Purpose::Start)?),
        ("encode".to_owned(), noise(Purpose::Encode)?),
    ]);
    Ok(candle_core::safetensors::save(&noise, folder.join("noise.safetensors"))?)
}

fn load(path: &Path, files: FileOptions, device: &Device, dtype: DType) -> sd_worker::Result<Pipeline> {
    let options = LoadOptions { files, dtype: Some(dtype), ..LoadOptions::default() };
    Ok(Pipeline::new(Model::load(path, device, options, |_| ())?))
}

/// Returns an image of diffusers.
fn expected(name: &str) -> Outcome<Picture> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/single_file/data").join(name);
    Ok(Picture::decode(&fs::read(data.with_extension("png"))?, Limits::default())?)
}

/// Returns the largest and the mean difference of two images in levels.
fn levels(a: &Picture, b: &Picture) -> (u8, f64) {
    let differences = || a.rgb().iter().zip(b.rgb()).map(|(a, b)| a.abs_diff(*b));
    let total: u64 = differences().map(u64::from).sum();
    (differences().max().unwrap_or(0), total as f64 / b.rgb().len() as f64)
}

/// Compares the image with a LoRA, which changes matrices in blocks, and float weights of convolutions.
fn with_lora(pipeline: &Pipeline, untouched: &Picture, name: &str, bound: f64) -> Outcome {
    let generate = |loras: Vec<LoraChoice>| {
        let request = Request { loras, ..request(pipeline) };
        pipeline
            .run(&request, &mut |_| std::ops::ControlFlow::Continue(()))
            .map(|mut pictures| pictures.remove(0))
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lora/data/kohya.safetensors");
    let mut lora = candle_core::safetensors::load(path, &Device::Cpu)?;
    lora.retain(|name, _| name.starts_with("lora_unet_"));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("unet.safetensors");
    candle_core::safetensors::save(&lora, &path)?;
    let picture = generate(vec![LoraChoice { path, weight: 0.7 }])?;
    let (most, mean) = levels(&picture, &expected(&format!("{name}_lora"))?);
    let (_, effect) = levels(&picture, untouched);
    println!("{name} with a LoRA: at most {most} levels, {mean:.4} on average, {effect:.4} changed");
    assert!(mean <= bound && effect > 5.0, "{name} with a LoRA: {mean} levels away, {effect} changed");
    assert!(&generate(Vec::new())? == untouched, "{name} keeps a part of the LoRA");
    Ok(())
}

/// Compares images with those that diffusers generates with the weights that the gguf package dequantizes.
fn compare(device: &Device, dtype: DType, kinds: &[Kind], bounds: [f64; 2]) -> Outcome {
    for kind in kinds.iter().copied() {
        let fixture = Fixture::of(kind)?;
        let others = others(&fixture)?;
        for whole in [true, false] {
            let name = name(kind, whole);
            let path = fixture.folder.path().join("unet.gguf");
            save(&path, &fixture, whole)?;
            let files = if whole { FileOptions::default() } else { others.clone() };
            let pipeline = load(&path, files, device, dtype)?;
            // Products of matrices are computed from blocks. Rows of reshaped tensors do not consist of blocks of 256.
            assert_eq!(format!("{:?}", pipeline.model.network).contains("; Q8_0]"), whole, "{name}");
            let picture =
                pipeline.run(&request(&pipeline), &mut |_| std::ops::ControlFlow::Continue(()))?.remove(0);
            let (most, mean) = levels(&picture, &expected(&name)?);
            println!("{name} in {dtype:?}: at most {most} levels, {mean:.4} on average");
            // Quantized products quantize activations, too.
            assert!(mean <= bounds[usize::from(!whole)], "{name}: {mean} levels away on average");
            if kind.version == "v1" {
                with_lora(&pipeline, &picture, &name, bounds[usize::from(!whole)])?;
            }
        }
    }
    Ok(())
}

#[test]
fn images_agree_with_diffusers() -> Outcome {
    compare(&Device::Cpu, DType::F32, &KINDS, [4.0, 2.0])
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_software_gpu_agrees() -> Outcome {
    compare(&crate::tiny_model::software_gpu()?, DType::F16, &[V1], [4.0, 3.0])
}

#[test]
fn other_files_are_refused() -> Outcome {
    let fixture = Fixture::of(V1)?;
    let others = others(&fixture)?;
    let path = fixture.folder.path().join("file.gguf");
    let error = |files: FileOptions| -> Outcome<String> {
        let error = load(&path, files, &Device::Cpu, DType::F32).err().ok_or("the model was loaded")?;
        Ok(error.to_string())
    };
    save_unet(&path, &fixture, GgmlDType::Q4K)?;
    for (files, part) in [
        (
            FileOptions::default(),
            "file.gguf holds a UNet without a text encoder; set --clip-l to a file of CLIP-L",
        ),
        (FileOptions { vae: None, ..others.clone() }, "file.gguf holds no VAE"),
        (FileOptions { t5xxl: others.vae.clone(), ..others.clone() }, "does not use --t5xxl"),
        (
            FileOptions { clip_l: others.vae.clone(), ..others.clone() },
            "holds a VAE alone; --clip-l requires CLIP-L",
        ),
    ] {
        let error = error(files)?;
        assert!(error.contains(part), "{part}: {error}");
    }
    let whole = fs::read(&path)?;
    // A shape in the metadata that does not have the elements of the tensor.
    let key = b"comfy.gguf.orig_shape.input_blocks.1.1.proj_in.weight";
    let at = whole.windows(key.len()).position(|bytes| bytes == key).ok_or("no shape")?;
    let mut changed = whole.clone();
    // The type, that of the elements, and their number precede the first dimension.
    changed[at + key.len() + 16..][..4].copy_from_slice(&7i32.to_le_bytes());
    fs::write(&path, &changed)?;
    let message = error(others.clone())?;
    assert!(
        message.contains("file.gguf") && message.contains("input_blocks.1.1.proj_in.weight"),
        "{message}"
    );
    for length in (0..whole.len()).step_by(whole.len() / 40) {
        fs::write(&path, &whole[..length])?;
        let error = error(others.clone())?;
        assert!(error.contains("file.gguf"), "{length} bytes: {error}");
    }
    Ok(())
}
