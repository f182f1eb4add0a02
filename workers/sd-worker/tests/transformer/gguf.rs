//! GGUF files of transformers, whose matrices stay quantized.
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use sd_worker::model::{FileOptions, LoadOptions, Model};
use sd_worker::pipeline::{Pipeline, Request};
use tempfile::TempDir;

use crate::fixture::{Outcome, expected, generate, levels, request, table, weights, write};
use crate::original::{NAMES, Weights, original};

/// Files: name, model, format of matrices, and of those whose rows are whole blocks of 256, and the largest mean difference
/// in levels. Differences come from activations, which quantized products quantize, and guidance multiplies them.
const FILES: [(&str, &str, GgmlDType, GgmlDType, f64); 4] = [
    ("flux_dev_q8_0", "flux_dev", GgmlDType::Q8_0, GgmlDType::Q6K, 0.25),
    ("flux_dev_q4_0", "flux_dev", GgmlDType::Q4_0, GgmlDType::Q4K, 0.25),
    ("sd35_q5_0", "sd35", GgmlDType::Q5_0, GgmlDType::Q5K, 2.0),
    ("sd35_q4_1", "sd35", GgmlDType::Q4_1, GgmlDType::Q4_1, 2.0),
];
/// Weights that published files do not quantize.
const FLOATS: [&str; 9] = [
    "img_in",
    "txt_in",
    "time_in",
    "vector_in",
    "guidance_in",
    "final_layer",
    "_embedder",
    "pos_embed",
    "norm.",
];

/// Returns the transformer of a model with original names.
fn transformer(kind: &str) -> Outcome<Weights> {
    let shapes = &table(kind)?["shapes"];
    // Each component has the seed of its place in the index, as in folders.
    let index = table(kind)?["index"].as_object().ok_or("no index")?.clone();
    let components = index.iter().filter(|(_, class)| class[1].is_string());
    let seed = components.map(|(name, _)| name).position(|name| name == "transformer");
    let own = weights(&shapes["transformer"], seed.ok_or("no transformer")? as u64)?;
    let (_, names) = NAMES.into_iter().find(|(name, _)| *name == kind).ok_or("no names")?;
    original(&own, names)
}

/// Writes a file with formats as in published files: vectors in f32, matrices that need precision in f16, norms in bf16.
pub fn save(path: &Path, architecture: &str, weights: &Weights, [format, wide]: [GgmlDType; 2]) -> Outcome {
    let mut tensors = Vec::new();
    for (name, weight) in weights {
        let columns = *weight.dims().last().ok_or("a scalar")?;
        let format = match weight.rank() {
            1 if name.contains("norm") => GgmlDType::BF16,
            1 => GgmlDType::F32,
            _ if FLOATS.iter().any(|part| name.contains(part)) => GgmlDType::F16,
            _ if columns.is_multiple_of(wide.block_size()) && columns >= 256 => wide,
            _ => format,
        };
        // Files that were quantized by llama.cpp lack leading dimensions of 1.
        let weight = if weight.dims()[0] == 1 { weight.squeeze(0)? } else { weight.clone() };
        tensors.push((name.as_str(), QTensor::quantize(&weight, format)?));
    }
    tensors.sort_unstable_by_key(|(name, _)| *name);
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let architecture = Value::String(architecture.to_owned());
    Ok(gguf_file::write(&mut File::create(path)?, &[("general.architecture", &architecture)], &tensors)?)
}

fn architecture(kind: &str) -> &'static str {
    if kind == "sd35" { "sd3" } else { "flux" }
}

/// Writes the files to a folder.
pub fn write_files(folder: &Path) -> Outcome {
    for (name, kind, format, wide, _) in FILES {
        let path = folder.join(name).with_extension("gguf");
        save(&path, architecture(kind), &transformer(kind)?, [format, wide])?;
    }
    Ok(())
}

/// Loads a model with a file of its transformer.
fn load(folder: &Path, transformer: PathBuf, device: &Device, dtype: DType) -> sd_worker::Result<Pipeline> {
    let options = LoadOptions { dtype: Some(dtype), ..LoadOptions::default() };
    load_with(folder, transformer, device, options)
}

fn load_with(
    folder: &Path,
    transformer: PathBuf,
    device: &Device,
    options: LoadOptions,
) -> sd_worker::Result<Pipeline> {
    let files = FileOptions { transformer: Some(transformer), ..FileOptions::default() };
    let options = LoadOptions { files, ..options };
    Ok(Pipeline::new(Model::load(folder, device, options, |_| ())?))
}

/// Returns a model whose transformer is one of the files, and its folder.
pub fn pipeline(name: &str, device: &Device, dtype: DType) -> Outcome<(TempDir, Pipeline)> {
    let folder = tempfile::tempdir()?;
    let (_, kind, format, wide, _) =
        FILES.into_iter().find(|(own, ..)| *own == name).ok_or("no such file")?;
    write(folder.path(), kind)?;
    let path = folder.path().join(name).with_extension("gguf");
    save(&path, architecture(kind), &transformer(kind)?, [format, wide])?;
    let pipeline = load(folder.path(), path, device, dtype)?;
    Ok((folder, pipeline))
}

