//! Isolation of clients: cached prompts of others, readers that fall behind, and prompts that are too long.
use llm_engine::engine::Options;
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, Worker, json_request, read, worker, worker_with};

const COMPLETIONS: &str = "/v1/completions";

fn body(more: &Value) -> Value {
    let body = json!({"model": MODEL, "max_tokens": 1, "temperature": 0,
        "prompt": "a common beginning of many prompts that is long enough to be kept"});
    crate::shared::with_members(body, more)
}

/// Returns the number of cached tokens that the worker reports.
async fn cached(worker: &Worker, token: &str, more: &Value) -> Option<u64> {
    let mut request = json_request(COMPLETIONS, body(more).to_string().into_bytes());
    request.headers_mut().insert("x-api-key", token.parse().unwrap());
    let answer = worker.read(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
}

#[tokio::test]
async fn clients_with_different_tokens_or_salts_share_no_prompts() {
    let flags = ["--enable-prompt-tokens-details", "--api-token", "one,two"];
    let worker = worker_with(true, Options::default(), &flags);
    let plain = json!({});
    assert_eq!(cached(&worker, "one", &plain).await, Some(0));
    assert_eq!(cached(&worker, "two", &plain).await, Some(0));
    assert!(cached(&worker, "one", &plain).await.unwrap() >= 16);
    let salted = json!({"cache_salt": "tenant 7"});
    assert_eq!(cached(&worker, "one", &salted).await, Some(0));
    assert!(cached(&worker, "one", &salted).await.unwrap() >= 16);
    assert_eq!(cached(&worker, "two", &salted).await, Some(0));
    assert_eq!(cached(&worker, "two", &json!({"cache_salt": "tenant 8"})).await, Some(0));
}

#[tokio::test]
async fn cached_tokens_are_reported_only_on_demand() {
    let worker = worker();
    for _ in 0..2 {
        assert_eq!(cached(&worker, "", &json!({})).await, None);
    }
    assert!(worker.served.engine.status().tokens_cached >= 16);
}

#[tokio::test]
async fn a_salt_must_not_be_empty_or_long() {
    let worker = worker();
    for salt in [String::new(), "a".repeat(1025)] {
        let answer = worker.post(COMPLETIONS, &body(&json!({"cache_salt": salt}))).await;
        assert_eq!(answer.error(), (400, "invalid_value".into(), Some("cache_salt".into())));
    }
}

#[tokio::test]
async fn a_client_that_falls_behind_receives_an_error() {
    let worker = worker_with(true, Options { max_unread: 4, ..Options::default() }, &[]);
    let long = json!({"max_tokens": 500, "ignore_eos": true, "stream": true});
    let stream = worker.send(json_request(COMPLETIONS, body(&long).to_string().into_bytes())).await;
    worker.idle().await;
    let chunks = read(stream).await.chunks();
    assert_eq!(chunks.last().unwrap()["error"]["code"], "client_too_slow");
    assert!(chunks.len() < 100, "{}", chunks.len());
}

#[tokio::test]
async fn long_texts_are_refused_on_all_endpoints() {
    let worker = worker();
    let text = "word ".repeat(40_000);
    let table = [
        (COMPLETIONS, json!({"prompt": text}), "prompt"),
        (COMPLETIONS, json!({"prompt": ["a", text]}), "prompt"),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]}), "messages"),
        ("/v1/embeddings", json!({"input": text}), "input"),
        (
            "/v1/jobs",
            json!({"hive_id": "h", "model": MODEL, "max_tokens": 1, "temperature": 0, "prompt": text}),
            "prompt",
        ),
    ];
    for (path, body, param) in table {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.error(), (400, "context_length_exceeded".into(), Some(param.into())), "{path}");
    }
    assert_eq!(worker.served.engine.status().steps, 0);
}
