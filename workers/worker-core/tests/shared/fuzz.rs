//! Fuzz tests of HTTP handlers with mutations of valid bodies.
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
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
    /// Repeats a text, or the last item of an array, this many times.
    Repeat(Index, u16),
    /// Replaces a value by arrays or objects inside one another, of this depth.
    Nest(Index, bool, usize),
    /// Adds a member of the serialized body for a second time.
    Duplicate(Index),
    /// Inserts a byte into the serialized body.
    Byte(Index, u8),
    /// Changes bits of a byte of the serialized body.
    Flip(Index, u8),
    /// Inserts a text into the serialized body.
    Insert(Index, &'static str),
    /// Truncates the serialized body.
    Cut(Index),
    /// Adds a query string.
    Query(String),
    /// Adds a header.
    Header(&'static str, Vec<u8>),
    /// Removes `/v1` from the path.
    WithoutVersion,
}

/// Texts that are special in JSON or in Unicode.
const PIECES: [&str; 12] = [
    "\\ud800",
    "\\u0000",
    "\\",
    "\"",
    "1e999",
    "-",
    "99999999999999999999",
    "\u{feff}",
    "\u{202e}",
    "e\u{301}",
    "{\"\":",
    "[",
];
/// Depths below and above the limit of the JSON reader, and one that would exhaust the stack of a reader without a limit.
const DEPTHS: [usize; 6] = [2, 60, 126, 127, 128, 100_000];
/// Maximum size of a repeated value in bytes.
const MAX_REPEATED: usize = 100_000;
/// Prefix of a string that stands for nested arrays or objects until the body is serialized.
const NESTED: &str = "nested:";
const HEADERS: [&str; 20] = [
    "accept",
    "accept-encoding",
    "anthropic-beta",
    "anthropic-version",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "last-event-id",
    "openai-beta",
    "origin",
    "referer",
    "transfer-encoding",
    "x-api-key",
    "x-forwarded-for",
    "x-request-id",
];
const HEADER_VALUES: [&str; 14] = [
    "",
    "*",
    "*/*",
    "-1",
    "1e9",
    "gzip",
    "chunked",
    "null",
    "http://127.0.0.1",
    "127.0.0.1:99999",
    "Bearer ",
    "application/json; charset=utf-16",
    "multipart/form-data",
    "99999999999999999999",
];

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

fn change(value: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (any::<Index>(), value).prop_map(|(at, value)| Change::Replace(at, value)),
        2 => any::<Index>().prop_map(Change::Remove),
        3 => (any::<Index>(), any::<Index>()).prop_map(|(from, at)| Change::Borrow(from, at)),
        2 => any::<Index>().prop_map(Change::Wrap),
        1 => (any::<Index>(), 1..400u16).prop_map(|(at, times)| Change::Repeat(at, times)),
        1 => (any::<Index>(), any::<bool>(), select(&DEPTHS[..])).prop_map(|(at, is_array, depth)| {
            Change::Nest(at, is_array, depth)
        }),
        1 => any::<Index>().prop_map(Change::Duplicate),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => (any::<Index>(), 1..=u8::MAX).prop_map(|(at, bits)| Change::Flip(at, bits)),
        1 => (any::<Index>(), select(&PIECES[..])).prop_map(|(at, piece)| Change::Insert(at, piece)),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => query().prop_map(Change::Query),
        1 => (select(&HEADERS[..]), header_value()).prop_map(|(name, value)| Change::Header(name, value)),
        1 => Just(Change::WithoutVersion),
    ]
}

fn query() -> impl Strategy<Value = String> {
    let queries =
        ["", "&&==", "stream=true&stream=false", "model=%00%ff%", "api-version=2024-02-01", "?a[]=1;b"];
    let queries = queries.map(str::to_owned).into_iter().chain(["a".repeat(10_000)]).collect::<Vec<_>>();
    prop_oneof![1 => select(queries), 1 => "[!-~]{0,40}"]
}

