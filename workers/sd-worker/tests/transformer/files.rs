//! Models made of single files: the transformer, text encoders and VAE, as they are published for ComfyUI and
//! stable-diffusion.cpp.
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use sd_worker::model::{FileOptions, LoadOptions, Model, Version};
use sd_worker::pipeline::{Pipeline, Request};
use tempfile::TempDir;

use crate::fixture::{Outcome, T5_TOKENIZER, expected, generate, levels, request, write};
use crate::gguf::save;
use crate::original::{FILE_NAMES, Weights, original};

/// Formats of the files of the T5 encoder.
const T5_FORMATS: [(&str, GgmlDType); 11] = [
    ("f16", GgmlDType::F16),
    ("q4_0", GgmlDType::Q4_0),
    ("q4_1", GgmlDType::Q4_1),
    ("q5_0", GgmlDType::Q5_0),
    ("q5_1", GgmlDType::Q5_1),
    ("q8_0", GgmlDType::Q8_0),
    ("q2k", GgmlDType::Q2K),
    ("q3k", GgmlDType::Q3K),
    ("q4k", GgmlDType::Q4K),
    ("q5k", GgmlDType::Q5K),
    ("q6k", GgmlDType::Q6K),
];
/// Parts of the names of a T5 encoder in transformers and in llama.cpp.
const LLAMA: [(&str, &str); 11] = [
    ("shared.", "token_embd."),
    ("encoder.final_layer_norm.", "enc.output_norm."),
    ("encoder.block.", "enc.blk."),
    ("layer.0.SelfAttention.relative_attention_bias.", "attn_rel_b."),
    ("layer.0.SelfAttention.", "attn_"),
    ("layer.0.layer_norm.", "attn_norm."),
    ("layer.1.DenseReluDense.wi_0.", "ffn_gate."),
    ("layer.1.DenseReluDense.wi_1.", "ffn_up."),
    ("layer.1.DenseReluDense.wo.", "ffn_down."),
    ("layer.1.layer_norm.", "ffn_norm."),
    ("encoder.embed_tokens.", "token_embd."),
];
/// Parts of the names of a VAE in diffusers and in the original code, where up blocks are counted from the other end.
const VAE: [(&str, &str); 16] = [
    ("mid_block.attentions.0.group_norm.", "mid.attn_1.norm."),
    ("mid_block.attentions.0.to_q.", "mid.attn_1.q."),
    ("mid_block.attentions.0.to_k.", "mid.attn_1.k."),
    ("mid_block.attentions.0.to_v.", "mid.attn_1.v."),
    ("mid_block.attentions.0.to_out.0.", "mid.attn_1.proj_out."),
    ("mid_block.resnets.0.", "mid.block_1."),
    ("mid_block.resnets.1.", "mid.block_2."),
    ("conv_norm_out.", "norm_out."),
    ("conv_shortcut.", "nin_shortcut."),
    ("samplers.0.conv.", "sample.conv."),
    ("down_blocks.", "down."),
    ("up_blocks.0.", "up.3."),
    ("up_blocks.1.", "up.2."),
    ("up_blocks.2.", "up.1."),
    ("up_blocks.3.", "up.0."),
    (".resnets.", ".block."),
];

fn renamed(name: &str, table: &[(&str, &str)]) -> String {
    table.iter().fold(name.to_owned(), |name, (own, other)| name.replace(own, other))
}

