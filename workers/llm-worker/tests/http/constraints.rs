//! Constraints on texts, in all forms of the API.
use serde_json::{Value, json};

use crate::answers::{chat, completion, merged};
use crate::fixture::{Ask, Worker, worker};

async fn text(worker: &Worker, path: &str, body: Value) -> String {
    let answer = worker.post(path, &body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    let choice = answer.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop", "{body}: {choice}");
    choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap().to_owned()
}

/// `[ab]{3}-[0-9]+` up to 4 digits.
fn is_code(text: &str) -> bool {
    text.split_once('-').is_some_and(|(letters, digits)| {
        letters.len() == 3
            && letters.bytes().all(|byte| byte == b'a' || byte == b'b')
            && (1..=4).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[tokio::test]
async fn texts_have_the_form_that_is_requested() {
    let worker = worker();
    let regex = "[ab]{3}-[0-9]{1,4}";
    let gbnf = "root ::= [ab]{3} \"-\" digit{1,4}\ndigit ::= [0-9]";
    let lark = "start: /[ab]{3}/ \"-\" DIGITS\nDIGITS: /[0-9]{1,4}/";
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let choice = json!(["red", "green", "blue"]);
    let tag = json!({"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f>"]});
    let nested = json!({"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"});
    let is_schema =
        |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value["a"].is_boolean());
    let is_choice = |text: &str| ["red", "green", "blue"].contains(&text);
    let is_tag = |text: &str| {
        text.strip_prefix("<f>").and_then(|text| text.strip_suffix("</f>")).is_some_and(is_schema)
    };
    type Fits<'a> = &'a dyn Fn(&str) -> bool;
    let cases: Vec<(Value, Fits)> = vec![
        (json!({"guided_regex": regex}), &is_code),
        (json!({"guided_grammar": gbnf}), &is_code),
        (json!({"guided_grammar": lark}), &is_code),
        (json!({"grammar": gbnf}), &is_code),
        (json!({"structured_outputs": {"regex": regex}}), &is_code),
        (json!({"structured_outputs": {"grammar": gbnf}}), &is_code),
        (json!({"response_format": {"type": "regex", "regex": regex}}), &is_code),
        (json!({"response_format": {"type": "regex", "value": regex}}), &is_code),
        (json!({"response_format": {"type": "gbnf", "gbnf": gbnf}}), &is_code),
        (json!({"response_format": {"type": "lark", "lark": lark}}), &is_code),
        (json!({"response_format": {"type": "grammar", "grammar": gbnf}}), &is_code),
        (json!({"guided_choice": choice, "guided_decoding_backend": "xgrammar"}), &is_choice),
        (json!({"structured_outputs": {"choice": choice}}), &is_choice),
        (json!({"response_format": {"type": "choice", "choice": choice}}), &is_choice),
        (json!({"guided_json": schema}), &is_schema),
        (json!({"guided_json": schema.to_string()}), &is_schema),
        (json!({"json_schema": schema}), &is_schema),
        (json!({"structured_outputs": {"json": schema, "disable_fallback": true}}), &is_schema),
        (json!({"response_format": {"type": "structural_tag", "format": nested}}), &is_tag),
        (json!({"structured_outputs": {"structural_tag": json!({"format": nested}).to_string()}}), &is_tag),
    ];
    // A model of random weights would write white space until the limit.
    let space = json!({"logit_bias": {"9": -100, "10": -100, "13": -100, "32": -100, "220": -100}, "max_tokens": 100});
    for (fields, fits) in cases {
        for (path, body) in
            [("/v1/completions", completion(json!({}))), ("/v1/chat/completions", chat(json!({})))]
        {
            let written = text(&worker, path, merged(merged(body, space.clone()), fields.clone())).await;
            assert!(fits(&written), "{fields}: {written:?}");
        }
    }
    // Free text with tags: the first token begins one.
    let body = merged(
        completion(json!({"logit_bias": {"60": 100}, "max_tokens": 40})),
        json!({"guided_json": null,
        "response_format": merged(json!({"type": "structural_tag"}), tag)}),
    );
    let written = worker.post("/v1/completions", &body).await.json()["choices"][0]["text"].clone();
    assert!(written.as_str().unwrap().contains('<'), "{written}");
}

/// The minimum delays the end only where the grammar allows more text.
#[tokio::test]
async fn constrained_texts_have_a_minimum_length() {
    let worker = worker();
    let count = async |regex: &str, min_tokens: usize| {
        let bias: Value = worker.served.engine.text().ends().iter().map(|end| json!([end, 100])).collect();
        let own =
            json!({"guided_regex": regex, "min_tokens": min_tokens, "max_tokens": 30, "logit_bias": bias});
        let answer = worker.post("/v1/completions", &completion(own)).await.json();
        answer["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!(count("x*", 0).await, 0);
    assert_eq!(count("x*", 7).await, 7);
    assert_eq!(count("xyz", 7).await, 3);
    assert_eq!(count("x{0,4}", 7).await, 4);
}
