//! Files and requests that are refused.
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use sd_worker::Error;
use sd_worker::model::{FileOptions, LoadOptions, LoraChoice, Model};
use sd_worker::picture::Picture;
use sd_worker::pipeline::{Control, Request};
use sd_worker::schedulers::Method;
use serde_json::{Value, json};

use crate::fixture::{Outcome, generate, model, request, weight_file, write};
use crate::tiny_model::{self, Kind};

fn load_error(folder: &Path) -> Outcome<String> {
    match Model::load(folder, &Device::Cpu, LoadOptions::default(), |_| ()) {
        Ok(_) => Err("the model was loaded".into()),
        Err(error) => Ok(error.to_string()),
    }
}

/// Sets a member of a JSON file of a model.
fn edit(folder: &Path, file: &str, key: &str, value: Value) -> Outcome {
    let path = folder.join(file);
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    json[key] = value;
    Ok(fs::write(path, json.to_string())?)
}

#[test]
fn weights_that_do_not_fit_are_named() -> Outcome {
    let flux = "transformer_blocks.1.attn.add_k_proj.weight";
    let sd3 = "transformer_blocks.2.norm1_context.linear.bias";
    let t5 = "encoder.block.1.layer.1.DenseReluDense.wi_0.weight";
    for (kind, component, tensor) in [
        ("flux_dev", "transformer", flux),
        ("flux_dev", "transformer", "single_transformer_blocks.0.attn.norm_q.weight"),
        ("flux_dev", "text_encoder_2", t5),
        ("sd35", "transformer", sd3),
        ("sd35", "transformer", "pos_embed.pos_embed"),
        ("sd3", "text_encoder_3", t5),
        ("sd3", "text_encoder_2", "text_model.final_layer_norm.bias"),
        ("flux_schnell", "vae", "decoder.conv_in.weight"),
    ] {
        let folder = tempfile::tempdir()?;
        write(folder.path(), kind)?;
        let path = folder.path().join(component).join(weight_file(component));
        let whole = candle_core::safetensors::load(&path, &Device::Cpu)?;
        let zeros = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
        for (change, part) in
            [("missing", "no tensor"), ("misshapen", "has shape [3]"), ("extra", "do not belong")]
        {
            let mut weights = whole.clone();
            let name = match change {
                "missing" => weights.remove(tensor).map(|_| tensor.to_owned()),
                "misshapen" => weights.insert(tensor.to_owned(), zeros.clone()).map(|_| tensor.to_owned()),
                _ => {
                    weights.insert(format!("{tensor}.more"), zeros.clone());
                    Some(format!("{tensor}.more"))
                }
            };
            let name = name.ok_or_else(|| format!("{kind} has no {tensor}"))?;
            candle_core::safetensors::save(&weights, &path)?;
            let error = load_error(folder.path())?;
            let named = error.contains(&name) && error.contains(component) && error.contains(part);
            assert!(named, "{kind}, {change}, {name}: {error}");
        }
    }
    Ok(())
}

