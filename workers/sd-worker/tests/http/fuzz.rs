//! Fuzz tests: no request causes a 5xx, and all errors have OpenAI's format.
use axum::body::Body;
use axum::http::Request;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::controlnets;
use crate::fixture::{Ask, Worker, form_body, form_request, json_request, with};
use crate::images::{base64, invalid_images, mask, png};
use crate::shared::fuzz::{self, Change, Seed, addressed, changed, edited};

/// Default number of test cases, overridden by CANDLE_FUZZ_CASES.
const CASES: u32 = 1000;
const JOBS: &str = "/v1/jobs";
const EDITS: &str = "/v1/images/edits";

/// Returns paths and valid bodies. Files of forms are base64 strings.
fn seeds() -> Vec<Seed> {
    let (image, cover) = (base64(&png(16, 16)), base64(&mask(16, 16)));
    vec![
        (
            JOBS,
            json!({"prompt": "a red circle", "negative_prompt": "blue", "width": 16, "height": 16, "steps": 2,
            "guidance": 2.0, "seed": 1, "n": 1, "scheduler": "euler", "karras": true, "format": "png", "worker_id": "worker-1",
            "callback": false, "device": 0, "hive_id": "h", "model": "tiny"}),
        ),
        (
            JOBS,
            json!({"prompt": "red", "image": image, "mask": cover, "strength": 0.7, "steps": 2, "format": "jpeg"}),
        ),
        (
            JOBS,
            json!({"prompt": "red", "steps": 1, "width": 16, "height": 16, "controlnets": [{"model": "edges",
            "image": image, "weight": 0.5, "start": 0.0, "end": 0.9, "fit": "crop"}]}),
        ),
        (
            "/sdapi/v1/txt2img",
            json!({"prompt": "red", "steps": 1, "width": 16, "height": 16, "alwayson_scripts": {"controlnet":
            {"args": [{"enabled": true, "module": "none", "model": "edges", "image": image, "weight": 0.5,
            "guidance_start": 0.0, "guidance_end": 0.9, "resize_mode": 1, "control_mode": "Balanced"}]}}}),
        ),
        (
            "/v1/images/generations",
            json!({"prompt": "a red circle", "n": 1, "size": "16x24", "response_format": "b64_json",
            "model": "tiny", "seed": 1, "steps": 1, "guidance": 1.5, "scheduler": "unipc", "karras": false, "output_format": "jpeg",
            "quality": "auto", "user": "x"}),
        ),
        (
            EDITS,
            json!({"prompt": "red", "image": image, "mask": cover, "size": "auto", "n": "1", "steps": "1",
            "strength": "0.5", "seed": "3", "guidance": "1", "karras": "true"}),
        ),
    ]
}

/// Strategy for replacement values.
fn value() -> impl Strategy<Value = Value> {
    let files = invalid_images()
        .into_iter()
        .filter(|(_, file)| file.len() < 10_000)
        .map(|(_, file)| base64(&file).into())
        .chain([(16, 16), (8, 8), (24, 16), (17, 16)].map(|(w, h)| base64(&png(w, h)).into()));
    let words = [
        "auto",
        "8x8",
        "0x0",
        "16x16",
        "png",
        "jpeg",
        "ddim",
        "euler-a",
        "dpm++2m",
        "NaN",
        "-1",
        "1e308",
        "data:image/png;base64,",
        "true",
        "<|endoftext|>",
        "<|startoftext|> red",
    ];
    let more = [json!(8), json!(16), json!(24), json!("a ".repeat(6000))];
    fuzz::value(more.into_iter().chain(files).collect(), &words)
}

fn request(path: &str, seed: &Value, changes: &[Change], seeds: &[Seed]) -> Request<Body> {
    let changed = changed(seed, changes, seeds);
    let members = changed.as_object().unwrap();
    let body = match path {
        EDITS => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let parts: Vec<(String, bool, Vec<u8>)> = members
                .iter()
                .map(|(name, value)| {
                    let file = name == "image" || name == "mask";
                    let text = text(value);
                    let bytes = match file.then(|| sd_worker::images::Source::Text(text.clone()).file()) {
                        Some(Ok(file)) => file,
                        _ => text.into_bytes(),
                    };
                    (name.clone(), file, bytes)
                })
                .collect();
            let parts: Vec<_> = parts
                .iter()
                .map(|(name, file, bytes)| (name.as_str(), file.then_some("f"), bytes.as_slice()))
                .collect();
            form_body(&parts)
        }
        _ => changed.to_string().into_bytes(),
    };
    let body = edited(body, changes);
    let request = if path == EDITS { form_request(body) } else { json_request(path, body) };
    addressed(request, changes)
}

async fn check(worker: &Worker, request: Request<Body>) -> Result<(), TestCaseError> {
    let path = request.uri().path().to_owned();
    let answer = worker.read(request).await;
    fuzz::check(&path, &answer)?;
    if answer.status == 202 {
        let (_, sse_url) = answer.job();
        let (name, data) = worker.get(&sse_url).await.events().pop().unwrap();
        prop_assert!(name == "complete", "{data}");
    }
    Ok(())
}

#[test]
fn mutated_bodies_do_not_cause_5xx() {
    let cases = fuzz::cases(CASES);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limits = ["--max-side", "64", "--max-pixels", "4096", "--max-steps", "4", "--max-images", "2"];
    let folder = tempfile::tempdir().unwrap();
    controlnets::write(&folder.path().join("edges"));
    let limits = [&limits[..], &["--controlnet-dir", folder.path().to_str().unwrap()]].concat();
    let worker = runtime.block_on(async { with(&limits) });
    let seeds = seeds();
    fuzz::run(cases, fuzz::seed(), &seeds, value(), |path, seed, changes| {
        runtime.block_on(check(&worker, request(path, seed, changes, &seeds)))
    });
    runtime.block_on(worker.idle());
    let status = worker.served.queue.status();
    assert_eq!((status.failed, status.cancelled), (0, 0));
    assert!(status.complete >= u64::from(cases / 20), "{status:?}: too few valid bodies");
}
