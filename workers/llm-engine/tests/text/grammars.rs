//! Random texts that grammars allow.
use llm_engine::request::Constraint;
use llm_engine::text::{Grammar, TextCodec};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::tokenizers_built::{ADDED, END, bytes, pieces, text, tiny_llama};

pub fn allowed(grammar: &mut Grammar, text: &TextCodec) -> Vec<u32> {
    let words = grammar.allowed().unwrap();
    let may = |token: &u32| words.get(*token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
    (0..text.vocabulary() as u32).filter(may).collect()
}

/// Writes up to 50 tokens that a constraint allows, unless it is rejected.
pub fn write_some_tokens(text: &TextCodec, constraint: &Constraint) {
    let Ok(mut grammar) = text.grammar(constraint) else { return };
    for _ in 0..50 {
        if grammar.finished() || grammar.allowed().is_err() {
            break;
        }
        let choices = allowed(&mut grammar, text);
        if choices.last().is_none_or(|token| grammar.accept(*token).is_err()) {
            break;
        }
    }
}

/// Generates a random text that the grammar allows, and checks where the grammar lets it end.
fn random_text(text: &TextCodec, constraint: &Constraint, seed: u64) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let mut grammar = text.grammar(constraint).unwrap();
    let end = text.encode(END, false).unwrap().pop().unwrap();
    let mut tokens = Vec::new();
    let patience = random.random_range(5..60);
    loop {
        let choices = allowed(&mut grammar, text);
        let written = text.decode_after(&tokens).unwrap();
        // JSON that starts with a brace or bracket is complete exactly where it parses.
        if written.trim_start().starts_with(['{', '[']) {
            assert_eq!(choices.contains(&end), whole(&written), "{written:?}");
        }
        assert!(!choices.is_empty(), "no token may follow {written:?}");
        let long = tokens.len() > patience;
        let closing = |token: &&u32| matches!(text.token_text(**token).as_str(), "\"" | "}" | "]" | END);
        let token = match choices.iter().find(closing) {
            Some(token) if long => *token,
            _ => choices[random.random_range(0..choices.len())],
        };
        grammar.accept(token).unwrap();
        if token == end {
            assert!(grammar.finished());
            return written;
        }
        if grammar.finished() {
            assert_eq!(allowed(&mut grammar, text), [end]);
        }
        tokens.push(token);
        assert!(tokens.len() < 3000, "{written:?} does not end");
    }
}

/// Returns true if the text is JSON, with numbers of any size.
fn whole(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

type Fits = fn(&Value) -> bool;

fn schemas() -> Vec<(Value, Fits)> {
    vec![
        (
            json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 5},
                    "age": {"type": "integer", "minimum": 0, "maximum": 130},
                },
                "required": ["name", "age"],
                "additionalProperties": false,
            }),
            |value| {
                let name = value["name"].as_str().map_or(0, |name| name.chars().count());
                value.as_object().is_some_and(|fields| fields.len() == 2)
                    && (1..=5).contains(&name)
                    && value["age"].as_u64().is_some_and(|age| age <= 130)
            },
        ),
        (
            json!({"type": "array", "items": {"enum": ["red", "green", 3]}, "minItems": 2, "maxItems": 4}),
            |value| {
                let known = |item: &Value| [json!("red"), json!("green"), json!(3)].contains(item);
                value
                    .as_array()
                    .is_some_and(|items| (2..=4).contains(&items.len()) && items.iter().all(known))
            },
        ),
        (json!({"anyOf": [{"type": "boolean"}, {"const": "none"}, {"type": "null"}]}), |value| {
            value.is_boolean() || value == "none" || value.is_null()
        }),
        (
            json!({
                "$defs": {"tree": {
                    "type": "object",
                    "properties": {"left": {"$ref": "#/$defs/tree"}, "leaf": {"type": "boolean"}},
                    "required": ["leaf"],
                    "additionalProperties": false,
                }},
                "$ref": "#/$defs/tree",
            }),
            |value| {
                fn tree(value: &Value) -> bool {
                    let known = |(key, value): (&String, &Value)| match key.as_str() {
                        "left" => tree(value),
                        "leaf" => value.is_boolean(),
                        _ => false,
                    };
                    value["leaf"].is_boolean()
                        && value.as_object().is_some_and(|fields| fields.iter().all(known))
                }
                tree(value)
            },
        ),
        (
            json!({
                "type": "object",
                "properties": {
                    "when": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
                    "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                },
                "required": ["when", "share"],
                "additionalProperties": false,
            }),
            |value| {
                let when = value["when"].as_str().unwrap_or_default().as_bytes();
                let digits = when
                    .iter()
                    .enumerate()
                    .all(|(at, byte)| if at == 4 { *byte == b'-' } else { byte.is_ascii_digit() });
                when.len() == 7
                    && digits
                    && value["share"].as_f64().is_some_and(|share| share > 0.0 && share <= 1.0)
            },
        ),
    ]
}

