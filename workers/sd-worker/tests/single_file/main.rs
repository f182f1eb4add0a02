//! Single-file checkpoints: the images equal those of the same weights in a folder, and other files are refused.
//!
//! `names.py` writes the tables of names, with the conversion of diffusers, and `pictures.py` the images in `data`.
mod gguf;
mod refiner;
mod scaled;
#[path = "../tiny_model/mod.rs"]
mod tiny_model;

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::TensorView;
use sd_worker::model::{FileOptions, LoadOptions, Model, Version};
use sd_worker::picture::{Mask, Picture};
use sd_worker::pipeline::{Pipeline, Request, Start};
use sd_worker::schedulers::{Method, Prediction, Spacing};
use serde_json::Value;
use tempfile::TempDir;
use tiny_model::published::{INPAINT, Kind, V1, V2, XL, configs};
use tiny_model::{Outcome, write_configs};

type Weights = HashMap<String, Tensor>;

fn names(kind: Kind) -> &'static str {
    match kind.version {
        "v1" => include_str!("v1.txt"),
        "v2" => include_str!("v2.txt"),
        "refiner" => include_str!("refiner.txt"),
        _ => include_str!("xl.txt"),
    }
}

/// Names of the attention of VAEs that the fixture has, and those of later versions of diffusers.
const OLDER_VAE_NAMES: [(&str, &str); 4] =
    [(".query.", ".to_q."), (".key.", ".to_k."), (".value.", ".to_v."), (".proj_attn.", ".to_out.0.")];

/// Returns the weights of a folder under the original names, and tensors that no network uses.
fn original(folder: &Path, kind: Kind) -> Outcome<Weights> {
    let mut own = HashMap::new();
    for component in ["unet", "vae", "text_encoder", "text_encoder_2"] {
        let file = if component.starts_with("text") { "model" } else { "diffusion_pytorch_model" };
        let path = folder.join(component).join(file).with_extension("safetensors");
        if path.exists() {
            let weights = candle_core::safetensors::load(path, &Device::Cpu)?;
            own.extend(weights.into_iter().map(|(name, weight)| {
                let name = OLDER_VAE_NAMES.iter().fold(name, |name, (old, new)| name.replace(old, new));
                (format!("{component}/{name}"), weight)
            }));
        }
    }
    let mut weights = HashMap::new();
    for line in names(kind).lines() {
        let weight = match line.split_once(' ') {
            None => Tensor::full(7f32, (2, 3), &Device::Cpu)?,
            Some((_, parts)) => {
                let transposed = parts.strip_suffix("^T");
                let parts: Option<Vec<Tensor>> =
                    transposed.unwrap_or(parts).split('+').map(|part| own.remove(part)).collect();
                let weight = Tensor::cat(&parts.ok_or_else(|| line.to_owned())?, 0)?;
                match (transposed, weight.dims()) {
                    (Some(_), _) => weight.t()?.contiguous()?,
                    (None, &[rows, columns]) if line.contains(".attn_1.") => {
                        weight.reshape((rows, columns, 1, 1))?
                    }
                    _ => weight,
                }
            }
        };
        weights.insert(line.split(' ').next().unwrap_or_default().to_owned(), weight);
    }
    assert!(own.is_empty(), "weights without an original name: {:?}", own.keys());
    Ok(weights)
}

/// A folder that holds a model, its tokenizers, and the same weights as a single file.
struct Fixture {
    folder: TempDir,
    file: PathBuf,
    weights: Weights,
}

