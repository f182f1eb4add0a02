//! Anthropic's Messages API.
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::answers::merged;
use crate::fixture::{Answer, Ask, MODEL, worker, worker_with};
use crate::tiny_llama::{CONTEXT, TEMPLATE};

const PATH: &str = "/v1/messages";

fn request(more: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    merged(json!({"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}), more)
}

/// Returns status, type and param. Panics if the response is not an error in Anthropic's format.
fn error(answer: &Answer) -> (u16, String, Option<String>) {
    let body = answer.json();
    let error = &body["error"];
    assert_eq!(body["type"], "error", "{body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    let kind = error["type"].as_str().unwrap().to_owned();
    (answer.status.as_u16(), kind, error["param"].as_str().map(str::to_owned))
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[tokio::test]
async fn texts_are_blocks_of_the_content() {
    let worker = worker();
    let body = request(json!({"ignore_eos": true, "system": [{"type": "text", "text": "Be brief."}]}));
    let message = worker.post(PATH, &body).await.json();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&message["model"], &message["stop_reason"]), (&json!(MODEL), &json!("max_tokens")));
    assert_eq!(
        (&message["content"][0]["type"], &message["usage"]["output_tokens"]),
        (&json!("text"), &json!(12))
    );
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let chat = worker.post("/v1/chat/completions", &chat).await.json();
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);

    let events = worker.post(PATH, &merged(body.clone(), json!({"stream": true}))).await.typed_events();
    let expected = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&events), expected);
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(start["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(events[2]["content_block"], json!({"type": "text", "text": ""}));
    let deltas: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(deltas, message["content"][0]["text"].as_str().unwrap());
    let delta = &events[events.len() - 2];
    assert_eq!(delta["delta"], json!({"stop_reason": "max_tokens", "stop_sequence": null}));
    assert_eq!(delta["usage"]["output_tokens"], 12);

    let counted = merged(body, json!({"max_tokens": null}));
    let counted = worker.post("/v1/messages/count_tokens", &counted).await.json();
    assert_eq!(counted, json!({"input_tokens": chat["usage"]["prompt_tokens"]}));
}

#[tokio::test]
async fn stop_sequences_are_reported() {
    let worker = worker();
    let body = request(json!({"max_tokens": 40, "ignore_eos": true}));
    let free = worker.post(PATH, &body).await.json();
    let text = free["content"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(8).take(2).collect();
    let body = merged(body, json!({"stop_sequences": ["never comes", stop]}));
    let message = worker.post(PATH, &body).await.json();
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert_eq!(message["content"][0]["text"], text[..text.find(&stop).unwrap()]);
    let events = worker.post(PATH, &merged(body, json!({"stream": true}))).await.typed_events();
    let delta = &events[events.len() - 2]["delta"];
    assert_eq!(delta, &json!({"stop_reason": "stop_sequence", "stop_sequence": stop}));
    let ends = worker.served.engine.text().ends();
    let bias: Value =
        ends.iter().map(|end| (end.to_string(), json!(100))).collect::<serde_json::Map<_, _>>().into();
    let message = worker.post(PATH, &request(json!({"logit_bias": bias}))).await.json();
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("end_turn"), &Value::Null));
}

#[tokio::test]
async fn calls_are_blocks_of_the_content() {
    let worker = worker();
    let schema = json!({"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"],
        "additionalProperties": false});
    let tools = json!([{"name": "turn", "description": "Turns.", "input_schema": schema, "cache_control": {"type": "ephemeral"}}]);
    for choice in
        [json!({"type": "any", "disable_parallel_tool_use": true}), json!({"type": "tool", "name": "turn"})]
    {
        // A model of random weights would generate white space until the limit.
        let space = json!({"9": -100, "10": -100, "13": -100, "32": -100});
        let body =
            request(json!({"tools": tools, "tool_choice": choice, "max_tokens": 120, "logit_bias": space}));
        let message = worker.post(PATH, &body).await;
        assert_eq!(message.status, 200, "{}", message.text);
        let message = message.json();
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        let call = &message["content"][0];
        assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("turn")));
        assert!(call["input"]["up"].is_boolean() && call["id"].is_string(), "{call}");
        let events = worker.post(PATH, &merged(body, json!({"stream": true}))).await.typed_events();
        let start = &events[2]["content_block"];
        assert_eq!((&start["type"], &start["input"]), (&json!("tool_use"), &json!({})));
        let json: String =
            events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), call["input"]);
        assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
    }
    // The conversation continues after a call.
    let messages = json!([{"role": "user", "content": "turn"},
        {"role": "assistant", "content": [{"type": "text", "text": "I turn."}, {"type": "tool_use", "id": "toolu_1", "name": "turn", "input": {"up": true}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "done", "is_error": false}]}]);
    let answer = worker.post(PATH, &request(json!({"messages": messages, "tools": tools}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// As in Anthropic's API, an assistant message at the end is the beginning of the answer.
#[tokio::test]
async fn a_beginning_is_continued() {
    let worker = worker();
    assert!(TEMPLATE.contains("<|im_start|>assistant\n"));
    let messages =
        json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Once upon"}]);
    let answer = worker.post(PATH, &request(json!({"messages": messages}))).await.json();
    let prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nOnce upon";
    let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
    let completion = worker.post("/v1/completions", &body).await.json();
    assert_eq!(answer["content"][0]["text"], completion["choices"][0]["text"]);
    assert_eq!(answer["usage"]["output_tokens"], completion["usage"]["completion_tokens"]);
}

#[tokio::test]
async fn fields_of_agents_are_accepted() {
    let worker = worker();
    let more = json!({"metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "service_tier": "auto",
        "output_config": {"effort": "high"}, "betas": ["x"], "top_k": 5, "top_p": 0.9, "cache_control": {"type": "ephemeral"},
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}], "max_tokens": 32_000,
        "tool_choice": {"type": "auto"}, "tools": [{"type": "custom", "name": "f", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x ".repeat(400)}]}]});
    let path = "/v1/messages?beta=true";
    let request = Request::post(path).header("content-type", "application/json").header("x-api-key", "x");
    let request =
        request.header("anthropic-version", "2023-06-01").header("anthropic-beta", "claude-code-20250219");
    let answer = worker.read(request.body(Body::from(self::request(more).to_string())).unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);

    let schema = json!({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "schema": schema});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let answer = worker.post(PATH, &self::request(merged(more, json!({"max_tokens": 60})))).await.json();
        let text = answer["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"n": 7}));
    }
}

/// The template of the model has a switch for reasoning.
#[tokio::test]
async fn thinking_is_a_variable_of_the_template() {
    let worker = worker();
    let count = async |more: Value| {
        let answer = worker.post("/v1/messages/count_tokens", &request(more)).await.json();
        answer["input_tokens"].as_u64().unwrap()
    };
    let tokens = |text: &str| worker.served.engine.text().encode(text, false).unwrap().len() as u64;
    let plain = count(json!({})).await;
    assert_eq!(count(json!({"thinking": {"type": "adaptive"}})).await, plain);
    for more in [
        json!({"thinking": {"type": "disabled"}}),
        json!({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        assert_eq!(count(more).await, plain + tokens("[no thinking]"));
    }
    assert_eq!(count(json!({"output_config": {"effort": "high"}})).await, plain + tokens("[high]"));
    let body = json!({"input": "Hello", "max_output_tokens": 1, "reasoning": {"effort": "none"}});
    let response = worker.post("/v1/responses", &body).await.json();
    assert_eq!(response["usage"]["input_tokens"], plain + tokens("[no thinking][none]"));
}

#[tokio::test]
async fn every_bad_value_names_its_field() {
    let worker = worker();
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    let table: &[(Value, &str)] = &[
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": ["x"]}), "messages[0]"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"messages": [{"role": "user", "content": "x ".repeat(CONTEXT)}]}), "messages"),
        (json!({"system": 7}), "system"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"thinking": {"type": "deep"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "invented": 1}}), "thinking.invented"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"name": "f", "input_schema": {}, "invented": 1}]}), "tools[0].invented"),
        (json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "g"}}), "tool_choice.name"),
        (json!({"tools": [tool], "tool_choice": {"type": "some"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"n": 2}), "n"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"invented": 1}), "invented"),
    ];
    for (change, param) in table {
        let answer = worker.post(PATH, &request(change.clone())).await;
        let expected = (400, "invalid_request_error".to_owned(), Some((*param).to_owned()));
        assert_eq!(error(&answer), expected, "{change}: {}", answer.text);
    }
    worker.idle().await;
}

