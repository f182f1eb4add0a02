//! Scaled f8 weights ("scaled fp8") in safetensors files, as ComfyUI writes them.
//!
//! A weight is the product of the stored `layer.weight` and the factor `layer.scale_weight`, which is one number. An empty
//! tensor `scaled_fp8` after the prefix of a network marks files in which all f8 matrices have factors. `layer.scale_input` is
//! for products in f8 and has no meaning here, where products are computed from floats.
use super::weights::Weights;
use crate::{Error, Result};

const MARK: &str = "scaled_fp8";
const FACTOR: &str = ".scale_weight";
const INPUT_FACTOR: &str = ".scale_input";
/// Matrices that are no linear layers, and have no factors.
const TABLES: [&str; 5] = [
    "shared.weight",
    "embed_tokens.weight",
    "relative_attention_bias.weight",
    "token_embedding.weight",
    "position_embedding.weight",
];

/// Attaches factors to the weights of files, and removes the tensors of the format.
///
/// # Errors
/// A factor is no positive number or has no weight, or a marked matrix has no factor.
pub(super) fn attach(weights: &mut Weights) -> Result<()> {
    let names = |weights: &Weights, is: &dyn Fn(&str) -> bool| -> Vec<String> {
        weights.names().into_iter().filter(|name| is(name)).map(str::to_owned).collect()
    };
    let path = weights.path().to_owned();
    let bad = |what: String| Err(Error::model(format!("{}: {what}", path.display())));
    for name in names(weights, &|name| name.ends_with(FACTOR)) {
        let layer = name.strip_suffix(FACTOR).unwrap_or_default();
        let weight = format!("{layer}.weight");
        let value = match weights.shape(&name) {
            Some(shape) if shape.iter().product::<usize>() == 1 => factor(weights, &name)?,
            shape => {
                return bad(format!(
                    "{name} has shape {:?}, but a factor with one element is required",
                    shape.unwrap_or_default()
                ));
            }
        };
        if !(value.is_finite() && value > 0.0) {
            return bad(format!("{name} is {value}, but must be a finite number above 0; download the file again"));
        }
        if !weights.set_scale(&weight, value) {
            return bad(format!("{name} is the factor of {weight}, which is missing; download the file again"));
        }
        weights.remove(&name);
        weights.remove(&format!("{layer}{INPUT_FACTOR}"));
    }
    for mark in names(weights, &|name| name == MARK || name.ends_with(&format!(".{MARK}"))) {
        weights.remove(&mark);
        let prefix = mark.strip_suffix(MARK).unwrap_or_default();
        let is_plain = |name: &str| {
            name.starts_with(prefix)
                && name.ends_with(".weight")
                && !TABLES.iter().any(|table| name.ends_with(table))
                && weights.is_unscaled_f8_matrix(name)
        };
        if let Some(name) = weights.names().into_iter().find(|name| is_plain(name)) {
            let layer = name.strip_suffix(".weight").unwrap_or_default();
            return bad(format!(
                "{name} is stored in f8 and has no factor {layer}{FACTOR}, which {mark} requires; download the file again"
            ));
        }
    }
    Ok(())
}

/// Reads a factor.
fn factor(weights: &Weights, name: &str) -> Result<f32> {
    let factor = weights.load(name)?.to_dtype(candle_core::DType::F32)?;
    Ok(factor.flatten_all()?.get(0)?.to_scalar()?)
}
