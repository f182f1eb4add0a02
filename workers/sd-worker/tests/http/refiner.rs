//! XL's refiner for the last steps of a base model.
use candle_core::Device;
use clap::Parser;
use sd_worker::arguments::Arguments;
use sd_worker::model::Model;
use sd_worker::run::load_options;
use serde_json::{Value, json};

use crate::fixture::{Ask, Worker, serve, worker};
use crate::tiny_model::published::{REFINER, XL, configs};
use crate::tiny_model::write_configs;

/// Returns a worker with a base model and its refiner, and their folder.
fn refining() -> (tempfile::TempDir, Worker) {
    let folder = tempfile::tempdir().unwrap();
    let (base, refiner) = (folder.path().join("base"), folder.path().join("finer"));
    write_configs(&base, &configs(XL)).unwrap();
    write_configs(&refiner, &configs(REFINER)).unwrap();
    // The VAE of the refiner is not loaded, so it may be incomplete.
    let vae = refiner.join("vae/diffusion_pytorch_model.safetensors");
    let mut weights = candle_core::safetensors::load(&vae, &Device::Cpu).unwrap();
    assert!(weights.remove("decoder.conv_out.bias").is_some());
    candle_core::safetensors::save(&weights, &vae).unwrap();
    let worker = serve(&base, &["--refiner", &refiner.to_string_lossy()], None);
    (folder, worker)
}

fn job(switch_at: Option<f64>) -> Value {
    json!({"prompt": "red", "steps": 4, "seed": 1, "width": 32, "height": 32, "scheduler": "euler",
        "refiner_switch_at": switch_at})
}

/// Decoded copies of the base model leave memory for the refiner, which is loaded later.
#[test]
fn memory_is_reserved_for_the_refiner() {
    let folder = tempfile::tempdir().unwrap();
    write_configs(folder.path(), &configs(REFINER)).unwrap();
    let line = ["worker", "--model-path", "base", "--refiner", &folder.path().to_string_lossy()];
    for (line, has_refiner) in [(&line[..], true), (&line[..3], false)] {
        let arguments = Arguments::try_parse_from(line).unwrap();
        let options = load_options(&arguments, &Device::Cpu, 7).unwrap();
        let refiner = arguments.load_refiner(folder.path());
        let required = Model::required_bytes(folder.path(), &Device::Cpu, &refiner).unwrap().resident;
        let expected = if has_refiner { required } else { 0 };
        assert!(required > 0);
        assert_eq!((options.refiner_bytes, options.reserved_bytes), (expected, 7));
    }
}

#[tokio::test]
async fn requests_choose_the_step_of_the_refiner() {
    let (_folder, worker) = refining();
    let models = worker.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["refiner"], "finer");
    let alone = worker.complete(&job(None)).await;
    let refined = worker.complete(&job(Some(0.5))).await;
    assert_ne!(refined["image"], alone["image"]);
    assert_eq!(worker.complete(&job(Some(1.0))).await["image"], alone["image"]);
    let openai = json!({"prompt": "red", "steps": 4, "seed": 1, "size": "32x32", "scheduler": "euler",
        "refiner_switch_at": 0.5});
    let answer = worker.post("/v1/images/generations", &openai).await.json();
    assert_eq!(answer["data"][0]["b64_json"], refined["image"]);
    let payload = |name: &str, switch_at: Value| {
        json!({"prompt": "red", "steps": 4, "seed": 1, "width": 32, "height": 32, "sampler_name": "Euler",
            "refiner_checkpoint": name, "refiner_switch_at": switch_at})
    };
    for (name, switch_at, expected) in [
        ("finer", json!(0.5), "Refiner: finer, Refiner switch at: 0.5"),
        ("finer.safetensors [0123abcd]", Value::Null, "Refiner switch at: 0.8"),
        ("None", json!(0.5), ""),
        ("", json!(0.5), ""),
    ] {
        let answer = worker.post("/sdapi/v1/txt2img", &payload(name, switch_at)).await.json();
        let info = answer["info"].as_str().unwrap();
        assert!(info.contains(expected) && info.contains("Refiner") != expected.is_empty(), "{name}: {info}");
    }
    for (body, field) in [
        (payload("other", json!(0.5)), "refiner_checkpoint"),
        (payload("finer", json!(1.5)), "refiner_switch_at"),
        (payload("finer", json!(0)), "refiner_switch_at"),
    ] {
        let error = worker.post("/sdapi/v1/txt2img", &body).await.error();
        assert_eq!((error.0, error.2.as_deref()), (400, Some(field)));
    }
    for (name, value) in
        [("refiner_switch_at", json!(0)), ("hires", json!({"scale": 2})), ("scheduler", json!("heun"))]
    {
        let mut body = job(Some(0.5));
        body[name] = value;
        let error = worker.post("/v1/jobs", &body).await.error();
        assert_eq!((error.0, error.2.as_deref()), (400, Some("refiner_switch_at")), "{name}");
    }
}

#[tokio::test]
async fn models_without_a_refiner_refuse_it() {
    let worker = worker();
    let error = worker.post("/v1/jobs", &json!({"prompt": "a", "refiner_switch_at": 0.8})).await.error();
    assert_eq!((error.0, error.2.as_deref()), (400, Some("refiner_switch_at")));
    let body = json!({"prompt": "a", "refiner_checkpoint": "finer"});
    let error = worker.post("/sdapi/v1/txt2img", &body).await.error();
    assert_eq!((error.0, error.2.as_deref()), (400, Some("refiner_checkpoint")));
}

#[tokio::test]
async fn a_refiner_alone_requires_an_image() {
    let folder = tempfile::tempdir().unwrap();
    write_configs(folder.path(), &configs(REFINER)).unwrap();
    let worker = serve(folder.path(), &[], None);
    assert_eq!(worker.get("/v1/models").await.json()["data"][0]["version"], "xl-refiner");
    let error = worker.post("/v1/jobs", &json!({"prompt": "a"})).await.error();
    assert_eq!((error.0, error.2.as_deref()), (400, Some("image")));
}