fn header_value() -> impl Strategy<Value = Vec<u8>> {
    let values = HEADER_VALUES.map(|value| value.as_bytes().to_vec()).into_iter().chain([vec![b'a'; 10_000]]);
    prop_oneof![
        2 => select(values.collect::<Vec<_>>()),
        1 => vec(prop_oneof![0x20..0x7fu8, 0x80..=0xffu8], 0..40),
    ]
}

/// Returns a request after all changes of its address and its headers. Those that HTTP does not allow are left out.
pub fn addressed(mut request: Request<Body>, changes: &[Change]) -> Request<Body> {
    for change in changes {
        let path = request.uri().to_string();
        let changed = match change {
            Change::Query(query) => format!("{path}?{query}"),
            Change::WithoutVersion => path.strip_prefix("/v1").unwrap_or(&path).to_owned(),
            Change::Header(name, value) => {
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    request.headers_mut().insert(*name, value);
                }
                continue;
            }
            _ => continue,
        };
        if let Ok(uri) = changed.parse() {
            *request.uri_mut() = uri;
        }
    }
    request
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
            Change::Repeat(index, times) => {
                let (inner, times) = (value.pointer_mut(path(index)).unwrap(), usize::from(*times));
                let fits = |value: &Value| value.to_string().len() * times <= MAX_REPEATED;
                match inner {
                    Value::String(text) if text.len() * times <= MAX_REPEATED => *text = text.repeat(times),
                    Value::Array(items) => {
                        let last = items.last().filter(|item| fits(item)).cloned();
                        items.extend(last.into_iter().flat_map(|last| vec![last; times]));
                    }
                    _ => {}
                }
            }
            Change::Nest(index, is_array, depth) => {
                *value.pointer_mut(path(index)).unwrap() = format!("{NESTED}{is_array}:{depth}").into();
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
            _ => {}
        }
    }
    value
}

/// Returns the bytes after all changes of the serialized body.
pub fn edited(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        match change {
            Change::Nest(_, is_array, depth) => {
                let (open, close) = if *is_array { ("[", "]") } else { ("{\"a\":", "}") };
                let nested = format!("{}1{}", open.repeat(*depth), close.repeat(*depth));
                let text = String::from_utf8(bytes).unwrap_or_default();
                bytes = text.replacen(&format!("\"{NESTED}{is_array}:{depth}\""), &nested, 1).into_bytes();
            }
            Change::Duplicate(index) => {
                if let Ok(Value::Object(members)) = serde_json::from_slice(&bytes)
                    && let Some((name, value)) = members.iter().nth(index.index(members.len().max(1)))
                {
                    bytes.splice(..1, format!("{{{}:{value},", json!(name)).into_bytes());
                }
            }
            Change::Flip(index, bits) if !bytes.is_empty() => {
                let at = index.index(bytes.len());
                bytes[at] ^= bits;
            }
            Change::Insert(index, piece) => {
                let at = index.index(bytes.len() + 1);
                bytes.splice(at..at, piece.bytes());
            }
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

/// Returns the seed of the test cases: the variable CANDLE_FUZZ_SEED if set.
pub fn seed() -> Option<u64> {
    std::env::var("CANDLE_FUZZ_SEED").ok().map(|seed| seed.parse().unwrap())
}

/// Runs `case` on randomly chosen bodies with random changes, which `seed` determines if it is given.
pub fn run(
    cases: u32,
    seed: Option<u64>,
    seeds: &[Seed],
    value: impl Strategy<Value = Value> + 'static,
    case: impl Fn(&'static str, &Value, &[Change]) -> Result<(), TestCaseError>,
) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let strategy = (any::<Index>(), vec(change(value), 0..4));
    let mut runner = match seed {
        Some(seed) => {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
        }
        None => TestRunner::new(config),
    };
    let result = runner.run(&strategy, |(seed, changes)| {
        let (path, seed) = seed.get(seeds);
        case(path, seed, &changes)
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
