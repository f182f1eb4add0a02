//! Bodies that nobody would send: no answer is 5xx, and every refusal has the shape of errors.
use axum::body::Body;
use axum::http::Request;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::fixture::{Worker, form_body, form_request, json_request, with};
use crate::images::{base64, lies, mask, png};

/// How many bodies; CANDLE_FUZZ_CASES says another number.
const CASES: u32 = 1000;
const JOBS: &str = "/v1/jobs";
const EDITS: &str = "/v1/images/edits";

/// Where, and the members of a valid body. Of a form, files are base64 here.
fn seeds() -> Vec<(&'static str, Value)> {
    let (image, cover) = (base64(&png(16, 16)), base64(&mask(16, 16)));
    vec![
        (
            JOBS,
            json!({"prompt": "a red circle", "negative_prompt": "blue", "width": 16, "height": 16, "steps": 2,
            "guidance": 2.0, "seed": 1, "n": 1, "scheduler": "euler", "karras": true, "format": "png", "worker_id": "worker-1",
            "callback": false, "device": 0, "hive_id": "h", "model": "tiny"}),
        ),
        (
            JOBS,
            json!({"prompt": "red", "image": image, "mask": cover, "strength": 0.7, "steps": 2, "format": "jpeg"}),
        ),
        (
            "/v1/images/generations",
            json!({"prompt": "a red circle", "n": 1, "size": "16x24", "response_format": "b64_json",
            "model": "tiny", "seed": 1, "steps": 1, "guidance": 1.5, "scheduler": "unipc", "karras": false, "output_format": "jpeg",
            "quality": "auto", "user": "x"}),
        ),
        (
            EDITS,
            json!({"prompt": "red", "image": image, "mask": cover, "size": "auto", "n": "1", "steps": "1",
            "strength": "0.5", "seed": "3", "guidance": "1", "karras": "true"}),
        ),
    ]
}

/// Values in place of others.
fn value() -> impl Strategy<Value = Value> {
    let files: Vec<Value> = lies()
        .into_iter()
        .filter(|(_, file)| file.len() < 10_000)
        .map(|(_, file)| base64(&file).into())
        .chain([(16, 16), (8, 8), (24, 16), (17, 16)].map(|(w, h)| base64(&png(w, h)).into()))
        .collect();
    let words = [
        "",
        "\u{0}",
        "😀",
        "auto",
        "8x8",
        "0x0",
        "16x16",
        "x",
        "png",
        "jpeg",
        "ddim",
        "euler-a",
        "dpm++2m",
        "NaN",
        "-1",
        "1e308",
        "data:image/png;base64,",
        "true",
        "<|endoftext|>",
        "<|startoftext|> red",
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
            json!(8),
            json!(16),
            json!(24),
            json!(-0.0),
            json!(0.5),
            json!(1e-320),
            json!(1e30),
            json!(1e308),
            json!(u64::MAX),
            json!(i64::MIN),
            json!([[]]),
            json!([null]),
            json!("a ".repeat(6000)),
        ]),
        select(words.to_vec()).prop_map(Value::from),
        select(files),
        any::<String>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
    ]
}

