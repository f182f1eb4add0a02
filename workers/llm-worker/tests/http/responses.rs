//! OpenAI's Responses API.
use serde_json::{Value, json};

use crate::answers::merged;
use crate::fixture::{Ask, MODEL, worker};
use crate::tiny_llama::CONTEXT;

const PATH: &str = "/v1/responses";

fn request(more: Value) -> Value {
    merged(json!({"model": MODEL, "input": "Hello", "max_output_tokens": 12, "temperature": 0}), more)
}

/// Returns a request that must call the tool `turn` of this type.
fn forced_call(kind: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"],
        "additionalProperties": false});
    let mut tool = json!({"type": kind, "name": "turn", "description": "Turns."});
    if kind == "function" {
        tool["parameters"] = parameters;
        tool["strict"] = json!(false);
    }
    // A model of random weights would generate white space or a text until the limit.
    let bias = json!({"9": -100, "10": -100, "13": -100, "32": -100, "34": 5});
    request(json!({"tools": [tool], "tool_choice": {"type": kind, "name": "turn"}, "max_output_tokens": 120,
        "logit_bias": bias, "parallel_tool_calls": false}))
}

/// Checks the numbers of a stream's events and returns the last response.
fn checked(events: &[Value]) -> Value {
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{event}");
    }
    for (i, kind) in ["response.created", "response.in_progress"].iter().enumerate() {
        assert_eq!(
            (&events[i]["type"], &events[i]["response"]["status"]),
            (&json!(kind), &json!("in_progress"))
        );
    }
    events.last().unwrap()["response"].clone()
}

/// Returns a response without its ids and times.
fn anonymous(mut response: Value) -> Value {
    for name in ["id", "created_at", "completed_at"] {
        response[name] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        for name in ["id", "call_id"] {
            item[name] = Value::Null;
        }
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[tokio::test]
async fn texts_are_items_of_the_output() {
    let worker = worker();
    let body = request(json!({"ignore_eos": true, "metadata": {"a": "b"}, "instructions": "Be brief."}));
    let response = worker.post(PATH, &body).await.json();
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["metadata"], json!({"a": "b"}));
    assert_eq!((&response["store"], &response["previous_response_id"]), (&json!(false), &Value::Null));
    assert_eq!((&response["temperature"], &response["instructions"]), (&json!(0.0), &json!("Be brief.")));
    let item = &response["output"][0];
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&item["status"], &item["content"][0]["type"]), (&json!("incomplete"), &json!("output_text")));
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens"], 12);
    assert_eq!(usage["total_tokens"], usage["input_tokens"].as_u64().unwrap() + 12);
    // The answer is that of a chat with the same conversation.
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let chat = worker.post("/v1/chat/completions", &chat).await.json();
    assert_eq!(item["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(usage["input_tokens"], chat["usage"]["prompt_tokens"]);

    let events = worker.post(PATH, &merged(body, json!({"stream": true}))).await.typed_events();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds(&events), expected);
    assert_eq!(anonymous(checked(&events)), anonymous(response.clone()));
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, item["content"][0]["text"].as_str().unwrap());
    let done = &events[events.len() - 4];
    assert_eq!((&done["text"], &done["output_index"]), (&json!(deltas), &json!(0)));
    assert_eq!(done["item_id"], events[2]["item"]["id"]);
}

#[tokio::test]
async fn calls_are_items_of_the_output() {
    let worker = worker();
    for (kind, item_kind, field, delta, done) in [
        (
            "function",
            "function_call",
            "arguments",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        ),
        (
            "custom",
            "custom_tool_call",
            "input",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
        ),
    ] {
        let body = forced_call(kind);
        let response = worker.post(PATH, &body).await;
        assert_eq!(response.status, 200, "{}", response.text);
        let response = response.json();
        assert_eq!(response["status"], "completed", "{response}");
        let call = &response["output"][0];
        assert_eq!((&call["type"], &call["name"]), (&json!(item_kind), &json!("turn")), "{response}");
        assert_eq!(call["call_id"].as_str().unwrap().len(), 9);
        if kind == "function" {
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["up"].is_boolean());
        }
        let events = worker.post(PATH, &merged(body, json!({"stream": true}))).await.typed_events();
        let added = ["response.created", "response.in_progress", "response.output_item.added"];
        let ends = [delta, done, "response.output_item.done", "response.completed"];
        assert_eq!(kinds(&events), [&added[..], &ends[..]].concat());
        assert_eq!(
            (&events[2]["item"]["status"], &events[2]["item"][field]),
            (&json!("in_progress"), &json!(""))
        );
        assert_eq!(anonymous(checked(&events)), anonymous(response.clone()));
        let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!(&json!(deltas), &call[field]);
    }
}

#[tokio::test]
async fn conversations_continue_after_calls() {
    let worker = worker();
    let items = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Turn."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "turn", "arguments": "{\"up\":true}", "status": "completed"},
        {"type": "function_call_output", "call_id": "call_1", "output":
            [{"type": "input_text", "text": "done"}, {"type": "input_image", "image_url": "data:,"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content":
            [{"type": "output_text", "text": "Turned.", "annotations": [], "logprobs": []}]},
        {"role": "user", "content": "Again."},
    ]);
    let answer = worker.post(PATH, &request(json!({"input": items}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test]
async fn texts_follow_formats_and_have_logprobs() {
    let worker = worker();
    let schema = json!({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "x", "schema": schema, "strict": true});
    let body = request(json!({"text": {"format": format}, "max_output_tokens": 60}));
    let response = worker.post(PATH, &body).await.json();
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"n": 7}));
    assert_eq!(response["text"]["format"]["schema"], schema);

    let include = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2, "ignore_eos": true});
    let body = request(include);
    let response = worker.post(PATH, &body).await.json();
    let logprobs = response["output"][0]["content"][0]["logprobs"].as_array().unwrap().clone();
    assert_eq!((logprobs.len(), logprobs[0]["top_logprobs"].as_array().unwrap().len()), (12, 2));
    let events = worker.post(PATH, &merged(body, json!({"stream": true}))).await.typed_events();
    let streamed = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let streamed = streamed.flat_map(|event| event["logprobs"].as_array().unwrap().clone()).count();
    assert_eq!(streamed, 12);
}

