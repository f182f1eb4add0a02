//! Embeddings, rankings and scores of encoders and decoders.
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, Worker, worker, worker_at};
use crate::tiny_llama::CONTEXT;

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm-engine/tests/embedding/data").join(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(data(name).join("expected.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn cosine(one: &[f64], other: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

async fn vectors(worker: &Worker, body: Value) -> Vec<Vec<f64>> {
    let answer = worker.post("/v1/embeddings", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["data"].as_array().unwrap().iter().map(|one| numbers(&one["embedding"])).collect()
}

#[tokio::test]
async fn vectors_equal_sentence_transformers() {
    for name in ["bert", "qwen3"] {
        let (worker, expected) = (worker_at(&data(name)), expected(name));
        let body = json!({"input": expected["texts"], "truncate_prompt_tokens": -1});
        for (index, vector) in vectors(&worker, body).await.iter().enumerate() {
            let off = 1.0 - cosine(vector, &numbers(&expected["vectors"][index]));
            assert!(off < 1e-6, "{name}: {off} for {}", expected["texts"][index]);
        }
    }
}

/// The text "" has the special tokens, as in sentence-transformers.
#[tokio::test]
async fn texts_above_the_limit_are_rejected_or_truncated() {
    let worker = worker_at(&data("bert"));
    let long = "wood ".repeat(70);
    let answer = worker.post("/v1/embeddings", &json!({"input": ["", long]})).await;
    assert_eq!(answer.error(), (400, "context_length_exceeded".into(), Some("input[1]".into())));
    for (limit, tokens) in [(-1, 64), (64, 64), (10, 10), (3, 3)] {
        let body = json!({"input": ["", long], "truncate_prompt_tokens": limit});
        let answer = worker.post("/v1/embeddings", &body).await.json();
        assert_eq!(answer["usage"]["prompt_tokens"], 2 + tokens, "{limit}");
    }
    for wrong in [0, -2, 65, 2] {
        let body = json!({"input": "a", "truncate_prompt_tokens": wrong});
        assert_eq!(worker.post("/v1/embeddings", &body).await.status, 400, "{wrong}");
    }
    let body = json!({"input": [5, 6, 7, 8], "truncate_prompt_tokens": 3});
    let answer = worker.post("/v1/embeddings", &body).await.json();
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn dimensions_cut_and_normalize_again() {
    let worker = worker();
    let whole = vectors(&worker, json!({"input": "a text"})).await.remove(0);
    let cut = vectors(&worker, json!({"input": "a text", "dimensions": 5})).await.remove(0);
    let raw =
        vectors(&worker, json!({"input": "a text", "dimensions": 5, "normalize": false})).await.remove(0);
    assert_eq!((whole.len(), cut.len(), raw.len()), (32, 5, 5));
    for vector in [&cut, &raw] {
        assert!((cosine(vector, &whole[..5]) - 1.0).abs() < 1e-6);
    }
    let length = |vector: &[f64]| vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    assert!((length(&cut) - 1.0).abs() < 1e-6);
    assert!((length(&raw) - 1.0).abs() > 1e-3);
    for wrong in [0, 33] {
        let answer = worker.post("/v1/embeddings", &json!({"input": "a", "dimensions": wrong})).await;
        assert_eq!(answer.error(), (400, "invalid_value".into(), Some("dimensions".into())));
    }
}

#[tokio::test]
async fn rerankers_rank_documents() {
    for (model, name) in [
        ("bert-reranker", "bert-reranker"),
        ("xlm-roberta-reranker", "xlm-roberta-reranker"),
        ("qwen3-reranker.gguf", "qwen3-reranker"),
    ] {
        let (worker, expected) = (worker_at(&data(model)), expected(name));
        let scores = numbers(&expected["scores"]);
        let body =
            json!({"query": expected["query"], "documents": expected["texts"], "truncate_prompt_tokens": -1});
        for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
            let answer = worker.post(path, &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            let answer = answer.json();
            assert_eq!(answer["model"], MODEL);
            let results = answer["results"].as_array().unwrap();
            assert_eq!(results.len(), scores.len());
            let found: Vec<f64> =
                results.iter().map(|one| one["relevance_score"].as_f64().unwrap()).collect();
            assert!(found.windows(2).all(|pair| pair[0] >= pair[1]), "{found:?}");
            for (one, score) in results.iter().zip(&found) {
                let index = one["index"].as_u64().unwrap() as usize;
                assert!((score - scores[index]).abs() < 1e-4, "{name}: {score} instead of {}", scores[index]);
                assert_eq!(one["document"]["text"], expected["texts"][index]);
            }
        }
        let body =
            json!({"text_1": expected["query"], "text_2": expected["texts"], "truncate_prompt_tokens": -1});
        let answer = worker.post("/v1/score", &body).await.json();
        assert_eq!((&answer["object"], &answer["data"][0]["object"]), (&json!("list"), &json!("score")));
        for (index, expected) in scores.iter().enumerate() {
            let one = &answer["data"][index];
            assert_eq!(one["index"], index);
            assert!((one["score"].as_f64().unwrap() - expected).abs() < 1e-4);
        }
    }
}

#[tokio::test]
async fn embeddings_rank_documents_by_cosine() {
    let worker = worker_at(&data("bert"));
    let texts = json!(["The cat sat on the mat.", "Water boils at 100 degrees.", "The cat sat."]);
    let query = "The cat sat on the mat.";
    let vectors = vectors(&worker, json!({"input": texts})).await;
    let expected: Vec<f64> = vectors.iter().map(|vector| cosine(&vectors[0], vector)).collect();
    let body = json!({"query": query, "documents": texts, "top_n": 2, "return_documents": false});
    let answer = worker.post("/v1/rerank", &body).await.json();
    let results = answer["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["index"]), (2, &json!(0)));
    assert!(results.iter().all(|one| one.get("document").is_none()));
    assert!((results[0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 1e-5);
    assert!(answer["usage"]["total_tokens"].as_u64().unwrap() > 4);
    // One query for each document.
    let body = json!({"text_1": [query, query, {"text": query}], "text_2": texts});
    let answer = worker.post("/score", &body).await.json();
    for (index, expected) in expected.iter().enumerate() {
        assert!((answer["data"][index]["score"].as_f64().unwrap() - expected).abs() < 1e-5);
    }
    let answer = worker.post("/v1/score", &json!({"text_1": "a", "text_2": "b"})).await.json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn invalid_pairs_are_rejected_by_field() {
    let worker = worker();
    let long = "x ".repeat(2 * CONTEXT);
    for (path, body, param) in [
        ("/v1/rerank", json!({"documents": ["a"]}), "query"),
        ("/v1/rerank", json!({"query": "a"}), "documents"),
        ("/v1/rerank", json!({"query": "a", "documents": []}), "documents"),
        ("/v1/rerank", json!({"query": "a", "documents": ["a"], "top_n": 0}), "top_n"),
        ("/v1/rerank", json!({"query": "a", "documents": ["b", long]}), "documents[1]"),
        ("/v1/rerank", json!({"query": "a", "documents": ["b", 5]}), "documents[1]"),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"], "rank_fields": ["x"]}), "rank_fields"),
        ("/v1/score", json!({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}), "text_1"),
        ("/v1/score", json!({"text_1": [], "text_2": ["a"]}), "text_1"),
        ("/v1/score", json!({"text_1": "a", "text_2": []}), "text_2"),
        ("/v1/score", json!({"text_1": "a"}), "text_2"),
        ("/v1/score", json!({"text_1": "a", "text_2": "b", "instruction": "c"}), "instruction"),
    ] {
        let (status, _, named) = worker.post(path, &body).await.error();
        assert_eq!((status, named.as_deref()), (400, Some(param)), "{path} {body}");
    }
    let reranker = worker_at(&data("bert-reranker"));
    let body = json!({"query": "a", "documents": ["b", "wood ".repeat(99)]});
    let error = reranker.post("/v1/rerank", &body).await.error();
    assert_eq!(error, (400, "context_length_exceeded".into(), Some("documents[1]".into())));
}

#[tokio::test]
async fn other_tasks_are_rejected() {
    let (encoder, reranker) = (worker_at(&data("bert")), worker_at(&data("bert-reranker")));
    let completion = json!({"prompt": "a", "max_tokens": 1});
    for worker in [&encoder, &reranker] {
        assert_eq!(worker.post("/v1/completions", &completion).await.error().1, "unsupported_task");
    }
    assert_eq!(reranker.post("/v1/embeddings", &json!({"input": "a"})).await.error().1, "unsupported_task");
}