/// Writes a GGUF file of llama.cpp with the weights of a T5 encoder, whose matrices have this format.
fn save_t5(path: &Path, weights: &Weights, format: GgmlDType, has_tokenizer: bool) -> Outcome {
    let mut tensors = Vec::new();
    for (name, weight) in weights {
        let is_float = name.contains("norm") || name.contains("relative_attention_bias");
        let format = if is_float { GgmlDType::F32 } else { format };
        tensors.push((renamed(name, &LLAMA), QTensor::quantize(weight, format)?));
    }
    let tensors: Vec<(&str, &QTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut metadata = vec![("general.architecture", Value::String("t5encoder".to_owned()))];
    if has_tokenizer {
        let json: serde_json::Value = serde_json::from_str(T5_TOKENIZER[0].1)?;
        let entries = json["model"]["vocab"].as_array().ok_or("no vocabulary")?;
        let tokens =
            entries.iter().map(|entry| Value::String(entry[0].as_str().unwrap_or_default().to_owned()));
        let scores = entries.iter().map(|entry| Value::F32(entry[1].as_f64().unwrap_or_default() as f32));
        let kinds = (0..entries.len()).map(|i| Value::I32([3, 3, 2].get(i).copied().unwrap_or(1)));
        metadata.extend([
            ("tokenizer.ggml.model", Value::String("t5".to_owned())),
            ("tokenizer.ggml.tokens", Value::Array(tokens.collect())),
            ("tokenizer.ggml.scores", Value::Array(scores.collect())),
            ("tokenizer.ggml.token_type", Value::Array(kinds.collect())),
            ("tokenizer.ggml.unknown_token_id", Value::U32(2)),
        ]);
    }
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    Ok(gguf_file::write(&mut File::create(path)?, &metadata, &tensors)?)
}

fn read(folder: &Path, component: &str, file: &str) -> Outcome<Weights> {
    let path = folder.join(component).join(file);
    Ok(candle_core::safetensors::load(path, &Device::Cpu)?)
}

fn t5_component(folder: &Path) -> &'static str {
    if folder.join("text_encoder_3").exists() { "text_encoder_3" } else { "text_encoder_2" }
}

/// Writes the GGUF files of the T5 encoder of a model to a folder.
pub fn write_encoders(folder: &Path, model: &Path) -> Outcome {
    let weights = read(model, t5_component(model), "model.safetensors")?;
    for (name, format) in T5_FORMATS {
        save_t5(&folder.join(format!("t5_{name}.gguf")), &weights, format, true)?;
    }
    Ok(())
}

