//! Tool calls and reasoning of texts that a scripted model writes.
use serde_json::{Value, json};

use crate::answers::{chat, merged};
use crate::fixture::{Ask, Worker};
use crate::scripted::scripted;

const TURNS: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";

/// Returns a template with a comment that selects formats, and an end of the prompt.
fn template(signs: &str, end: &str) -> String {
    format!("{{# {signs} #}}{TURNS}{end}")
}

fn with_tools(more: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    chat(merged(json!({"tools": [tool("turn"), tool("rest")], "max_tokens": 400}), more))
}

async fn message(worker: &Worker, body: &Value) -> (Value, Value) {
    let answer = worker.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let choice = answer.json()["choices"][0].clone();
    (choice["message"].clone(), choice["finish_reason"].clone())
}

/// Joins the deltas of the first choice to a message. Returns the message, the finish reason and the number of chunks.
async fn streamed(worker: &Worker, body: &Value) -> (Value, Value, usize) {
    let body = merged(body.clone(), json!({"stream": true}));
    let chunks = worker.post("/v1/chat/completions", &body).await.chunks();
    let (mut content, mut reasoning, mut calls) = (None, None, Vec::<Value>::new());
    let mut finish = Value::Null;
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let delta = &choice["delta"];
        if choice["index"] != 0 {
            continue;
        }
        for (field, text) in [("content", &mut content), ("reasoning_content", &mut reasoning)] {
            if let Some(more) = delta[field].as_str().filter(|more| !more.is_empty()) {
                *text.get_or_insert_with(String::new) += more;
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if call["id"].is_string() {
                assert_eq!((index, &call["type"]), (calls.len(), &json!("function")));
                calls.push(call["function"].clone());
            } else {
                assert!(call.get("type").is_none() && call["function"].get("name").is_none());
                let joined = calls[index]["arguments"].as_str().unwrap().to_owned();
                calls[index]["arguments"] = (joined + call["function"]["arguments"].as_str().unwrap()).into();
            }
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    (json!({"content": content, "reasoning": reasoning, "calls": calls}), finish, chunks.len())
}

/// Returns the parts of a whole message in the form of [`streamed`].
fn parts(message: &Value) -> Value {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls: Vec<Value> = calls.map(|call| call["function"].clone()).collect();
    json!({"content": message["content"], "reasoning": message["reasoning_content"], "calls": calls})
}

/// Checks the whole and the streamed answer.
async fn check(worker: &Worker, body: Value, expected: Value, finish: &str) {
    let (message, reason) = message(worker, &body).await;
    assert_eq!((parts(&message), &reason), (expected.clone(), &json!(finish)), "{message}");
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        assert!(call["id"].as_str().is_some_and(|id| id.len() == 9) && call.get("index").is_none(), "{call}");
    }
    let (message, reason, _) = streamed(worker, &body).await;
    assert_eq!((message, &reason), (expected, &json!(finish)));
}

fn called(name: &str, arguments: &str) -> Value {
    json!({"name": name, "arguments": arguments})
}

#[tokio::test]
async fn special_tokens_begin_calls() {
    let script = r#"I turn.[TOOL_CALLS]turn[ARGS]{"up": true, "by": [1, 2]}[TOOL_CALLS]rest[ARGS]{}"#;
    let worker = scripted(&template("[TOOL_CALLS]", ""), script, &[]);
    let calls = [called("turn", r#"{"up": true, "by": [1, 2]}"#), called("rest", "{}")];
    let expected = json!({"content": "I turn.", "reasoning": null, "calls": calls});
    check(&worker, with_tools(json!({})), expected.clone(), "tool_calls").await;
    check(&worker, with_tools(json!({"n": 2})), expected, "tool_calls").await;
    let first = json!({"content": "I turn.", "reasoning": null, "calls": [calls[0]]});
    check(&worker, with_tools(json!({"parallel_tool_calls": false})), first, "tool_calls").await;
    // Content and arguments arrive in many chunks.
    assert!(streamed(&worker, &with_tools(json!({}))).await.2 > 15);
    // The limit cuts the arguments.
    let cut = json!({"content": "I turn.", "reasoning": null, "calls": [called("turn", "{\"up\"")]});
    let limit =
        worker.served.engine.text().encode("I turn.[TOOL_CALLS]turn[ARGS]{\"up\"", false).unwrap().len();
    check(&worker, with_tools(json!({"max_tokens": limit})), cut, "length").await;
    // Without tools, special tokens have no text.
    let plain = r#"I turn.turn{"up": true, "by": [1, 2]}rest{}"#;
    let plain = json!({"content": plain, "reasoning": null, "calls": []});
    check(&worker, chat(json!({"max_tokens": 400})), plain.clone(), "stop").await;
    check(&worker, with_tools(json!({"tool_choice": "none"})), plain.clone(), "stop").await;
    let worker = scripted(&template("[TOOL_CALLS]", ""), script, &["--tool-parser", "none"]);
    check(&worker, with_tools(json!({})), plain, "stop").await;
}

#[tokio::test]
async fn malformed_and_unknown_calls_are_content() {
    for script in ["[TOOL_CALLS]jump[ARGS]{}", "<|python_tag|>print(1)", "{\"name\": \"turn\", \"argu"] {
        let worker = scripted(&template("", ""), script, &[]);
        let expected = json!({"content": script, "reasoning": null, "calls": []});
        check(&worker, with_tools(json!({})), expected, "stop").await;
    }
}

#[tokio::test]
async fn reasoning_is_separate() {
    let script = "I see <tool_call>.\n</think>\n\nHello<tool_call>{\"name\": \"rest\"}</tool_call>";
    let signs = "<tool_call> <think>";
    let worker = scripted(&template(signs, "<think>\n"), script, &[]);
    let expected =
        json!({"content": "Hello", "reasoning": "I see <tool_call>.", "calls": [called("rest", "{}")]});
    check(&worker, with_tools(json!({})), expected, "tool_calls").await;
    let plain = json!({
        "content": "Hello<tool_call>{\"name\": \"rest\"}</tool_call>", "reasoning": "I see <tool_call>.", "calls": [],
    });
    check(&worker, chat(json!({"max_tokens": 400})), plain, "stop").await;
    let worker =
        scripted(&template(signs, ""), &format!("<think>\n{script}"), &["--reasoning-parser", "none"]);
    let (message, _) = message(&worker, &chat(json!({"max_tokens": 400}))).await;
    assert!(message.get("reasoning_content").is_none());
    assert_eq!(message["content"], format!("<think>\n{script}"));
}

#[tokio::test]
async fn channels_of_gpt_oss() {
    let script = "<|channel|>analysis<|message|>Why<|end|><|start|>assistant<|channel|>commentary to=functions.turn json<|message|>{\"up\": true}";
    let worker = scripted(&template("<|channel|>", "<|start|>assistant"), script, &[]);
    let expected = json!({"content": null, "reasoning": "Why", "calls": [called("turn", "{\"up\": true}")]});
    check(&worker, with_tools(json!({})), expected, "tool_calls").await;
    let plain = json!({"content": "{\"up\": true}", "reasoning": "Why", "calls": []});
    check(&worker, chat(json!({"max_tokens": 400})), plain, "stop").await;
}

/// The parser begins where the message ends, which is not where the answer to another prompt begins.
#[tokio::test]
async fn continued_messages_begin_within_content_or_reasoning() {
    let think = template("<tool_call> <think>", "{% if add_generation_prompt %}<think>\n{% endif %}");
    let channels = "{# <|channel|> #}{% for message in messages %}<|channel|>final<|message|>{{ message.content }}{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant{% endif %}";
    let script = " upon <b>.</think>\n\nHello<tool_call>{\"name\": \"rest\"}</tool_call>";
    let called = [called("rest", "{}")];
    let (think, calls) = (think.as_str(), &called[..]);
    for (template, script, begun, content, reasoning, calls) in [
        (think, script, "Once", " upon <b>.</think>\n\nHello", None, calls),
        (think, script, "<think>\nWhy</think> Once", " upon <b>.</think>\n\nHello", None, calls),
        (think, script, "<think>\nOnce", "Hello", Some(" upon <b>."), calls),
        (think, "{\"a\": 1}", "The object ", "{\"a\": 1}", None, &calls[..0]),
        (channels, " upon", "Once", " upon", None, &calls[..0]),
    ] {
        let worker = scripted(template, script, &[]);
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun}]);
        let body = with_tools(json!({"messages": messages, "continue_final_message": true}));
        let expected = json!({"content": content, "reasoning": reasoning, "calls": calls});
        let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
        check(&worker, body, expected, finish).await;
        let tools = json!([{"name": "rest", "input_schema": {}}]);
        let body = json!({"messages": messages, "max_tokens": 400, "tools": tools});
        let message = worker.post("/v1/messages", &body).await.json();
        let field = |kind: &str| {
            let mut blocks = message["content"].as_array().unwrap().iter();
            blocks.find(|block| block["type"] == kind).map(|block| block[kind].as_str().unwrap_or_default())
        };
        assert_eq!((field("text"), field("thinking")), (Some(content), reasoning), "{message}");
        assert_eq!(field("tool_use").is_some(), !calls.is_empty());
    }
}

