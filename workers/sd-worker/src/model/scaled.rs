//! Scaled f8 weights ("scaled fp8") in safetensors files, as ComfyUI writes them.
//!
//! A weight is the product of the stored `layer.weight` and the factor `layer.scale_weight`, which is one number. An empty
//! tensor `scaled_fp8` after the prefix of a network marks files in which all f8 matrices have factors. `layer.scale_input` is
//! for products in f8 and has no meaning here, where products are computed from floats.
use std::collections::HashMap;

use candle_core::{DType, Tensor};
use model_thread::error_summary;
use safetensors::tensor::Dtype;

use super::stored_tensor::{Format, StoredTensor};

const MARK: &str = "scaled_fp8";
const FACTOR: &str = ".scale_weight";
const INPUT_FACTOR: &str = ".scale_input";
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
/// Returns a message about a factor that is no positive number or has no weight, or about a marked matrix without a factor.
pub(super) fn attach(tensors: &mut Tensors, read: Read) -> Result<(), String> {
    for name in names(tensors, |name| name.ends_with(FACTOR)) {
        let layer = name.strip_suffix(FACTOR).unwrap_or_default();
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
        tensors.remove(&format!("{layer}{INPUT_FACTOR}"));
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
            let layer = name.strip_suffix(".weight").unwrap_or_default();
            return Err(format!(
                "{name} is stored in f8 and has no factor {layer}{FACTOR}, which {mark} requires; download the file again"
            ));
        }
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
