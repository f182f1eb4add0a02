//! Scaled f8 weights ("scaled fp8") in safetensors files, as ComfyUI writes them.
//!
//! A weight is the product of the stored `layer.weight` and a factor, which is one number. There are two forms:
//!
//! | factor | factor of inputs | mark |
//! |---|---|---|
//! | `layer.scale_weight` | `layer.scale_input` | `scaled_fp8` after the prefix of a network, empty: all f8 matrices have factors |
//! | `layer.weight_scale` | `layer.input_scale` | `layer.comfy_quant`, bytes of JSON: the layer has a factor, and this `format` |
//!
//! Factors of inputs are for products in f8 and have no meaning here, where products are computed from floats.
use std::collections::HashMap;

use candle_core::{DType, Tensor};
use model_thread::error_summary;
use safetensors::tensor::Dtype;
use serde_json::Value;

use super::stored_tensor::{Format, StoredTensor};

const MARK: &str = "scaled_fp8";
/// Ends of the names of factors, each with that of the factor of inputs.
const FACTORS: [(&str, &str); 2] = [(".scale_weight", ".scale_input"), (".weight_scale", ".input_scale")];
/// End of the name of a layer's mark.
const LAYER_MARK: &str = ".comfy_quant";
/// Values of `format` in the mark of a layer.
const FORMATS: [&str; 2] = ["float8_e4m3fn", "float8_e5m2"];
/// Maximum size in bytes of the mark of a layer.
const MAX_LAYER_MARK: usize = 1 << 16;
/// Ends of the names of matrices that are no linear layers, and have no factors.
const TABLES: [&str; 5] = [
    "shared.weight",
    "embed_tokens.weight",
    "relative_attention_bias.weight",
    "token_embedding.weight",
    "position_embedding.weight",
];

/// Tensors by their names, with the index of the file.
type Tensors = HashMap<String, (usize, StoredTensor)>;
/// Reads a tensor.
type Read<'a> = &'a dyn Fn(&str, &(usize, StoredTensor)) -> candle_core::Result<Tensor>;

/// Attaches factors to the weights of files, and removes the tensors of the format.
///
/// # Errors
/// Returns a message about a factor that is no positive number or has no weight, about a marked matrix without a factor, or
/// about a layer in another format.
pub(super) fn attach(tensors: &mut Tensors, read: Read) -> Result<(), String> {
    let marks = take_layer_marks(tensors, read)?;
    for (factor, input_factor) in FACTORS {
        attach_factors(tensors, factor, input_factor, read)?;
    }
    for mark in marks {
        let layer = mark.strip_suffix(LAYER_MARK).unwrap_or_default();
        let weight = format!("{layer}.weight");
        if tensors.get(&weight).is_some_and(|(_, tensor)| tensor.scale.is_none()) {
            return Err(missing(&weight, FACTORS[1].0, &mark));
        }
    }
    for mark in names(tensors, |name| name.rsplit('.').next() == Some(MARK)) {
        tensors.remove(&mark);
        let prefix = mark.strip_suffix(MARK).unwrap_or_default();
        let is_unscaled = |name: &str| {
            name.starts_with(prefix)
                && name.ends_with(".weight")
                && !TABLES.iter().any(|table| name.ends_with(table))
                && tensors.get(name).is_some_and(|(_, tensor)| is_unscaled_f8_matrix(tensor))
        };
        if let Some(name) = names(tensors, is_unscaled).first() {
            return Err(missing(name, FACTORS[0].0, &mark));
        }
    }
    Ok(())
}

/// Returns the message about a weight without the factor that `mark` requires.
fn missing(weight: &str, factor: &str, mark: &str) -> String {
    let layer = weight.strip_suffix(".weight").unwrap_or_default();
    format!(
        "{weight} is stored in f8 and has no factor {layer}{factor}, which {mark} requires; download the file again"
    )
}

/// Removes the marks of layers, and returns their names.
fn take_layer_marks(tensors: &mut Tensors, read: Read) -> Result<Vec<String>, String> {
    let marks = names(tensors, |name| name.ends_with(LAYER_MARK));
    for name in &marks {
        let Some(stored) = tensors.remove(name) else { continue };
        if stored.1.bytes > MAX_LAYER_MARK {
            let bytes = stored.1.bytes;
            return Err(format!("{name} has {bytes} bytes; at most {MAX_LAYER_MARK} are supported"));
        }
        let text = read(name, &stored).and_then(|x| x.flatten_all()?.to_vec1::<u8>());
        let text = text.map_err(|error| format!("{name}: {}", error_summary(&error)))?;
        let json: Value = serde_json::from_slice(&text).map_err(|error| format!("{name}: {error}"))?;
        let format = &json["format"];
        if !format.as_str().is_some_and(|format| FORMATS.contains(&format)) {
            let formats = FORMATS.join(" and ");
            return Err(format!(
                "{name} names the format {format}, but only {formats} are supported; use another file of the model"
            ));
        }
    }
    Ok(marks)
}

/// Attaches the factors whose names end with `factor_end`.
fn attach_factors(
    tensors: &mut Tensors,
    factor_end: &str,
    input_factor: &str,
    read: Read,
) -> Result<(), String> {
    for name in names(tensors, |name| name.ends_with(factor_end)) {
        let layer = name.strip_suffix(factor_end).unwrap_or_default();
        let weight = format!("{layer}.weight");
        let Some(stored) = tensors.remove(&name) else { continue };
        let shape = &stored.1.shape;
        if shape.iter().product::<usize>() != 1 {
            return Err(format!("{name} has shape {shape:?}, but a factor with one element is required"));
        }
        let factor =
            read(&name, &stored).and_then(|x| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>());
        let factor = factor.map_err(|error| error_summary(&error))?.first().copied().unwrap_or(f32::NAN);
        if !(factor.is_finite() && factor > 0.0) {
            return Err(format!(
                "{name} is {factor}, but must be a finite number above 0; download the file again"
            ));
        }
        let Some((_, tensor)) = tensors.get_mut(&weight) else {
            return Err(format!(
                "{name} is the factor of {weight}, which is missing; download the file again"
            ));
        };
        tensor.scale = Some(factor);
        tensors.remove(&format!("{layer}{input_factor}"));
    }
    Ok(())
}

/// Returns the names for which `is` returns true, sorted.
fn names(tensors: &Tensors, is: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names: Vec<String> = tensors.keys().filter(|name| is(name)).cloned().collect();
    names.sort_unstable();
    names
}

fn is_unscaled_f8_matrix(tensor: &StoredTensor) -> bool {
    let is_f8 = matches!(tensor.format, Format::Floats(Dtype::F8_E4M3 | Dtype::F8_E5M2));
    is_f8 && tensor.shape.len() == 2 && tensor.scale.is_none()
}