impl Fixture {
    fn of(kind: Kind) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        write_configs(folder.path(), &configs(kind))?;
        let weights = original(folder.path(), kind)?;
        let fixture = Self { file: folder.path().join("model.safetensors"), folder, weights };
        fixture.save()?;
        Ok(fixture)
    }

    fn save(&self) -> Outcome {
        Ok(candle_core::safetensors::save(&self.weights, &self.file)?)
    }

    fn load(&self) -> Outcome<Model> {
        self.load_with(FileOptions::default())
    }

    fn load_with(&self, files: FileOptions) -> Outcome<Model> {
        let options = LoadOptions { files, ..LoadOptions::default() };
        Ok(Model::load(&self.file, &Device::Cpu, options, |_| ())?)
    }

    /// Returns true if the error names another file of the folder.
    fn is_beside(&self, error: &str) -> bool {
        error.contains(&*self.folder.path().to_string_lossy())
    }

    /// Returns the first line of the error of loading the file, which names the file.
    fn error(&self) -> String {
        self.error_with(FileOptions::default())
    }

    fn error_with(&self, files: FileOptions) -> String {
        let error = self.load_with(files).err().map(|error| error.to_string()).unwrap_or_default();
        // Errors of tensors may have a backtrace.
        let error = error.lines().next().unwrap_or_default().to_owned();
        assert!(error.contains(&*self.file.to_string_lossy()) || self.is_beside(&error), "{error}");
        error
    }
}

fn pictures(model: Model) -> Outcome<Vec<Picture>> {
    let pipeline = Pipeline::new(model);
    let mut request = Request {
        negative: "blue".to_owned(),
        width: 32,
        height: 32,
        steps: 3,
        seeds: vec![3, 4],
        ..Request::of(&pipeline.model, "a red circle")
    };
    if pipeline.model.is_inpainting() {
        let picture = Picture::new(32, 32, (0..32 * 32 * 3).map(|i| (i % 251) as u8).collect())?;
        let mask = Some(Mask::new(32, 32, (0..32 * 32).map(|i| i % 32 < 16).collect())?);
        request.start = Some(Start { picture, strength: 1.0, mask });
    }
    Ok(pipeline.run(&request, &mut |_| ControlFlow::Continue(()))?)
}

#[test]
fn images_equal_those_of_the_folder() -> Outcome {
    for (kind, method) in
        [(V1, Method::Pndm), (INPAINT, Method::Pndm), (V2, Method::Ddim), (XL, Method::Euler)]
    {
        let fixture = Fixture::of(kind)?;
        let single = fixture.load()?;
        let folder = Model::load(fixture.folder.path(), &Device::Cpu, LoadOptions::default(), |_| ())?;
        assert_eq!(single.unet()?.config().in_channels, kind.channels);
        assert_eq!(single.side(), folder.side(), "{kind:?}");
        assert_eq!((single.version, single.turbo), (Version::Other, false));
        assert_eq!((single.scheduler.method, &single.scheduler), (method, &folder.scheduler), "{kind:?}");
        assert_eq!(single.zeros_for_empty, folder.zeros_for_empty);
        let expected = pictures(folder)?;
        assert!(expected[0] != expected[1]);
        assert!(pictures(single)? == expected, "{kind:?}");
    }
    Ok(())
}

#[test]
fn a_second_layout_of_the_text_encoder_is_known() -> Outcome {
    let mut fixture = Fixture::of(V1)?;
    let expected = pictures(fixture.load()?)?;
    let rename = |name: String| name.replace("transformer.text_model.", "transformer.");
    fixture.weights = fixture.weights.into_iter().map(|(name, weight)| (rename(name), weight)).collect();
    fixture.save()?;
    assert!(pictures(fixture.load()?)? == expected);
    Ok(())
}

#[test]
fn a_vae_file_replaces_the_own_one() -> Outcome {
    let mut fixture = Fixture::of(V1)?;
    let expected = pictures(fixture.load()?)?;
    let prefix = "first_stage_model.";
    let (vae, rest): (Weights, Weights) =
        fixture.weights.drain().partition(|(name, _)| name.starts_with(prefix));
    fixture.weights = rest;
    fixture.save()?;
    let error = fixture.error();
    assert!(error.contains("holds no VAE") && error.contains("--vae"), "{error}");
    let bare: Weights = vae
        .iter()
        .filter_map(|(name, weight)| Some((name.strip_prefix(prefix)?.to_owned(), weight.clone())))
        .collect();
    let path = fixture.folder.path().join("own.safetensors");
    let options = FileOptions { vae: Some(path.clone()), ..FileOptions::default() };
    let diffusers = candle_core::safetensors::load(
        fixture.folder.path().join("vae/diffusion_pytorch_model.safetensors"),
        &Device::Cpu,
    )?;
    for weights in [&bare, &vae, &diffusers] {
        candle_core::safetensors::save(weights, &path)?;
        assert!(pictures(fixture.load_with(options.clone())?)? == expected);
    }
    // The file also replaces the VAE of a folder.
    let zeros: Result<Weights, candle_core::Error> =
        bare.iter().map(|(name, weight)| Ok((name.clone(), weight.zeros_like()?))).collect();
    candle_core::safetensors::save(&zeros?, &path)?;
    let load = LoadOptions { files: options.clone(), ..LoadOptions::default() };
    let grey = pictures(Model::load(fixture.folder.path(), &Device::Cpu, load, |_| ())?)?;
    assert!(grey[0].rgb().iter().all(|value| *value == 128));
    // Files without a VAE.
    let unet: Weights = fixture.weights.iter().map(|(name, weight)| (name.clone(), weight.clone())).collect();
    candle_core::safetensors::save(&unet, &path)?;
    let error = fixture.error_with(options);
    assert!(error.contains("holds a Stable Diffusion model; --vae requires a VAE"), "{error}");
    Ok(())
}