/// Compares images with those that diffusers generates with the weights that the gguf package dequantizes. `rounding` is
/// added to the bounds.
fn compare(device: &Device, dtype: DType, rounding: f64) -> Outcome {
    let folder = tempfile::tempdir()?;
    write_files(folder.path())?;
    for (name, kind, format, wide, bound) in FILES {
        let model = folder.path().join(kind);
        if !model.exists() {
            write(&model, kind)?;
            fs::remove_file(model.join("transformer/diffusion_pytorch_model.safetensors"))?;
        }
        let pipeline = load(&model, folder.path().join(name).with_extension("gguf"), device, dtype)?;
        // Matrices are not dequantized.
        let network = format!("{:?}", pipeline.model.network);
        for format in [format, wide] {
            assert!(network.contains(&format!("; {format:?}]")), "{name} has no {format:?}: {network:.2000}");
        }
        let (guidance, negative) = if kind == "sd35" { (5.0, "blue") } else { (3.5, "") };
        let request = Request { guidance, negative: negative.to_owned(), ..request(&pipeline) };
        let (expected, unquantized) = (expected(name)?, expected(kind)?);
        let (most, mean) = levels(&generate(&pipeline, &request)?, &expected);
        let effect = levels(&unquantized, &expected).1;
        println!(
            "{name} in {dtype:?}: at most {most} levels, {mean:.4} on average; quantization {effect:.4}"
        );
        assert!(mean <= bound + rounding, "{name}: {mean} levels away in {dtype:?} on average");
    }
    Ok(())
}

