//! Speculation: the same texts, with counts of draft tokens.
use llm_engine::engine::{DraftSource, Options, Speculation};
use serde_json::{Value, json};

use crate::answers::{chat, completion, merged};
use crate::fixture::{Ask, Worker, worker, worker_with};

fn speculating() -> Worker {
    let speculation = Some(Speculation { source: DraftSource::Ngram(1..=3), max_tokens: 7 });
    worker_with(true, Options { speculation, ..Options::default() }, &[])
}

async fn ask(worker: &Worker, path: &str, body: &Value) -> Value {
    let answer = worker.post(path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn texts_are_the_same_and_drafts_are_counted() {
    let (plain, speculating) = (worker(), speculating());
    // Negative penalties make texts repeat themselves.
    let repeating =
        json!({"max_tokens": 100, "ignore_eos": true, "frequency_penalty": -0.5, "timings_per_token": true});
    for (path, body) in [
        ("/v1/completions", completion(repeating.clone())),
        (
            "/v1/completions",
            completion(merged(
                repeating.clone(),
                json!({"n": 3, "seed": 1, "temperature": 0.7, "logprobs": 2}),
            )),
        ),
        ("/v1/chat/completions", chat(repeating.clone())),
        ("/v1/chat/completions", chat(merged(repeating.clone(), json!({"guided_regex": "(the end )+"})))),
    ] {
        let own = ask(&speculating, path, &body).await;
        let expected = ask(&plain, path, &body).await;
        for (own, expected) in
            own["choices"].as_array().unwrap().iter().zip(expected["choices"].as_array().unwrap())
        {
            for field in ["text", "finish_reason", "message"] {
                assert_eq!(own[field], expected[field]);
            }
            assert_eq!(own["logprobs"]["tokens"], expected["logprobs"]["tokens"]);
        }
        assert_eq!(expected["usage"].get("completion_tokens_details"), None);
        assert_eq!(expected["timings"].get("draft_n"), None);
        let (details, timings) = (&own["usage"]["completion_tokens_details"], &own["timings"]);
        let accepted = details["accepted_prediction_tokens"].as_u64().unwrap();
        let rejected = details["rejected_prediction_tokens"].as_u64().unwrap();
        assert!(accepted > 0, "{own}");
        assert_eq!(
            (&timings["draft_n"], &timings["draft_n_accepted"]),
            (&json!(accepted + rejected), &json!(accepted))
        );
    }
    let metrics = speculating.get("/metrics").await.text;
    let count = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(&format!("llm_{name}_total{{")));
        line.unwrap_or_else(|| panic!("{metrics}")).rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let [drafts, drafted, accepted] = ["num_drafts", "num_draft_tokens", "num_accepted_tokens"]
        .map(|name| count(&format!("spec_decode_{name}")));
    assert!(0.0 < drafts && drafts <= drafted && 0.0 < accepted && accepted <= drafted);
    assert!(count("steps") < count("tokens_written"));
}

#[tokio::test]
async fn requests_limit_their_drafts() {
    let worker = speculating();
    let drafted = async |more: Value| {
        let repeating =
            json!({"max_tokens": 60, "ignore_eos": true, "frequency_penalty": -1, "timings_per_token": true});
        let answer = ask(&worker, "/v1/completions", &merged(completion(repeating), more)).await;
        let details = &answer["usage"]["completion_tokens_details"];
        assert!(details["accepted_prediction_tokens"].is_u64());
        (answer["choices"][0]["text"].clone(), answer["timings"]["draft_n"].as_u64())
    };
    let (text, all) = drafted(json!({})).await;
    assert!(all.unwrap() > 0);
    assert_eq!(drafted(json!({"speculative.n_max": 0})).await, (text.clone(), None));
    assert_eq!(drafted(json!({"speculative.n_max": 1})).await.0, text);
    assert_eq!(
        drafted(json!({"speculative.n_max": 99, "speculative.n_min": 2, "speculative.p_min": 0.5})).await,
        (text, all)
    );
    for wrong in [json!(-1), json!("x"), json!(0.5)] {
        let answer = worker.post("/v1/completions", &completion(json!({"speculative.n_max": wrong}))).await;
        assert_eq!(answer.status, 400);
        let error = answer.json();
        assert_eq!(error["error"]["param"], "speculative.n_max", "{error}");
    }
}
