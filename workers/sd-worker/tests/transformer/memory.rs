//! Memory that published models need, from headers with the shapes of their tensors, in files without data.
use std::fs::File;
use std::io::Write;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use sd_worker::model::{ACTIVATION_BYTES, FileOptions, LoadOptions, Model, RequiredBytes, T5Memory};
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
fn quantized_flux_fits_into_12_gb() -> Outcome {
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
    // Formats of transformer and T5, all bytes, and those without the blocks of T5 but one: of 11.9 and 4.8 billion weights in
    // blocks, and of 123.1 and 83.8 million of CLIP and VAE in f16.
    let blocks = |count: usize, format: GgmlDType| count / format.block_size() * format.type_size();
    for (transformer, t5, all) in [
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
        let found = Model::required_bytes(&path, &Device::Cpu, &options)?;
        let (_, _, format) = formats.into_iter().find(|(name, ..)| *name == t5).ok_or("no such format")?;
        // A block has four matrices of 4096 x 4096, three of 4096 x 10240, and two norms in f32. 23 of 24 are not in memory.
        let block = blocks(4 * 4096 * 4096 + 3 * 4096 * 10240, format) + 2 * 4096 * 4;
        // The first block has the biases of distances in addition.
        let least = all - 23 * block;
        println!("{transformer} with T5 in {t5}: {all} bytes, {} if T5 is streamed", found.least);
        assert_eq!((found.resident, found.least), (all, least), "{transformer} with T5 in {t5}");
        for (memory, expected) in [(T5Memory::Resident, all), (T5Memory::Streamed, least)] {
            let options = LoadOptions { t5_memory: memory, ..options.clone() };
            let found = Model::required_bytes(&path, &Device::Cpu, &options)?;
            assert_eq!(found, RequiredBytes::all(expected), "{memory:?}");
        }
        // Cards with 12 and with 16 GB.
        let most = if transformer == "Q8_0" { 16_000_000_000 } else { 12_000_000_000 };
        let planned = found.planned(Some(most));
        assert!(planned + ACTIVATION_BYTES <= most, "{planned} bytes of weights");
        assert_eq!(planned == all, t5 == "Q4_K", "{planned}");
    }
    Ok(())
}

#[test]
fn t5_is_streamed_if_not_everything_fits() {
    let required = RequiredBytes { resident: 12 << 30, least: 8 << 30 };
    for (free, expected) in [
        (None, 12),
        (Some(usize::MAX), 12),
        (Some(14 << 30), 12),
        (Some((14 << 30) - 1), 8),
        (Some(9 << 30), 8),
        (Some(0), 8),
    ] {
        assert_eq!(required.planned(free), expected << 30, "{free:?}");
    }
}

/// A computation that is cancelled between blocks of T5 reads no further block, and keeps no states.
#[test]
fn a_streamed_t5_is_cancelled_between_blocks() -> Outcome {
    let folder = tempfile::tempdir()?;
    crate::fixture::write(folder.path(), "sd3")?;
    let options =
        LoadOptions { dtype: Some(DType::F32), t5_memory: T5Memory::Streamed, ..LoadOptions::default() };
    let model = Model::load(folder.path(), &Device::Cpu, options, |_| ())?;
    let checks = std::cell::Cell::new(0);
    let encode = |most: usize| {
        checks.set(0);
        model.encode_checked(&["red"], 1, &|| {
            checks.set(checks.get() + 1);
            match checks.get() > most {
                true => Err(sd_worker::Error::Cancelled { step: 0, total: 4 }),
                false => Ok(()),
            }
        })
    };
    for most in [0, 1] {
        let cancelled = encode(most).err();
        assert!(matches!(cancelled, Some(sd_worker::Error::Cancelled { .. })), "{cancelled:?}");
        assert_eq!(checks.get(), most + 1);
    }
    let states = encode(usize::MAX)?.context;
    let blocks = checks.get();
    assert!(blocks > 1, "{blocks} checks");
    // The states are known now.
    let again = encode(0)?.context;
    assert_eq!((checks.get(), again.to_vec3::<f32>()?), (0, states.to_vec3::<f32>()?));
    Ok(())
}