/// Returns the values of a byte in both f8 formats, computed from sign, exponent and fraction.
fn f8_value(byte: u8, exponent_bits: u32) -> f32 {
    let fraction_bits = 7 - exponent_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = i32::from(byte & 0x7f) >> fraction_bits;
    let fraction = f32::from(byte & ((1 << fraction_bits) - 1)) / (1 << fraction_bits) as f32;
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(1 - bias),
        _ => (1.0 + fraction) * 2f32.powi(exponent - bias),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Name, shape and bytes of a tensor.
type Raw = (String, Vec<usize>, Vec<u8>);

#[test]
fn f8_weights_are_widened() -> Outcome {
    let fixture = Fixture::of(V1)?;
    let name = "model.diffusion_model.input_blocks.1.0.in_layers.2.weight";
    for (dtype, exponent_bits) in [(safetensors::Dtype::F8_E4M3, 4), (safetensors::Dtype::F8_E5M2, 5)] {
        let mut wide = fixture.weights.clone();
        let shape = wide[name].dims().to_vec();
        // All finite values below 1, of both signs.
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> =
            (0..count).map(|i| (i % 0x38) as u8 | if i % 2 == 0 { 0x80 } else { 0 }).collect();
        let values: Vec<f32> = bytes.iter().map(|byte| f8_value(*byte, exponent_bits)).collect();
        wide.insert(name.to_owned(), Tensor::from_vec(values, shape.clone(), &Device::Cpu)?);
        candle_core::safetensors::save(&wide, &fixture.file)?;
        let expected = pictures(fixture.load()?)?;
        wide.remove(name);
        let narrow = TensorView::new(dtype, shape, &bytes)?;
        let rest: Result<Vec<Raw>, candle_core::Error> = wide
            .iter()
            .map(|(name, weight)| {
                let values = weight.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
                let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Ok((name.clone(), weight.dims().to_vec(), bytes))
            })
            .collect();
        let rest = rest?;
        let views: Result<Vec<(&str, TensorView)>, safetensors::SafeTensorError> = rest
            .iter()
            .map(|(name, shape, bytes)| {
                Ok((name.as_str(), TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes)?))
            })
            .collect();
        let mut views = views?;
        views.push((name, narrow));
        safetensors::serialize_to_file(views, None, &fixture.file)?;
        assert!(pictures(fixture.load()?)? == expected, "{dtype:?}");
    }
    Ok(())
}

