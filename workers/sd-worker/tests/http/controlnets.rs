//! ControlNets in requests: by field, and by units of AUTOMATIC1111's extension.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::fixture::{Ask, SIDE, Worker, with, worker};
use crate::images::{base64, invalid_images, mask, picture, png};
use crate::tiny_model::{Kind, unet_config};

const JOBS: &str = "/v1/jobs";
const GENERATIONS: &str = "/v1/images/generations";
const FIELD: &str = "controlnets";

/// Writes a ControlNet for the tiny model, of the weights of its UNet and others that are not zero.
pub fn write(folder: &Path) {
    let unet = tempfile::tempdir().unwrap();
    crate::tiny_model::write(unet.path(), Kind::Plain).unwrap();
    let file = "diffusion_pytorch_model.safetensors";
    let mut weights =
        candle_core::safetensors::load(unet.path().join("unet").join(file), &Device::Cpu).unwrap();
    weights.retain(|name, _| {
        !["up_blocks", "conv_norm_out", "conv_out"].iter().any(|start| name.starts_with(start))
    });
    let mut add = |name: &str, shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let fan_in = shape[1..].iter().product::<usize>();
        let values = Tensor::arange(0f32, count as f32, &Device::Cpu).unwrap().sin().unwrap();
        let values = (values * (2.0 / fan_in as f64).sqrt()).unwrap().reshape(shape).unwrap();
        weights.insert(format!("{name}.weight"), values.to_dtype(DType::F16).unwrap());
        weights.insert(format!("{name}.bias"), Tensor::full(0.1f32, shape[0], &Device::Cpu).unwrap());
    };
    for (i, width) in [32, 32, 32, 64].into_iter().enumerate() {
        add(&format!("controlnet_down_blocks.{i}"), &[width, width, 1, 1]);
    }
    add("controlnet_mid_block", &[64, 64, 1, 1]);
    let widths = [4, 6, 8];
    let hint = "controlnet_cond_embedding";
    add(&format!("{hint}.conv_in"), &[widths[0], 3, 3, 3]);
    for (i, pair) in widths.windows(2).enumerate() {
        add(&format!("{hint}.blocks.{}", 2 * i), &[pair[0], pair[0], 3, 3]);
        add(&format!("{hint}.blocks.{}", 2 * i + 1), &[pair[1], pair[0], 3, 3]);
    }
    add(&format!("{hint}.conv_out"), &[32, widths[2], 3, 3]);
    let mut config = unet_config(Kind::Plain);
    config["_class_name"] = "ControlNetModel".into();
    config["conditioning_embedding_out_channels"] = json!(widths);
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    candle_core::safetensors::save(&weights, folder.join(file)).unwrap();
}

/// Returns a worker with a ControlNet as a folder and as a file, one for another network, and one that is pickled.
fn controlled() -> (tempfile::TempDir, Worker) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    write(&path("edges"));
    std::fs::create_dir(path("inner")).unwrap();
    std::fs::copy(path("edges/diffusion_pytorch_model.safetensors"), path("inner/lines.safetensors"))
        .unwrap();
    let other = HashMap::from([(
        "body.0.block1.weight".to_owned(),
        Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap(),
    )]);
    candle_core::safetensors::save(&other, path("sketch.safetensors")).unwrap();
    std::fs::write(path("inner/depth.pth"), "x").unwrap();
    let worker = with(&["--controlnet-dir", folder.path().to_str().unwrap(), "--max-side", "128"]);
    (folder, worker)
}

