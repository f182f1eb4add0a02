//! Soak test with random jobs, cancellations and disconnections: memory must not grow. Needs its own process.
#[path = "http/fixture.rs"]
mod fixture;
#[path = "http/images.rs"]
mod images;
#[path = "../../worker-core/tests/shared/mod.rs"]
mod shared;
mod tiny_model;

use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use worker_core::device::resident_bytes;

use fixture::{Ask, Worker, get, with};
use images::{base64, mask, png};

/// Number of jobs before and after the first memory measurement; CANDLE_SOAK_JOBS overrides the latter.
const BEFORE: usize = 150;
const AFTER: usize = 300;
/// Maximum growth in bytes, for overhead of the allocator.
const GROWTH: u64 = 24 << 20;

fn job(rng: &mut StdRng) -> Value {
    let sides = [16, 24, 32, 48];
    let (width, height) = (sides[rng.random_range(0..4)], sides[rng.random_range(0..4)]);
    let mut body = json!({"prompt": "a red circle", "seed": rng.random::<u32>(), "steps": rng.random_range(1..6),
        "n": rng.random_range(1..3), "width": width, "height": height, "guidance": rng.random_range(0.0..3.0)});
    if rng.random_bool(0.4) {
        body["image"] = base64(&png(width, height)).into();
        if rng.random_bool(0.5) {
            body["mask"] = base64(&mask(width, height)).into();
        }
    }
    body
}

/// Sends one random request and follows, cancels or abandons it.
async fn one(worker: &Worker, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    if rng.random_bool(0.2) {
        let body = json!({"prompt": "red", "steps": 2, "size": "24x16"});
        let answer = worker.post("/v1/images/generations", &body);
        if rng.random_bool(0.5) {
            tokio::select! { biased; _ = answer => {}, () = tokio::task::yield_now() => {} }
        } else {
            let status = answer.await.status;
            assert!(status == 200 || status == 429, "{status}");
        }
        return;
    }
    let body = job(&mut rng);
    let mut answer = worker.post("/v1/jobs", &body).await;
    while answer.status == 429 {
        worker.until("the queue has room", |worker| worker.served.check_capacity().is_ok()).await;
        answer = worker.post("/v1/jobs", &body).await;
    }
    assert_eq!(answer.status, 202, "{}", answer.text);
    let (job_id, sse_url) = (answer.json()["job_id"].clone(), answer.json()["sse_url"].clone());
    let (job_id, sse_url) = (job_id.as_str().unwrap(), sse_url.as_str().unwrap());
    match rng.random_range(0..4) {
        0 => drop(worker.delete(job_id).await),
        1 => {
            let mut stream = worker.send(get(sse_url)).await.into_body().into_data_stream();
            for _ in 0..rng.random_range(0..4) {
                stream.next().await;
            }
        }
        2 => {}
        _ => drop(worker.get(sse_url).await.events()),
    }
}

async fn many(worker: &Worker, seeds: std::ops::Range<usize>) {
    let jobs = futures_util::stream::iter(seeds).map(|seed| one(worker, seed as u64));
    jobs.buffer_unordered(8).collect::<Vec<()>>().await;
    worker.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_flat_over_random_jobs() {
    let after = std::env::var("CANDLE_SOAK_JOBS").ok().map_or(AFTER, |jobs| jobs.parse().unwrap());
    let worker = with(&["--max-waiting", "6"]);
    many(&worker, 0..BEFORE).await;
    let before = resident_bytes();
    assert!(before > 0);
    many(&worker, BEFORE..BEFORE + after).await;
    let grown = resident_bytes().saturating_sub(before);
    let status = worker.served.queue.status();
    assert!(grown < GROWTH, "{grown} bytes more after {after} jobs: {status:?}");
    assert_eq!(status.failed, 0, "{status:?}");
    let all = (BEFORE + after) as u64;
    assert!(status.complete > all / 4 && status.cancelled > all / 8, "{status:?}");
    assert_eq!(worker.served.decoders.available_permits(), 4);
    assert_eq!(worker.get("/ready").await.status, 200);
}
