//! The job API: events, images and seeds.
use sd_worker::schedulers::Method;
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, SIDE, WORKER, with, worker, worker_of};
use crate::images::{base64, mask, picture, png};
use crate::tiny_model::Kind;

fn job(more: Value) -> Value {
    let mut body = json!({"prompt": "a red circle", "steps": 4, "seed": 7});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_job_sends_position_progress_previews_and_image() {
    let worker = worker();
    let full = json!({"negative_prompt": "blue", "width": 40, "height": 24, "steps": 11, "guidance": 3.5, "n": 1,
        "scheduler": "euler", "format": "png", "worker_id": WORKER, "model": MODEL, "hive_id": "h", "callback": false});
    let (job_id, sse_url) = worker.begin(&job(full)).await;
    assert_eq!(sse_url, format!("/v1/jobs/{job_id}/stream"));
    let answer = worker.get(&sse_url).await;
    let events = answer.events();
    let mut expected = vec!["queued"];
    for step in 1..=11 {
        expected.push("progress");
        expected.extend((step % 5 == 0).then_some("preview"));
    }
    expected.push("complete");
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, expected);
    let of = |kind: &str| -> Vec<&Value> {
        events.iter().filter(|(name, _)| name == kind).map(|(_, data)| data).collect()
    };
    assert_eq!(of("queued"), [&json!({"position": 0})]);
    for (i, data) in of("progress").into_iter().enumerate() {
        let percent = (1000 * (i + 1) / 11) as f64 / 10.0;
        assert_eq!(*data, json!({"step": i + 1, "total": 11, "percent": percent}));
    }
    for (i, data) in of("preview").into_iter().enumerate() {
        assert_eq!(data["step"], 5 * (i + 1));
        // A preview has one pixel per cell of the latents.
        let small = picture(&data["image"]);
        assert_eq!((small.width(), small.height()), (10, 6));
    }
    let made = of("complete")[0];
    let large = picture(&made["image"]);
    assert_eq!((large.width(), large.height()), (40, 24));
    let rest = json!({"format": "png", "seed": 7, "width": 40, "height": 24, "truncated": false});
    for (name, value) in rest.as_object().unwrap() {
        assert_eq!(&made[name], value, "{name}");
    }
    assert!(made.get("images").is_none());
    // Later readers receive all events.
    assert_eq!(worker.get(&sse_url).await.text, answer.text);
    assert!(!answer.text.contains("[DONE]"));
}

#[tokio::test]
async fn the_same_seed_generates_the_same_image() {
    let worker = worker();
    let first = worker.complete(&job(json!({}))).await;
    assert_eq!(worker.complete(&job(json!({}))).await, first);
    for other in [
        json!({"seed": 8}),
        json!({"prompt": "a blue circle"}),
        json!({"negative_prompt": "red"}),
        json!({"steps": 5}),
        json!({"guidance": 2}),
        json!({"scheduler": "euler-a"}),
    ] {
        assert_ne!(worker.complete(&job(other.clone())).await["image"], first["image"], "{other}");
    }
    // Without a seed, each job has a random seed and reports it.
    let [a, b] = [
        worker.complete(&job(json!({"seed": null}))).await,
        worker.complete(&job(json!({"seed": null}))).await,
    ];
    assert_ne!(a["image"], b["image"]);
    assert_eq!(worker.complete(&job(json!({"seed": a["seed"]}))).await["image"], a["image"]);
}

#[tokio::test]
async fn noise_levels_are_selected() {
    let worker = worker();
    for scheduler in Method::ALL.map(Method::name) {
        let mut images = Vec::new();
        for (karras, exponential) in
            [(None, None), (Some(false), Some(false)), (Some(true), None), (Some(false), Some(true))]
        {
            let more = json!({"scheduler": scheduler, "karras": karras, "exponential": exponential});
            images.push(worker.complete(&job(more)).await["image"].clone());
        }
        let [silent, without, karras, exponential] = &images[..] else { panic!("four images") };
        assert_eq!(silent, without, "{scheduler}");
        // These visit the timesteps of the training.
        let without_effect = ["ddim", "pndm", "lcm"].contains(&scheduler);
        for (a, b) in [(karras, without), (exponential, without), (karras, exponential)] {
            assert_eq!(a == b, without_effect, "{scheduler}");
        }
    }
}

