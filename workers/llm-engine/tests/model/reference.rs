//! candle-transformers' models with random weights.
use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::{
    gemma, gemma2, gemma3, llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use super::configs::{Case, named};
use super::steps::random;

/// Computes the logits after the last token, with an empty cache.
pub type Model = Box<dyn FnMut(&[u32]) -> Vec<f32>>;

fn parse<T: DeserializeOwned>(config: Value) -> T {
    serde_json::from_value(config).unwrap()
}

pub fn tokens(tokens: &[u32]) -> Tensor {
    Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap()
}

/// Flattens the logits of a model's last row.
pub fn last(logits: Result<Tensor>) -> Vec<f32> {
    logits.unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Wraps a model that computes all tokens in one call.
macro_rules! whole {
    ($model:expr $(, $more:expr)*) => {{
        let mut model = $model.unwrap();
        Box::new(move |prompt: &[u32]| {
            model.clear_kv_cache();
            last(model.forward(&tokens(prompt), 0 $(, $more)*))
        })
    }};
}

fn made(case: &Case, vars: VarBuilder<'static>) -> Model {
    let config = case.for_candle();
    match config["architectures"][0].as_str().unwrap() {
        "LlamaForCausalLM" => {
            let config = parse::<llama::LlamaConfig>(config).into_config(false);
            let model = llama::Llama::load(vars, &config).unwrap();
            Box::new(move |prompt| {
                let mut cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu).unwrap();
                last(model.forward(&tokens(prompt), 0, &mut cache))
            })
        }
        "MistralForCausalLM" => whole!(mistral::Model::new(&parse(config), vars)),
        "Qwen2ForCausalLM" => {
            let mut model = qwen2::ModelForCausalLM::new(&parse(config), vars).unwrap();
            Box::new(move |prompt| {
                model.clear_kv_cache();
                last(model.forward(&tokens(prompt), 0))
            })
        }
        "Qwen3ForCausalLM" => whole!(qwen3::ModelForCausalLM::new(&parse(config), vars)),
        "Phi3ForCausalLM" => whole!(phi3::Model::new(&parse(config), vars)),
        "GemmaForCausalLM" => whole!(gemma::Model::new(false, &parse(config), vars)),
        "Gemma2ForCausalLM" => whole!(gemma2::Model::new(false, &parse(config), vars)),
        "Gemma3ForCausalLM" => {
            let mut model = gemma3::Model::new(false, &parse(config), vars).unwrap();
            Box::new(move |prompt| {
                model.clear_kv_cache();
                // Its window cache accepts one position at a time.
                let logits = prompt.iter().enumerate();
                logits.map(|(at, token)| last(model.forward(&tokens(&[*token]), at))).last().unwrap()
            })
        }
        "MixtralForCausalLM" => {
            let config = parse(config);
            // Its cache cannot be cleared.
            Box::new(move |prompt| {
                last(mixtral::Model::new(&config, vars.clone()).unwrap().forward(&tokens(prompt), 0))
            })
        }
        "Qwen2MoeForCausalLM" => whole!(qwen2_moe::Model::new(&parse(config), vars)),
        "Qwen3MoeForCausalLM" => whole!(qwen3_moe::ModelForCausalLM::new(&parse(config), vars)),
        other => panic!("{other}"),
    }
}

/// Returns the model of a case and its random weights.
pub fn model(case: &Case) -> (Model, HashMap<String, Tensor>) {
    let vars = VarMap::new();
    let builder = || VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    // The first instance only registers the variables, Mixtral's when it is called.
    made(case, builder())(&[0]);
    let named = vars.data().lock().unwrap();
    let mut names: Vec<_> = named.keys().cloned().collect();
    names.sort();
    let mut weights = HashMap::new();
    for (seed, name) in names.into_iter().enumerate() {
        let var = &named[&name];
        let mut next = random(seed as u64 + 1);
        let (offset, scale) = match var.dims() {
            [_] => (0.5, 0.25),
            dims => (0.0, 4.0 * (dims[1] as f32).powf(-0.5)),
        };
        // Scaling by powers of two keeps the values exact in f16.
        let scale = scale.log2().round().exp2();
        let values: Vec<f32> = (0..var.elem_count()).map(|_| offset + scale * next()).collect();
        let values: Vec<f32> = values.into_iter().map(|value| (value * 512.0).round() / 512.0).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap()).unwrap();
        weights.insert(name, var.as_detached_tensor());
    }
    drop(named);
    (made(case, builder()), weights)
}

/// Writes the model of a named case to a folder, and returns both.
pub fn folder_of(name: &str) -> (TempDir, Model) {
    let (folder, case) = (tempfile::tempdir().unwrap(), named(name));
    let (model, weights) = model(&case);
    write(folder.path(), &case.config, &weights, 1);
    (folder, model)
}

/// Writes a safetensors folder with `files` files.
pub fn write(folder: &Path, config: &Value, weights: &HashMap<String, Tensor>, files: usize) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut names: Vec<_> = weights.keys().collect();
    names.sort();
    if files == 1 {
        return candle_core::safetensors::save(weights, folder.join("model.safetensors")).unwrap();
    }
    let mut map = serde_json::Map::new();
    for (number, names) in names.chunks(names.len().div_ceil(files)).enumerate() {
        let file = format!("model-{number}.safetensors");
        let part: HashMap<_, _> =
            names.iter().map(|name| (name.to_string(), weights[*name].clone())).collect();
        candle_core::safetensors::save(&part, folder.join(&file)).unwrap();
        map.extend(names.iter().map(|name| (name.to_string(), Value::from(file.clone()))));
    }
    let index = serde_json::json!({"weight_map": map}).to_string();
    std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
}
