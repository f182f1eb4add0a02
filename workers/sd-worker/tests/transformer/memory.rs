//! Memory that published models need, from headers with the shapes of their tensors, in files without data.
use std::fs::File;
use std::io::Write;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use sd_worker::model::{FileOptions, LoadOptions, Model};
use serde_json::json;

use crate::fixture::{Outcome, T5_TOKENIZER};

/// Name and shape of a tensor.
type Shapes = Vec<(String, Vec<usize>)>;

fn both(shapes: &mut Shapes, name: &str, rows: usize, columns: usize) {
    shapes.push((format!("{name}.weight"), vec![rows, columns]));
    shapes.push((format!("{name}.bias"), vec![rows]));
}

/// Returns the tensors of Flux dev.
fn flux() -> Shapes {
    let (mut shapes, width) = (Shapes::new(), 3072);
    for (name, columns) in [("time_in", 256), ("guidance_in", 256), ("vector_in", 768)] {
        both(&mut shapes, &format!("{name}.in_layer"), width, columns);
        both(&mut shapes, &format!("{name}.out_layer"), width, width);
    }
    both(&mut shapes, "img_in", width, 64);
    both(&mut shapes, "txt_in", width, 4096);
    both(&mut shapes, "final_layer.linear", 64, width);
    both(&mut shapes, "final_layer.adaLN_modulation.1", 2 * width, width);
    let norms = |shapes: &mut Shapes, start: String| {
        for norm in ["query_norm", "key_norm"] {
            shapes.push((format!("{start}norm.{norm}.scale"), vec![128]));
        }
    };
    for i in 0..19 {
        for stream in ["img", "txt"] {
            let start = format!("double_blocks.{i}.{stream}_");
            both(&mut shapes, &format!("{start}mod.lin"), 6 * width, width);
            both(&mut shapes, &format!("{start}attn.qkv"), 3 * width, width);
            both(&mut shapes, &format!("{start}attn.proj"), width, width);
            both(&mut shapes, &format!("{start}mlp.0"), 4 * width, width);
            both(&mut shapes, &format!("{start}mlp.2"), width, 4 * width);
            norms(&mut shapes, format!("{start}attn."));
        }
    }
    for i in 0..38 {
        let start = format!("single_blocks.{i}.");
        both(&mut shapes, &format!("{start}modulation.lin"), 3 * width, width);
        both(&mut shapes, &format!("{start}linear1"), 7 * width, width);
        both(&mut shapes, &format!("{start}linear2"), width, 5 * width);
        norms(&mut shapes, start);
    }
    shapes
}

/// Returns the tensors of the encoder of T5 v1.1 XXL.
fn t5() -> Shapes {
    let (mut shapes, width) = (Shapes::new(), 4096);
    shapes.push(("token_embd.weight".to_owned(), vec![32128, width]));
    shapes.push(("enc.output_norm.weight".to_owned(), vec![width]));
    shapes.push(("enc.blk.0.attn_rel_b.weight".to_owned(), vec![32, 64]));
    for i in 0..24 {
        for part in ["attn_q", "attn_k", "attn_v", "attn_o"] {
            shapes.push((format!("enc.blk.{i}.{part}.weight"), vec![width, width]));
        }
        for (part, shape) in
            [("ffn_gate", [10240, width]), ("ffn_up", [10240, width]), ("ffn_down", [width, 10240])]
        {
            shapes.push((format!("enc.blk.{i}.{part}.weight"), shape.to_vec()));
        }
        for norm in ["attn_norm", "ffn_norm"] {
            shapes.push((format!("enc.blk.{i}.{norm}.weight"), vec![width]));
        }
    }
    shapes
}

/// Returns the tensors of CLIP-L.
fn clip() -> Shapes {
    let (mut shapes, width) = (Shapes::new(), 768);
    for (table, rows) in [("token_embedding", 49408), ("position_embedding", 77)] {
        shapes.push((format!("text_model.embeddings.{table}.weight"), vec![rows, width]));
    }
    let norm = |shapes: &mut Shapes, name: String| {
        for kind in ["weight", "bias"] {
            shapes.push((format!("text_model.{name}.{kind}"), vec![width]));
        }
    };
    norm(&mut shapes, "final_layer_norm".to_owned());
    for i in 0..12 {
        let start = format!("encoder.layers.{i}.");
        for part in ["q", "k", "v", "out"] {
            both(&mut shapes, &format!("text_model.{start}self_attn.{part}_proj"), width, width);
        }
        both(&mut shapes, &format!("text_model.{start}mlp.fc1"), 4 * width, width);
        both(&mut shapes, &format!("text_model.{start}mlp.fc2"), width, 4 * width);
        norm(&mut shapes, format!("{start}layer_norm1"));
        norm(&mut shapes, format!("{start}layer_norm2"));
    }
    shapes
}

