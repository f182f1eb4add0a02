//! Failures of the model and the device.
use serde_json::{Value, json};

use crate::fixture::{Ask, Behavior, Worker, json_request, worker};

const GENERATIONS: &str = "/v1/images/generations";

fn job() -> Value {
    json!({"prompt": "a red circle", "steps": 4, "seed": 1})
}

async fn start_blocked_jobs(worker: &Worker, count: usize) -> Vec<String> {
    worker.gate.hold();
    let mut jobs = Vec::new();
    for _ in 0..count {
        jobs.push(worker.begin(&job()).await.1);
    }
    jobs
}

#[tokio::test]
async fn out_of_memory_and_panics_fail_one_job_only() {
    let worker = worker();
    let expected = worker.complete(&job()).await;
    for (behavior, code) in [(Behavior::OutOfMemory, "out_of_memory"), (Behavior::Panics, "internal_error")] {
        worker.gate.set(behavior);
        let events = worker.job(&job()).await;
        let (name, data) = events.last().unwrap();
        assert_eq!((name.as_str(), &data["code"]), ("error", &json!(code)), "{data}");
        // The failure was in the second step.
        assert_eq!(events.iter().filter(|(name, _)| name == "progress").count(), 1);
        let error = worker.post(GENERATIONS, &job()).await.error();
        assert_eq!((error.0, error.1.as_str()), (500, code));
        worker.gate.open();
        assert_eq!(worker.get("/ready").await.status, 200);
        assert_eq!(worker.complete(&job()).await, expected);
    }
    let status = worker.served.queue.status();
    assert_eq!((status.failed, status.complete), (4, 3));
}

#[tokio::test]
async fn device_failure_fails_all_requests_and_readiness() {
    let worker = worker();
    let jobs = start_blocked_jobs(&worker, 4).await;
    let response = worker.send(json_request(GENERATIONS, job().to_string().into_bytes()));
    let response = async { crate::fixture::read(response.await).await };
    let break_down = async {
        // Jobs that were queued before the first one began run with it.
        let are_open = |worker: &Worker| {
            let status = worker.served.queue.status();
            status.waiting + status.running == 5
        };
        worker.until("all requests are open", are_open).await;
        assert_eq!(worker.get("/ready").await.status, 200);
        worker.gate.set(Behavior::DeviceFailed);
    };
    let (answer, ()) = tokio::join!(response, break_down);
    let error = answer.error();
    assert_eq!((error.0, error.1.as_str()), (503, "device_lost"));
    for sse_url in &jobs {
        let events = worker.get(sse_url).await.events();
        let (name, data) = events.last().unwrap();
        assert_eq!((name.as_str(), &data["code"]), ("error", &json!("device_lost")), "{data}");
    }
    let ready = worker.get("/ready").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text.contains("pulled out") && ready.text.contains("nowhere"), "{}", ready.text);
    assert_eq!(worker.get("/health").await.status, 200);
    for path in ["/v1/jobs", GENERATIONS] {
        assert_eq!(worker.post(path, &job()).await.error(), (503, "not_ready".into(), None));
    }
    worker.idle().await;
}