/// A model in the layout of diffusers, and the same weights in single files beside it.
pub struct Files {
    folder: TempDir,
    flux: bool,
    /// Weights of the transformer, text encoders (CLIP-L, CLIP-G, T5) and the VAE, with the names of single files.
    parts: Vec<(&'static str, Weights)>,
}

impl Files {
    pub fn of(kind: &str) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let root = folder.path();
        write(root, kind)?;
        let diffusion = "diffusion_pytorch_model.safetensors";
        let (_, names) = FILE_NAMES.into_iter().find(|(name, _)| *name == kind).ok_or("no names")?;
        let mut parts = vec![("transformer", original(&read(root, "transformer", diffusion)?, names)?)];
        let flux = kind.starts_with("flux");
        let clips: &[_] = if flux { &[("clip_l", "")] } else { &[("clip_l", ""), ("clip_g", "_2")] };
        for (name, suffix) in clips {
            let own = read(root, &format!("text_encoder{suffix}"), "model.safetensors")?;
            let mut weights = Weights::new();
            for (own, weight) in own {
                let is_whole = own.starts_with("text_model.") || own.starts_with("text_projection.");
                weights.insert(if is_whole { own } else { format!("text_model.{own}") }, weight);
            }
            // The projection of CLIP-L is not used.
            if *name == "clip_l" {
                weights.insert(
                    "text_projection.weight".to_owned(),
                    Tensor::ones((64, 64), DType::F32, &Device::Cpu)?,
                );
                weights.insert("logit_scale".to_owned(), Tensor::ones((), DType::F32, &Device::Cpu)?);
            }
            parts.push((name, weights));
        }
        parts.push(("t5xxl", read(root, t5_component(root), "model.safetensors")?));
        let vae = read(root, "vae", diffusion)?.into_iter().map(|(name, weight)| {
            let name = renamed(&name, &VAE);
            let weight = match weight.dims() {
                &[rows, columns] => weight.reshape((rows, columns, 1, 1))?,
                _ => weight,
            };
            Ok((name, weight))
        });
        parts.push(("vae", vae.collect::<Outcome<_>>()?));
        let files = Self { folder, flux, parts };
        for (name, weights) in &files.parts {
            candle_core::safetensors::save(weights, files.path(name))?;
        }
        // Nothing else is left than the tokenizers.
        for component in
            ["transformer", "vae", "scheduler", "text_encoder", "text_encoder_2", "text_encoder_3"]
        {
            drop(fs::remove_dir_all(files.folder.path().join(component)));
        }
        Ok(files)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).with_extension("safetensors")
    }

    pub fn weights(&self, name: &str) -> &Weights {
        self.parts.iter().find(|(own, _)| *own == name).map_or(&self.parts[0].1, |(_, weights)| weights)
    }

    /// Returns options with all files.
    pub fn options(&self) -> FileOptions {
        FileOptions {
            clip_l: Some(self.path("clip_l")),
            clip_g: (!self.flux).then(|| self.path("clip_g")),
            t5xxl: Some(self.path("t5xxl")),
            vae: Some(self.path("vae")),
            ..FileOptions::default()
        }
    }

    fn load_on(
        &self,
        path: &Path,
        files: FileOptions,
        device: &Device,
        dtype: DType,
    ) -> sd_worker::Result<Pipeline> {
        let options = LoadOptions { files, dtype: Some(dtype), ..LoadOptions::default() };
        Ok(Pipeline::new(Model::load(path, device, options, |_| ())?))
    }

    pub fn load(&self, files: FileOptions) -> sd_worker::Result<Pipeline> {
        self.load_on(&self.path("transformer"), files, &Device::Cpu, DType::F32)
    }

    pub fn error(&self, files: FileOptions) -> Outcome<String> {
        let error = self.load(files).err().ok_or("the model was loaded")?.to_string();
        // Errors of tensors may have a backtrace.
        Ok(error.lines().next().unwrap_or_default().to_owned())
    }

    fn request(&self, pipeline: &Pipeline) -> Request {
        match self.flux {
            true => Request { guidance: 3.5, ..request(pipeline) },
            false => Request { guidance: 5.0, negative: "blue".to_owned(), ..request(pipeline) },
        }
    }

    pub fn levels(&self, pipeline: &Pipeline, name: &str) -> Outcome<(u8, f64)> {
        let found = levels(&generate(pipeline, &self.request(pipeline))?, &expected(name)?);
        println!("{name}: at most {} levels, {:.4} on average", found.0, found.1);
        Ok(found)
    }
}

#[test]
fn images_of_separate_files_agree_with_diffusers() -> Outcome {
    for (kind, version) in [("flux_files", Version::Flux), ("sd35_files", Version::Sd35)] {
        let files = Files::of(kind)?;
        let pipeline = files.load(files.options())?;
        assert_eq!((pipeline.model.version, pipeline.model.turbo), (version, false));
        let (most, _) = files.levels(&pipeline, kind)?;
        assert!(most <= 1, "{kind}: {most} levels away");
        let expected = generate(&pipeline, &files.request(&pipeline))?;
        let same = |path: &Path, options: FileOptions| -> Outcome {
            let pipeline = files.load_on(path, options, &Device::Cpu, DType::F32)?;
            assert!(generate(&pipeline, &files.request(&pipeline))? == expected, "{}", path.display());
            Ok(())
        };
        // All networks in one file.
        let prefixes = [
            ("transformer", "model.diffusion_model."),
            ("clip_l", "text_encoders.clip_l.transformer."),
            ("clip_g", "text_encoders.clip_g.transformer."),
            ("t5xxl", "text_encoders.t5xxl.transformer."),
            ("vae", if files.flux { "vae." } else { "first_stage_model." }),
        ];
        let mut whole = Weights::new();
        for (name, weights) in &files.parts {
            let prefix = prefixes.iter().find(|(own, _)| own == name).map_or("", |(_, prefix)| *prefix);
            whole.extend(weights.iter().map(|(name, weight)| (format!("{prefix}{name}"), weight.clone())));
        }
        let path = files.path("whole");
        candle_core::safetensors::save(&whole, &path)?;
        same(&path, FileOptions::default())?;
        // The embeddings of T5 may have another name, or two.
        let mut t5 = files.weights("t5xxl").clone();
        let table = t5.remove("shared.weight").ok_or("no embeddings")?;
        t5.insert("encoder.embed_tokens.weight".to_owned(), table.clone());
        for _ in 0..2 {
            candle_core::safetensors::save(&t5, files.path("t5xxl"))?;
            same(&files.path("transformer"), files.options())?;
            t5.insert("shared.weight".to_owned(), table.clone());
        }
        // T5's tokenizer lies beside its file.
        let own = files.folder.path().join(if files.flux { "tokenizer_2" } else { "tokenizer_3" });
        let elsewhere = tempfile::tempdir()?;
        fs::copy(own.join("tokenizer.json"), elsewhere.path().join("tokenizer.json"))?;
        fs::remove_dir_all(own)?;
        let moved = elsewhere.path().join("t5xxl.safetensors");
        fs::copy(files.path("t5xxl"), &moved)?;
        same(&files.path("transformer"), FileOptions { t5xxl: Some(moved), ..files.options() })?;
        let error = files.error(files.options())?;
        assert!(error.contains("t5xxl.safetensors has no tokenizer: put T5's tokenizer.json"), "{error}");
    }
    Ok(())
}

