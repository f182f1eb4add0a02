//! Fields, values, routes and defaults of vLLM and llama.cpp.
use candle_core::Device;
use llm_engine::model::{LoadOptions, load};
use llm_engine::request::Sampling;
use serde_json::{Value, json};

use crate::answers::{completion, merged};
use crate::fixture::{Ask, worker, worker_of};
use crate::tiny_llama::{self, vocabulary};

/// A token of `stop_token_ids` ends the text, also with `ignore_eos`, and is not part of it.
#[tokio::test]
async fn stop_tokens_end_texts_after_the_minimum() {
    let worker = worker();
    let ask = async |more: Value| {
        let own = json!({"max_tokens": 20, "ignore_eos": true, "logprobs": 0});
        let answer = worker.post("/v1/completions", &merged(completion(own), more)).await.json();
        let choice = &answer["choices"][0];
        let tokens: Vec<String> = serde_json::from_value(choice["logprobs"]["tokens"].clone()).unwrap();
        (tokens, choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].clone())
    };
    let (free, text, _) = ask(json!({})).await;
    let stop = &free[4];
    let first = free.iter().position(|token| token == stop).unwrap();
    let tokens = worker.served.engine.text().clone();
    let name = |token: u32| match std::str::from_utf8(tokens.token_bytes(token).unwrap_or_default()) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = tokens.token_bytes(token).unwrap_or_default().iter();
            bytes.fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}"))
        }
    };
    let stop: Vec<u32> = (0..vocabulary() as u32).filter(|token| name(*token) == *stop).collect();
    let (stopped, _, reason) = ask(json!({"stop_token_ids": stop})).await;
    assert_eq!((stopped.as_slice(), &reason), (&free[..first], &json!("stop")));
    let (later, _, _) = ask(json!({"stop_token_ids": stop, "min_tokens": first + 3})).await;
    assert!(later.len() >= first + 3 && later[..first] == free[..first], "{later:?}");
    // Stop strings wait for the minimum, too.
    let stop = text.chars().next().unwrap().to_string();
    assert_eq!(ask(json!({"stop": [stop]})).await.1, "");
    assert_eq!(ask(json!({"stop": [stop], "min_tokens": 20})).await.1, text);
}

/// Without a minimum, a model whose end-of-text token is certain writes nothing.
#[tokio::test]
async fn the_minimum_excludes_end_of_text_tokens() {
    let worker = worker();
    for end in worker.served.engine.text().ends() {
        let bias = json!({end.to_string(): 100});
        let own = json!({"max_tokens": 9, "logit_bias": bias});
        let count = async |more: Value| {
            let answer = worker.post("/v1/completions", &merged(completion(own.clone()), more)).await.json();
            answer["usage"]["completion_tokens"].clone()
        };
        assert_eq!(count(json!({})).await, 0);
        assert_eq!(count(json!({"min_tokens": 5})).await, 5);
    }
}

#[tokio::test]
async fn defaults_of_the_sampler_settings_are_the_models() {
    let settings = Sampling { temperature: 0.0, ..Sampling::default() };
    let texts = async |sampling: Option<Sampling>, more: Value| {
        let worker = worker_of(sampling);
        let mut texts = Vec::new();
        for seed in [1, 2, 3] {
            let own = json!({"max_tokens": 20, "ignore_eos": true, "seed": seed});
            let body = merged(merged(completion(own), json!({"temperature": null})), more.clone());
            texts.push(worker.post("/v1/completions", &body).await.json()["choices"][0]["text"].clone());
        }
        texts.dedup();
        texts.len()
    };
    assert_eq!(texts(Some(settings.clone()), json!({})).await, 1, "the model's default is greedy");
    assert_eq!(texts(Some(settings), json!({"temperature": 1.5})).await, 3, "requests override it");
    assert_eq!(texts(None, json!({})).await, 3, "without defaults, the temperature is 1");
}

#[test]
fn defaults_are_read_from_generation_config() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), true);
    let of = |text: &str| {
        std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
        let limits = LoadOptions { cache_bytes: Some(1 << 20), ..LoadOptions::default() };
        load(folder.path(), &Device::Cpu, limits, &mut |_| ()).map(|loaded| loaded.sampling)
    };
    let read = of(r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": null,
        "repetition_penalty": 1.05, "eos_token_id": [1, 2], "transformers_version": "4.51.0"}"#);
    let (temperature, top_p, top_k, repetition_penalty) = (0.6, 0.95, Some(20), 1.05);
    let expected = Sampling { temperature, top_p, top_k, repetition_penalty, ..Sampling::default() };
    assert_eq!(read.unwrap(), expected);
    let ignored = of(r#"{"temperature": -1, "top_p": "x", "top_k": 0, "repetition_penalty": 0}"#);
    assert_eq!(ignored.unwrap(), Sampling::default());
    assert!(of("{").is_err());
}

#[tokio::test]
async fn json_objects_follow_their_schema() {
    let worker = worker();
    let schema = json!({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_object", "schema": schema});
    let body = completion(json!({"max_tokens": 60, "response_format": format}));
    let text = worker.post("/v1/completions", &body).await.json()["choices"][0]["text"].clone();
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert_eq!(value, json!({"n": 7}));
}

/// As in llama.cpp.
#[tokio::test]
async fn routes_and_values_of_other_servers_are_accepted() {
    let worker = worker();
    let body =
        completion(json!({"max_tokens": -1, "stop": vec!["xyzzy"; 9], "logit_bias": [[5, 1.5], [6, -2]]}));
    let body = merged(body, json!({"prompt": "x ".repeat(490)}));
    for path in ["/v1/completions", "/completions"] {
        let answer = worker.post(path, &body).await.json();
        let tokens = answer["usage"]["total_tokens"].as_u64().unwrap();
        assert!(tokens == 1024 || answer["choices"][0]["finish_reason"] == "stop", "{answer}");
    }
    assert_eq!(worker.get("/models").await.json(), worker.get("/v1/models").await.json());
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
    assert_eq!(worker.post("/chat/completions", &chat).await.status, 200);
}
