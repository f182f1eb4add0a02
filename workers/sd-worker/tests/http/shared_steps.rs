//! Jobs that share steps: results, cancellation, failures and the order of the queue.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sd_worker::picture::{Limits, Picture};
use serde_json::{Value, json};

use crate::fixture::{Ask, Behavior, Worker, with, worker};

fn job(seed: u64) -> Value {
    json!({"prompt": "a red circle", "steps": 4, "seed": seed})
}

/// Checks that results are equal, and that no channel of an image differs by more than one level of 255.
fn assert_same(data: &Value, expected: &Value) {
    let mut rest = [data.clone(), expected.clone()];
    let [own, other] = rest.each_mut().map(|result| {
        let fields = result.as_object_mut().unwrap();
        let all = [fields.remove("image"), fields.remove("images")];
        let decoded = |image: &Value| {
            let file = STANDARD.decode(image.as_str().unwrap()).unwrap();
            Picture::decode(&file, Limits::default()).unwrap()
        };
        let images = all.iter().flatten().flat_map(|value| match value {
            Value::Array(images) => images.iter().map(decoded).collect::<Vec<_>>(),
            image => vec![decoded(image)],
        });
        images.flat_map(|picture| picture.rgb().to_vec()).collect::<Vec<u8>>()
    });
    assert_eq!(rest[0], rest[1]);
    assert_eq!(own.len(), other.len());
    assert!(own.iter().zip(&other).all(|(a, b)| a.abs_diff(*b) <= 1));
}

/// Starts jobs, of which the first one is blocked after its first step.
async fn begin(worker: &Worker, jobs: &[Value]) -> Vec<(String, String)> {
    worker.gate.hold();
    let mut begun = Vec::new();
    for job in jobs {
        begun.push(worker.begin(job).await);
    }
    worker.until("the first step is blocked", |worker| worker.gate.is_holding()).await;
    begun
}

#[tokio::test]
async fn jobs_of_a_batch_have_their_own_results() {
    let worker = worker();
    let jobs = [
        job(1),
        json!({"prompt": "blue", "negative_prompt": "red", "guidance": 3.0, "steps": 6, "seed": 2}),
        json!({"prompt": "a", "steps": 5, "seed": 3, "scheduler": "euler-a", "n": 2}),
        // Another size waits for the others, and so does what comes after it.
        json!({"prompt": "a", "steps": 2, "seed": 4, "width": 64}),
        job(5),
    ];
    let mut alone = Vec::new();
    for job in &jobs {
        alone.push(worker.complete(job).await);
    }
    assert_eq!(worker.served.queue.status().shared_steps, 0);
    let begun = begin(&worker, &jobs).await;
    worker.gate.open();
    for ((_, sse_url), expected) in begun.iter().zip(alone) {
        let events = worker.get(sse_url).await.events();
        let (name, data) = events.last().unwrap();
        assert_eq!(name, "complete", "{data}");
        assert_same(data, &expected);
        let steps = events.iter().filter(|(name, _)| name == "progress");
        let steps: Vec<u64> = steps.map(|(_, data)| data["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>());
    }
    // The second and the third job may join after the first step of the first one.
    let status = worker.served.queue.status();
    assert_eq!(status.steps, 2 * 21);
    assert!((3 + 5 + 5..=4 + 6 + 5).contains(&status.shared_steps), "{}", status.shared_steps);
    assert!(worker.get("/metrics").await.text.contains("sd_shared_steps_total"));
}

#[tokio::test]
async fn a_cancelled_job_leaves_the_others() {
    let worker = worker();
    let expected = [worker.complete(&job(1)).await, worker.complete(&job(3)).await];
    let begun = begin(&worker, &[job(1), job(2), job(3)]).await;
    // Lets the others join the first, and blocks their first common step.
    worker.gate.set(Behavior::Open);
    worker.until("all jobs run", |worker| worker.served.queue.status().shared_steps > 0).await;
    worker.delete(&begun[1].0).await;
    for (index, expected) in [(0, &expected[0]), (2, &expected[1])] {
        let events = worker.get(&begun[index].1).await.events();
        let (name, data) = events.last().unwrap();
        assert_eq!(name, "complete", "{data}");
        assert_same(data, expected);
    }
    worker.idle().await;
}

#[tokio::test]
async fn failures_of_shared_steps_are_repeated_alone() {
    let worker = worker();
    let expected = [worker.complete(&job(1)).await, worker.complete(&job(2)).await];
    for behavior in [Behavior::OutOfMemoryTogether, Behavior::PanicsTogether] {
        let begun = begin(&worker, &[job(1), job(2)]).await;
        worker.gate.set(behavior);
        for ((_, sse_url), expected) in begun.iter().zip(&expected) {
            let events = worker.get(sse_url).await.events();
            assert_eq!(events.last().unwrap(), &("complete".to_owned(), expected.clone()));
        }
        worker.gate.open();
    }
    // A job that fails alone fails by itself.
    let begun = begin(&worker, &[job(1), json!({"prompt": "a", "steps": 1, "width": 64})]).await;
    worker.gate.set(Behavior::OutOfMemory);
    let last = |events: Vec<(String, Value)>| events.last().unwrap().0.clone();
    assert_eq!(last(worker.get(&begun[0].1).await.events()), "error");
    assert_eq!(last(worker.get(&begun[1].1).await.events()), "complete");
    worker.idle().await;
    let status = worker.served.queue.status();
    assert_eq!((status.complete, status.failed, status.running), (7, 1, 0));
}

#[tokio::test]
async fn batch_requests_1_runs_jobs_one_at_a_time() {
    let worker = with(&["--batch-requests", "1"]);
    let begun = begin(&worker, &[job(1), job(2)]).await;
    worker.gate.open();
    for (_, sse_url) in &begun {
        assert_eq!(worker.get(sse_url).await.events().last().unwrap().0, "complete");
    }
    assert_eq!(worker.served.queue.status().shared_steps, 0);
}