/// Weights of T5 that are read block by block give the same images, are not in memory before and after, and are not read
/// again for the same prompt.
#[cfg(feature = "rocm-emulator")]
#[test]
fn a_streamed_t5_needs_less_memory_and_changes_no_image() -> Outcome {
    // The device counts the memory of the whole process, to which other tests would add theirs.
    crate::fixture::run_alone("memory::streamed_t5")
}

#[cfg(feature = "rocm-emulator")]
#[test]
#[ignore = "run by a_streamed_t5_needs_less_memory_and_changes_no_image"]
fn streamed_t5() -> Outcome {
    use crate::fixture::{generate, request, write};
    use sd_worker::pipeline::{Pipeline, Request};

    let device = crate::tiny_model::software_gpu()?;
    let rocm = device.as_rocm_device()?;
    let folder = tempfile::tempdir()?;
    write(folder.path(), "sd3")?;
    let options = |t5_memory| LoadOptions { dtype: Some(DType::F32), t5_memory, ..LoadOptions::default() };
    let required = Model::required_bytes(folder.path(), &device, &options(T5Memory::Auto))?;
    let plain =
        |pipeline: &Pipeline| Request { guidance: 5.0, negative: "blue".to_owned(), ..request(pipeline) };
    // Returns the model, its image, the bytes of its weights, and the largest number of bytes in use.
    let measured = |t5_memory| {
        let before = rocm.memory_stats().live;
        let pipeline = Pipeline::new(Model::load(folder.path(), &device, options(t5_memory), |_| ())?);
        device.synchronize()?;
        let weights = rocm.memory_stats().live - before;
        let picture = generate(&pipeline, &plain(&pipeline))?;
        Ok::<_, sd_worker::Error>((pipeline, picture, weights, rocm.memory_stats().peak - before))
    };
    let reserve = rocm.memory_reserve();
    // One byte less than weights and activations are planned to need.
    let planned = required.resident + ACTIVATION_BYTES;
    rocm.set_memory_reserve((rocm.free_memory()? + 1).saturating_sub(planned));
    let (streamed, picture, own, own_peak) = measured(T5Memory::Auto)?;
    rocm.set_memory_reserve(reserve);
    drop(streamed);
    let (resident, expected, all, all_peak) = measured(T5Memory::Auto)?;
    drop(resident);
    assert!(picture == expected, "the image differs");
    let t5 = std::fs::metadata(folder.path().join("text_encoder_3/model.safetensors"))?.len() as usize;
    println!(
        "{own} bytes of weights, peak {own_peak}; {all} with the {t5} of T5, peak {all_peak}; {required:?}"
    );
    // The states that are kept for both prompts take a part of what is saved.
    assert!(all > own + t5 * 9 / 10 && all_peak > own_peak + t5 / 3);
    let (streamed, ..) = measured(T5Memory::Streamed)?;
    let plain = plain(&streamed);
    // The files are not opened for prompts that are known: their tensors are now those of another file.
    for name in ["text_encoder_3", "text_encoder_2", "text_encoder"] {
        let file = folder.path().join(name).join("model.safetensors");
        std::fs::OpenOptions::new().write(true).open(file)?.set_len(1 << 12)?;
    }
    assert!(generate(&streamed, &plain)? == expected, "the image differs");
    let other = Request { prompt: "red".to_owned(), ..plain.clone() };
    let error = generate(&streamed, &other).err().ok_or("a cut file was read")?.to_string();
    assert!(error.contains("text_encoder_3"), "{error}");
    assert!(generate(&streamed, &plain)? == expected, "the image differs");
    Ok(())
}