/// All errors of the path have Anthropic's format, also those of the middleware.
#[tokio::test]
async fn errors_have_anthropics_format() {
    let worker = worker();
    let unknown = worker.post(PATH, &request(json!({"model": "claude"}))).await;
    assert_eq!(error(&unknown), (404, "not_found_error".into(), Some("model".into())));
    assert_eq!(error(&worker.get(PATH).await).0, 405);
    assert_eq!(error(&worker.post("/v1/messages/batches", &json!({})).await).1, "not_found_error");
    assert_eq!(worker.post("/v1/messagesx", &json!({})).await.error().0, 404);
    let form = Request::post(PATH).header("content-type", "text/plain").body(Body::from("{}")).unwrap();
    assert_eq!(error(&worker.read(form).await).0, 415);
    let locked = worker_with(true, Default::default(), &["--api-token", "secret"]);
    let answer = locked.post(PATH, &request(json!({}))).await;
    assert_eq!(
        (error(&answer).1.as_str(), &answer.headers["www-authenticate"]),
        ("authentication_error", &"Bearer".parse().unwrap())
    );
    let length: usize = answer
        .headers
        .get("content-length")
        .map_or(answer.text.len(), |length| length.to_str().unwrap().parse().unwrap());
    assert_eq!(length, answer.text.len());
    let request =
        Request::post(PATH).header("content-type", "application/json").header("x-api-key", "secret");
    let request = request.body(Body::from(self::request(json!({})).to_string())).unwrap();
    assert_eq!(locked.read(request).await.status, 200);
    worker.gate.break_down();
    let events = worker.post(PATH, &self::request(json!({"stream": true}))).await.typed_events();
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("overloaded_error")),
        "{last}"
    );
}
