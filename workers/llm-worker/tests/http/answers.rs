//! Successful responses of the endpoints.
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use llm_engine::engine::Options;
use llm_worker::arguments::{Arguments, DEFAULTS};
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, worker, worker_with};
use crate::tiny_llama::CONTEXT;

pub fn completion(more: Value) -> Value {
    merged(json!({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}), more)
}

pub fn chat(more: Value) -> Value {
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    merged(json!({"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}), more)
}

pub fn merged(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Joins the chunks of a stream by index. Returns each text with its finish reason.
pub fn joined(chunks: &[Value], text: impl Fn(&Value) -> &Value) -> Vec<(String, Value)> {
    let mut texts: Vec<(String, Value)> = Vec::new();
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts.resize_with(texts.len().max(index + 1), Default::default);
        texts[index].0 += text(choice).as_str().unwrap_or_default();
        if !choice["finish_reason"].is_null() {
            assert!(texts[index].1.is_null(), "a text must end only once");
            texts[index].1 = choice["finish_reason"].clone();
        }
    }
    texts
}

#[tokio::test]
async fn streams_and_whole_responses_have_the_same_text() {
    let worker = worker();
    type Text = fn(&Value) -> &Value;
    let (whole_chat, chat_delta): (Text, Text) =
        (|choice| &choice["message"]["content"], |choice| &choice["delta"]["content"]);
    let plain: Text = |choice| &choice["text"];
    let seeded = json!({"n": 3, "seed": 5, "temperature": 1.3, "top_k": 50, "top_p": 0.9, "min_p": 0.01,
        "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1});
    for (path, body, whole, delta) in [
        ("/v1/chat/completions", chat(json!({})), whole_chat, chat_delta),
        ("/v1/chat/completions", chat(seeded.clone()), whole_chat, chat_delta),
        ("/v1/completions", completion(json!({})), plain, plain),
        (
            "/v1/completions",
            completion(json!({"prompt": ["a", "the end of", "b"], "n": 2, "seed": 1, "temperature": 1})),
            plain,
            plain,
        ),
        ("/v1/completions", completion(seeded), plain, plain),
    ] {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let choices = answer["choices"].as_array().unwrap();
        let expected: Vec<(String, Value)> = choices
            .iter()
            .map(|choice| (whole(choice).as_str().unwrap().to_owned(), choice["finish_reason"].clone()))
            .collect();
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], i);
        }
        let body = merged(body, json!({"stream": true, "stream_options": {"include_usage": true}}));
        let chunks = worker.post(path, &body).await.chunks();
        assert_eq!(joined(&chunks, delta), expected, "{body}");
        let (last, others) = chunks.split_last().unwrap();
        assert_eq!(
            (&last["choices"], &last["usage"]["completion_tokens"]),
            (&json!([]), &answer["usage"]["completion_tokens"])
        );
        assert_eq!(last["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
        for chunk in others {
            assert_eq!(
                (&chunk["usage"], &chunk["id"], &chunk["model"]),
                (&Value::Null, &last["id"], &json!(MODEL))
            );
        }
    }
}

#[tokio::test]
async fn responses_follow_openais_schema() {
    let worker = worker();
    let answer = worker.post("/v1/chat/completions", &chat(json!({}))).await.json();
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    let usage = &answer["usage"];
    assert_eq!(
        usage["total_tokens"],
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
    assert!(usage["completion_tokens"].as_u64().unwrap() <= 12);

    let chunks = worker.post("/v1/chat/completions", &chat(json!({"stream": true}))).await.chunks();
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "usage was not requested");

    let answer = worker.post("/v1/completions", &completion(json!({"max_tokens": null}))).await.json();
    assert_eq!(answer["object"], "text_completion");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 16, "16 are the default");
}

#[tokio::test]
async fn prompts_are_accepted_in_four_forms() {
    let worker = worker();
    let text = |answer: Value| answer["choices"][0]["text"].clone();
    // The tokens of "ab" are the indices of its bytes among GPT-2's byte characters.
    let expected = text(worker.post("/v1/completions", &completion(json!({"prompt": "ab"}))).await.json());
    for prompt in [json!(["ab"]), json!([97, 98]), json!([[97, 98]])] {
        let answer = worker.post("/v1/completions", &completion(json!({"prompt": prompt}))).await.json();
        assert_eq!(answer["usage"]["prompt_tokens"], 2);
        assert_eq!(text(answer), expected, "{prompt}");
    }
}

#[tokio::test]
async fn choices_use_consecutive_seeds() {
    let worker = worker();
    let ask = |more: Value| merged(completion(json!({"temperature": 1.5, "max_tokens": 20})), more);
    let three = worker.post("/v1/completions", &ask(json!({"n": 3, "seed": -2}))).await.json();
    for (i, seed) in [-2, -1, 0].into_iter().enumerate() {
        let one = worker.post("/v1/completions", &ask(json!({"seed": seed}))).await.json();
        assert_eq!(one["choices"][0]["text"], three["choices"][i]["text"]);
    }
    assert_ne!(three["choices"][0]["text"], three["choices"][1]["text"]);
    assert_eq!(
        three["usage"]["prompt_tokens"], 15,
        "the prompt must be counted once, with `on` as one token"
    );
}

#[tokio::test]
async fn texts_end_before_stop_strings() {
    let worker = worker();
    let ask = |more: Value| merged(completion(json!({"max_tokens": 60, "ignore_eos": true})), more);
    let free = worker.post("/v1/completions", &ask(json!({}))).await.json();
    let text = free["choices"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(8).take(2).collect();
    let expected = &text[..text.find(&stop).unwrap()];
    for stop in [json!(stop), json!(["never comes", stop])] {
        let body = ask(json!({"stop": stop}));
        let answer = worker.post("/v1/completions", &body).await.json();
        assert_eq!(
            (&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]),
            (&json!(expected), &json!("stop"))
        );
        let chunks = worker.post("/v1/completions", &merged(body, json!({"stream": true}))).await.chunks();
        assert_eq!(joined(&chunks, |choice| &choice["text"])[0].0, expected);
    }
}

#[tokio::test]
async fn logprobs_match_the_tokens() {
    // A cached prompt is computed in different chunks, which changes the rounding.
    let worker = worker_with(true, Options { prefix_cache: false, ..Options::default() }, &[]);
    let body = completion(json!({"logprobs": 3, "ignore_eos": true}));
    let logprobs = worker.post("/v1/completions", &body).await.json()["choices"][0]["logprobs"].clone();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 12, "{list}");
    }
    for (i, top) in logprobs["top_logprobs"].as_array().unwrap().iter().enumerate() {
        let best =
            top.as_object().unwrap().values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert_eq!(
            logprobs["token_logprobs"][i].as_f64().unwrap(),
            best,
            "greedy sampling must take the most likely token"
        );
    }
    let body = chat(json!({"logprobs": true, "top_logprobs": 2, "ignore_eos": true}));
    let answer = worker.post("/v1/chat/completions", &body).await.json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    let mut bytes: Vec<u8> = Vec::new();
    for token in content {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
        bytes.extend(token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8));
    }
    let special = content.iter().any(|token| token["token"].as_str().unwrap().starts_with('<'));
    if !special {
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            answer["choices"][0]["message"]["content"].as_str().unwrap()
        );
    }
    let chunks = worker.post("/v1/chat/completions", &merged(body, json!({"stream": true}))).await.chunks();
    let streamed: Vec<&Value> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().into_iter().flatten())
        .collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn logit_bias_selects_the_token() {
    let worker = worker();
    let body = completion(json!({"logit_bias": {"98": 100}, "max_tokens": 3}));
    assert_eq!(worker.post("/v1/completions", &body).await.json()["choices"][0]["text"], "bbb");
}

