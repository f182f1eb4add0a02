//! Grammar of the streams of all APIs, checked without the types of the worker.
use serde_json::{Value, json};

use crate::fixture::Answer;

/// Returns names and data of the server-sent events. Checks that each event has one of each or only data.
fn events(answer: &Answer) -> Vec<(Option<&str>, &str)> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let text = answer.text.strip_suffix("\n\n").expect("an empty line ends the last event");
    text.split("\n\n").filter(|block| !block.starts_with(':')).map(event).collect()
}

fn event(block: &str) -> (Option<&str>, &str) {
    match block.split_once('\n') {
        Some((name, data)) => (name.strip_prefix("event: "), data.strip_prefix("data: ").unwrap()),
        None => (None, block.strip_prefix("data: ").unwrap()),
    }
}

fn typed(answer: &Answer) -> Vec<Value> {
    let typed = |(name, data): (Option<&str>, &str)| {
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(event["type"].as_str(), name, "{event}");
        event
    };
    events(answer).into_iter().map(typed).collect()
}

/// Checks the stream of a response. Returns the response.
pub fn response(answer: &Answer) -> Value {
    let events = typed(answer);
    let (mut done, mut item, mut part) = (Vec::new(), None::<Value>, None::<Value>);
    let mut text = String::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
        let kind = event["type"].as_str().unwrap().strip_prefix("response.").unwrap();
        if let Some(id) = event.get("item_id") {
            assert_eq!(Some(id), item.as_ref().map(|item| &item["id"]), "{event}");
        }
        if let Some(index) = event.get("output_index") {
            assert_eq!(index, done.len(), "{event}");
        }
        let is_last = number + 1 == events.len();
        match kind {
            "created" => assert_eq!((number, &event["response"]["output"]), (0, &json!([]))),
            "in_progress" => assert_eq!((number, &event["response"]["status"]), (1, &json!("in_progress"))),
            "output_item.added" => {
                assert!(number > 1 && item.is_none() && event["item"]["status"] == "in_progress", "{event}");
                assert!(event["item"]["id"].is_string());
                item = Some(event["item"].clone());
                text.clear();
            }
            "content_part.added" => {
                assert!(part.is_none() && event["content_index"] == 0, "{event}");
                part = Some(event["part"]["type"].clone());
            }
            "content_part.done" => {
                assert_eq!(part.take().as_ref(), Some(&event["part"]["type"]));
                assert_eq!(event["part"]["text"], text);
            }
            "output_item.done" => {
                let (open, closed) = (item.take().unwrap(), &event["item"]);
                assert!(part.is_none() && closed["status"] != "in_progress", "{event}");
                for field in ["id", "type", "call_id", "name", "namespace", "role"] {
                    assert_eq!(open.get(field), closed.get(field), "{event}");
                }
                let own = match closed["type"].as_str().unwrap() {
                    "function_call" => &closed["arguments"],
                    "custom_tool_call" => &closed["input"],
                    _ => &closed["content"][0]["text"],
                };
                assert_eq!(own, &text, "{event}");
                if closed["type"] == "function_call" {
                    assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{event}");
                }
                done.push(closed.clone());
            }
            "completed" | "incomplete" => {
                let response = &event["response"];
                assert!(is_last && item.is_none() && response["status"] == kind, "{event}");
                assert_eq!((&response["output"], response["error"].is_null()), (&json!(done), true));
                assert!(response["usage"]["total_tokens"].is_u64(), "{event}");
                assert!(
                    events
                        .iter()
                        .filter_map(|event| event.get("response"))
                        .all(|other| other["id"] == response["id"])
                );
            }
            _ => {
                let (subject, step) = kind.rsplit_once('.').unwrap();
                let (kind, field) = match subject {
                    "output_text" => ("message", "text"),
                    "reasoning_text" => ("reasoning", "text"),
                    "function_call_arguments" => ("function_call", "arguments"),
                    "custom_tool_call_input" => ("custom_tool_call", "input"),
                    _ => panic!("unexpected event: {event}"),
                };
                assert_eq!(item.as_ref().unwrap()["type"], kind, "{event}");
                assert_eq!(part.is_some(), field == "text", "{event}");
                match step {
                    "delta" => text.push_str(event["delta"].as_str().unwrap()),
                    "done" => assert_eq!(event[field], text),
                    _ => panic!("unexpected event: {event}"),
                }
            }
        }
        assert!(!is_last || ["completed", "incomplete"].contains(&kind), "{event}");
    }
    events.last().unwrap()["response"].clone()
}

