//! Bodies that nobody would send: no answer is 5xx, and every refusal has the shape of errors.
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::fixture::{MODEL, Worker, json_request, worker};
use crate::tiny_llama::CONTEXT;

/// How many bodies; CANDLE_FUZZ_CASES says another number.
const CASES: u32 = 3000;

fn seeds() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", 1]}}, "required": ["a"]});
    vec![
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": [{"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 3, "stream": true,
            "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2, "stop": ["a", "b"]}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "x", "tool_call_id": "1"}], "max_completion_tokens": 3, "tool_choice": "auto",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        ),
        (
            "/v1/completions",
            json!({"model": MODEL, "prompt": "hi", "max_tokens": 3, "n": 2, "seed": 1,
            "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": 1,
            "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "logprobs": 1, "stop": "x", "ignore_eos": true}),
        ),
        ("/v1/completions", json!({"prompt": [[1, 2], [3]], "max_tokens": 2, "stream": true, "echo": false})),
        ("/v1/embeddings", json!({"model": MODEL, "input": ["a", "b"], "encoding_format": "base64"})),
        (
            "/v1/jobs",
            json!({"hive_id": "h", "model": MODEL, "prompt": "hi", "max_tokens": 2, "temperature": 0.5,
            "top_p": 0.5, "top_k": 3, "device": 0, "worker_id": "worker-1", "stream": true}),
        ),
    ]
}

/// Values in place of others.
fn value() -> impl Strategy<Value = Value> {
    let words = [
        "",
        "\u{0}",
        "x",
        "😀",
        "text",
        "json_object",
        "required",
        "none",
        "assistant",
        "</s>",
        "<|im_start|>",
    ];
    prop_oneof![
        select(vec![
            json!(null),
            json!(true),
            json!(false),
            json!([]),
            json!({}),
            json!(0),
            json!(-1),
            json!(1),
            json!(2),
            json!(-0.0),
            json!(0.5),
            json!(1e-320),
            json!(1e30),
            json!(1e308),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(300),
            json!([[]]),
            json!([null]),
            json!({"type": "object"}),
            json!({"$ref": "#"}),
            json!({"anyOf": []}),
            json!({"pattern": "("}),
        ]),
        select(words.to_vec()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        vec(any::<u16>(), 0..6).prop_map(Value::from),
        Just(json!("a ".repeat(CONTEXT))),
    ]
}

#[derive(Clone, Debug)]
enum Change {
    /// Puts a value in another's place.
    Replace(Index, Value),
    /// Takes a member away.
    Remove(Index),
    /// Puts in a member of another body.
    Borrow(Index, Index),
    /// Wraps a value in a list.
    Wrap(Index),
    /// Puts a byte into the text.
    Byte(Index, u8),
    /// Cuts the text.
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (any::<Index>(), value()).prop_map(|(at, value)| Change::Replace(at, value)),
        2 => any::<Index>().prop_map(Change::Remove),
        3 => (any::<Index>(), any::<Index>()).prop_map(|(from, at)| Change::Borrow(from, at)),
        2 => any::<Index>().prop_map(Change::Wrap),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

/// Pointers to all values inside `value`.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(key, value)| (escaped(key), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (key, value) in inner {
        let path = format!("{path}/{key}");
        places(value, &path, found);
        found.push(path);
    }
}

fn body(seed: &Value, changes: &[Change]) -> Vec<u8> {
    let mut value = seed.clone();
    let mut bytes: Vec<(Index, Option<u8>)> = Vec::new();
    for change in changes {
        let mut paths = Vec::new();
        places(&value, "", &mut paths);
        if paths.is_empty() {
            break;
        }
        let path = |index: &Index| paths[index.index(paths.len())].as_str();
        match change {
            Change::Replace(index, other) => *value.pointer_mut(path(index)).unwrap() = other.clone(),
            Change::Wrap(index) => {
                let inner = value.pointer_mut(path(index)).unwrap();
                *inner = json!([inner.take()]);
            }
            Change::Remove(index) => {
                let (parent, key) = path(index).rsplit_once('/').unwrap();
                match value.pointer_mut(parent).unwrap() {
                    Value::Object(members) => drop(members.remove(key)),
                    Value::Array(items) => drop(items.pop()),
                    _ => {}
                }
            }
            Change::Borrow(from, member) => {
                let others = seeds();
                let other: &Map<String, Value> = from.get(&others).1.as_object().unwrap();
                let (key, borrowed) = other.iter().nth(member.index(other.len())).unwrap();
                if let Some(members) = value.as_object_mut() {
                    members.insert(key.clone(), borrowed.clone());
                }
            }
            Change::Byte(index, byte) => bytes.push((*index, Some(*byte))),
            Change::Cut(index) => bytes.push((*index, None)),
        }
    }
    let mut text = value.to_string().into_bytes();
    for (index, byte) in bytes {
        let at = index.index(text.len() + 1);
        match byte {
            Some(byte) => text.insert(at, byte),
            None => text.truncate(at),
        }
    }
    text
}

async fn check(worker: &Worker, path: &str, body: Vec<u8>) -> Result<(), TestCaseError> {
    let answer = worker.read(json_request(path, body)).await;
    let status = answer.status.as_u16();
    prop_assert!(status < 500, "{path}: {status} {}", answer.text);
    prop_assert!((200..300).contains(&status) || (400..500).contains(&status), "{status}");
    if status >= 400 {
        let shape = serde_json::from_str::<Value>(&answer.text).ok();
        let shaped = shape
            .is_some_and(|body| body["error"]["message"].is_string() && body["error"]["code"].is_string());
        prop_assert!(shaped, "{path}: {}", answer.text);
    }
    prop_assert!(!answer.text.contains("the engine stopped unexpectedly"), "{}", answer.text);
    Ok(())
}

#[test]
fn no_body_makes_a_5xx() {
    let cases = std::env::var("CANDLE_FUZZ_CASES").ok().map_or(CASES, |cases| cases.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let worker = runtime.block_on(async { worker() });
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seeds = seeds();
    let strategy = (any::<Index>(), vec(change(), 0..4));
    let run = TestRunner::new(config).run(&strategy, |(seed, changes)| {
        let (path, seed) = seed.get(&seeds);
        runtime.block_on(check(&worker, path, body(seed, &changes)))
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
    runtime.block_on(worker.idle());
    assert_eq!(worker.served.engine.status().failed, None);
}