#[test]
fn files_replace_text_encoders_of_folders() -> Outcome {
    for kind in ["flux_files", "sd35_files"] {
        let files = Files::of(kind)?;
        let expected = files.load(files.options())?;
        let expected = generate(&expected, &files.request(&expected))?;
        let folder = tempfile::tempdir()?;
        write(folder.path(), kind)?;
        let t5 = t5_component(folder.path());
        for component in ["text_encoder", t5] {
            fs::remove_dir_all(folder.path().join(component))?;
        }
        let pipeline = files.load_on(folder.path(), files.options(), &Device::Cpu, DType::F32)?;
        assert!(generate(&pipeline, &files.request(&pipeline))? == expected, "{kind}");
    }
    Ok(())
}

#[test]
fn f8_encoders_equal_their_values() -> Outcome {
    let files = Files::of("flux_files")?;
    let cast = |dtype: DType| -> Outcome<Weights> {
        let cast = files
            .weights("t5xxl")
            .iter()
            .map(|(name, weight)| Ok((name.clone(), weight.to_dtype(DType::F8E4M3)?.to_dtype(dtype)?)));
        cast.collect()
    };
    let mut pictures = Vec::new();
    for dtype in [DType::F8E4M3, DType::F32] {
        candle_core::safetensors::save(&cast(dtype)?, files.path("t5xxl"))?;
        let pipeline = files.load(files.options())?;
        pictures.push(generate(&pipeline, &files.request(&pipeline))?);
    }
    assert!(pictures[0] == pictures[1]);
    assert!(levels(&pictures[0], &expected("flux_files")?).0 > 1);
    Ok(())
}

/// Compares images with those that diffusers generates with the weights that the gguf package dequantizes.
fn compare_formats(device: &Device, dtype: DType, formats: &[(&str, GgmlDType)], bound: f64) -> Outcome {
    let files = Files::of("flux_files")?;
    fs::remove_dir_all(files.folder.path().join("tokenizer_2"))?;
    let weights = files.weights("t5xxl").clone();
    for (name, format) in formats {
        let path = files.folder.path().join("t5.gguf");
        save_t5(&path, &weights, *format, true)?;
        let options = FileOptions { t5xxl: Some(path), ..files.options() };
        let pipeline = files.load_on(&files.path("transformer"), options, device, dtype)?;
        let (most, mean) = files.levels(&pipeline, &format!("flux_t5_{name}"))?;
        assert!(mean <= bound, "{name}: {mean} levels away in {dtype:?} on average");
        assert!(*format != GgmlDType::F16 || dtype != DType::F32 || most <= 1, "{name}: {most} levels away");
    }
    Ok(())
}

