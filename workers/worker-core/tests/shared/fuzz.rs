//! Fuzz tests of HTTP handlers with mutations of valid bodies.
use axum::http::StatusCode;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::Answer;

/// A path and a valid body for it.
pub type Seed = (&'static str, Value);

#[derive(Clone, Debug)]
pub enum Change {
    /// Replaces a value.
    Replace(Index, Value),
    /// Removes a member.
    Remove(Index),
    /// Inserts a member of another seed.
    Borrow(Index, Index),
    /// Wraps a value in an array.
    Wrap(Index),
    /// Inserts a byte into the serialized body.
    Byte(Index, u8),
    /// Truncates the serialized body.
    Cut(Index),
}

/// Strategy for values of every JSON type, plus worker-specific values `more` and strings `words`.
pub fn value(more: Vec<Value>, words: &[&str]) -> impl Strategy<Value = Value> + Clone + use<> {
    let mut values = vec![
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
        json!([[]]),
        json!([null]),
        json!(""),
        json!("\u{0}"),
        json!("x"),
        json!("\u{1F600}"),
    ];
    values.extend(words.iter().map(|word| json!(word)));
    values.extend(more);
    prop_oneof![
        3 => select(values),
        1 => any::<String>().prop_map(Value::from),
        1 => any::<i32>().prop_map(Value::from),
        1 => vec(any::<u16>(), 0..6).prop_map(Value::from),
    ]
}

fn change(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (any::<Index>(), value).prop_map(|(at, value)| Change::Replace(at, value)),
        2 => any::<Index>().prop_map(Change::Remove),
        3 => (any::<Index>(), any::<Index>()).prop_map(|(from, at)| Change::Borrow(from, at)),
        2 => any::<Index>().prop_map(Change::Wrap),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

/// Appends JSON pointers to all values inside `value`.
fn pointers(value: &Value, path: &str, found: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(key, value)| (escaped(key), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (key, value) in inner {
        let path = format!("{path}/{key}");
        pointers(value, &path, found);
        found.push(path);
    }
}

/// Returns the seed after all changes of its values.
pub fn changed(seed: &Value, changes: &[Change], seeds: &[Seed]) -> Value {
    let mut value = seed.clone();
    for change in changes {
        let mut paths = Vec::new();
        pointers(&value, "", &mut paths);
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
                let other = from.get(seeds).1.as_object().unwrap();
                let (key, borrowed) = other.iter().nth(member.index(other.len())).unwrap();
                value.as_object_mut().unwrap().insert(key.clone(), borrowed.clone());
            }
            Change::Byte(..) | Change::Cut(_) => {}
        }
    }
    value
}

/// Returns the bytes after all changes of the serialized body.
pub fn edited(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        match change {
            Change::Byte(index, byte) => bytes.insert(index.index(bytes.len() + 1), *byte),
            Change::Cut(index) => bytes.truncate(index.index(bytes.len() + 1)),
            _ => {}
        }
    }
    bytes
}

/// Checks that a response is not 5xx and that errors have OpenAI's format.
pub fn check(path: &str, answer: &Answer) -> Result<(), TestCaseError> {
    let Answer { status, text, .. } = answer;
    prop_assert!(status.is_success() || status.is_client_error(), "{path}: {status} {text}");
    if *status >= StatusCode::BAD_REQUEST {
        let error = serde_json::from_str::<Value>(text).ok().map(|body| body["error"].clone());
        let shaped = error.is_some_and(|error| error["message"].is_string() && error["code"].is_string());
        prop_assert!(shaped, "{path}: {text}");
    }
    Ok(())
}

/// Returns the number of test cases: the variable CANDLE_FUZZ_CASES if set, otherwise `cases`.
pub fn cases(cases: u32) -> u32 {
    std::env::var("CANDLE_FUZZ_CASES").ok().map_or(cases, |cases| cases.parse().unwrap())
}

/// Runs `case` on randomly chosen seeds with random changes.
pub fn run(
    cases: u32,
    seeds: &[Seed],
    value: impl Strategy<Value = Value>,
    case: impl Fn(&'static str, &Value, &[Change]) -> Result<(), TestCaseError>,
) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let strategy = (any::<Index>(), vec(change(value), 0..4));
    let result = TestRunner::new(config).run(&strategy, |(seed, changes)| {
        let (path, seed) = seed.get(seeds);
        case(path, seed, &changes)
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
