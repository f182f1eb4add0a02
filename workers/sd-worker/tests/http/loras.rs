//! LoRA files in requests: by field and by tags in the prompt.
use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::fixture::{Ask, with, worker};

const GENERATIONS: &str = "/v1/images/generations";

/// Writes a LoRA for one layer of the UNet, whose width is 64 in the tiny model.
fn write(path: &std::path::Path, width: usize) {
    let values = |shape: (usize, usize)| {
        let count = shape.0 * shape.1;
        Tensor::arange(0f32, count as f32, &Device::Cpu).unwrap().sin().unwrap().reshape(shape).unwrap()
    };
    let key = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_out_0";
    let weights = HashMap::from([
        (format!("{key}.lora_down.weight"), values((2, width)).to_dtype(DType::F16).unwrap()),
        (format!("{key}.lora_up.weight"), values((width, 2)).to_dtype(DType::F16).unwrap()),
    ]);
    candle_core::safetensors::save(&weights, path).unwrap();
}

#[tokio::test]
async fn loras_apply_to_their_request_only() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("ink.safetensors"), 64);
    write(&folder.path().join("other.safetensors"), 48);
    std::fs::write(folder.path().join("broken.safetensors"), "PK").unwrap();
    let worker = with(&["--lora-dir", folder.path().to_str().unwrap()]);
    let body = |more: Value| {
        let mut body = json!({"prompt": "a circle", "steps": 2, "seed": 3});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let ask = async |more: Value| {
        let answer = worker.post(GENERATIONS, &body(more)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["data"][0]["b64_json"].clone()
    };
    let plain = ask(json!({})).await;
    let ink = ask(json!({"loras": [{"name": "ink"}]})).await;
    assert_ne!(ink, plain);
    assert_eq!(ask(json!({})).await, plain);
    assert_eq!(ask(json!({"prompt": "a circle<lora:ink:1>"})).await, ink);
    assert_ne!(ask(json!({"prompt": "<lora:ink:0.5>a circle"})).await, ink);
    let halves = json!({"prompt": "a circle<lora:ink:0.5>", "loras": [{"name": "ink", "weight": 0.5}]});
    assert_ne!(ask(halves).await, plain);
    assert_eq!(worker.complete(&body(json!({"loras": [{"name": "ink", "weight": 1}]}))).await["image"], ink);
    // A refused LoRA leaves nothing behind.
    for (more, named) in [
        (json!({"loras": [{"name": "pencil"}]}), "broken, ink, other"),
        (json!({"prompt": "<lora:pencil:1>x"}), "broken, ink, other"),
        (json!({"prompt": "<lora:ink:strong>x"}), "<lora:name:weight>"),
        (json!({"loras": [{"name": "ink", "weight": 1e9}]}), "weight"),
        (json!({"loras": [{"name": "ink"}, {"name": "other"}]}), "is for another network"),
        (json!({"loras": [{"name": "broken"}]}), "broken.safetensors"),
    ] {
        let answer = worker.post(GENERATIONS, &body(more)).await;
        assert!(answer.status == 400 && answer.text.contains(named), "{named}: {}", answer.text);
    }
    assert_eq!(ask(json!({})).await, plain);
    let models = worker.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["loras"], json!(["broken", "ink", "other"]), "{models}");
}

#[tokio::test]
async fn loras_require_a_folder() {
    let worker = worker();
    for (more, param) in
        [(json!({"loras": [{"name": "ink"}]}), "loras"), (json!({"prompt": "<lora:ink:1>"}), "prompt")]
    {
        let mut body = json!({"prompt": "x", "steps": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = worker.post(GENERATIONS, &body).await;
        let error = &answer.json()["error"];
        assert!(answer.status == 400 && error["param"] == param, "{}", answer.text);
        assert!(answer.text.contains("--lora-dir"), "{}", answer.text);
    }
}