fn body(more: Value) -> Value {
    let mut body = json!({"prompt": "a circle", "steps": 4, "seed": 3});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn hint() -> String {
    base64(&png(SIDE, SIDE))
}

#[tokio::test]
async fn images_follow_their_controlnets() {
    let (_folder, worker) = controlled();
    let ask =
        async |controlnets: Value| worker.complete(&body(json!({FIELD: controlnets}))).await["image"].clone();
    let plain = ask(json!([])).await;
    let edges = ask(json!([{"model": "edges", "image": hint()}])).await;
    assert_ne!(edges, plain);
    assert_eq!(ask(json!([])).await, plain);
    let all = json!([{"model": "lines", "image": hint(), "weight": 1, "start": 0, "end": 1, "fit": "crop"}]);
    assert_eq!(ask(all.clone()).await, edges);
    let generated = worker.post(GENERATIONS, &body(json!({FIELD: all}))).await.json();
    assert_eq!(generated["data"][0]["b64_json"], edges);
    let mut different = vec![plain, edges];
    for controlnets in [
        json!([{"model": "edges", "image": hint(), "weight": 0.5}]),
        json!([{"model": "edges", "image": hint(), "weight": -1.0}]),
        json!([{"model": "edges", "image": hint(), "end": 0.5}]),
        json!([{"model": "edges", "image": hint(), "start": 0.5}]),
        json!([{"model": "edges", "image": base64(&mask(SIDE, SIDE))}]),
        // Larger than the limits of other images, and scaled.
        json!([{"model": "edges", "image": base64(&png(200, 90))}]),
        json!([{"model": "edges", "image": base64(&png(200, 90)), "fit": "crop"}]),
        json!([{"model": "edges", "image": base64(&png(200, 90)), "fit": "pad"}]),
        json!([{"model": "edges", "image": hint()}, {"model": "lines", "image": base64(&mask(SIDE, SIDE))}]),
    ] {
        let image = ask(controlnets.clone()).await;
        assert!(!different.contains(&image), "{}", &controlnets.to_string()[..40]);
        different.push(image);
    }
    let models = worker.get("/v1/models").await.json();
    assert_eq!(models["data"][0][FIELD], json!(["edges", "lines", "sketch"]), "{models}");
}

#[tokio::test]
async fn invalid_controlnets_name_their_field() {
    let (_folder, worker) = controlled();
    let one = |more: Value| {
        let mut one = json!({"model": "edges", "image": hint()});
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        one
    };
    let with_one = |more: Value| json!([one(json!({})), one(more)]);
    for (controlnets, param, part) in [
        (json!("edges"), "controlnets", "expected a sequence"),
        (json!([{"image": hint()}]), "controlnets[0].model", "missing field"),
        (json!([{"model": "edges"}]), "controlnets[0].image", "missing field"),
        (with_one(json!({"scale": 1})), "controlnets[1].scale", ""),
        (with_one(json!({"model": "canny"})), "controlnets[1].model", "it has: edges, lines, sketch"),
        (with_one(json!({"model": "../edges"})), "controlnets[1].model", "it has: edges"),
        (with_one(json!({"model": "depth"})), "controlnets[1].model", "depth.pth: is a pickled PyTorch file"),
        (with_one(json!({"weight": 11})), "controlnets[1].weight", "is 11, but must be -10 to 10"),
        (with_one(json!({"weight": 1e300})), "controlnets[1].weight", "must be -10 to 10"),
        (with_one(json!({"weight": "1"})), "controlnets[1].weight", ""),
        (with_one(json!({"start": -0.1})), "controlnets[1].start", "is -0.1, but must be 0 to 1"),
        (with_one(json!({"end": 1.5})), "controlnets[1].end", "is 1.5, but must be 0 to 1"),
        (with_one(json!({"start": 0.7, "end": 0.2})), "controlnets[1].start", "must be below `end`, 0.2"),
        (with_one(json!({"start": 0.5, "end": 0.5})), "controlnets[1].start", "must be below `end`"),
        (with_one(json!({"fit": "tile"})), "controlnets[1].fit", ""),
        (with_one(json!({"image": "https://example.org/a.png"})), "controlnets[1].image", "HTTP URL"),
        (with_one(json!({"image": base64(&png(9000, 1))})), "controlnets[1].image", "8192 per side"),
        (json!(vec![one(json!({})); 5]), "controlnets", "has 5 ControlNets, but at most 4"),
    ] {
        for path in [JOBS, GENERATIONS] {
            let answer = worker.post(path, &body(json!({FIELD: controlnets}))).await;
            let expected = (400, "invalid_value".to_owned(), Some(param.to_owned()));
            assert_eq!(answer.error(), expected, "{}", answer.text);
            assert!(answer.text.contains(part), "{part}: {}", answer.text);
        }
    }
    for (what, file) in invalid_images() {
        // Larger than the images that the worker generates, but within the limits of images that are scaled.
        if what == "many zeros in few bytes" {
            continue;
        }
        let controlnets = json!([one(json!({"image": base64(&file)}))]);
        let answer = worker.post(JOBS, &body(json!({FIELD: controlnets}))).await;
        assert_eq!(answer.error().2.as_deref(), Some("controlnets[0].image"), "{what}: {}", answer.text);
    }
    // The file is read when the job starts.
    let sketch = body(json!({FIELD: [one(json!({"model": "sketch"}))]}));
    let answer = worker.post(GENERATIONS, &sketch).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.text.contains("sketch.safetensors holds a T2I-Adapter"), "{}", answer.text);
    let (name, data) = worker.job(&sketch).await.pop().unwrap();
    assert_eq!((name.as_str(), &data["code"]), ("error", &json!("invalid_request")), "{data}");
}