/// Checks the stream of a message of Anthropic's API. Returns the message.
pub fn message(answer: &Answer) -> Value {
    let events = typed(answer);
    let mut message = events[0]["message"].clone();
    assert_eq!((&events[0]["type"], &message["content"]), (&json!("message_start"), &json!([])));
    assert!(message["id"].is_string() && message["usage"]["input_tokens"].is_u64(), "{message}");
    let (mut content, mut open, mut text) = (Vec::new(), None::<Value>, String::new());
    let [middle @ .., stop] = &events[1..] else { panic!("{}", answer.text) };
    assert_eq!(stop, &json!({"type": "message_stop"}));
    for event in middle {
        if let Some(index) = event.get("index") {
            assert_eq!(index, content.len(), "{event}");
        }
        let kind = event["type"].as_str().unwrap();
        assert!(kind == "ping" || message["stop_reason"].is_null(), "{event}");
        match kind {
            "ping" => {}
            "content_block_start" => {
                assert!(open.is_none() && event.get("index").is_some(), "{event}");
                open = Some(event["content_block"].clone());
                text.clear();
            }
            "content_block_delta" => {
                let field = match (open.as_ref().unwrap()["type"].as_str(), event["delta"]["type"].as_str()) {
                    (Some("text"), Some("text_delta")) => "text",
                    (Some("thinking"), Some("thinking_delta")) => "thinking",
                    (Some("thinking"), Some("signature_delta")) => "signature",
                    (Some("tool_use"), Some("input_json_delta")) => "partial_json",
                    other => panic!("{other:?}"),
                };
                text.push_str(event["delta"][field].as_str().unwrap());
            }
            "content_block_stop" => {
                let mut block = open.take().unwrap();
                let kind = block["type"].as_str().unwrap().to_owned();
                if kind == "tool_use" {
                    assert!(block["id"].is_string() && block["input"] == json!({}), "{block}");
                    block["input"] = serde_json::from_str(&text).unwrap();
                    assert!(block["input"].is_object(), "{block}");
                } else {
                    assert_eq!(block[&kind], "");
                    block[&kind] = json!(text);
                }
                content.push(block);
            }
            "message_delta" => {
                assert!(open.is_none() && event["delta"]["stop_reason"].is_string(), "{event}");
                assert!(event["usage"]["output_tokens"].is_u64(), "{event}");
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
            }
            _ => panic!("unexpected event: {event}"),
        }
    }
    let calls = content.iter().any(|block| block["type"] == "tool_use");
    assert_eq!(message["stop_reason"] == "tool_use", calls, "{message}");
    message["content"] = json!(content);
    message
}

/// Checks the stream of a chat with one choice. `usage` says whether the token counts are requested. Returns the message.
pub fn chat(answer: &Answer, usage: bool) -> Value {
    let mut events = events(answer);
    assert_eq!(events.pop(), Some((None, "[DONE]")));
    let chunks: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let mut message = json!({"content": "", "reasoning_content": "", "tool_calls": []});
    let mut finish = Value::Null;
    let mut counts = Value::Null;
    for (i, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for field in ["id", "created", "model"] {
            assert_eq!(chunk[field], chunks[0][field]);
        }
        let [choice] = &chunk["choices"].as_array().unwrap()[..] else {
            counts = chunk["usage"].clone();
            assert!(i + 1 == chunks.len() && counts["total_tokens"].is_u64(), "{chunk}");
            continue;
        };
        assert!(finish.is_null() && choice["index"] == 0, "{chunk}");
        let delta = choice["delta"].as_object().unwrap();
        assert_eq!(delta.get("role").is_some(), i == 0, "{chunk}");
        for (field, value) in delta {
            match (field.as_str(), value) {
                ("role", role) => assert_eq!(role, "assistant"),
                ("tool_calls", calls) => {
                    calls.as_array().unwrap().iter().for_each(|call| extend(&mut message, call))
                }
                (field, Value::String(more)) => {
                    message[field] = json!(format!("{}{more}", message[field].as_str().unwrap()));
                }
                (field, value) => assert!(value.is_null() && message[field].is_string(), "{chunk}"),
            }
        }
        finish = choice["finish_reason"].clone();
    }
    let calls = message["tool_calls"].as_array().unwrap();
    for call in calls {
        let arguments = call["function"]["arguments"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{call}");
    }
    assert_eq!((counts.is_object(), finish == "tool_calls"), (usage, !calls.is_empty()), "{message}");
    assert!(finish.is_string());
    message
}

/// Adds a part of a call.
fn extend(message: &mut Value, part: &Value) {
    let calls = message["tool_calls"].as_array_mut().unwrap();
    let index = part["index"].as_u64().unwrap() as usize;
    if index == calls.len() {
        assert!(part["id"].is_string() && part["type"] == "function", "{part}");
        assert!(part["function"]["name"].is_string(), "{part}");
        calls.push(part.clone());
        return;
    }
    assert_eq!(index + 1, calls.len(), "calls follow each other: {part}");
    let arguments = &mut calls[index]["function"]["arguments"];
    *arguments =
        json!(format!("{}{}", arguments.as_str().unwrap(), part["function"]["arguments"].as_str().unwrap()));
}