/// Returns the tensors of the VAE of Flux.
fn vae() -> Shapes {
    let mut shapes = Shapes::new();
    let conv = |shapes: &mut Shapes, name: String, to: usize, from: usize, side: usize| {
        shapes.push((format!("{name}.weight"), vec![to, from, side, side]));
        shapes.push((format!("{name}.bias"), vec![to]));
    };
    let norm = |shapes: &mut Shapes, name: String, width: usize| {
        for kind in ["weight", "bias"] {
            shapes.push((format!("{name}.{kind}"), vec![width]));
        }
    };
    let resnet = |shapes: &mut Shapes, name: String, from: usize, to: usize| {
        norm(shapes, format!("{name}.norm1"), from);
        conv(shapes, format!("{name}.conv1"), to, from, 3);
        norm(shapes, format!("{name}.norm2"), to);
        conv(shapes, format!("{name}.conv2"), to, to, 3);
        if from != to {
            conv(shapes, format!("{name}.nin_shortcut"), to, from, 1);
        }
    };
    let widths = [128, 256, 512, 512];
    for (half, first, last) in [("encoder", 3, 32), ("decoder", 16, 3)] {
        let is_encoder = half == "encoder";
        conv(&mut shapes, format!("{half}.conv_in"), if is_encoder { 128 } else { 512 }, first, 3);
        for i in 1..=2 {
            resnet(&mut shapes, format!("{half}.mid.block_{i}"), 512, 512);
        }
        norm(&mut shapes, format!("{half}.mid.attn_1.norm"), 512);
        for part in ["q", "k", "v", "proj_out"] {
            conv(&mut shapes, format!("{half}.mid.attn_1.{part}"), 512, 512, 1);
        }
        let end = if is_encoder { 512 } else { 128 };
        norm(&mut shapes, format!("{half}.norm_out"), end);
        conv(&mut shapes, format!("{half}.conv_out"), last, end, 3);
        for i in 0..4 {
            let (kind, layers) = if is_encoder { ("down", 2) } else { ("up", 3) };
            let before = if is_encoder { widths[i.max(1) - 1] } else { widths[(i + 1).min(3)] };
            for layer in 0..layers {
                let from = if layer == 0 { before } else { widths[i] };
                resnet(&mut shapes, format!("{half}.{kind}.{i}.block.{layer}"), from, widths[i]);
            }
            if is_encoder && i < 3 || !is_encoder && i > 0 {
                conv(&mut shapes, format!("{half}.{kind}.{i}.{kind}sample.conv"), widths[i], widths[i], 3);
            }
        }
    }
    shapes
}

/// Writes a GGUF file without data, whose matrices have this format.
fn gguf(path: &Path, shapes: &Shapes, format: (u32, GgmlDType)) -> Outcome {
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((shapes.len() as u64).to_le_bytes());
    header.extend(0u64.to_le_bytes());
    let mut offset = 0u64;
    for (name, shape) in shapes {
        let has_blocks = shape.len() == 2 && shape[1].is_multiple_of(format.1.block_size());
        let (id, format) = match name.contains("rel_b") || shape.len() == 1 {
            true => (0, GgmlDType::F32),
            false if has_blocks => format,
            false => (1, GgmlDType::F16),
        };
        header.extend((name.len() as u64).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| header.extend((*dim as u64).to_le_bytes()));
        header.extend(u32::to_le_bytes(id));
        header.extend(offset.to_le_bytes());
        let bytes = shape.iter().product::<usize>() / format.block_size() * format.type_size();
        offset += bytes.next_multiple_of(32) as u64;
    }
    let mut file = File::create(path)?;
    file.write_all(&header)?;
    Ok(file.set_len(header.len().next_multiple_of(32) as u64 + offset)?)
}

/// Writes a safetensors file without data, in f16.
fn safetensors(path: &Path, shapes: &Shapes) -> Outcome {
    let (mut header, mut offset) = (serde_json::Map::new(), 0);
    for (name, shape) in shapes {
        let end = offset + 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "F16", "shape": shape, "data_offsets": [offset, end]}));
        offset = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    Ok(file.set_len((8 + header.len() + offset) as u64)?)
}

#[test]
fn quantized_flux_needs_less_than_12_gb() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    safetensors(&path("clip.safetensors"), &clip())?;
    safetensors(&path("ae.safetensors"), &vae())?;
    crate::tiny_model::write(&path("model"), crate::tiny_model::Kind::Plain)?;
    let tokenizer = path("model/tokenizer");
    std::fs::create_dir(tokenizer.join("tokenizer_2"))?;
    std::fs::write(tokenizer.join("tokenizer_2/tokenizer.json"), T5_TOKENIZER[0].1)?;
    let formats = [
        ("Q4_0", 2, GgmlDType::Q4_0),
        ("Q8_0", 8, GgmlDType::Q8_0),
        ("Q4_K", 12, GgmlDType::Q4K),
        ("Q5_K", 13, GgmlDType::Q5K),
    ];
    for (name, id, format) in formats {
        gguf(&path(&format!("flux {name}")), &flux(), (id, format))?;
        gguf(&path(&format!("t5 {name}")), &t5(), (id, format))?;
    }
    // Formats of transformer and T5, and all bytes: of 11.9 and 4.8 billion weights in blocks, and of 123.1 and 83.8 million
    // of CLIP and VAE in f16.
    for (transformer, t5, expected) in [
        ("Q4_K", "Q4_K", 9_792_517_062),
        ("Q4_0", "Q5_K", 10_387_497_926),
        ("Q4_K", "Q8_0", 12_173_571_014),
        ("Q8_0", "Q8_0", 18_122_449_862),
    ] {
        let files = FileOptions {
            tokenizer: Some(tokenizer.clone()),
            clip_l: Some(path("clip.safetensors")),
            t5xxl: Some(path(&format!("t5 {t5}"))),
            vae: Some(path("ae.safetensors")),
            ..FileOptions::default()
        };
        let options = LoadOptions { files, dtype: Some(DType::F16), ..LoadOptions::default() };
        let path = path(&format!("flux {transformer}"));
        let bytes = Model::required_bytes(&path, &Device::Cpu, &options)?;
        println!("{transformer} with T5 in {t5}: {bytes} bytes");
        assert_eq!(bytes, expected, "{transformer} with T5 in {t5}");
    }
    Ok(())
}
