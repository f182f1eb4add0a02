//! LoRA files for transformers, whose products are added to those of the weights.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use sd_worker::Error;
use sd_worker::model::{FileOptions, LoadOptions, LoraChoice};
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::schedulers::{Purpose, normal};

use crate::fixture::{Outcome, expected, generate, levels, model_on, request};
use crate::gguf;

const BOTH: &[(&str, f64)] = &[("flux_kohya", 0.4), ("flux_peft", -0.3)];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformer/data").join(name)
}

fn with_loras(pipeline: &Pipeline, kind: &str, loras: &[(&str, f64)]) -> Request {
    let (guidance, negative) = if kind == "sd35" { (5.0, "blue") } else { (3.5, "") };
    let choice = |(name, weight): &(&str, f64)| {
        let path = data(name).with_extension("safetensors");
        LoraChoice { path, weight: *weight }
    };
    let loras = loras.iter().map(choice).collect();
    Request { loras, guidance, negative: negative.to_owned(), ..request(pipeline) }
}

fn compare(device: &Device) -> Outcome {
    for (kind, cases) in [
        (
            "flux_dev",
            &[
                ("flux_dev", &[][..]),
                ("flux_kohya", &[("flux_kohya", 0.7)]),
                ("flux_peft", &[("flux_peft", 0.5)]),
                ("flux_loras", BOTH),
                ("flux_dev", &[("flux_kohya", 0.0)]),
                ("flux_dev", &[]),
            ][..],
        ),
        ("sd35", &[("sd35_peft", &[("sd35_peft", 0.6)][..]), ("sd35", &[])]),
    ] {
        let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
        let (_folder, pipeline) = model_on(kind, device, options)?;
        for (name, loras) in cases {
            let picture = generate(&pipeline, &with_loras(&pipeline, kind, loras))?;
            let (most, mean) = levels(&picture, &expected(name)?);
            let (effect, _) = levels(&picture, &expected(kind)?);
            println!("{name}: at most {most} levels, {mean:.4} on average; the LoRA changes {effect}");
            assert!(most <= 1, "{name}: {most} levels away");
            assert!(*name == kind || effect > 20, "{name} changes {effect} levels only");
        }
    }
    Ok(())
}

#[test]
fn images_with_loras_agree_with_diffusers() -> Outcome {
    compare(&Device::Cpu)
}

/// Quantized matrices stay quantized, and are as near to diffusers' image with a LoRA as without.
fn compare_quantized(device: &Device) -> Outcome {
    let (_folder, pipeline) = gguf::pipeline("flux_dev_q8_0", device, DType::F32)?;
    let plain = with_loras(&pipeline, "flux_dev", &[]);
    let untouched = generate(&pipeline, &plain)?;
    let (_, without) = levels(&untouched, &expected("flux_dev_q8_0")?);
    let loras = with_loras(&pipeline, "flux_dev", BOTH);
    let picture = generate(&pipeline, &loras)?;
    let (most, mean) = levels(&picture, &expected("flux_dev_q8_0_loras")?);
    let (_, effect) = levels(&picture, &untouched);
    println!(
        "at most {most} levels, {mean:.4} on average; {without:.4} without LoRA files, which change {effect:.4}"
    );
    assert!(mean < 0.25 && effect > 5.0, "{mean} levels away, {effect} changed");
    assert!(format!("{:?}", pipeline.model.network).contains("; Q8_0]"));
    // Nothing is left of a LoRA that is not chosen.
    assert!(generate(&pipeline, &plain)? == untouched);
    assert!(generate(&pipeline, &loras)? == picture);
    Ok(())
}