#[derive(Clone, Debug)]
enum Change {
    /// Puts a value in a member's place.
    Replace(Index, Value),
    /// Takes a member away.
    Remove(Index),
    /// Puts in a member of another body.
    Borrow(Index, Index),
    /// Wraps a member in a list.
    Wrap(Index),
    /// Puts a byte into the body.
    Byte(Index, u8),
    /// Cuts the body.
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (any::<Index>(), value()).prop_map(|(at, value)| Change::Replace(at, value)),
        2 => any::<Index>().prop_map(Change::Remove),
        3 => (any::<Index>(), any::<Index>()).prop_map(|(from, at)| Change::Borrow(from, at)),
        1 => any::<Index>().prop_map(Change::Wrap),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

fn request(path: &str, seed: &Value, changes: &[Change]) -> Request<Body> {
    let mut members = seed.as_object().unwrap().clone();
    let mut bytes: Vec<(Index, Option<u8>)> = Vec::new();
    for change in changes {
        let key = |index: &Index| members.keys().nth(index.index(members.len())).unwrap().clone();
        match change {
            Change::Byte(index, byte) => bytes.push((*index, Some(*byte))),
            Change::Cut(index) => bytes.push((*index, None)),
            Change::Borrow(from, member) => {
                let others = seeds();
                let other = from.get(&others).1.as_object().unwrap();
                let (key, value) = other.iter().nth(member.index(other.len())).unwrap();
                members.insert(key.clone(), value.clone());
            }
            _ if members.is_empty() => {}
            Change::Replace(index, value) => drop(members.insert(key(index), value.clone())),
            Change::Remove(index) => drop(members.remove(&key(index))),
            Change::Wrap(index) => {
                let key = key(index);
                let value = members[&key].take();
                members.insert(key, json!([value]));
            }
        }
    }
    let mut body = match path {
        EDITS => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let parts: Vec<(String, bool, Vec<u8>)> = members
                .iter()
                .map(|(name, value)| {
                    let file = name == "image" || name == "mask";
                    let text = text(value);
                    let bytes = match file.then(|| sd_worker::images::Source::Text(text.clone()).file()) {
                        Some(Ok(file)) => file,
                        _ => text.into_bytes(),
                    };
                    (name.clone(), file, bytes)
                })
                .collect();
            let parts: Vec<_> = parts
                .iter()
                .map(|(name, file, bytes)| (name.as_str(), file.then_some("f"), bytes.as_slice()))
                .collect();
            form_body(&parts)
        }
        _ => Value::Object(members).to_string().into_bytes(),
    };
    for (index, byte) in bytes {
        let at = index.index(body.len() + 1);
        match byte {
            Some(byte) => body.insert(at, byte),
            None => body.truncate(at),
        }
    }
    if path == EDITS { form_request(body) } else { json_request(path, body) }
}

async fn check(worker: &Worker, request: Request<Body>) -> Result<(), TestCaseError> {
    let path = request.uri().path().to_owned();
    let answer = worker.read(request).await;
    let status = answer.status.as_u16();
    prop_assert!(
        (200..300).contains(&status) || (400..500).contains(&status),
        "{path}: {status} {}",
        answer.text
    );
    if status >= 400 {
        let shape = serde_json::from_str::<Value>(&answer.text).ok();
        let shaped = shape
            .is_some_and(|body| body["error"]["message"].is_string() && body["error"]["code"].is_string());
        prop_assert!(shaped, "{path}: {}", answer.text);
    }
    if status == 202 {
        let sse_url = answer.json()["sse_url"].as_str().unwrap().to_owned();
        let (name, data) = worker.get(&sse_url).await.events().pop().unwrap();
        prop_assert!(name == "complete", "{data}");
    }
    Ok(())
}

#[test]
fn no_body_makes_a_5xx() {
    let cases = std::env::var("CANDLE_FUZZ_CASES").ok().map_or(CASES, |cases| cases.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limits = ["--max-side", "64", "--max-pixels", "4096", "--max-steps", "4", "--max-images", "2"];
    let worker = runtime.block_on(async { with(&limits) });
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seeds = seeds();
    let strategy = (any::<Index>(), vec(change(), 0..4));
    let run = TestRunner::new(config).run(&strategy, |(seed, changes)| {
        let (path, seed) = seed.get(&seeds);
        runtime.block_on(check(&worker, request(path, seed, &changes)))
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
    runtime.block_on(worker.idle());
    let status = worker.served.queue.status();
    assert_eq!((status.failed, status.cancelled), (0, 0));
    assert!(status.complete >= u64::from(cases / 20), "{status:?}: too few bodies are good ones");
}