#[tokio::test]
async fn controlnets_require_a_folder() {
    let worker = worker();
    let answer = worker.post(JOBS, &body(json!({FIELD: [{"model": "edges", "image": hint()}]}))).await;
    assert_eq!(answer.error(), (400, "invalid_value".into(), Some(FIELD.into())));
    assert!(answer.text.contains("--controlnet-dir"), "{}", answer.text);
    assert_eq!(worker.get("/controlnet/model_list").await.json(), json!({"model_list": []}));
}

/// Fields of a unit that the client `webuiapi` sends, with changes.
fn unit(more: Value) -> Value {
    let mut unit = json!({
        "image": hint(), "mask": null, "module": "none", "model": "edges", "weight": 1.0,
        "resize_mode": "Resize and Fill", "low_vram": false, "processor_res": 512, "threshold_a": 64,
        "threshold_b": 64, "guidance_start": 0.0, "guidance_end": 1.0, "control_mode": "Balanced",
        "pixel_perfect": false, "hr_option": "Both", "enabled": true,
    });
    unit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    unit
}

fn payload(units: Value, more: Value) -> Value {
    let mut body = json!({"prompt": "a circle", "steps": 4, "seed": 3, "width": SIDE, "height": SIDE,
        "sampler_name": "DDIM", "alwayson_scripts": {"ControlNet": {"args": units}}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn units_of_the_extension_equal_the_field() {
    let (_folder, worker) = controlled();
    let ask = async |path: &str, body: Value| {
        let answer = worker.post(&format!("/sdapi/v1/{path}"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    };
    let job = async |more: Value| picture(&worker.complete(&body(more)).await["image"]);
    let expected = job(json!({"scheduler": "ddim", FIELD: [{"model": "edges", "image": hint()}]})).await;
    let wide = base64(&png(64, 40));
    let cropped =
        json!([{"model": "edges", "image": wide, "fit": "crop", "weight": 0.5, "start": 0.25, "end": 0.75}]);
    let cropped = job(json!({"scheduler": "ddim", FIELD: cropped})).await;
    let minimal = json!({"model": "edges [d14c016b]", "image": "", "input_image": hint()});
    let numbers = unit(json!({"resize_mode": 1, "control_mode": 0, "image": wide, "weight": 0.5,
        "guidance_start": 0.25, "guidance_end": 0.75}));
    for (units, expected) in [
        (json!([unit(json!({}))]), &expected),
        (json!([unit(json!({"enabled": false, "model": "None"})), minimal]), &expected),
        (json!([numbers]), &cropped),
        (
            json!([{"model": "edges", "image": wide, "weight": 0.5, "guidance_start": 0.25, "guidance_end": 0.75}]),
            &cropped,
        ),
    ] {
        let made = ask("txt2img", payload(units, json!({}))).await;
        assert!(picture(&made["images"][0]) == *expected);
        let info: Value = serde_json::from_str(made["info"].as_str().unwrap()).unwrap();
        let text = info["infotexts"][0].as_str().unwrap();
        assert!(text.contains("ControlNet 0: \"Module: none, Model: edges, Weight: "), "{text}");
    }
    let lower = json!({"alwayson_scripts": {"controlnet": {"args": [unit(json!({}))]}}});
    let made = ask("txt2img", payload(json!([]), lower)).await;
    assert!(picture(&made["images"][0]) == expected);
    // A unit without an image takes the input image.
    let edit = json!({"init_images": [hint()], "denoising_strength": 0.5});
    let made = ask("img2img", payload(json!([unit(json!({"image": ""}))]), edit)).await;
    let expected = job(json!({"scheduler": "ddim", "image": hint(), "strength": 0.5,
        FIELD: [{"model": "edges", "image": hint()}]}))
    .await;
    assert!(picture(&made["images"][0]) == expected);
    for (path, expected) in [
        ("version", json!({"version": 2})),
        ("settings", json!({"control_net_unit_count": 4})),
        ("model_list", json!({"model_list": ["edges", "lines", "sketch"]})),
        ("module_list", json!({"module_list": ["none"], "module_detail": {}})),
    ] {
        assert_eq!(worker.get(&format!("/controlnet/{path}")).await.json(), expected);
    }
}

#[tokio::test]
async fn invalid_units_name_their_field() {
    let (_folder, worker) = controlled();
    let at = |field: &str| format!("alwayson_scripts.ControlNet.args[0].{field}");
    for (change, param, part) in [
        (json!({"module": "canny"}), at("module"), "is not supported; send the prepared image"),
        (json!({"control_mode": "My prompt is more important"}), at("control_mode"), "Balanced"),
        (json!({"control_mode": 2}), at("control_mode"), "Balanced"),
        (json!({"resize_mode": "Tile"}), at("resize_mode"), "Just Resize, Crop and Resize, Resize and Fill"),
        (json!({"resize_mode": 3}), at("resize_mode"), "Just Resize"),
        (json!({"model": "None"}), at("model"), "is missing"),
        (json!({"image": ""}), at("image"), "is missing"),
        (json!({"mask": hint()}), at("mask"), "not supported"),
        (json!({"weight": "much"}), at("weight"), ""),
        (json!({"guidance_start": 1.0}), "controlnets[0].start".into(), "must be below"),
        (json!({"model": "canny"}), "controlnets[0].model".into(), "it has: edges"),
        (json!({"image": "?"}), "controlnets[0].image".into(), "neither base64"),
    ] {
        let answer = worker.post("/sdapi/v1/txt2img", &payload(json!([unit(change)]), json!({}))).await;
        let (status, _, found) = answer.error();
        assert_eq!((status, found), (400, Some(param)), "{}", answer.text);
        assert!(answer.text.contains(part), "{part}: {}", answer.text);
    }
    for (scripts, param) in [
        (json!({"ADetailer": {"args": []}}), "alwayson_scripts.ADetailer"),
        (json!({"ControlNet": {"kwargs": {}}}), "alwayson_scripts.ControlNet.kwargs"),
        (json!({"ControlNet": []}), "alwayson_scripts.ControlNet"),
    ] {
        let answer =
            worker.post("/sdapi/v1/txt2img", &payload(json!([]), json!({"alwayson_scripts": scripts}))).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error().2.as_deref()),
            (400, Some(param)),
            "{}",
            answer.text
        );
    }
}
