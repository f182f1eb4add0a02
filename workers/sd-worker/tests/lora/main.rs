//! LoRA files: images agree with those of diffusers, weights are restored bit for bit, and other files are refused.
//!
//! `loras.py` writes the files and images in `data`.
#[path = "../tiny_model/mod.rs"]
mod tiny_model;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use sd_worker::model::{LoadOptions, LoraChoice};
use sd_worker::picture::{Limits, Picture};
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::schedulers::{Purpose, normal};
use sd_worker::{Error, Result};
use tempfile::TempDir;
use tiny_model::published::{self, Kind, SEED, V1, XL, configs};
use tiny_model::{Outcome, write_configs};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lora/data").join(name)
}

fn lora(name: &str, weight: f64) -> LoraChoice {
    LoraChoice { path: data(name).with_extension("safetensors"), weight }
}

fn model(kind: Kind) -> Outcome<(TempDir, Pipeline)> {
    let folder = tempfile::tempdir()?;
    write_configs(folder.path(), &configs(kind))?;
    let pipeline = tiny_model::load(folder.path(), LoadOptions::default())?;
    Ok((folder, pipeline))
}

/// Generates the image of `loras.py` with these LoRA files.
fn generate(pipeline: &Pipeline, loras: &[LoraChoice]) -> Result<Picture> {
    let request = Request { loras: loras.to_vec(), ..published::request(pipeline) };
    Ok(pipeline.run(&request, &mut |_| ControlFlow::Continue(()))?.remove(0))
}

fn levels(picture: &Picture, file: &str) -> Outcome<u8> {
    let expected = Picture::decode(&std::fs::read(data(file))?, Limits::default())?;
    let levels = picture.rgb().iter().zip(expected.rgb()).map(|(a, b)| a.abs_diff(*b));
    assert_eq!(picture.rgb().len(), expected.rgb().len());
    levels.max().ok_or_else(|| "no pixels".into())
}

/// Writes what `loras.py` needs to the folder in SD_FOLDER.
#[test]
#[ignore = "prepares the input of loras.py"]
fn write_models() -> Outcome {
    let folder = PathBuf::from(std::env::var("SD_FOLDER")?);
    for kind in [V1, XL] {
        write_configs(&folder.join(kind.version), &configs(kind))?;
    }
    let noise = Tensor::from_vec(normal(SEED, Purpose::Start, 4 * 8 * 8), (1, 4, 8, 8), &Device::Cpu)?;
    let noise = HashMap::from([("noise".to_owned(), noise)]);
    Ok(candle_core::safetensors::save(&noise, folder.join("noise.safetensors"))?)
}

#[test]
fn images_agree_with_diffusers() -> Outcome {
    let (_folder, plain) = model(V1)?;
    let (_folder, xl) = model(XL)?;
    for (pipeline, loras, file) in [
        (&plain, vec![], "v1.png"),
        (&plain, vec![lora("kohya", 0.7)], "kohya.png"),
        (&plain, vec![lora("peft", 0.4)], "peft.png"),
        (&plain, vec![lora("kohya", 0.5), lora("peft", -0.3)], "both.png"),
        (&plain, vec![lora("loha", 0.8)], "loha.png"),
        (&xl, vec![], "xl.png"),
        (&xl, vec![lora("xl", 0.6)], "xl_lora.png"),
    ] {
        let picture = generate(pipeline, &loras)?;
        let most = levels(&picture, file)?;
        println!("{file}: {most} levels");
        assert!(most <= 1, "{file}: {most} levels away");
        if !loras.is_empty() {
            let without = if file.starts_with("xl") { "xl.png" } else { "v1.png" };
            assert!(levels(&picture, without)? > 20, "{file} has no effect");
        }
    }
    Ok(())
}

#[test]
fn weights_are_restored_bit_for_bit() -> Outcome {
    let (folder, pipeline) = model(V1)?;
    let untouched = generate(&pipeline, &[])?;
    let changed = generate(&pipeline, &[lora("kohya", 0.7)])?;
    assert!(changed != untouched);
    for loras in [
        vec![lora("peft", 0.4)],
        vec![lora("kohya", 0.5), lora("peft", -0.3)],
        vec![lora("kohya", 0.7)],
        vec![lora("loha", 0.8)],
        vec![lora("kohya", 0.0)],
        vec![],
    ] {
        let fresh = tiny_model::load(folder.path(), LoadOptions::default())?;
        assert!(generate(&pipeline, &loras)? == generate(&fresh, &loras)?, "{loras:?}");
    }
    assert!(generate(&pipeline, &[])? == untouched);
    // In f16, too, where subtracting the change would round.
    let half = LoadOptions { dtype: Some(DType::F16), ..LoadOptions::default() };
    let half = tiny_model::load(folder.path(), half)?;
    let untouched = generate(&half, &[])?;
    assert!(generate(&half, &[lora("kohya", 0.7)])? != untouched);
    assert!(generate(&half, &[])? == untouched);
    Ok(())
}