#[tokio::test]
async fn fields_of_agents_are_accepted() {
    let worker = worker();
    let more = json!({"prompt_cache_key": "k", "include": ["reasoning.encrypted_content"], "service_tier": "auto",
        "truncation": "auto", "user": "u", "store": true, "client_metadata": {"a": "b"}, "safety_identifier": "s",
        "reasoning": {"effort": "high", "summary": "auto"}, "text": {"verbosity": "low"}, "previous_response_id": null,
        "tool_choice": "auto", "parallel_tool_calls": true, "background": false, "stream_options": null,
        "tools": [{"type": "web_search", "external_web_access": false}, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}, {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}]});
    let answer = worker.post(PATH, &request(more)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["store"], false);
    assert_eq!(worker.post("/responses", &request(json!({}))).await.status, 200);
    // More tokens than fit are as many as fit.
    let bound = json!({"max_output_tokens": 100_000, "input": "x ".repeat(490)});
    assert_eq!(worker.post(PATH, &request(bound)).await.status, 200);
}

#[tokio::test]
async fn every_bad_value_names_its_field() {
    let worker = worker();
    let tool = json!({"type": "function", "name": "f"});
    let table: &[(Value, &str, &str)] = &[
        (json!({"input": null}), "invalid_value", "input"),
        (json!({"input": []}), "invalid_value", "input"),
        (json!({"input": 7}), "invalid_value", "input"),
        (json!({"input": ["x"]}), "invalid_value", "input[0]"),
        (json!({"input": [{"content": "x"}]}), "invalid_value", "input[0].role"),
        (json!({"input": [{"role": "king", "content": "x"}]}), "invalid_value", "input[0].role"),
        (json!({"input": [{"role": "user"}]}), "invalid_value", "input[0].content"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "invalid_value",
            "input[0].content[0].type",
        ),
        (
            json!({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}),
            "invalid_value",
            "input[0].call_id",
        ),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "invalid_value", "input[0].type"),
        (
            json!({"input": [{"type": "web_search_call", "id": "x"}]}),
            "unsupported_parameter",
            "input[0].type",
        ),
        (json!({"input": "x ".repeat(CONTEXT)}), "context_length_exceeded", "input"),
        (json!({"input": [{"role": "user", "content": "raise"}]}), "invalid_value", "input"),
        (json!({"previous_response_id": "resp_1"}), "unsupported_parameter", "previous_response_id"),
        (json!({"conversation": "conv_1"}), "unsupported_parameter", "conversation"),
        (json!({"background": true}), "unsupported_parameter", "background"),
        (json!({"max_output_tokens": 0}), "invalid_value", "max_output_tokens"),
        (json!({"temperature": 3}), "invalid_value", "temperature"),
        (json!({"top_logprobs": 21}), "invalid_value", "top_logprobs"),
        (json!({"include": ["everything"]}), "unsupported_parameter", "include[0]"),
        (json!({"reasoning": {"effort": "huge"}}), "invalid_value", "reasoning.effort"),
        (json!({"reasoning": {"invented": 1}}), "unsupported_parameter", "reasoning.invented"),
        (json!({"text": {"format": {"type": "xml"}}}), "invalid_value", "text.format.type"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x"}}}),
            "invalid_value",
            "text.format.schema",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}}),
            "invalid_value",
            "text.format",
        ),
        (json!({"tools": [{"type": "function"}]}), "invalid_value", "tools[0].name"),
        (
            json!({"tools": [{"type": "function", "name": "f", "invented": 1}]}),
            "unsupported_parameter",
            "tools[0].invented",
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "function", "name": "g"}}),
            "invalid_value",
            "tool_choice.name",
        ),
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (
            json!({"tools": [tool], "tool_choice": "required", "text": {"format": {"type": "json_object"}}}),
            "invalid_value",
            "tool_choice",
        ),
        (json!({"stream_options": {}}), "invalid_value", "stream_options"),
        (json!({"messages": []}), "unsupported_parameter", "messages"),
        (json!({"invented": 1}), "unsupported_parameter", "invented"),
    ];
    for (change, code, param) in table {
        let answer = worker.post(PATH, &request(change.clone())).await;
        let expected = (400, (*code).to_owned(), Some((*param).to_owned()));
        assert_eq!(answer.error(), expected, "{change}: {}", answer.text);
    }
    let unknown = worker.post(PATH, &request(json!({"model": "gpt-5"}))).await;
    assert_eq!(unknown.error(), (404, "model_not_found".into(), Some("model".into())));
    worker.idle().await;
}

#[tokio::test]
async fn a_failed_stream_ends_with_a_failed_response() {
    let worker = worker();
    worker.gate.break_down();
    let events = worker.post(PATH, &request(json!({"stream": true}))).await.typed_events();
    let response = checked(&events);
    assert_eq!(
        (&events.last().unwrap()["type"], &response["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert!(response["error"]["message"].as_str().unwrap().contains("pulled out"), "{response}");
}
