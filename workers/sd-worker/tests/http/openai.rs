//! OpenAI's image API, metrics and health routes.
use std::io::Cursor;

use axum::http::header::CONTENT_TYPE;
use sd_worker::arguments::{Arguments, DEFAULTS};
use sd_worker::schedulers::Method;
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, SIDE, Worker, form_body, form_request, with, worker};
use crate::images::{base64, mask, picture, png};

const GENERATIONS: &str = "/v1/images/generations";

async fn generated(worker: &Worker, more: Value) -> Value {
    let mut body = json!({"prompt": "a red circle", "steps": 3, "seed": 5});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = worker.post(GENERATIONS, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn generations_return_base64() {
    let worker = worker();
    let answer = generated(&worker, json!({})).await;
    assert!(answer["created"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(
        (&answer["size"], &answer["output_format"], &answer["seed"]),
        (&json!("32x32"), &json!("png"), &json!(5))
    );
    assert_eq!(answer["data"].as_array().unwrap().len(), 1);
    let first = &answer["data"][0]["b64_json"];
    assert_eq!(picture(first).width(), SIDE);
    // A job with the same seed generates the same image.
    let job = worker.complete(&json!({"prompt": "a red circle", "steps": 3, "seed": 5})).await;
    assert_eq!(job["image"], *first);
    // All OpenAI fields without effect, and the parameters of the model.
    let more = json!({"model": "org/tiny", "n": 2, "size": "40x24", "response_format": "b64_json", "user": "x",
        "quality": "auto", "moderation": "low", "background": null, "output_format": "jpeg", "negative_prompt": "blue",
        "guidance": 2.5, "scheduler": "unipc", "karras": true});
    let answer = generated(&worker, more).await;
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    for image in answer["data"].as_array().unwrap() {
        let picture = picture(&image["b64_json"]);
        assert_eq!((picture.width(), picture.height()), (40, 24));
    }
    assert_eq!(generated(&worker, json!({"size": "auto"})).await["size"], "32x32");
}

#[tokio::test]
async fn quality_sets_the_steps_and_webp_is_lossless() {
    let worker = with(&["--max-steps", "40"]);
    let mut computed = 0;
    // The default is 30 steps.
    for (quality, steps) in [("low", 15), ("auto", 30), ("hd", 40)] {
        generated(&worker, json!({"quality": quality, "steps": null})).await;
        worker.idle().await;
        computed += steps;
        assert_eq!(worker.served.queue.status().steps, computed, "{quality}");
    }
    let [png, webp] = [json!({"quality": "low"}), json!({"output_format": "webp"})];
    let [png, webp] = [generated(&worker, png).await, generated(&worker, webp).await];
    assert_eq!(webp["output_format"], "webp");
    assert_eq!(picture(&webp["data"][0]["b64_json"]), picture(&png["data"][0]["b64_json"]));
}

#[tokio::test]
async fn syntax_of_other_programs_is_reported() {
    let worker = worker();
    for (prompt, named) in [
        ("a [red:blue:0.4] circle", Some("[red:blue:0.4]")),
        ("a (red:1.4) circle", None),
        ("a circle (red: not blue), 3:2, a <b>", None),
    ] {
        for field in ["prompt", "negative_prompt"] {
            let warnings = generated(&worker, json!({field: prompt, "steps": 1})).await["warnings"].clone();
            let job = json!({"prompt": "x", "steps": 1, field: prompt});
            assert_eq!(worker.complete(&job).await["warnings"], warnings, "{prompt}");
            let first = warnings[0].as_str();
            assert_eq!(first.is_some(), named.is_some(), "{prompt}: {warnings}");
            assert!(named.is_none_or(|part| first.is_some_and(|text| text.contains(part))), "{warnings}");
        }
    }
}

#[tokio::test]
async fn edits_accept_forms() {
    let worker = worker();
    let (given, cover) = (png(SIDE, SIDE), mask(SIDE, SIDE));
    let body = form_body(&[
        ("model", None, MODEL.as_bytes()),
        ("image", Some("a.png"), &given),
        ("mask", Some("b.png"), &cover),
        ("prompt", None, b"a red circle"),
        ("n", None, b"2"),
        ("size", None, b"auto"),
        ("seed", None, b"3"),
        ("steps", None, b"3"),
        ("guidance", None, b"2.5"),
        ("scheduler", None, b"euler"),
        ("karras", None, b"true"),
        ("response_format", None, b"b64_json"),
    ]);
    let answer = worker.read(form_request(body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    assert_eq!((&answer["size"], answer["data"].as_array().unwrap().len()), (&json!("32x32"), 2));
    // A job generates the same images.
    let job = json!({"prompt": "a red circle", "n": 2, "seed": 3, "steps": 3, "guidance": 2.5,
        "scheduler": "euler", "karras": true, "image": base64(&given), "mask": base64(&cover)});
    let images = worker.complete(&job).await["images"].clone();
    for (i, image) in answer["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!(image["b64_json"], images[i]);
    }
    // Newer clients send lists of images.
    let body = form_body(&[
        ("image[]", Some("a.png"), &given),
        ("prompt", None, b"x"),
        ("steps", None, b"2"),
        ("strength", None, b"0.5"),
    ]);
    assert_eq!(worker.read(form_request(body)).await.status, 200);
}

#[tokio::test]
async fn the_transparent_part_of_an_image_is_its_mask() {
    let worker = worker();
    let (given, cover) = (png(SIDE, SIDE), mask(SIDE, SIDE));
    let mut clear = image::load_from_memory(&given).unwrap().into_rgba8();
    clear
        .enumerate_pixels_mut()
        .filter(|(x, ..)| *x as usize >= SIDE / 2)
        .for_each(|(.., pixel)| pixel.0[3] = 0);
    let mut file = Cursor::new(Vec::new());
    clear.write_to(&mut file, image::ImageFormat::Png).unwrap();
    let edited = async |files: &[(&str, Option<&str>, &[u8])]| {
        let fields: [(&str, Option<&str>, &[u8]); 3] =
            [("prompt", None, b"a red circle"), ("seed", None, b"3"), ("steps", None, b"3")];
        worker.read(form_request(form_body(&[files, &fields[..]].concat()))).await.json()["data"][0].clone()
    };
    let masked = edited(&[("image", Some("a.png"), &given), ("mask", Some("b.png"), &cover)]).await;
    assert_eq!(edited(&[("image", Some("a.png"), file.get_ref())]).await, masked);
    assert_ne!(edited(&[("image", Some("a.png"), &given)]).await, masked);
}

#[tokio::test]
async fn models_describe_their_parameters() {
    let worker = worker();
    let list = worker.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["owned_by"]),
        (&json!(MODEL), &json!("model"), &json!("sd-worker"))
    );
    let defaults = json!({"width": SIDE, "height": SIDE, "steps": 30, "guidance": 7.5, "scheduler": "ddim", "karras": false,
        "exponential": false});
    assert_eq!((&model["multiple"], &model["defaults"]), (&json!(8), &defaults));
    assert_eq!(model["schedulers"], json!(Method::ALL.map(Method::name)));
    assert_eq!((&model["safety_checker"], &model["embeddings"]), (&json!(false), &json!([])));
    for name in [MODEL, "org/tiny"] {
        assert_eq!(worker.get(&format!("/v1/models/{name}")).await.json(), *model);
    }
    assert_eq!(
        worker.get("/v1/models/other").await.error(),
        (404, "model_not_found".into(), Some("model".into()))
    );
}

#[tokio::test]
async fn metrics_count_requests_images_and_steps() {
    let worker = worker();
    generated(&worker, json!({"n": 2, "steps": 4})).await;
    worker.idle().await;
    let metrics = worker.get("/metrics").await;
    assert!(metrics.headers[CONTENT_TYPE].to_str().unwrap().starts_with("application/openmetrics-text"));
    let value = |name: &str| -> f64 {
        let line = metrics.text.lines().find(|line| line.split(['{', ' ']).next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no {name}: {}", metrics.text));
        assert!(line.contains("model=\"tiny\""), "{line}");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    for (name, expected) in [
        ("sd_requests_complete_total", 1.0),
        ("sd_requests_cancelled_total", 0.0),
        ("sd_requests_failed_total", 0.0),
        ("sd_pictures_total", 2.0),
        ("sd_steps_total", 4.0),
        ("sd_requests_waiting", 0.0),
        ("sd_requests_running", 0.0),
        ("sd_vram_bytes", 0.0),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    for name in ["sd_steps_per_second", "sd_step_seconds_total", "process_resident_memory_bytes"] {
        assert!(value(name) > 0.0, "{name}");
    }
    assert!(worker.get("/doctor").await.text.contains("sd-worker-cpu"));
    for path in ["/health", "/ready"] {
        assert_eq!(worker.get(path).await.status, 200);
    }
}

#[tokio::test]
async fn files_for_kubernetes_match_the_worker() {
    let worker = worker();
    worker.get("/v1/models").await;
    let command = worker_core::arguments::command::<Arguments>(&DEFAULTS);
    crate::deploy::check("sd-worker", &command, &worker.get("/metrics").await.text);
}