#[test]
fn the_prediction_is_found() -> Outcome {
    let fixture = Fixture::of(V2)?;
    assert_eq!(fixture.load()?.scheduler.prediction, Prediction::Epsilon);
    let options = FileOptions { prediction: Some(Prediction::VPrediction), ..FileOptions::default() };
    let model = fixture.load_with(options)?;
    assert_eq!(
        (model.scheduler.prediction, model.side()),
        (Prediction::VPrediction, 96 * tiny_model::FACTOR)
    );
    let with_metadata = |entry: (&str, &str)| -> Outcome<Prediction> {
        let metadata = HashMap::from([(entry.0.to_owned(), entry.1.to_owned())]);
        safetensors::serialize_to_file(fixture.weights.iter(), Some(metadata), &fixture.file)?;
        Ok(fixture.load()?.scheduler.prediction)
    };
    assert_eq!(with_metadata(("modelspec.prediction_type", "v"))?, Prediction::VPrediction);
    assert_eq!(with_metadata(("modelspec.prediction_type", "epsilon"))?, Prediction::Epsilon);
    assert_eq!(with_metadata(("format", "pt"))?, Prediction::Epsilon);
    let mut fixture = Fixture::of(XL)?;
    fixture.weights.insert("v_pred".to_owned(), Tensor::zeros(1, DType::F32, &Device::Cpu)?);
    fixture.weights.insert("ztsnr".to_owned(), Tensor::zeros(1, DType::F32, &Device::Cpu)?);
    fixture.save()?;
    let scheduler = fixture.load()?.scheduler;
    assert_eq!((scheduler.prediction, scheduler.rescale_betas_zero_snr), (Prediction::VPrediction, true));
    let turbo = FileOptions { turbo: true, prediction: Some(Prediction::Epsilon), ..FileOptions::default() };
    fixture.weights.retain(|name, _| name != "ztsnr");
    fixture.save()?;
    let model = fixture.load_with(turbo)?;
    assert!(model.turbo && model.scheduler.spacing(Method::EulerAncestral) == Spacing::Trailing);
    fixture.weights.insert("edm_mean".to_owned(), Tensor::zeros(1, DType::F32, &Device::Cpu)?);
    fixture.save()?;
    assert!(fixture.error().contains("EDM"), "{}", fixture.error());
    Ok(())
}

#[test]
fn tokenizers_are_found_or_required() -> Outcome {
    let fixture = Fixture::of(XL)?;
    let expected = pictures(fixture.load()?)?;
    // One tokenizer serves both encoders.
    let root = fixture.folder.path();
    fs::remove_dir_all(root.join("tokenizer_2"))?;
    assert!(pictures(fixture.load()?)? == expected);
    let elsewhere = tempfile::tempdir()?;
    fs::rename(root.join("tokenizer"), elsewhere.path().join("x"))?;
    let error = fixture.error();
    assert!(error.contains("--tokenizer") && error.contains("tokenizer.json"), "{error}");
    let options = |path: &Path| FileOptions { tokenizer: Some(path.to_owned()), ..FileOptions::default() };
    assert!(pictures(fixture.load_with(options(&elsewhere.path().join("x")))?)? == expected);
    let error = fixture.error_with(options(elsewhere.path()));
    assert!(error.contains(&*elsewhere.path().to_string_lossy()), "{error}");
    // The tokenizer of another model.
    let mut vocabulary: Value =
        serde_json::from_str(&fs::read_to_string(elsewhere.path().join("x/vocab.json"))?)?;
    vocabulary["other"] = vocabulary.as_object().map_or(0, serde_json::Map::len).into();
    fs::write(elsewhere.path().join("x/vocab.json"), vocabulary.to_string())?;
    let error = fixture.error_with(options(&elsewhere.path().join("x")));
    assert!(error.contains("61 tokens") && error.contains("embeddings of 60"), "{error}");
    Ok(())
}

/// Returns tensors with these names.
fn tensors(names: &[&str]) -> Outcome<Weights> {
    names
        .iter()
        .map(|name| Ok(((*name).to_owned(), Tensor::zeros((4, 4), DType::F32, &Device::Cpu)?)))
        .collect()
}