#[test]
fn quantized_transformers_take_loras() -> Outcome {
    compare_quantized(&Device::Cpu)
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_software_gpu_takes_loras() -> Outcome {
    let device = crate::tiny_model::software_gpu()?;
    compare(&device)?;
    compare_quantized(&device)
}

#[test]
fn loras_for_other_networks_are_refused() -> Outcome {
    let (folder, pipeline) = model_on("flux_dev", &Device::Cpu, LoadOptions::default())?;
    let path = folder.path().join("x.safetensors");
    let plain = with_loras(&pipeline, "flux_dev", &[]);
    let untouched = generate(&pipeline, &plain)?;
    for (layer, rows, columns, part) in [
        ("lora_unet_double_blocks_0_img_attn_qkv", 192, 64, None),
        ("lora_unet_double_blocks_0_img_attn_qkv", 191, 64, Some("is for another network")),
        ("lora_unet_double_blocks_0_img_attn_qkv", 64, 64, Some("is for another network")),
        ("lora_unet_single_blocks_0_linear1", 448, 64, None),
        ("lora_unet_single_blocks_0_linear1", 448, 63, Some("is for another network")),
        ("lora_unet_double_blocks_9_img_attn_qkv", 192, 64, Some("lacks 1 of its 1 layers")),
        ("lora_unet_joint_blocks_0_x_block_attn_qkv", 192, 64, Some("lacks 1 of its 1 layers")),
        ("lora_te3_encoder_block_0_layer_0_SelfAttention_q", 64, 64, Some("lacks 1 of its 1 layers")),
        ("transformer.transformer_blocks.0.attn.to_q", 64, 64, None),
        ("diffusion_model.double_blocks.0.img_attn.qkv", 192, 64, None),
        ("transformer.transformer_blocks.0.attn.norm_q", 32, 1, Some("lacks 1 of its 1 layers")),
        ("double_blocks.0.processor.qkv_lora1", 64, 64, Some("not part of a LoRA")),
    ] {
        let ones = |shape: (usize, usize)| Tensor::ones(shape, DType::F32, &Device::Cpu)?.affine(0.1, 0.0);
        let file = HashMap::from([
            (format!("{layer}.lora_A.weight"), ones((1, columns))?),
            (format!("{layer}.lora_B.weight"), ones((rows, 1))?),
        ]);
        candle_core::safetensors::save(&file, &path)?;
        // One file after another has the same name, and the last one that was applied is known by it.
        generate(&pipeline, &plain)?;
        let loras = vec![LoraChoice { path: path.clone(), weight: 1.0 }];
        match (generate(&pipeline, &Request { loras, ..plain.clone() }), part) {
            (Ok(picture), None) => assert!(picture != untouched, "{layer} changes nothing"),
            (Err(Error::Request(message)), Some(part)) => {
                assert!(message.contains(part) && message.contains("x.safetensors"), "{layer}: {message}");
            }
            (other, _) => return Err(format!("{layer} ({rows}, {columns}): {other:?}").into()),
        }
        assert!(generate(&pipeline, &plain)? == untouched, "{layer}");
    }
    Ok(())
}

/// A LoHa of these ranks equals the sum of the elementwise product and the weight, which has 64 columns.
fn compare_loha([rank, other_rank]: [usize; 2]) -> Outcome {
    let (folder, pipeline) = model_on("flux_dev", &Device::Cpu, LoadOptions::default())?;
    let random = |i: usize, shape: (usize, usize)| {
        Tensor::from_vec(normal(1, Purpose::Step(i), shape.0 * shape.1), shape, &Device::Cpu)?
            .affine(0.6, 0.0)
    };
    let (up, down) = (random(0, (256, rank))?, random(1, (rank, 64))?);
    let (other_up, other_down) = (random(2, (256, other_rank))?, random(3, (other_rank, 64))?);
    let name = "transformer_blocks.0.ff.net.0.proj";
    let ends = ["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"];
    let mut file: HashMap<String, Tensor> = ends
        .iter()
        .zip([&up, &down, &other_up, &other_down])
        .map(|(end, tensor)| (format!("transformer.{name}.{end}"), tensor.clone()))
        .collect();
    file.insert(format!("transformer.{name}.alpha"), Tensor::new(6f32, &Device::Cpu)?);
    let path = folder.path().join("loha.safetensors");
    candle_core::safetensors::save(&file, &path)?;
    let loras = vec![LoraChoice { path, weight: 0.5 }];
    let plain = with_loras(&pipeline, "flux_dev", &[]);
    let untouched = generate(&pipeline, &plain)?;
    let with = generate(&pipeline, &Request { loras, ..plain.clone() })?;
    let transformer = folder.path().join("transformer/diffusion_pytorch_model.safetensors");
    let mut weights = candle_core::safetensors::load(&transformer, &Device::Cpu)?;
    // The scale is alpha over the rank of the second matrix, and the weight of the request.
    let product = (up.matmul(&down)? * other_up.matmul(&other_down)?)?;
    let key = format!("{name}.weight");
    let changed = (&weights[&key] + (product * (6.0 / other_rank as f64 * 0.5))?)?;
    weights.insert(key, changed);
    let path = folder.path().join("changed.safetensors");
    candle_core::safetensors::save(&weights, &path)?;
    let files = FileOptions { transformer: Some(path), ..FileOptions::default() };
    let options = LoadOptions { files, ..LoadOptions::default() };
    let changed = Pipeline::new(sd_worker::model::Model::load(folder.path(), &Device::Cpu, options, |_| ())?);
    let expected = generate(&changed, &plain)?;
    let (most, _) = levels(&with, &expected);
    let (effect, _) = levels(&untouched, &expected);
    println!("at most {most} levels away, {effect} changed");
    assert!(most <= 1 && effect > 2, "{most} levels away, {effect} changed");
    Ok(())
}

/// The change has the product of the ranks.
#[test]
fn a_loha_equals_changed_weights() -> Outcome {
    compare_loha([2, 3])
}

/// The product of the ranks exceeds the number of columns, so that the change is stored as a whole.
#[test]
fn a_loha_of_high_rank_equals_changed_weights() -> Outcome {
    compare_loha([9, 8])
}
