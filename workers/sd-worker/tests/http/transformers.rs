//! Flux and Stable Diffusion 3 through all interfaces.
use serde_json::{Value, json};

use crate::fixture::{Ask, Worker, worker_in};
use crate::images::{base64, picture};
use crate::transformer_models::{self, SEED};

const GENERATIONS: &str = "/v1/images/generations";

fn served(kind: &str) -> Worker {
    let folder = tempfile::tempdir().unwrap();
    transformer_models::write(folder.path(), kind).unwrap();
    worker_in(folder, &["--max-side", "160"], None)
}

/// Returns the fields of a request, with changes.
fn body(more: Value) -> Value {
    let mut body = json!({"prompt": "a red circle", "steps": 4, "seed": SEED, "size": "64x48"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn interfaces_return_the_image_of_diffusers() {
    for (kind, guidance, negative) in [("flux_dev", 3.5, ""), ("sd35", 5.0, "blue")] {
        let worker = served(kind);
        let expected = transformer_models::expected(kind).unwrap();
        let own = body(json!({"guidance": guidance, "negative_prompt": negative}));
        let openai = worker.post(GENERATIONS, &own).await;
        assert_eq!(openai.status, 200, "{}", openai.text);
        let a1111 = json!({"prompt": "a red circle", "negative_prompt": negative, "steps": 4, "seed": SEED, "width": 64,
            "height": 48, "cfg_scale": guidance, "sampler_name": "Euler", "scheduler": "automatic"});
        let a1111 = worker.post("/sdapi/v1/txt2img", &a1111).await;
        assert_eq!(a1111.status, 200, "{}", a1111.text);
        let mut job = own.clone();
        job.as_object_mut().unwrap().remove("size");
        job["width"] = 64.into();
        job["height"] = 48.into();
        let job = worker.complete(&job).await;
        for image in [&openai.json()["data"][0]["b64_json"], &a1111.json()["images"][0], &job["image"]] {
            let (most, _) = transformer_models::levels(&picture(image), &expected);
            assert!(most <= 1, "{kind}: {most} levels away");
        }
        // An image to image.
        let given = base64(&transformer_models::picture("given").unwrap().png().unwrap());
        let edit = json!({"prompt": "a red circle", "steps": 2, "init_images": [given], "denoising_strength": 0.5,
            "width": 64, "height": 48});
        let edit = worker.post("/sdapi/v1/img2img", &edit).await;
        assert_eq!(edit.status, 200, "{}", edit.text);
    }
}

#[tokio::test]
async fn models_describe_the_network() {
    for (kind, network, version, turbo, steps, guidance, side) in [
        ("flux_dev", "Flux", "flux", false, 28, 3.5, 160),
        ("flux_schnell", "Flux", "flux", true, 4, 0.0, 160),
        ("sd3", "Stable Diffusion 3", "3", false, 28, 7.0, 128),
        ("sd35", "Stable Diffusion 3.5", "3.5", false, 28, 7.0, 128),
    ] {
        let folder = tempfile::tempdir().unwrap();
        transformer_models::write(folder.path(), kind).unwrap();
        let worker = worker_in(folder, &["--max-side", "160"], None);
        let card = worker.get("/v1/models").await.json()["data"][0].clone();
        let found = [
            "network",
            "version",
            "turbo",
            "multiple",
            "max_side",
            "adapters",
            "schedulers",
            "negative_prompt",
        ]
        .map(|key| card[key].clone());
        let expected = [
            json!(network),
            json!(version),
            json!(turbo),
            json!(16),
            json!(side),
            json!(false),
            json!(["euler"]),
            json!(network != "Flux"),
        ];
        assert_eq!(found, expected, "{kind}");
        assert_eq!(
            (&card["defaults"]["steps"], &card["defaults"]["guidance"]),
            (&json!(steps), &json!(guidance))
        );
        let samplers = worker.get("/sdapi/v1/samplers").await.json();
        assert_eq!((samplers.as_array().unwrap().len(), &samplers[0]["name"]), (1, &json!("Euler")));
    }
}

#[tokio::test]
async fn fields_that_are_not_supported_are_named() {
    let worker = served("flux_dev");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ink.safetensors"), "").unwrap();
    let models = tempfile::tempdir().unwrap();
    transformer_models::write(models.path(), "sd3").unwrap();
    let sd3 = worker_in(models, &["--lora-dir", folder.path().to_str().unwrap()], None);
    for (worker, more, field, part) in [
        (&worker, json!({"negative_prompt": "blue"}), "negative_prompt", "not supported for Flux"),
        (&worker, json!({"scheduler": "ddim"}), "scheduler", "one of euler"),
        (&worker, json!({"karras": true}), "steps", "Karras"),
        (&worker, json!({"clip_skip": 2}), "clip_skip", "1"),
        (&worker, json!({"size": "64x40"}), "size", "multiple of 16"),
        (&sd3, json!({"loras": [{"name": "pen"}]}), "loras", "no LoRA named \"pen\"; the folder has: ink"),
        (&sd3, json!({"prompt": "a <lora:pen:1>"}), "prompt", "no LoRA named \"pen\""),
        (&sd3, json!({"size": "144x64"}), "size", "128"),
    ] {
        let answer = worker.post(GENERATIONS, &body(more.clone())).await;
        assert_eq!(answer.status, 400, "{more}: {}", answer.text);
        let error = answer.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(error["param"] == field && message.contains(part), "{more}: {error}");
    }
}
