//! Comparison of a parsed text with the expected items.
use llm_worker::api::parsers::{Delta, Formats, ParserOptions, Tool};
use serde_json::{Value, json};

/// Expected item.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Reasoning(String),
    Content(String),
    Call(String, String),
    /// A call whose arguments are not complete.
    Cut(String, String),
}

pub fn reasoning(text: &str) -> Item {
    Item::Reasoning(text.into())
}

pub fn content(text: &str) -> Item {
    Item::Content(text.into())
}

pub fn call(name: &str, arguments: &str) -> Item {
    Item::Call(name.into(), arguments.into())
}

pub fn cut(name: &str, arguments: &str) -> Item {
    Item::Cut(name.into(), arguments.into())
}

/// Returns the tools that all texts may call.
pub fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value| Tool {
        name: name.into(),
        parameters: Some(json!({"type": "object", "properties": properties})),
    };
    vec![
        tool("add", json!({"a": {"type": "integer"}, "b": {"type": "integer"}})),
        tool("add_all", json!({"values": {"type": "array", "items": {"type": "number"}}})),
        Tool { name: "now".into(), parameters: None },
        tool("say", json!({"text": {"type": "string"}})),
        tool(
            "set",
            json!({"flag": {"type": "boolean"}, "item": {"type": "object"}, "name": {"type": ["string", "null"]},
                "any": {}, "unit": {"enum": ["C", "F"]}, "value": {"anyOf": [{"type": "string"}, {"type": "number"}]}}),
        ),
    ]
}

/// Formats by name, the end of the prompt, and options.
#[derive(Clone, Copy)]
pub struct Setup {
    pub tool: &'static str,
    pub reasoning: &'static str,
    pub prompt: &'static str,
    pub single: bool,
}

impl Setup {
    pub fn of(tool: &'static str, reasoning: &'static str) -> Self {
        Self { tool, reasoning, prompt: "", single: false }
    }

    /// Parses pieces of a text.
    pub fn deltas<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Delta> {
        let found = |name: &str| name != "none";
        let formats = Formats {
            tool: found(self.tool).then(|| Formats::tool_named(self.tool).unwrap()),
            reasoning: found(self.reasoning).then(|| Formats::reasoning_named(self.reasoning).unwrap()),
        };
        let options = ParserOptions { tools: tools(), single: self.single, ..ParserOptions::default() };
        let mut parser = formats.parser(options, self.prompt).unwrap();
        let mut deltas: Vec<Delta> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
        deltas.extend(parser.finish());
        deltas
    }
}

/// Joins deltas to items. Checks the order and the numbers of calls.
pub fn joined(deltas: Vec<Delta>) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let (mut calls, mut open) = (0, None::<(String, String)>);
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => match items.last_mut() {
                Some(Item::Reasoning(last)) => *last += &text,
                _ => items.push(Item::Reasoning(text)),
            },
            Delta::Content(text) => match items.last_mut() {
                Some(Item::Content(last)) => *last += &text,
                _ => items.push(Item::Content(text)),
            },
            Delta::CallBegin { index, name } => {
                assert!(open.is_none() && index == calls);
                open = Some((name, String::new()));
                calls += 1;
            }
            Delta::Arguments { index, text } => {
                assert!(index + 1 == calls && !text.is_empty());
                open.as_mut().unwrap().1 += &text;
            }
            Delta::CallEnd { index } => {
                assert_eq!(index + 1, calls);
                let (name, arguments) = open.take().unwrap();
                items.push(match serde_json::from_str::<Value>(&arguments) {
                    Ok(_) => Item::Call(name, arguments),
                    Err(_) => Item::Cut(name, arguments),
                });
            }
        }
    }
    assert!(open.is_none());
    items
}

/// Checks a text, however it is split.
pub fn check(setup: Setup, text: &str, expected: &[Item]) {
    let about = format!("{} and {} of {text:?}", setup.tool, setup.reasoning);
    assert_eq!(joined(setup.deltas([text])), expected, "{about}");
    let ends = text.char_indices().map(|(start, sign)| start + sign.len_utf8());
    let starts = text.char_indices().map(|(start, _)| start);
    let signs: Vec<&str> = starts.zip(ends).map(|(start, end)| &text[start..end]).collect();
    assert_eq!(joined(setup.deltas(signs.iter().copied())), expected, "by characters: {about}");
    for (at, _) in text.char_indices() {
        let pieces = [&text[..at], &text[at..]];
        assert_eq!(joined(setup.deltas(pieces)), expected, "{pieces:?}: {about}");
    }
}

/// Checks texts of one setup.
pub fn check_all(setup: Setup, cases: &[(&str, &[Item])]) {
    for (text, expected) in cases {
        check(setup, text, expected);
    }
}