#[tokio::test]
async fn a_common_prefix_is_computed_once() {
    let worker = worker_with(true, Options::default(), &["--enable-prompt-tokens-details"]);
    let body =
        completion(json!({"prompt": "a common beginning of many prompts that is long enough to be kept"}));
    let first = worker.post("/v1/completions", &body).await.json();
    let again = worker.post("/v1/completions", &body).await.json();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 16, "{again}");
    assert_eq!(again["choices"], first["choices"]);
}

#[tokio::test]
async fn text_is_constrained_to_json() {
    let worker = worker();
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    for (path, body) in [
        ("/v1/chat/completions", chat(json!({"response_format": format, "max_tokens": 100}))),
        ("/v1/completions", completion(json!({"response_format": format, "max_tokens": 100}))),
    ] {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let choice = &answer.json()["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(value["a"].is_boolean() && value.as_object().unwrap().len() == 1, "{text}");
    }
    let body = chat(
        json!({"response_format": {"type": "json_object"}, "max_tokens": 100, "temperature": 1, "seed": 3}),
    );
    let answer = worker.post("/v1/chat/completions", &body).await.json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.trim_start().starts_with('{'), "{content}");
}

#[tokio::test]
async fn a_required_tool_is_called() {
    let worker = worker();
    // The schema uses `$defs`, as Pydantic does for nested models.
    let parameters = json!({"type": "object", "properties": {"up": {"$ref": "#/$defs/Up"}}, "required": ["up"],
        "additionalProperties": false, "$defs": {"Up": {"type": "boolean"}}});
    let tools = json!([{"type": "function", "function": {"name": "turn", "parameters": parameters}},
        {"type": "function", "function": {"name": "rest", "parameters": parameters}}]);
    for choice in [json!({"type": "function", "function": {"name": "turn"}}), json!("required")] {
        // A model of random weights would generate white space until the limit.
        let space = json!({"9": -100, "10": -100, "13": -100, "32": -100});
        let body =
            chat(json!({"tools": tools, "tool_choice": choice, "max_tokens": 120, "logit_bias": space}));
        let answer = worker.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        assert_eq!(choice["message"]["content"], Value::Null);
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!((&call["type"], call.get("index")), (&json!("function"), None));
        let id = call["id"].as_str().unwrap();
        assert!(id.len() == 9 && id.chars().all(|sign| sign.is_ascii_alphanumeric()), "{id}");
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["up"].is_boolean());

        let chunks =
            worker.post("/v1/chat/completions", &merged(body, json!({"stream": true}))).await.chunks();
        let calls: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"])
            .filter(|calls| !calls.is_null())
            .collect();
        assert_eq!(calls[0][0]["function"]["name"], call["function"]["name"]);
        assert!(calls.iter().all(|calls| calls[0]["index"] == 0 && calls.as_array().unwrap().len() == 1));
        // The arguments are streamed.
        let arguments = calls.iter().filter_map(|calls| calls[0]["function"]["arguments"].as_str());
        assert!(calls.len() > 1);
        assert_eq!(arguments.collect::<String>(), call["function"]["arguments"]);
        assert_eq!(
            joined(&chunks, |choice| &choice["delta"]["content"])[0],
            (String::new(), json!("tool_calls"))
        );
    }
    // The conversation continues after a tool call.
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "turn"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "turn", "arguments": "{\"up\":true}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"}]);
    let answer =
        worker.post("/v1/chat/completions", &chat(json!({"messages": messages, "tools": tools}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test]
async fn embeddings_are_normalized_in_both_formats() {
    let worker = worker();
    let body = json!({"model": MODEL, "input": ["one text", "another"]});
    let answer = worker.post("/v1/embeddings", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    let packed =
        worker.post("/v1/embeddings", &merged(body, json!({"encoding_format": "base64"}))).await.json();
    assert_eq!(answer["object"], "list");
    for i in 0..2 {
        let vector: Vec<f32> = answer["data"][i]["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.as_f64().unwrap() as f32)
            .collect();
        assert_eq!((vector.len(), &answer["data"][i]["index"]), (32, &json!(i)));
        let length: f32 = vector.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        let bytes = BASE64_STANDARD.decode(packed["data"][i]["embedding"].as_str().unwrap()).unwrap();
        let unpacked: Vec<f32> =
            bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        assert_eq!(unpacked, vector);
    }
    assert_ne!(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
    assert_eq!(answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]);
}

#[tokio::test]
async fn the_model_is_listed_by_name() {
    let worker = worker();
    let list = worker.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["max_model_len"]),
        (&json!(MODEL), &json!("model"), &json!(CONTEXT))
    );
    assert_eq!(model["chat_template"], true);
    for name in [MODEL, "org/tiny"] {
        assert_eq!(&worker.get(&format!("/v1/models/{name}")).await.json(), model);
    }
    assert_eq!(
        worker.get("/v1/models/other").await.error(),
        (404, "model_not_found".into(), Some("model".into()))
    );
}

#[tokio::test]
async fn without_a_template_only_completions_work() {
    let worker = worker_with(false, Default::default(), &[]);
    assert_eq!(worker.get("/v1/models").await.json()["data"][0]["chat_template"], false);
    assert_eq!(worker.post("/v1/chat/completions", &chat(json!({}))).await.error().1, "no_chat_template");
    assert_eq!(worker.post("/v1/completions", &completion(json!({}))).await.status, 200);
}

#[tokio::test]
async fn the_page_loads_nothing_and_needs_no_token() {
    let worker = worker_with(true, Default::default(), &["--api-token", "secret"]);
    let page = worker.get("/").await;
    assert_eq!(
        (page.status.as_u16(), page.headers["content-type"].to_str().unwrap()),
        (200, "text/html; charset=utf-8")
    );
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    assert_eq!(worker.get("/v1/models").await.status, 401);
    assert_eq!(worker.post("/v1/completions", &completion(json!({}))).await.status, 401);
}

#[tokio::test]
async fn metrics_count_requests_and_tokens() {
    let worker = worker();
    let answer = worker.post("/v1/completions", &completion(json!({"ignore_eos": true}))).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    let text = worker.get("/metrics").await.text;
    for line in [
        "llm_tokens_written_total{model=\"tiny\"} 12",
        "llm_requests_running{model=\"tiny\"} 0",
        "llm_time_to_first_token_seconds_count{model=\"tiny\"} 1",
        "llm_inter_token_seconds_count{model=\"tiny\"} 11",
        "llm_vram_bytes{model=\"tiny\"} 0",
        "llm_cache_usage_ratio{model=\"tiny\"} 0.0",
        "llm_cache_config_info{model=\"tiny\",block_size=\"16\",num_gpu_blocks=\"BLOCKS\",cache_dtype=\"f32\"} 1",
    ] {
        let line = line.replace("BLOCKS", &worker.served.engine.capacity().blocks.to_string());
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    // Gateways refuse other types, which OpenMetrics has in addition.
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let kind = line.rsplit(' ').next().unwrap();
        assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
    }
    assert!(worker.get("/doctor").await.text.starts_with("llm-worker-cpu"));
}

#[tokio::test]
async fn files_for_kubernetes_match_the_worker() {
    let worker = worker();
    worker.post("/v1/completions", &completion(json!({}))).await;
    let command = worker_core::arguments::command::<Arguments>(&DEFAULTS);
    crate::deploy::check("llm-worker", &command, &worker.get("/metrics").await.text);
}
