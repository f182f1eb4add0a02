//! Files that are no ControlNet for the model are refused, with the file and the tensor.
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use sd_worker::Error;
use serde_json::{Value, json};

use crate::fixture::{
    Weights, config, control, generate, model, original_names, picture, request, weights, write_folder,
};
use crate::tiny_model::Outcome;
use crate::tiny_model::published::{V1, XL};

/// Changes the weights of a ControlNet.
type Change = fn(&mut Weights);

fn tensor(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

/// Changes of weights, with a part of the error.
fn changes() -> Vec<(&'static str, Change)> {
    vec![
        ("has no tensor mid_block.resnets.1.conv2.bias", |weights| {
            weights.remove("mid_block.resnets.1.conv2.bias");
        }),
        ("1 tensors do not belong to this architecture, such as other.weight", |weights| {
            weights.insert("other.weight".to_owned(), tensor(&[2], DType::F32));
        }),
        ("controlnet_mid_block.weight has shape [64, 63, 1, 1], but", |weights| {
            weights.insert("controlnet_mid_block.weight".to_owned(), tensor(&[64, 63, 1, 1], DType::F32));
        }),
        ("down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_k.weight has shape", |weights| {
            let name = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_k.weight";
            weights.insert(name.to_owned(), tensor(&[32, 31], DType::F32));
        }),
    ]
}

#[test]
fn other_files_are_refused_and_change_nothing() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (_folder, pipeline) = model(V1)?;
    let untouched = generate(&pipeline, &request(&pipeline, Vec::new()))?;
    let refuse = |path: &Path, part: &str| -> Outcome {
        let result = generate(&pipeline, &request(&pipeline, vec![control(path, picture("hint")?)]));
        let Err(Error::Request(message)) = result else { panic!("{part}: {result:?}") };
        assert!(message.contains(part), "{part}: {message}");
        assert!(message.contains(&*path.to_string_lossy()) && !message.contains('\n'), "{message}");
        Ok(())
    };
    let path = folder.path().join("control");
    let file = folder.path().join("control.safetensors");
    let save = |weights: &Weights| candle_core::safetensors::save(weights, &file);
    let (own, plain) = (weights("v1")?, config("v1")?);

    for (part, change) in changes() {
        let mut changed = own.clone();
        change(&mut changed);
        write_folder(&path, &plain, &changed)?;
        refuse(&path, part)?;
        save(&changed)?;
        refuse(&file, part)?;
    }
    // The errors have the names of the file.
    let names = original_names("v1")?;
    let mut original: Weights = own
        .iter()
        .map(|(name, weight)| (format!("control_model.{}", names[name.as_str()]), weight.clone()))
        .collect();
    original.remove("control_model.time_embed.2.bias");
    save(&original)?;
    refuse(&file, "has no tensor control_model.time_embed.2.bias")?;

    for (key, value, part) in [
        ("_class_name", json!("T2IAdapter"), "describes T2IAdapter, but a ControlNetModel is required"),
        ("_class_name", json!("ControlNetUnionModel"), "describes ControlNetUnionModel"),
        ("_class_name", Value::Null, "describes no class"),
        ("global_pool_conditions", json!(1), "global_pool_conditions = 1 is not supported"),
        ("conditioning_channels", json!(6), "conditioning_channels = 6 is not supported"),
        ("class_embed_type", json!("timestep"), "class_embed_type = \"timestep\" is not supported"),
        ("controlnet_conditioning_channel_order", json!("gbr"), "= \"gbr\" is not supported"),
        ("controlnet_conditioning_channel_order", json!(1), "= 1 is not supported"),
        ("conditioning_embedding_out_channels", json!("x"), "conditioning_embedding_out_channels"),
        ("conditioning_embedding_out_channels", json!([4, 6, 8]), "images are 8 times larger"),
        ("conditioning_embedding_out_channels", json!([]), "images are 8 times larger"),
        ("conditioning_embedding_out_channels", json!([4, 6, 8, 1u64 << 60]), "has shape"),
        ("block_out_channels", json!([32, 128]), "it"),
        ("block_out_channels", json!([32, 64, 64]), "3 widths require 3 down blocks"),
        ("block_out_channels", json!("wide"), "invalid type"),
        ("layers_per_block", json!(2), "for another network: its layers have widths"),
        ("layers_per_block", json!(1u64 << 60), "layers_per_block"),
        ("transformer_layers_per_block", json!(1u64 << 60), "more than 65536 tensors"),
        ("cross_attention_dim", json!(32), "it has text embeddings of width 32, but the model has 64"),
        ("in_channels", json!(9), "it has latent channels 9, but the model has 4"),
        ("attention_head_dim", json!(0), "heads"),
        ("down_block_types", json!(["DownBlock2D", "DownBlock2D"]), "do not belong"),
        ("mid_block_type", json!("UNetMidBlock2D"), "do not belong"),
    ] {
        let mut changed = plain.clone();
        changed[key] = value;
        write_folder(&path, &changed, &own)?;
        refuse(&path, part)?;
    }
    for (text, part) in [("", "EOF"), ("[]", "describes no class"), ("{", "EOF")] {
        fs::write(path.join("config.json"), text)?;
        refuse(&path, part)?;
    }

    let (larger, _) = (weights("xl")?, ());
    write_folder(&path, &config("xl")?, &larger)?;
    refuse(&path, "is for another network")?;
    save(&larger)?;
    refuse(&file, "is for another network: its layers have widths [64, 64, 64, 128]")?;
    save(&weights("v2")?)?;
    refuse(&file, "is for another network")?;
    let alone = |name: &str| Weights::from([(name.to_owned(), tensor(&[2, 2], DType::F32))]);
    for (name, part) in [
        ("lora_unet_mid_block_attentions_0_proj_in.lora_down.weight", "a LoRA adapter"),
        ("adapter.body.0.resnets.0.block1.weight", "a T2I-Adapter"),
        ("lora_controlnet", "a Control-LoRA"),
        ("image_proj.proj.weight", "an IP-Adapter"),
        ("lllite_unet_input_blocks_4_1.down.0.weight", "a ControlNet-LLLite"),
        ("model.diffusion_model.input_blocks.0.0.weight", "a Stable Diffusion model"),
        ("something", "no known network"),
    ] {
        save(&alone(name))?;
        refuse(&file, &format!("holds {part}"))?;
    }
    let mut difference = own.clone();
    difference.insert("difference".to_owned(), tensor(&[1], DType::F32));
    save(&difference)?;
    refuse(&file, "differences from the weights")?;
    // Cut and pickled files.
    save(&own)?;
    let bytes = fs::read(&file)?;
    for length in [0, 7, 8, 500, bytes.len() - 1] {
        fs::write(&file, &bytes[..length])?;
        refuse(&file, "")?;
    }
    fs::write(&file, b"PK\x03\x04 pickled")?;
    refuse(&file, "is a pickled PyTorch file")?;
    fs::remove_dir_all(&path)?;
    refuse(&path, "")?;
    fs::create_dir(&path)?;
    refuse(&path, "config.json")?;
    fs::write(path.join("config.json"), plain.to_string())?;
    refuse(&path, "contains no safetensors")?;
    fs::write(path.join("diffusion_pytorch_model.bin"), "x")?;
    refuse(&path, "diffusion_pytorch_model.bin is a pickled file")?;
    assert!(generate(&pipeline, &request(&pipeline, Vec::new()))? == untouched);

    // XL refuses those of version 1, and those without its additional embedding.
    let (_folder, pipeline) = model(XL)?;
    let mut without = larger;
    without.retain(|name, _| !name.starts_with("add_embedding"));
    for (weights, part) in
        [(own, "its layers have widths"), (without, "it has additional embeddings of XL None")]
    {
        save(&weights)?;
        let result = generate(&pipeline, &request(&pipeline, vec![control(&file, picture("hint")?)]));
        let message = result.unwrap_err().to_string();
        assert!(message.contains(part), "{part}: {message}");
    }
    Ok(())
}
