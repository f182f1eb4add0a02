//! Error responses.
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, json_request, worker};
use crate::tiny_llama::{CONTEXT, vocabulary};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

fn valid(path: &str) -> Value {
    match path {
        CHAT => json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}),
        COMPLETIONS => json!({"model": MODEL, "prompt": "Hello", "max_tokens": 2}),
        _ => json!({"model": MODEL, "input": "Hello"}),
    }
}

#[tokio::test]
async fn every_bad_value_names_its_field() {
    let worker = worker();
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]);
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}});
    let long = json!([{"role": "user", "content": "x ".repeat(CONTEXT)}]);
    // Path, change of a valid body, error code, param.
    let table: &[(&str, Value, &str, &str)] = &[
        (CHAT, json!({"max_tokens": -2}), "invalid_value", "max_tokens"),
        (CHAT, json!({"min_tokens": 3}), "invalid_value", "min_tokens"),
        (CHAT, json!({"min_tokens": -1}), "invalid_value", "min_tokens"),
        (CHAT, json!({"stop_token_ids": [vocabulary()]}), "invalid_value", "stop_token_ids"),
        (CHAT, json!({"stop_token_ids": vec![1; 257]}), "invalid_value", "stop_token_ids"),
        (CHAT, json!({"max_tokens": 1.5}), "invalid_value", "max_tokens"),
        (CHAT, json!({"max_tokens": "many"}), "invalid_value", "max_tokens"),
        (CHAT, json!({"max_completion_tokens": 3}), "invalid_value", "max_completion_tokens"),
        (CHAT, json!({"max_tokens": 100_000}), "context_length_exceeded", "messages"),
        (CHAT, json!({"max_tokens": i64::MAX}), "context_length_exceeded", "messages"),
        (CHAT, json!({"max_tokens": u64::MAX}), "invalid_value", "max_tokens"),
        (CHAT, json!({"temperature": -0.1}), "invalid_value", "temperature"),
        (CHAT, json!({"temperature": 2.1}), "invalid_value", "temperature"),
        (CHAT, json!({"temperature": 1e300}), "invalid_value", "temperature"),
        (CHAT, json!({"temperature": "hot"}), "invalid_value", "temperature"),
        (CHAT, json!({"top_p": 1.5}), "invalid_value", "top_p"),
        (CHAT, json!({"min_p": -1}), "invalid_value", "min_p"),
        (CHAT, json!({"top_k": -2}), "invalid_value", "top_k"),
        (CHAT, json!({"presence_penalty": 3}), "invalid_value", "presence_penalty"),
        (CHAT, json!({"frequency_penalty": -3}), "invalid_value", "frequency_penalty"),
        (CHAT, json!({"repetition_penalty": 0}), "invalid_value", "repetition_penalty"),
        (CHAT, json!({"n": 0}), "invalid_value", "n"),
        (CHAT, json!({"n": 1000}), "invalid_value", "n"),
        (CHAT, json!({"seed": 0.5}), "invalid_value", "seed"),
        (CHAT, json!({"stop": vec!["a"; 65]}), "invalid_value", "stop"),
        (CHAT, json!({"stop": ""}), "invalid_value", "stop"),
        (CHAT, json!({"stop": 3}), "invalid_value", "stop"),
        (CHAT, json!({"stream": "yes"}), "invalid_value", "stream"),
        (CHAT, json!({"stream_options": {}}), "invalid_value", "stream_options"),
        (CHAT, json!({"logit_bias": {"x": 1}}), "invalid_value", "logit_bias.x"),
        (CHAT, json!({"logit_bias": {"5": 101}}), "invalid_value", "logit_bias.5"),
        (CHAT, json!({"logit_bias": {vocabulary().to_string(): 1}}), "invalid_value", "logit_bias.272"),
        (CHAT, json!({"logit_bias": [[vocabulary(), 1]]}), "invalid_value", "logit_bias.272"),
        (CHAT, json!({"logit_bias": [[5, "x"]]}), "invalid_value", "logit_bias[0][1]"),
        (CHAT, json!({"logprobs": true, "top_logprobs": 21}), "invalid_value", "top_logprobs"),
        (CHAT, json!({"top_logprobs": 1}), "invalid_value", "top_logprobs"),
        (CHAT, json!({"messages": []}), "invalid_value", "messages"),
        (CHAT, json!({"messages": null}), "invalid_value", "messages"),
        (CHAT, json!({"messages": [{"role": "user"}]}), "invalid_value", "messages[0].content"),
        (CHAT, json!({"messages": [{"content": "x"}]}), "invalid_value", "messages[0].role"),
        (CHAT, json!({"messages": [{"role": "king", "content": "x"}]}), "invalid_value", "messages[0].role"),
        (CHAT, json!({"messages": [{"role": 123, "content": "x"}]}), "invalid_value", "messages[0].role"),
        (CHAT, json!({"messages": [{"role": "user", "content": 3}]}), "invalid_value", "messages[0].content"),
        (CHAT, json!({"messages": [{"role": "user", "content": "raise"}]}), "invalid_value", "messages"),
        (CHAT, json!({"messages": image}), "invalid_value", "messages[0].content[0].type"),
        (CHAT, json!({"response_format": {"type": "xml"}}), "invalid_value", "response_format.type"),
        (
            CHAT,
            json!({"response_format": {"type": "json_schema"}}),
            "invalid_value",
            "response_format.json_schema",
        ),
        (CHAT, json!({"response_format": schema}), "invalid_value", "response_format"),
        (CHAT, json!({"response_format": {}}), "invalid_value", "response_format.type"),
        (
            CHAT,
            json!({"response_format": {"type": "json_object", "schema": 7}}),
            "invalid_value",
            "response_format.schema",
        ),
        (
            CHAT,
            json!({"response_format": {"type": "text", "invented": 1}}),
            "unsupported_parameter",
            "response_format.invented",
        ),
        (
            CHAT,
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "invented": 1}}}),
            "unsupported_parameter",
            "response_format.json_schema.invented",
        ),
        (
            CHAT,
            json!({"stream": true, "stream_options": {"invented": 1}}),
            "unsupported_parameter",
            "stream_options.invented",
        ),
        (
            CHAT,
            json!({"tools": [{"type": "function", "function": {"name": "f"}, "invented": 1}]}),
            "unsupported_parameter",
            "tools[0].invented",
        ),
        (
            CHAT,
            json!({"tools": [{"type": "function", "function": {"name": "f", "invented": 1}}]}),
            "unsupported_parameter",
            "tools[0].function.invented",
        ),
        (CHAT, json!({"tools": [{"type": "custom"}]}), "invalid_value", "tools[0].type"),
        (CHAT, json!({"tools": [{"type": "function"}]}), "invalid_value", "tools[0].function"),
        (CHAT, json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (CHAT, json!({"tools": tool, "tool_choice": "perhaps"}), "invalid_value", "tool_choice"),
        (
            CHAT,
            json!({"tools": tool, "tool_choice": {"function": {"name": "g"}}}),
            "invalid_value",
            "tool_choice.function.name",
        ),
        (
            CHAT,
            json!({"tools": tool, "tool_choice": "required", "response_format": {"type": "json_object"}}),
            "invalid_value",
            "tool_choice",
        ),
        (CHAT, json!({"functions": [{"name": "f"}]}), "unsupported_parameter", "functions"),
        (CHAT, json!({"audio": {"voice": "x"}}), "unsupported_parameter", "audio"),
        (CHAT, json!({"invented": [1, 2, 3]}), "unsupported_parameter", "invented"),
        (CHAT, json!({"repeat_penalty": 0}), "invalid_value", "repetition_penalty"),
        (CHAT, json!({"prompt": "x"}), "unsupported_parameter", "prompt"),
        (COMPLETIONS, json!({"mirostat": 2}), "unsupported_parameter", "mirostat"),
        (
            COMPLETIONS,
            json!({"prompt": ["a", "x ".repeat(CONTEXT)], "n": 128}),
            "context_length_exceeded",
            "prompt[1]",
        ),
        (CHAT, json!({"messages": long, "n": 128}), "context_length_exceeded", "messages"),
        (EMBEDDINGS, json!({"input": ["a", "x ".repeat(CONTEXT)]}), "context_length_exceeded", "input[1]"),
        (EMBEDDINGS, json!({"invented": 1}), "unsupported_parameter", "invented"),
        (COMPLETIONS, json!({"prompt": null}), "invalid_value", "prompt"),
        (COMPLETIONS, json!({"prompt": ""}), "invalid_value", "prompt"),
        (COMPLETIONS, json!({"prompt": []}), "invalid_value", "prompt"),
        (COMPLETIONS, json!({"prompt": ["a", ""]}), "invalid_value", "prompt[1]"),
        (COMPLETIONS, json!({"prompt": [-1]}), "invalid_value", "prompt"),
        (COMPLETIONS, json!({"prompt": [vocabulary()]}), "invalid_value", "prompt"),
        (COMPLETIONS, json!({"prompt": [[1], [70_000]]}), "invalid_value", "prompt[1]"),
        (COMPLETIONS, json!({"prompt": {"text": "x"}}), "invalid_value", "prompt"),
        (COMPLETIONS, json!({"prompt": "x ".repeat(CONTEXT)}), "context_length_exceeded", "prompt"),
        (COMPLETIONS, json!({"prompt": vec!["a"; 200], "n": 2}), "invalid_value", "prompt"),
        (COMPLETIONS, json!({"logprobs": 21}), "invalid_value", "logprobs"),
        (CHAT, json!({"echo": true}), "unsupported_parameter", "echo"),
        (COMPLETIONS, json!({"echo": 1}), "invalid_value", "echo"),
        (COMPLETIONS, json!({"suffix": "the end"}), "unsupported_parameter", "suffix"),
        (CHAT, json!({"best_of": 3}), "unsupported_parameter", "best_of"),
        (COMPLETIONS, json!({"best_of": 2, "n": 3}), "invalid_value", "best_of"),
        (COMPLETIONS, json!({"best_of": 129}), "invalid_value", "best_of"),
        (COMPLETIONS, json!({"best_of": 3, "stream": true}), "invalid_value", "best_of"),
        (COMPLETIONS, json!({"prompt_logprobs": 21}), "invalid_value", "prompt_logprobs"),
        (COMPLETIONS, json!({"prompt_logprobs": 1, "stream": true}), "invalid_value", "prompt_logprobs"),
        (COMPLETIONS, json!({"n_probs": 21}), "invalid_value", "n_probs"),
        (CHAT, json!({"n_probs": 21}), "invalid_value", "n_probs"),
        (COMPLETIONS, json!({"n_predict": 3}), "invalid_value", "n_predict"),
        (COMPLETIONS, json!({"n_predict": -2}), "invalid_value", "n_predict"),
        (COMPLETIONS, json!({"truncate_prompt_tokens": 0}), "invalid_value", "truncate_prompt_tokens"),
        (COMPLETIONS, json!({"repeat_last_n": -2}), "invalid_value", "repeat_last_n"),
        (COMPLETIONS, json!({"repetition_penalty": 101}), "invalid_value", "repetition_penalty"),
        (COMPLETIONS, json!({"guided_regex": "("}), "invalid_value", "guided_regex"),
        (COMPLETIONS, json!({"guided_json": "{"}), "invalid_value", "guided_json"),
        (COMPLETIONS, json!({"guided_json": [1]}), "invalid_value", "guided_json"),
        (COMPLETIONS, json!({"guided_choice": []}), "invalid_value", "guided_choice"),
        (COMPLETIONS, json!({"guided_choice": ["a"], "guided_regex": "a"}), "invalid_value", "guided_choice"),
        (
            COMPLETIONS,
            json!({"guided_whitespace_pattern": " "}),
            "unsupported_parameter",
            "guided_whitespace_pattern",
        ),
        (COMPLETIONS, json!({"grammar": "root ::= other"}), "invalid_value", "grammar"),
        (
            COMPLETIONS,
            json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
            "invalid_value",
            "structured_outputs",
        ),
        (
            COMPLETIONS,
            json!({"structured_outputs": {"invented": 1}}),
            "unsupported_parameter",
            "structured_outputs.invented",
        ),
        (
            COMPLETIONS,
            json!({"response_format": {"type": "regex"}}),
            "invalid_value",
            "response_format.regex",
        ),
        (
            COMPLETIONS,
            json!({"response_format": {"type": "gbnf", "gbnf": "root"}}),
            "invalid_value",
            "response_format",
        ),
        (
            COMPLETIONS,
            json!({"response_format": {"type": "choice"}}),
            "invalid_value",
            "response_format.choice",
        ),
        (
            COMPLETIONS,
            json!({"response_format": {"type": "structural_tag"}}),
            "invalid_value",
            "response_format",
        ),
        (
            CHAT,
            json!({"response_format": {"type": "json_object"}, "grammar": "root ::= \"a\""}),
            "invalid_value",
            "grammar",
        ),
        (
            CHAT,
            json!({"tools": tool, "tool_choice": "required", "guided_regex": "a"}),
            "invalid_value",
            "tool_choice",
        ),
        (
            CHAT,
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "invalid_value",
            "continue_final_message",
        ),
        (EMBEDDINGS, json!({"input": ""}), "invalid_value", "input"),
        (EMBEDDINGS, json!({"input": "x ".repeat(CONTEXT)}), "context_length_exceeded", "input"),
        (EMBEDDINGS, json!({"encoding_format": "hex"}), "invalid_value", "encoding_format"),
        (EMBEDDINGS, json!({"dimensions": 0}), "invalid_value", "dimensions"),
    ];
    for (path, change, code, param) in table {
        let mut body = valid(path);
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let answer = worker.post(path, &body).await;
        let expected = (400, (*code).to_owned(), Some((*param).to_owned()));
        assert_eq!(answer.error(), expected, "{path} {change}: {}", answer.text);
    }
    // A stream is rejected in the same way, before it starts.
    let mut body = valid(CHAT);
    body.as_object_mut()
        .unwrap()
        .extend(json!({"stream": true, "max_tokens": -2}).as_object().unwrap().clone());
    assert_eq!(worker.post(CHAT, &body).await.error().2.as_deref(), Some("max_tokens"));
    worker.idle().await;
}