#[test]
fn random_texts_match_their_schema() {
    for tokenizer in [bytes(), pieces()] {
        let text = text(tokenizer);
        for (schema, fits) in schemas() {
            let constraint = Constraint::JsonSchema(schema.clone());
            for seed in 0..20 {
                let written = random_text(&text, &constraint, seed);
                let value: Value =
                    serde_json::from_str(&written).unwrap_or_else(|error| panic!("{error}: {written:?}"));
                assert!(fits(&value), "{written:?} does not match {schema}");
            }
        }
    }
}

#[test]
fn json_object_mode_generates_objects() {
    let text = text(bytes());
    for seed in 0..30 {
        let written = random_text(&text, &Constraint::JsonObject, seed);
        assert!(whole(&written) && written.trim_start().starts_with('{'), "{written:?}");
    }
}

/// White space between JSON tokens is bounded.
#[test]
fn white_space_is_bounded() {
    let text = text(bytes());
    let mut grammar = text.grammar(&Constraint::JsonObject).unwrap();
    let brace = text.encode("{", false).unwrap()[0];
    let space = text.encode(" ", false).unwrap()[0];
    grammar.accept(brace).unwrap();
    let spaces = (0..1000).take_while(|_| {
        let may = allowed(&mut grammar, &text).contains(&space);
        if may {
            grammar.accept(space).unwrap();
        }
        may
    });
    let count = spaces.count();
    assert!((8..=200).contains(&count), "{count} spaces");
}

#[test]
fn disallowed_tokens_are_rejected() {
    let text = text(bytes());
    let token = |name: &str| text.encode(name, false).unwrap()[0];
    let mut grammar = text.grammar(&Constraint::JsonObject).unwrap();
    let start = allowed(&mut grammar, &text);
    assert!(start.contains(&token("{")));
    for name in ["a", "[", "}", END, ADDED] {
        assert!(!start.contains(&token(name)), "{name}");
        let mut grammar = text.grammar(&Constraint::JsonObject).unwrap();
        let message = format!("{:#}", grammar.accept(token(name)).unwrap_err());
        assert!(message.contains("does not allow token"), "{message}");
        assert!(grammar.allowed().is_err());
    }
    for name in ["{", "}"] {
        grammar.accept(token(name)).unwrap();
    }
    grammar.accept(token(END)).unwrap();
    assert!(grammar.finished() && grammar.accept(token("{")).is_err());
}

#[test]
fn invalid_schemas_are_rejected_with_a_reason() {
    let text = text(bytes());
    let mut deep = json!({"type": "string"});
    for _ in 0..60 {
        deep = json!({"type": "array", "items": deep});
    }
    let many: Vec<Value> = (0..30_000).map(Value::from).collect();
    // Combinations that are too many to enumerate.
    let choice = |of: usize| -> Value { (0..6).map(|value| json!({"const": value * of})).collect() };
    let fields = |of: usize| -> Value {
        let field =
            |name: usize| json!({"properties": {format!("{of}-{name}"): {"minimum": of}}, "required": ["x"]});
        (0..5).map(field).collect()
    };
    let bad = [
        (json!({"allOf": (1..16).map(|of| json!({"anyOf": choice(of)})).collect::<Vec<_>>()}), "too large"),
        (json!({"allOf": (0..12).map(|of| json!({"anyOf": fields(of)})).collect::<Vec<_>>()}), "too large"),
        (json!({"oneOf": [{"minimum": 1}, {"minimum": 2}]}), "oneOf"),
        (json!({"prefixItems": (0..2_000).map(|_| json!({})).collect::<Vec<_>>()}), "objects and arrays"),
        (json!(3), "must be an object"),
        (json!(null), "must be an object"),
        (json!({"type": "strnig"}), "strnig"),
        (json!({"type": 7}), "schema cannot be used"),
        (deep, "deeper"),
        (json!({"enum": many}), "values"),
        (json!({"type": "object", "x-guidance": {"whitespace_pattern": ".*"}}), "x-guidance"),
        (json!({"type": "string", "pattern": "("}), "schema cannot be used"),
        (json!({"type": "string", "minLength": 5, "maxLength": 2}), "schema cannot be used"),
        (json!({"$ref": "https://example.com/schema.json"}), "schema cannot be used"),
        (json!({"$ref": "#/$defs/none"}), "schema cannot be used"),
        (json!(false), "must be an object"),
        (json!({"enum": [1, i64::MIN]}), "above -2^63"),
        (json!({"const": {"a": [i64::MIN + 1]}}), "above -2^63"),
        (json!({"type": "integer", "minimum": -1e30, "maximum": -1e19}), "above -2^63"),
    ];
    for (schema, wanted) in bad {
        let short: String = schema.to_string().chars().take(80).collect();
        match text.grammar(&Constraint::JsonSchema(schema)) {
            Ok(_) => panic!("{short} is accepted"),
            Err(error) => {
                let message = format!("{error:#}");
                assert!(message.contains(wanted), "{short}: {message}");
                assert!(!message.contains("<state>") && !message.contains("non-verbose"), "{message}");
            }
        }
    }
    // The next lower number that f64 has is the limit.
    text.grammar(&Constraint::JsonSchema(json!({"const": i64::MIN + 1024}))).unwrap();
}

