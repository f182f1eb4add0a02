//! Request sequences of coding agents, recorded from the releases that the files name.
//!
//! Each file in `tests/agents` has the requests of one conversation: a prompt, calls of tools with their results, the final
//! answer and, for some, a second prompt. System messages, descriptions, ids and paths are replaced by texts of our own.
//! `answer` is what the model writes. `body` has the fields that differ from those of the request before; the fields in
//! `without` are absent.
use axum::body::Body;
use axum::http::Request;
use serde_json::{Map, Value, json};

use crate::fixture::{Ask, worker};
use crate::scripted::scripted;
use crate::streams;

/// A template as strict as those of well-known models.
const TEMPLATE: &str = "{# <think> <tool_call> #}{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}\
    {% if message.role == 'system' and not loop.first %}{{ raise_exception('the system message must be first') }}{% endif %}\
    <|im_start|>{{ message.role }}\n{{ message.content }}{% for call in message.tool_calls %}<tool_call>\
    {{ call.function.name }}{% for name, value in call.function.arguments.items() %}{{ name }}{{ value | tojson }}{% endfor %}\
    </tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Replays a file. Returns the number of calls that the model made.
async fn replay(file: &str) -> usize {
    let recorded: Value = serde_json::from_str(file).unwrap();
    let (mut body, mut calls) = (Map::new(), 0);
    for request in recorded["requests"].as_array().unwrap() {
        for field in request["without"].as_array().into_iter().flatten() {
            body.remove(field.as_str().unwrap());
        }
        body.extend(request["body"].as_object().unwrap().clone());
        let (path, script) = (request["path"].as_str().unwrap(), request["answer"].as_str().unwrap());
        let mut http = Request::post(path).header("content-type", "application/json");
        for (name, value) in recorded["headers"].as_object().unwrap() {
            http = http.header(name, value.as_str().unwrap());
        }
        let worker = scripted(TEMPLATE, script, &["--any-model-name"]);
        let answer = worker.read(http.body(Body::from(json!(body).to_string())).unwrap()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let is_stream = body.get("stream") == Some(&json!(true));
        let made: Vec<String> = match path.split('?').next().unwrap() {
            _ if !is_stream => {
                assert!(answer.json().is_object(), "{}", answer.text);
                continue;
            }
            "/v1/responses" => named(&streams::response(&answer)["output"], "/name"),
            "/v1/messages" => named(&streams::message(&answer)["content"], "/name"),
            "/v1/chat/completions" => {
                let usage =
                    body.get("stream_options").is_some_and(|options| options["include_usage"] == true);
                named(&streams::chat(&answer, usage)["tool_calls"], "/function/name")
            }
            other => panic!("{other} has no stream"),
        };
        // The scripts call the tool that they mention.
        assert_eq!(made.len(), script.matches("<tool_call>").count(), "{path}: {}", answer.text);
        assert!(made.iter().all(|name| script.contains(name.as_str())), "{made:?}");
        calls += made.len();
    }
    calls
}

/// Returns the texts at `pointer` of a list's items.
fn named(items: &Value, pointer: &str) -> Vec<String> {
    let items = items.as_array().unwrap().iter();
    items.filter_map(|item| item.pointer(pointer)?.as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn codex() {
    assert_eq!(replay(include_str!("../agents/codex.json")).await, 2);
}

#[tokio::test]
async fn claude_code() {
    assert_eq!(replay(include_str!("../agents/claude_code.json")).await, 2);
    // It sends this first, to find out whether the server can be reached.
    let reached = worker().read(Request::head("/").body(Body::empty()).unwrap()).await;
    assert_eq!(reached.status, 200);
}

#[tokio::test]
async fn opencode() {
    assert_eq!(replay(include_str!("../agents/opencode.json")).await, 2);
}

/// aider edits files by the text of answers.
#[tokio::test]
async fn aider() {
    assert_eq!(replay(include_str!("../agents/aider.json")).await, 0);
}
