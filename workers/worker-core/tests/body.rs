//! Parsing of request bodies.

use serde::Deserialize;
use worker_core::body::{Limit, Nested, Others, check, from_fields, parse, required};
use worker_core::fields;

fields! {
    /// A body.
    struct Sample => {
        max_tokens: u32,
        messages: Vec<Message>,
        kind: Kind,
        nested: Nested<Outer>,
    }
}

fields! {
    /// An object.
    struct Outer => { inner: Nested<Inner>, }
}

fields! {
    /// An object in an object.
    struct Inner, others: Others::Unsupported(&[&[("y", &["*"])]]) => { kind as "type": String, }
}

#[test]
fn nested_objects_follow_the_rule_of_bodies() {
    let body = br#"{"nested": {"inner": {"type": "a", "x": null, "y": 2}}}"#;
    let inner = parse::<Sample>(body).unwrap().nested.unwrap().0.inner.unwrap().0;
    assert_eq!(inner.kind.as_deref(), Some("a"));
}

/// serde_json calls a number in place of a variant a syntax error.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
enum Kind {
    One,
}

#[derive(Deserialize, Debug)]
#[expect(dead_code, reason = "read by serde alone")]
struct Message {
    role: String,
}

#[test]
fn errors_name_the_field() {
    let table: &[(&[u8], &str, Option<&str>)] = &[
        (br#"{"messages": [{"role": 1}]}"#, "invalid_value", Some("messages[0].role")),
        (br#"{"kind": 1}"#, "invalid_value", Some("kind")),
        (br#"{"kind": {}, "messages": 1}"#, "invalid_value", Some("kind")),
        (br#"{"kind": 1"#, "invalid_json", None),
        (br#"{"nested": {"more": 1}}"#, "invalid_value", Some("nested.more")),
        (br#"{"nested": {"inner": {"x": 1}}}"#, "unsupported_parameter", Some("nested.inner.x")),
        (br#"{"nested": {"inner": {"type": 1}}}"#, "invalid_value", Some("nested.inner.type")),
        (br#"{"messages": [{"role": "a"}, {}]}"#, "invalid_value", Some("messages[1].role")),
        (br#"{"messages": 1}"#, "invalid_value", Some("messages")),
        (br#"{"messages": [], "max_tokens": -1}"#, "invalid_value", Some("max_tokens")),
        (br#"{"messages": [], "max_tokens": 1e99}"#, "invalid_value", Some("max_tokens")),
        (br#"{"messages": [], "max_tokens": 4294967296}"#, "invalid_value", Some("max_tokens")),
        (br#"{"messages": [], "max_token": 1}"#, "invalid_value", Some("max_token")),
        (br#"{"messages": [], "messages": []}"#, "invalid_value", Some("messages")),
        (br#"[]"#, "invalid_value", None),
        (br#"7"#, "invalid_value", None),
        (br#"{"messages": []} x"#, "invalid_json", None),
        (br#"{"messages": ["#, "invalid_json", None),
        (b"", "invalid_json", None),
        (b"{\"messages\": [{\"role\": \"\xff\"}]}", "invalid_utf8", None),
    ];
    for &(body, code, param) in table {
        let error = parse::<Sample>(body).expect_err(&String::from_utf8_lossy(body));
        let found = (error.status().as_u16(), error.code(), error.param());
        assert_eq!(found, (400, code, param), "{}: {error}", String::from_utf8_lossy(body));
    }
}

#[test]
fn a_missing_field_has_the_full_path() {
    fields! {
        struct Outermost => { role: Message, }
    }
    let error = parse::<Outermost>(br#"{"role": {}}"#).unwrap_err();
    assert_eq!(error.param(), Some("role.role"));
}

#[test]
fn large_input_is_truncated_in_errors() {
    let error = parse::<Sample>(format!("{{\"{}\": 1}}", "é".repeat(100_000)).as_bytes()).unwrap_err();
    assert!(error.body().to_string().len() < 5000);
    let text = format!(r#"{{"messages": [], "max_tokens": "{}"}}"#, "é".repeat(100_000));
    let error = parse::<Sample>(text.as_bytes()).unwrap_err();
    assert!(error.message().len() < 1000 && error.param() == Some("max_tokens"));
}

#[test]
fn messages_name_no_rust_types() {
    for (value, words) in
        [("-1", "expected a whole number of at least 0"), (r#""expected u64""#, "whole number")]
    {
        let error = parse::<Sample>(format!(r#"{{"max_tokens": {value}}}"#).as_bytes()).unwrap_err();
        assert!(error.message().contains(words) && !error.message().contains("usize"), "{error}");
    }
}

#[test]
fn tuples_of_groups_are_read_in_one_pass() {
    fields! {
        struct Own, others: Others::Unsupported(&[&[("other", &["*"])]]) => { text: String, }
    }
    let body = br#"{"max_tokens": 3, "other": [], "text": "x", "messages": null}"#;
    let (own, ask): (Own, Sample) = parse(body).unwrap();
    assert_eq!((own.text.as_deref(), ask.max_tokens, ask.messages.is_some()), (Some("x"), Some(3), false));
    let error = parse::<(Own, Sample)>(br#"{"max_tokens": "x"}"#).unwrap_err();
    assert_eq!(error.param(), Some("max_tokens"));
    let fields = serde_json::from_str(r#"{"max_tokens": -3}"#).unwrap();
    assert_eq!(from_fields::<(Own, Sample)>(fields).unwrap_err().param(), Some("max_tokens"));
    assert_eq!(required(ask.messages, "messages").unwrap_err().param(), Some("messages"));
}

#[test]
fn out_of_range_numbers_are_rejected_with_the_range() {
    let strength = |value| Limit("strength", value, f64::MIN_POSITIVE..=1.0, "");
    assert!(check(&[strength(0.5), strength(1.0), Limit("n", 3.0, 1.0..=3.0, "texts")]).is_ok());
    for (limit, message) in [
        (strength(0.0), "`strength` is 0, but must be above 0 and at most 1"),
        (strength(f64::NAN), "`strength` is NaN, but must be above 0 and at most 1"),
        (Limit("n", 4.0, 1.0..=3.0, "texts"), "`n` is 4, but must be 1 to 3 texts"),
        (Limit("max_tokens", 0.0, 1.0..=f64::INFINITY, ""), "`max_tokens` is 0, but must be at least 1"),
    ] {
        assert_eq!(check(&[strength(1.0), limit]).unwrap_err().message(), message);
    }
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = "[".repeat(1_000_000);
    assert_eq!(
        parse::<Sample>([b"{\"x\": ", deep.as_bytes()].concat().as_slice()).unwrap_err().code(),
        "invalid_json"
    );
}