#[test]
fn folders_that_are_incomplete_are_refused() -> Outcome {
    let class = "_class_name";
    let changes: [(&str, &str, &str, Value, &str); 16] = [
        ("flux_dev", "model_index.json", "text_encoder_2", json!([null, null]), "without text_encoder_2"),
        ("sd3", "model_index.json", "text_encoder_2", json!([null, null]), "without text_encoder_2"),
        ("sd3", "model_index.json", "tokenizer_3", json!([null, null]), "without tokenizer_3"),
        (
            "flux_dev",
            "model_index.json",
            class,
            json!("FluxFillPipeline"),
            "FluxFillPipeline is not supported",
        ),
        ("sd3", "model_index.json", class, json!("FluxPipeline"), "FluxPipeline"),
        (
            "flux_dev",
            "transformer/config.json",
            class,
            json!("ChromaTransformer2DModel"),
            "ChromaTransformer2DModel",
        ),
        ("flux_dev", "transformer/config.json", "in_channels", json!(96), "16 channels"),
        ("flux_dev", "transformer/config.json", "in_channels", json!(63), "in_channels = 63"),
        ("flux_dev", "transformer/config.json", "axes_dims_rope", json!([8, 8, 8]), "axes_dims_rope"),
        (
            "flux_dev",
            "transformer/config.json",
            "axes_dims_rope",
            json!([1u64 << 63, 1u64 << 63, 32]),
            "axes_dims_rope",
        ),
        ("flux_dev", "transformer/config.json", "num_layers", json!(1u64 << 40), "number of layers"),
        ("sd35", "transformer/config.json", "qk_norm", json!("layer_norm"), "qk_norm"),
        ("sd3", "transformer/config.json", "pooled_projection_dim", json!(72), "width 64"),
        (
            "flux_dev",
            "transformer/config.json",
            "joint_attention_dim",
            json!(96),
            "model.safetensors has width 80, but the transformer takes 96",
        ),
        ("flux_dev", "text_encoder_2/config.json", "num_heads", json!(0), "num_heads = 0"),
        (
            "sd3",
            "scheduler/scheduler_config.json",
            class,
            json!("DDIMScheduler"),
            "FlowMatchEulerDiscreteScheduler",
        ),
    ];
    for (kind, file, key, value, part) in changes {
        let folder = tempfile::tempdir()?;
        write(folder.path(), kind)?;
        edit(folder.path(), file, key, value.clone())?;
        let error = load_error(folder.path())?;
        assert!(error.contains(part), "{kind}, {file}, {key} = {value}: {error}");
    }
    // A T5 encoder with the tokenizer of CLIP.
    let folder = tempfile::tempdir()?;
    write(folder.path(), "flux_dev")?;
    let own = folder.path().join("tokenizer_2/tokenizer.json");
    let text = fs::read_to_string(&own)?.replace("</s>", "<end>");
    fs::write(&own, text)?;
    let error = load_error(folder.path())?;
    assert!(error.contains("tokenizer_2/tokenizer.json") && error.contains("</s> as token 1"), "{error}");
    fs::write(&own, "{")?;
    assert!(load_error(folder.path())?.contains("tokenizer_2/tokenizer.json"));
    fs::rename(&own, own.with_file_name("spiece.model"))?;
    let error = load_error(folder.path())?;
    assert!(error.contains("no tokenizer.json; convert its spiece.model"), "{error}");
    // Flow matching with a UNet.
    let unet = tempfile::tempdir()?;
    tiny_model::write(unet.path(), Kind::Plain)?;
    let scheduler = json!("FlowMatchEulerDiscreteScheduler");
    edit(unet.path(), "scheduler/scheduler_config.json", class, scheduler)?;
    assert!(load_error(unet.path())?.contains("flow matching is not supported with a UNet"));
    // Embeddings of textual inversion have no effect.
    write(folder.path(), "flux_dev")?;
    let files = FileOptions { embeddings: Some(folder.path().to_owned()), ..FileOptions::default() };
    let options = LoadOptions { files, ..LoadOptions::default() };
    let error = Model::load(folder.path(), &Device::Cpu, options, |_| ()).unwrap_err().to_string();
    assert!(error.contains("--embedding-dir is not supported"), "{error}");
    Ok(())
}

#[test]
fn requests_that_are_not_supported_are_refused() -> Outcome {
    for (kind, network) in [("flux_schnell", "Flux"), ("sd3", "Stable Diffusion 3")] {
        let (_folder, pipeline) = model(kind)?;
        let plain = Request { steps: 1, ..request(&pipeline) };
        let picture = Picture::black(plain.width, plain.height);
        let control =
            Control { path: "a".into(), picture, hires_picture: None, weight: 1.0, start: 0.0, end: 1.0 };
        let loras = vec![LoraChoice { path: "missing.safetensors".into(), weight: 1.0 }];
        let mut requests = vec![
            (Request { loras, ..plain.clone() }, "missing.safetensors: No such file"),
            (Request { controls: vec![control], ..plain.clone() }, "ControlNets"),
            (Request { clip_skip: 2, ..plain.clone() }, "clip skip 2"),
            (Request { method: Some(Method::Ddim), ..plain.clone() }, "scheduler ddim"),
            (Request { karras: Some(true), ..plain.clone() }, "Karras"),
            (Request { exponential: Some(true), ..plain.clone() }, "exponential"),
            (Request { width: 72, ..plain.clone() }, "multiples of 16"),
        ];
        match kind {
            "sd3" => requests.push((Request { width: 144, ..plain.clone() }, "sides of at most 128")),
            _ => requests.push((Request { negative: "blue".to_owned(), ..plain.clone() }, "negative prompt")),
        }
        for (request, part) in requests {
            let error = generate(&pipeline, &request);
            let Err(Error::Request(message)) = error else { return Err(format!("{kind}, {part}").into()) };
            assert!(message.contains(part), "{kind}, {part}: {message}");
            let names_network = ["ControlNets", "clip skip 2", "negative prompt"].contains(&part);
            assert!(!names_network || message.contains(network), "{kind}, {part}: {message}");
        }
        // Prompts are plain text, and long ones are truncated.
        for prompt in ["(red:1000) [a] BREAK <b>", "", &"a ".repeat(700)] {
            let request = Request { prompt: prompt.to_owned(), ..plain.clone() };
            generate(&pipeline, &request)?;
            assert_eq!(pipeline.model.chunks(prompt)?, (1, prompt.len() > 1000), "{kind}: {prompt:.20}");
        }
    }
    Ok(())
}