#[test]
fn quantized_encoders_agree_with_diffusers() -> Outcome {
    compare_formats(&Device::Cpu, DType::F32, &T5_FORMATS, 2.0)
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_software_gpu_agrees() -> Outcome {
    let device = crate::tiny_model::software_gpu()?;
    compare_formats(&device, DType::F32, &T5_FORMATS[1..2], 1.0)?;
    compare_formats(&device, DType::BF16, &T5_FORMATS[9..10], 2.0)
}

/// Writes transformer, T5 and CLIP-L as GGUF files with blocks, and returns options with them.
fn quantized(files: &Files) -> Outcome<(PathBuf, FileOptions)> {
    let path = |name: &str| files.folder.path().join(name).with_extension("gguf");
    save(&path("flux"), "flux", files.weights("transformer"), [GgmlDType::Q8_0, GgmlDType::Q4K])?;
    save_t5(&path("t5"), files.weights("t5xxl"), GgmlDType::Q5K, true)?;
    let mut clip = Vec::new();
    for (name, weight) in files.weights("clip_l") {
        let format = if weight.rank() == 2 { GgmlDType::Q8_0 } else { GgmlDType::F32 };
        let weight = if weight.rank() == 0 { weight.reshape(1)? } else { weight.clone() };
        clip.push((name.as_str(), QTensor::quantize(&weight, format)?));
    }
    let clip: Vec<(&str, &QTensor)> = clip.iter().map(|(name, tensor)| (*name, tensor)).collect();
    gguf_file::write(&mut File::create(path("clip_l"))?, &[], &clip)?;
    let options = FileOptions { clip_l: Some(path("clip_l")), t5xxl: Some(path("t5")), ..files.options() };
    Ok((path("flux"), options))
}

#[test]
fn all_networks_may_be_quantized() -> Outcome {
    let files = Files::of("flux_files")?;
    let (path, options) = quantized(&files)?;
    let pipeline = files.load_on(&path, options, &Device::Cpu, DType::F32)?;
    let (_, mean) = files.levels(&pipeline, "flux_files")?;
    assert!(mean > 0.0 && mean < 20.0, "{mean} levels away from the floats on average");
    Ok(())
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_plan_of_memory_is_exact() -> Outcome {
    let device = crate::tiny_model::software_gpu()?;
    let files = Files::of("flux_files")?;
    let (quantized, options) = quantized(&files)?;
    for (path, files, dtype) in [
        (&quantized, options.clone(), DType::BF16),
        (&quantized, options, DType::F32),
        (&files.path("transformer"), files.options(), DType::BF16),
    ] {
        let options = LoadOptions { files, dtype: Some(dtype), ..LoadOptions::default() };
        let planned = Model::required_bytes(path, &device, &options)?.resident;
        let rocm = device.as_rocm_device()?;
        let before = rocm.memory_stats();
        let model = Model::load(path, &device, options, |_| ())?;
        device.synchronize()?;
        let after = rocm.memory_stats();
        drop(model);
        // Each allocation is rounded up to 256 bytes, or by an eighth at most, and is followed by a gap.
        let found = after.live - before.live;
        println!("{dtype:?}: {planned} bytes planned, {found} allocated");
        assert!(
            found >= planned && found < planned * 5 / 4 + (after.requests - before.requests) as usize * 512
        );
    }
    Ok(())
}

#[test]
fn other_files_are_refused() -> Outcome {
    let files = Files::of("flux_files")?;
    let (all, none) = (files.options(), FileOptions::default());
    for (options, part) in [
        (none.clone(), "holds Flux without a text encoder; set --clip-l to a file of CLIP-L"),
        (FileOptions { t5xxl: None, ..all.clone() }, "set --t5xxl to a file of a T5 text encoder"),
        (FileOptions { vae: None, ..all.clone() }, "holds no VAE"),
        (
            FileOptions { t5xxl: all.clip_l.clone(), ..all.clone() },
            "clip_l.safetensors holds a text encoder alone; --t5xxl requires a T5 text encoder",
        ),
        (
            FileOptions { clip_l: all.t5xxl.clone(), ..all.clone() },
            "t5xxl.safetensors holds a T5 text encoder; --clip-l requires CLIP-L",
        ),
        (FileOptions { t5xxl: Some("none.gguf".into()), ..all.clone() }, "none.gguf cannot be read"),
        (FileOptions { tokenizer: Some("none".into()), ..all.clone() }, "--tokenizer"),
        (
            FileOptions { embeddings: Some("none".into()), ..all.clone() },
            "--embedding-dir is not supported by Flux",
        ),
    ] {
        let error = files.error(options)?;
        assert!(error.contains(part), "{part}: {error}");
    }
    // Encoders whose tensors do not fit, as safetensors and as GGUF.
    let own = files.weights("t5xxl").clone();
    let (query, norm) =
        ("encoder.block.1.layer.0.SelfAttention.q.weight", "encoder.block.0.layer.1.layer_norm.weight");
    let zeros = Tensor::zeros((32, 32), DType::F32, &Device::Cpu)?;
    for (change, name) in [("missing", query), ("missing", norm), ("misshapen", query), ("extra", query)] {
        let mut weights = own.clone();
        match change {
            "missing" => drop(weights.remove(name)),
            "misshapen" => drop(weights.insert(name.to_owned(), zeros.clone())),
            _ => drop(weights.insert(format!("{name}.more"), zeros.clone())),
        }
        candle_core::safetensors::save(&weights, files.path("t5xxl"))?;
        let gguf = files.folder.path().join("t5xxl.gguf");
        save_t5(&gguf, &weights, GgmlDType::Q8_0, true)?;
        for (path, name) in [(files.path("t5xxl"), name.to_owned()), (gguf, renamed(name, &LLAMA))] {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let error = files.error(FileOptions { t5xxl: Some(path), ..all.clone() })?;
            assert!(error.contains(&name) && error.contains(&file), "{change}, {name}: {error}");
        }
    }
    // An encoder of another width, and one without a network of a block.
    let other = tempfile::tempdir()?;
    write(other.path(), "flux_dev")?;
    let path = other.path().join("text_encoder_2/model.safetensors");
    let error = files.error(FileOptions { t5xxl: Some(path), ..all.clone() })?;
    assert!(error.contains("model.safetensors has width 80, but the transformer takes 256"), "{error}");
    // Tokenizers in the metadata that do not fit, and cut files.
    let gguf = files.folder.path().join("t5xxl.gguf");
    let options = FileOptions { t5xxl: Some(gguf.clone()), ..all };
    let small =
        HashMap::from([("shared.weight".to_owned(), (own["shared.weight"].narrow(0, 0, 16)? * 1.0)?)]);
    let smaller: Weights = own.clone().into_iter().chain(small).collect();
    save_t5(&gguf, &smaller, GgmlDType::Q8_0, true)?;
    let error = files.error(options.clone())?;
    assert!(error.contains("t5xxl.gguf: 40 tokens, but the text encoder has embeddings of 16"), "{error}");
    save_t5(&gguf, &own, GgmlDType::Q8_0, true)?;
    let whole = fs::read(&gguf)?;
    let changed = |from: &[u8], to: &[u8]| -> Outcome {
        let at = whole.windows(from.len()).position(|bytes| bytes == from).ok_or("not found")?;
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        Ok(fs::write(&gguf, bytes)?)
    };
    changed(b"ggml.scores", b"ggml.stores")?;
    assert!(files.error(options.clone())?.contains("tokenizer.ggml.scores is missing or invalid"));
    changed(b"t5encoder", b"qwenmodel")?;
    assert!(files.error(options.clone())?.contains("general.architecture is qwenmodel"));
    for length in (0..whole.len()).step_by(whole.len() / 60) {
        fs::write(&gguf, &whole[..length])?;
        let error = files.error(options.clone())?;
        assert!(error.contains("t5xxl.gguf"), "{length} bytes: {error}");
    }
    Ok(())
}