#[tokio::test]
async fn several_images_have_consecutive_seeds() {
    let worker = worker();
    let made = worker.complete(&job(json!({"n": 3, "seed": u64::MAX}))).await;
    let images = made["images"].as_array().unwrap();
    assert_eq!((images.len(), &images[0], &made["seed"]), (3, &made["image"], &json!(u64::MAX)));
    assert!(images[0] != images[1] && images[1] != images[2]);
    // Seeds wrap around to 0. The batch size may change the order of summation, so results differ slightly.
    let alone = picture(&worker.complete(&job(json!({"seed": 0}))).await["image"]);
    let together = picture(&images[1]);
    let differ = alone.rgb().iter().zip(together.rgb()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(differ <= 2, "{differ}");
}

#[tokio::test]
async fn format_and_previews_follow_the_request() {
    let worker = with(&["--preview-every", "0"]);
    let events = worker.job(&job(json!({"format": "jpeg", "steps": 10}))).await;
    assert!(events.iter().all(|(name, _)| name != "preview"));
    let made = &events.last().unwrap().1;
    assert_eq!(made["format"], "jpeg");
    let near = picture(&made["image"]);
    let exact = picture(&worker.complete(&job(json!({"format": "png", "steps": 10}))).await["image"]);
    assert_ne!(near, exact);
    assert_eq!((near.width(), near.height()), (exact.width(), exact.height()));
    // Prompts longer than the text encoder, and longer than the worker supports.
    for (count, truncated) in [(40, false), (500, true)] {
        let made = worker.complete(&job(json!({"prompt": "red ".repeat(count)}))).await;
        assert_eq!(made["truncated"], truncated);
    }
}

#[tokio::test]
async fn strength_controls_the_change_of_an_input_image() {
    let worker = worker();
    let given = picture(&json!(base64(&png(SIDE, SIDE))));
    let distance = |made: &Value| -> u64 {
        let made = picture(&made["image"]);
        made.rgb().iter().zip(given.rgb()).map(|(a, b)| u64::from(a.abs_diff(*b)).pow(2)).sum()
    };
    let url = format!("data:image/png;base64,{}", base64(&png(SIDE, SIDE)));
    let mut distances = Vec::new();
    for strength in [0.1, 0.5, 1.0] {
        let body = job(json!({"image": url, "strength": strength, "steps": 10, "guidance": 1.0}));
        let events = worker.job(&body).await;
        // Lower strength computes fewer steps.
        let steps = events.iter().filter(|(name, _)| name == "progress").count();
        assert_eq!(steps, (10.0 * strength) as usize);
        distances.push(distance(&events.last().unwrap().1));
    }
    assert!(distances[0] < distances[2], "{distances:?}");
    // The size defaults to that of the image.
    let made = worker.complete(&job(json!({"image": base64(&png(48, 24))}))).await;
    assert_eq!((&made["width"], &made["height"]), (&json!(48), &json!(24)));
}

#[tokio::test]
async fn what_the_mask_keeps_is_kept_bit_for_bit() {
    for kind in [Kind::Plain, Kind::Inpaint] {
        let worker = worker_of(kind, &[], None);
        let (given, cover) = (png(SIDE, SIDE), mask(SIDE, SIDE));
        let body = job(json!({"image": base64(&given), "mask": base64(&cover)}));
        let made = picture(&worker.complete(&body).await["image"]);
        let given = picture(&json!(base64(&given)));
        let differ = |right: bool| {
            let pixels = made.rgb().chunks(3).zip(given.rgb().chunks(3)).enumerate();
            pixels.filter(|(i, (a, b))| (i % SIDE >= SIDE / 2) == right && a != b).count()
        };
        assert_eq!(differ(false), 0, "{kind:?}");
        assert!(differ(true) > SIDE * SIDE / 4, "{kind:?}");
    }
}

#[tokio::test]
async fn xl_supports_all_schedulers() {
    let worker = worker_of(Kind::Xl, &[], None);
    for scheduler in Method::ALL.map(Method::name) {
        let made = worker.complete(&job(json!({"scheduler": scheduler, "steps": 3}))).await;
        assert_eq!(picture(&made["image"]).width(), SIDE, "{scheduler}");
    }
}