#[tokio::test]
async fn a_missing_field_is_named() {
    let worker = worker();
    for (path, name) in [(CHAT, "messages"), (COMPLETIONS, "prompt"), (EMBEDDINGS, "input")] {
        let answer = worker.post(path, &json!({"model": MODEL})).await;
        assert_eq!(answer.error(), (400, "invalid_value".into(), Some(name.into())));
    }
}

#[tokio::test]
async fn invalid_json_bodies_return_4xx() {
    let worker = worker();
    for (bytes, status, code) in [
        (&b"{\"model\": "[..], 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b"[1, 2]", 400, "invalid_value"),
        (b"\"text\"", 400, "invalid_value"),
        (b"{} {}", 400, "invalid_json"),
        (b"{\"prompt\": \"\xff\xfe\"}", 400, "invalid_utf8"),
        (b"{\"prompt\": \"\\ud800\"}", 400, "invalid_value"),
        (b"{\"temperature\": 1e999}", 400, "invalid_value"),
        (b"{\"temperature\": NaN}", 400, "invalid_json"),
    ] {
        for path in [CHAT, COMPLETIONS, EMBEDDINGS] {
            let answer = worker.read(json_request(path, bytes.to_vec())).await;
            let found = answer.error();
            assert_eq!(
                (found.0, found.1.as_str()),
                (status, code),
                "{path} {:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }
    let deep = [b"{\"x\": ".to_vec(), b"[".repeat(100_000)].concat();
    assert_eq!(worker.read(json_request(CHAT, deep)).await.status, 400);
    let large = json!({"prompt": "x".repeat(10 << 20)}).to_string().into_bytes();
    assert_eq!(worker.read(json_request(COMPLETIONS, large)).await.error().0, 413);
    let form = Request::post(CHAT).header("content-type", "text/plain").body(Body::from("{}")).unwrap();
    assert_eq!(worker.read(form).await.error().0, 415);
}

#[tokio::test]
async fn unknown_models_paths_and_methods_return_errors() {
    let worker = worker();
    for path in [CHAT, COMPLETIONS, EMBEDDINGS] {
        let mut body = valid(path);
        body["model"] = "gpt-4".into();
        assert_eq!(
            worker.post(path, &body).await.error(),
            (404, "model_not_found".into(), Some("model".into()))
        );
    }
    assert_eq!(worker.get("/v1/nothing").await.error().0, 404);
    assert_eq!(worker.get(CHAT).await.error().0, 405);
}

#[tokio::test]
async fn unsupported_fields_without_effect_are_ignored() {
    let worker = worker();
    let more = json!({"user": "someone", "metadata": {"a": "b"}, "service_tier": "auto", "store": false, "logit_bias": null,
        "stop": null, "tools": null, "top_k": -1, "top_p": 0, "invented": null, "parallel_tool_calls": true,
        "response_format": {"type": "text", "invented": null}, "tool_choice": null,
        "prompt_cache_key": "k", "safety_identifier": "s", "modalities": ["text"], "repeat_penalty": 1.1});
    let mut body = valid(CHAT);
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = worker.post(CHAT, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test]
async fn fields_that_the_gateway_of_sglang_adds_are_accepted() {
    let worker = worker();
    let texts = json!({"no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true,
        "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false});
    let responses = json!({"store": true, "stream": null, "priority": 0, "top_k": -1, "min_p": 0.0,
        "repetition_penalty": 1.0, "max_output_tokens": 2});
    for (path, more) in [(CHAT, &texts), (COMPLETIONS, &texts), ("/v1/responses", &responses)] {
        let mut body = valid(path);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path} {}", answer.text);
    }
}