/// On a GPU, weights are changed in place, and their originals are copied to main memory.
#[cfg(feature = "rocm-emulator")]
#[test]
fn the_software_gpu_applies_and_restores() -> Outcome {
    use sd_worker::model::Model;

    let device = tiny_model::software_gpu()?;
    let (folder, on_cpu) = model(V1)?;
    let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
    let on_gpu = Pipeline::new(Model::load(folder.path(), &device, options, |_| ())?);
    let loras = [lora("kohya", 0.7)];
    let untouched = generate(&on_gpu, &[])?;
    let far = generate(&on_gpu, &loras)?;
    let expected = generate(&on_cpu, &loras)?;
    let most = far.rgb().iter().zip(expected.rgb()).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(most <= Some(1), "{most:?} levels away from the CPU");
    assert!(generate(&on_gpu, &[])? == untouched);
    Ok(())
}

#[test]
fn other_files_are_refused_and_change_nothing() -> Outcome {
    let (folder, pipeline) = model(V1)?;
    let untouched = generate(&pipeline, &[])?;
    let path = folder.path().join("x.safetensors");
    let refuse = |expected: &str| {
        let choice = LoraChoice { path: path.clone(), weight: 1.0 };
        let error = generate(&pipeline, &[lora("kohya", 0.7), choice]);
        let Err(Error::Request(message)) = error else { panic!("{expected}: {error:?}") };
        assert!(message.contains(expected) && message.contains("x.safetensors"), "{expected}: {message}");
    };
    let key = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q";
    let pair = |rows: usize, columns: usize| -> Outcome<HashMap<String, Tensor>> {
        let zeros = |shape: (usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu);
        Ok(HashMap::from([
            (format!("{key}.lora_down.weight"), zeros((2, columns))?),
            (format!("{key}.lora_up.weight"), zeros((rows, 2))?),
        ]))
    };
    let save = |weights: &HashMap<String, Tensor>| candle_core::safetensors::save(weights, &path);
    for (expected, end) in [
        ("LoHa with a Tucker decomposition is not supported", "hada_t1"),
        ("LoKr is not supported", "lokr_w1"),
        ("DoRA is not supported", "dora_scale"),
        ("Tucker", "lora_mid.weight"),
        ("not part of a LoRA", "other"),
    ] {
        let mut weights = pair(64, 64)?;
        weights.insert(format!("{key}.{end}"), Tensor::zeros(1, DType::F32, &Device::Cpu)?);
        save(&weights)?;
        refuse(expected);
    }
    for (rows, columns) in [(65, 64), (64, 63), (32, 32)] {
        save(&pair(rows, columns)?)?;
        refuse("is for another network");
    }
    for layer in ["lora_unet_double_blocks_0_img_attn_qkv", "lora_te2_text_model_encoder_layers_0_mlp_fc1"] {
        let renamed = pair(64, 64)?.into_iter().map(|(name, weight)| (name.replace(key, layer), weight));
        save(&renamed.collect())?;
        refuse("is for another network: this model lacks 1 of its 1 layers");
    }
    let mut single = pair(64, 64)?;
    single.retain(|name, _| name.contains("down"));
    save(&single)?;
    refuse("lacks a tensor");
    // A LoHa needs all four tensors, of shapes that match, and none of a LoRA.
    let ends = ["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"];
    let loha = |shapes: [(usize, usize); 4]| -> Outcome<HashMap<String, Tensor>> {
        let tensor = |(end, shape)| {
            Ok((format!("{key}.{end}"), Tensor::zeros::<(usize, usize)>(shape, DType::F32, &Device::Cpu)?))
        };
        ends.into_iter().zip(shapes).map(tensor).collect()
    };
    let shapes = [(64, 2), (2, 64), (64, 2), (2, 64)];
    for end in ends {
        let mut cut = loha(shapes)?;
        cut.remove(&format!("{key}.{end}"));
        save(&cut)?;
        refuse("lacks a tensor");
    }
    save(&loha(shapes)?.into_iter().chain(pair(64, 64)?).collect())?;
    refuse("lacks a tensor");
    for (at, shape) in [(0, (63, 2)), (1, (2, 63)), (2, (64, 3)), (3, (0, 64)), (3, (2, 65))] {
        let mut shapes = shapes;
        shapes[at] = shape;
        save(&loha(shapes)?)?;
        refuse("is for another network");
    }
    save(&HashMap::new())?;
    refuse("no tensors");
    save(&HashMap::from([(
        "decoder.conv_in.weight".to_owned(),
        Tensor::zeros(1, DType::F32, &Device::Cpu)?,
    )]))?;
    refuse("not part of a LoRA");
    for bytes in [&b""[..], b"PK\x03\x04 pickled", &[255; 40]] {
        std::fs::write(&path, bytes)?;
        refuse("");
    }
    std::fs::remove_file(&path)?;
    refuse("");
    assert!(generate(&pipeline, &[])? == untouched);
    Ok(())
}