#[test]
fn images_agree_with_diffusers() -> Outcome {
    compare(&Device::Cpu, DType::F32, 0.0)
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_software_gpu_agrees() -> Outcome {
    let device = crate::tiny_model::software_gpu()?;
    compare(&device, DType::F32, 0.0)?;
    compare(&device, DType::BF16, 2.0)?;
    // The plan of memory counts the bytes of the blocks.
    let folder = tempfile::tempdir()?;
    write(folder.path(), "flux_dev")?;
    write_files(folder.path())?;
    let rocm = device.as_rocm_device()?;
    rocm.set_memory_reserve(rocm.free_memory()?);
    let needed = |transformer: Option<PathBuf>| -> Outcome<usize> {
        let files = FileOptions { transformer, ..FileOptions::default() };
        let options = LoadOptions { files, dtype: Some(DType::F32), ..LoadOptions::default() };
        let error =
            Model::load(folder.path(), &device, options, |_| ()).err().ok_or("the model was loaded")?;
        let error = error.to_string();
        let size =
            error.split_once("the weights of the model need ").and_then(|(_, rest)| rest.split_once(" MiB"));
        Ok(size.ok_or(error.clone())?.0.parse()?)
    };
    let (floats, blocks) = (needed(None)?, needed(Some(folder.path().join("flux_dev_q4_0.gguf")))?);
    assert!(blocks < floats, "{blocks} MiB with blocks, {floats} with floats");
    Ok(())
}

/// A GPU whose products of many rows decode quantized matrices. The other tests of this program use another one.
#[cfg(feature = "rocm-emulator")]
const DECODING_GPU: &str = "gfx942";

#[cfg(feature = "rocm-emulator")]
#[test]
fn decoded_copies_save_launches() -> Outcome {
    use candle_core::rocm::hip_kernels::{Module, code_object};

    if code_object(Module::Quantized, DECODING_GPU).is_err() {
        println!("not run: the kernels were built without {DECODING_GPU} (CANDLE_ROCM_ARCHS)");
        return Ok(());
    }
    crate::fixture::run_alone("gguf::images_with_decoded_copies_are_the_same")
}

#[cfg(feature = "rocm-emulator")]
#[test]
#[ignore = "run by decoded_copies_save_launches"]
fn images_with_decoded_copies_are_the_same() -> Outcome {
    candle_core::rocm::rocm_loader::select(&format!("emulator:{DECODING_GPU}"))?;
    let device = Device::new_rocm(0)?;
    let rocm = device.as_rocm_device()?;
    let folder = tempfile::tempdir()?;
    write_files(folder.path())?;
    write(folder.path(), "flux_dev")?;
    // Queries, keys and values, output, and feed-forward layers of text and image; then those of the blocks that they share.
    let (width, steps) = (64, 2);
    let elements = 2 * 2 * (4 + 8) * width * width + 2 * (3 + 4 + 5) * width * width;
    let products = 2 * 2 * (1 + 1 + 2) + 2 * (1 + 1 + 1);
    let path = folder.path().join("flux_dev_q4_0.gguf");
    let options = |decoded_bytes: usize| LoadOptions {
        decoded_bytes: Some(decoded_bytes),
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let run = |decoded_bytes: usize| -> Outcome<_> {
        let (options, path) = (options(decoded_bytes), path.clone());
        let pipeline = load_with(folder.path(), path, &device, options)?;
        // The image has more tokens than the kernels for few rows multiply.
        let request = Request { width: 192, height: 192, steps, ..request(&pipeline) };
        let mut launches = 0;
        let mut picture = generate(&pipeline, &request)?;
        for _ in 0..2 {
            let before = rocm.kernels_launched();
            picture = generate(&pipeline, &request)?;
            launches = rocm.kernels_launched() - before;
        }
        Ok((pipeline.model.decoded_bytes, launches, picture))
    };
    let (without, decoding, expected) = run(0)?;
    let (bytes, reading, picture) = run(usize::MAX)?;
    println!("{bytes} bytes of copies; {reading} launches instead of {decoding}");
    assert_eq!((without, bytes), (0, elements * DType::BF16.size_in_bytes()));
    assert!(picture == expected);
    assert_eq!(decoding - reading, (steps * products) as u64);
    // Copies leave memory for models that are loaded later.
    let files = FileOptions { transformer: Some(path.clone()), ..FileOptions::default() };
    let required =
        Model::required_bytes(folder.path(), &device, &LoadOptions { files, ..options(0) })?.resident;
    let free = rocm.free_memory()? - rocm.memory_reserve();
    let reserved_bytes = free - required - sd_worker::model::ACTIVATION_BYTES - bytes / 2;
    let options = LoadOptions { reserved_bytes, ..options(usize::MAX) };
    let fewer = load_with(folder.path(), path, &device, options)?.model.decoded_bytes;
    assert!((1..=bytes / 2).contains(&fewer), "{fewer} of {bytes} bytes of copies");
    Ok(())
}

#[test]
fn damaged_files_are_refused() -> Outcome {
    let folder = tempfile::tempdir()?;
    write(folder.path(), "flux_dev")?;
    let path = folder.path().join("file.gguf");
    let error = || match load(folder.path(), path.clone(), &Device::Cpu, DType::F32) {
        Ok(_) => Err("the model was loaded"),
        Err(error) => Ok(error.to_string()),
    };
    let formats = [GgmlDType::Q4_0, GgmlDType::Q4K];
    let flux = transformer("flux_dev")?;
    let last = "single_blocks.1.linear1.weight";
    let wrong = Tensor::zeros((32, 32), DType::F32, &Device::Cpu)?;
    for (change, part) in [
        ("missing", format!("no tensor {last}")),
        ("misshapen", format!("{last} has shape [32, 32]")),
        ("extra", format!("{last}.more")),
    ] {
        let mut weights = flux.clone();
        match change {
            "missing" => drop(weights.remove(last)),
            "misshapen" => drop(weights.insert(last.to_owned(), wrong.clone())),
            _ => drop(weights.insert(format!("{last}.more"), wrong.clone())),
        }
        save(&path, "flux", &weights, formats)?;
        let error = error()?;
        assert!(error.contains(&part) && error.contains("file.gguf"), "{change}: {error}");
    }
    for (found, weights) in [("sd3", transformer("sd35")?), ("llama", flux.clone())] {
        save(&path, found, &weights, formats)?;
        let error = error()?;
        let expected = format!("file.gguf: general.architecture is {found}, but that of Flux is flux");
        assert!(error.contains(&expected), "{error}");
    }
    save(&path, "flux", &flux, formats)?;
    let whole = fs::read(&path)?;
    let content = gguf_file::Content::read(&mut File::open(&path)?)?;
    let data = content.tensor_data_offset as usize;
    // Fields of the header, and the ends of tensors.
    let ends = content.tensor_infos.values().map(|info| data + info.offset as usize);
    let cuts = (0..64).chain((64..data).step_by(101)).chain([data - 1, data, whole.len() - 1]).chain(ends);
    for length in cuts {
        fs::write(&path, &whole[..length])?;
        let error = error().map_err(|e| format!("{length} bytes: {e}"))?;
        assert!(error.contains("file.gguf") && error.lines().count() == 1, "{length} bytes: {error}");
    }
    // A row of 48 elements does not consist of blocks of 32.
    let at = whole.windows(last.len()).position(|bytes| bytes == last.as_bytes()).ok_or("no name")?;
    let dims = at + last.len() + 4;
    let mut changed = whole.clone();
    let rows = 7 * 64 * 64 / 48;
    changed[dims..][..8].copy_from_slice(&48u64.to_le_bytes());
    changed[dims + 8..][..8].copy_from_slice(&(rows as u64).to_le_bytes());
    fs::write(&path, &changed)?;
    let message = error()?;
    assert!(message.contains("file.gguf") && message.contains(last), "{message}");
    // Changed bytes of the header: an error that names the file, or a file that can be loaded.
    for at in (0..data).step_by(53) {
        let mut changed = whole.clone();
        changed[at] ^= 0x41;
        fs::write(&path, &changed)?;
        if let Ok(message) = error() {
            assert!(message.contains("file.gguf"), "byte {at}: {message}");
        }
    }
    Ok(())
}