/// The text that a grammar writes has no marks, and the required call is found with every template.
#[tokio::test]
async fn required_calls_do_not_reason() {
    let script = r#"{"name": "turn", "arguments": {}}"#;
    for signs in ["[TOOL_CALLS]", "<tool_call> <think>", "<|channel|>"] {
        let worker = scripted(&template(signs, "<think>\n"), script, &[]);
        let expected = json!({"content": null, "reasoning": null, "calls": [called("turn", "{}")]});
        let required = json!({"tool_choice": "required"});
        check(&worker, with_tools(required.clone()), expected.clone(), "tool_calls").await;
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once"}]);
        let continued = merged(required, json!({"messages": messages, "continue_final_message": true}));
        check(&worker, with_tools(continued), expected, "tool_calls").await;
    }
}

#[tokio::test]
async fn reasoning_of_earlier_messages_reaches_the_template() {
    let raise = "{% for message in messages %}{% if message.reasoning_content %}{{ raise_exception(message.reasoning_content ~ message.thinking) }}{% endif %}{% endfor %}x";
    let worker = scripted(raise, "x", &[]);
    for (field, content, count) in
        [("reasoning_content", "b", 1), ("reasoning", "b", 1), ("reasoning_content", "", 2)]
    {
        let answer = json!({"role": "assistant", "content": content, field: "because"});
        let turns = json!([{"role": "user", "content": "a"}, answer]);
        let answer = worker.post("/v1/chat/completions", &chat(json!({"messages": turns}))).await;
        assert_eq!(answer.error().1, "invalid_value");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(message.matches("because").count(), count, "{message}");
    }
}
