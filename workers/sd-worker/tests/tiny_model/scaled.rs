//! Files with scaled f8 weights, as ComfyUI has them.
use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

use super::Outcome;

/// Largest number of f8 (E4M3).
const LARGEST: f64 = 448.0;

/// Returns weights whose matrices are f8 with factors, except embeddings. `prefix` is that of a network in a file.
pub fn scaled(weights: &HashMap<String, Tensor>, prefix: &str) -> Outcome<HashMap<String, Tensor>> {
    let mut file = HashMap::new();
    for (name, weight) in weights {
        let layer = name.strip_suffix(".weight").filter(|layer| {
            let tables = ["shared", "embed_tokens", "token_embedding", "position_embedding", "bias"];
            name.starts_with(prefix)
                && weight.rank() == 2
                && !tables.iter().any(|table| layer.ends_with(table))
        });
        let Some(layer) = layer else {
            file.insert(name.clone(), weight.clone());
            continue;
        };
        let factor = f64::from(weight.abs()?.max_all()?.to_scalar::<f32>()?) / LARGEST;
        file.insert(name.clone(), (weight / factor)?.to_dtype(DType::F8E4M3)?);
        // Some writers store one element, and others none of the dims.
        let shape: &[usize] = if name.len() % 2 == 0 { &[] } else { &[1] };
        file.insert(format!("{layer}.scale_weight"), Tensor::full(factor as f32, shape, &Device::Cpu)?);
        file.insert(format!("{layer}.scale_input"), Tensor::full(0.5f32, shape, &Device::Cpu)?);
    }
    file.insert(format!("{prefix}scaled_fp8"), Tensor::zeros(0, DType::F8E4M3, &Device::Cpu)?);
    Ok(file)
}

/// Returns a file of [`scaled`] with the names of newer files, in which each layer has a mark.
pub fn with_layer_marks(file: &HashMap<String, Tensor>) -> Outcome<HashMap<String, Tensor>> {
    let mut marked = HashMap::new();
    for (name, tensor) in file.iter().filter(|(name, _)| !name.ends_with("scaled_fp8")) {
        if let Some(layer) = name.strip_suffix(".scale_weight") {
            let text = br#"{"format": "float8_e4m3fn", "full_precision_matrix_mult": true}"#;
            let text = Tensor::new(&text[..], &Device::Cpu)?;
            marked.insert(format!("{layer}.comfy_quant"), text);
        }
        let name = name.replace(".scale_weight", ".weight_scale").replace(".scale_input", ".input_scale");
        marked.insert(name, tensor.clone());
    }
    Ok(marked)
}