#[test]
fn other_networks_are_refused_by_name() -> Outcome {
    let mut fixture = Fixture::of(V1)?;
    for (expected, names) in [
        ("a LoRA adapter", &["lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight"][..]),
        ("a LoRA adapter", &["unet.down_blocks.0.attentions.0.proj_in.lora_A.weight"]),
        ("a ControlNet", &["control_model.input_blocks.0.0.weight"]),
        (
            "a ControlNet",
            &["controlnet_cond_embedding.conv_in.weight", "down_blocks.0.resnets.0.conv1.weight"],
        ),
        ("a T5 text encoder", &["enc.blk.0.attn_q.weight"]),
        ("a VAE alone", &["decoder.conv_in.weight", "encoder.conv_in.weight"]),
        ("a T5 text encoder", &["encoder.block.0.layer.0.SelfAttention.q.weight"]),
        ("a text encoder alone", &["text_model.final_layer_norm.weight"]),
        ("a textual inversion", &["emb_params"]),
        ("a UNet with the names of diffusers", &["down_blocks.0.resnets.0.conv1.weight"]),
        ("no known network (4 tensors: a, b, c)", &["d", "c", "b", "a"]),
        ("no known network (0 tensors: )", &[]),
        ("a UNet without a text encoder", &["model.diffusion_model.input_blocks.0.0.weight"]),
    ] {
        fixture.weights = tensors(names)?;
        fixture.save()?;
        let error = fixture.error();
        assert!(error.contains(&format!("holds {expected}")), "{expected}: {error}");
    }
    for (bytes, expected) in [
        (&b"PK\x03\x04rest of a zip archive"[..], "pickled"),
        (b"\x80\x02}q\x00.", "pickled"),
        (b"GGUF\x03\0\0\0", "GGUF"),
        (b"", "is cut: 0 bytes"),
        (b"\x10\0\0\0\0\0\0\0{", "is cut: 9 bytes, but its header requires 24"),
        (b"\x02\0\0\0\0\0\0\0[]", "damaged"),
        (&[255; 40], "not a safetensors file"),
    ] {
        fs::write(&fixture.file, bytes)?;
        let error = fixture.error();
        assert!(error.contains(expected), "{bytes:?}: {error}");
    }
    let pickled = fixture.folder.path().join("model.ckpt");
    fs::write(&pickled, [0; 40])?;
    let error = Model::load(&pickled, &Device::Cpu, LoadOptions::default(), |_| ()).err();
    assert!(error.is_some_and(|error| error.to_string().contains("convert it to safetensors")));
    Ok(())
}

#[test]
fn damaged_checkpoints_are_refused_by_tensor() -> Outcome {
    for kind in [V1, V2, XL] {
        let fixture = Fixture::of(kind)?;
        let bytes = fs::read(&fixture.file)?;
        let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into()?))?;
        for length in [7, 8, 8 + header / 2, 8 + header - 1, 8 + header, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&fixture.file, &bytes[..length])?;
            assert!(fixture.error().contains("is cut"), "{length}: {}", fixture.error());
        }
        // Each 61st weight missing and misshapen. Tensors that no network uses are not required.
        let weights = fixture.weights.clone();
        let used: Vec<&str> = names(kind).lines().filter_map(|line| Some(line.split_once(' ')?.0)).collect();
        for name in used.iter().step_by(61) {
            let mut damaged = weights.clone();
            damaged.remove(*name);
            candle_core::safetensors::save(&damaged, &fixture.file)?;
            let error = fixture.error();
            let is_clear =
                ["has no tensor", "do not belong", "holds"].iter().any(|part| error.contains(part));
            assert!(is_clear, "{kind:?} without {name}: {error}");
            damaged.insert((*name).to_owned(), Tensor::zeros((3, 5), DType::F32, &Device::Cpu)?);
            candle_core::safetensors::save(&damaged, &fixture.file)?;
            let error = fixture.error();
            assert!(
                ["has shape [3, 5]", "have width 69"].iter().any(|part| error.contains(part)),
                "{kind:?} with another {name}: {error}"
            );
        }
        let prefix = match kind.version {
            "v1" => "cond_stage_model.transformer.",
            "v2" => "cond_stage_model.model.",
            _ => "conditioner.embedders.1.model.",
        };
        for extra in [
            "model.diffusion_model.input_blocks.1.0.extra".to_owned(),
            "first_stage_model.decoder.up.7.block.0.conv1.weight".to_owned(),
            format!("{prefix}extra"),
        ] {
            let mut weights = weights.clone();
            weights.insert(extra.clone(), Tensor::zeros((3, 5), DType::F32, &Device::Cpu)?);
            candle_core::safetensors::save(&weights, &fixture.file)?;
            let error = fixture.error();
            assert!(error.contains(&format!("such as {extra}")), "{extra}: {error}");
        }
    }
    Ok(())
}
