//! Requests to a worker with the tiny Stable Diffusion, its LoRA and its ControlNet, whose images are judged as in the
//! training program.
use std::path::{Path, PathBuf};

use sd_worker::picture::Picture;
use serde_json::{Value, json};

use crate::fixture::{Ask, Worker, serve};
use crate::images::{base64, picture};

#[path = "../../../../examples/tiny_sd/detection.rs"]
mod detection;
#[allow(dead_code, reason = "the training program draws images, too")]
#[path = "../../../../examples/tiny_sd/images.rs"]
mod images;
#[allow(dead_code, reason = "the training program uses the other items")]
#[path = "../../../../examples/tiny_sd/judge.rs"]
mod judge;

use judge::{PARTS, PLACED_PARTS, PROMPTS};

const GENERATIONS: &str = "/v1/images/generations";
/// Number of images in every run.
const FEW: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny_sd/model")
}

/// Returns a worker with the model in the repository.
fn worker() -> Worker {
    let path = |name: &str| folder().join(name).to_str().unwrap().to_owned();
    let (loras, controlnets) = (path("loras"), path("controlnets"));
    serve(&folder(), &["--lora-dir", &loras, "--controlnet-dir", &controlnets], None)
}

/// Requests an image and returns its RGB.
async fn generate(worker: &Worker, prompt: &str, seed: usize, more: Value) -> Vec<u8> {
    let mut body = json!({"prompt": prompt, "steps": 12, "guidance": 4, "seed": seed, "scheduler": "ddim"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = worker.post(GENERATIONS, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    picture(&answer.json()["data"][0]["b64_json"]).rgb().to_vec()
}

/// Asserts that at least nine of ten images are right in each part.
fn assert_right(parts: &[&str], right: &[usize], count: usize) {
    assert!(right.iter().all(|right| 10 * right >= 9 * count), "{parts:?}: {right:?} of {count}");
}

async fn test_lora(count: usize) {
    let worker = worker();
    let mut images = Vec::new();
    for (seed, prompt) in PROMPTS[..count].iter().enumerate() {
        images.push(generate(&worker, &format!("{prompt}<lora:corners:1>"), seed, json!({})).await);
    }
    let scores = judge::scores(&PROMPTS[..count], &images).unwrap();
    scores.iter().for_each(|score| println!("{score}"));
    let corners = scores.iter().filter(|score| score.detected.as_ref().is_some_and(|found| found.corners));
    assert_right(&["corners"], &[corners.count()], count);
    assert_right(&PARTS, &judge::right(&scores), count);
    // With weight 0, and after the LoRA, images are those of the model.
    let plain = generate(&worker, PROMPTS[0], 0, json!({})).await;
    assert!(detection::detect(&plain).is_some_and(|found| !found.corners));
    assert!(
        generate(&worker, PROMPTS[0], 0, json!({"loras": [{"name": "corners", "weight": 0}]})).await == plain
    );
    assert!(images[0] != plain);
}

async fn test_controlnet(count: usize) {
    let worker = worker();
    let mut right = [0; PLACED_PARTS.len()];
    let scenes = judge::placed_scenes(1, count);
    for (seed, scene) in scenes.iter().enumerate() {
        let hint = Picture::new(images::SIDE, images::SIDE, scene.silhouette()).unwrap();
        let unit = json!({"model": "silhouette", "image": base64(&hint.png().unwrap())});
        let image = generate(&worker, &scene.short_caption(), seed, json!({"controlnets": [unit]})).await;
        let found = detection::detect(&image);
        println!("{scene:?}: {found:?}");
        let parts = found.map_or([false; PLACED_PARTS.len()], |found| judge::placed(scene, &found));
        right.iter_mut().zip(parts).for_each(|(right, part)| *right += usize::from(part));
    }
    assert_right(&PLACED_PARTS, &right, count);
}

#[tokio::test]
async fn the_trained_lora_adds_corners() {
    test_lora(FEW).await;
}

#[tokio::test]
async fn the_trained_controlnet_places_shapes() {
    test_controlnet(FEW).await;
}

#[tokio::test]
#[ignore = "takes a minute; run with --ignored"]
async fn trained_adapters_do_what_they_say_in_eighteen_of_twenty_images() {
    test_lora(PROMPTS.len()).await;
    test_controlnet(PROMPTS.len()).await;
}