/// Schemas that would take unlimited time or memory fail with an error.
#[test]
fn hostile_schemas_are_rejected() {
    let text = text(bytes());
    // Each definition refers to the next, as deep as the schema size allows.
    let chain = |link: fn(Value) -> Value, links: usize| -> Value {
        let next = |at: usize| link(json!({"$ref": format!("#/$defs/{}", at + 1)}));
        let mut links: serde_json::Map<String, Value> =
            (0..links).map(|at| (at.to_string(), next(at))).collect();
        links.insert(links.len().to_string(), json!({"type": "object"}));
        json!({"$defs": links, "$ref": "#/$defs/0"})
    };
    let hostile = [
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "pattern": "^(a|b)*a(a|b){40}$"}),
        json!({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}),
        json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "null"}}),
        chain(|next| next, 1_990),
        chain(|next| json!({"allOf": [next, {"type": "object"}]}), 490),
        chain(|next| json!({"anyOf": [next]}), 660),
        chain(|next| json!({"oneOf": [next, {"type": "null"}]}), 490),
        chain(|next| json!({"items": next}), 990),
        chain(|next| json!({"properties": {"a": next}, "required": ["a"]}), 490),
        json!({"type": "string", "pattern": "^.{0,100000}$"}),
        json!({"type": "number", "multipleOf": 0.000_000_000_1}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"type": "object", "patternProperties": {"^(a+)+$": {"type": "null"}, "^(a|aa)+$": {"type": "null"}}}),
    ];
    for schema in hostile {
        write_some_tokens(&text, &Constraint::JsonSchema(schema));
    }
}

#[test]
fn grammars_work_with_a_real_vocabulary_and_threads() {
    let text = TextCodec::from_folder(&tiny_llama()).unwrap();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false});
    let mut grammar = text.grammar(&Constraint::JsonSchema(schema)).unwrap();
    let written = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let mut written = Vec::new();
                for token in text.encode("{\"n\": 12}", false).unwrap() {
                    assert!(allowed(&mut grammar, &text).contains(&token));
                    grammar.accept(token).unwrap();
                    written.push(token);
                }
                written
            })
            .join()
            .unwrap()
    });
    assert!(grammar.finished());
    assert_eq!(allowed(&mut grammar, &text), [2]);
    assert_eq!(text.decode(&written).unwrap(), "{\"n\": 12}");
}

/// Compiled grammars are kept for other texts with the same schema.
#[test]
fn grammars_of_one_schema_are_independent() {
    let codec = text(bytes());
    let constraint = Constraint::JsonSchema(json!({ "const": true }));
    let tokens = codec.encode("true", false).unwrap();
    let [mut one, mut other] = [(); 2].map(|()| codec.grammar(&constraint).unwrap());
    let start = other.allowed().unwrap().to_vec();
    tokens.iter().for_each(|token| one.accept(*token).unwrap());
    assert!(one.finished() && !other.finished());
    assert_eq!(other.allowed().unwrap(), start);
    assert_eq!(codec.grammar(&constraint).unwrap().allowed().unwrap(), start);
    tokens.iter().for_each(|token| other.accept(*token).unwrap());
    assert!(other.finished());
}
