//! Detects the kinds of messages that a template supports, by rendering short conversations, and adapts messages to it.
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::renderer::{Conversation, Renderer};

/// Texts that no template contains.
const SYSTEM: &str = "probe of the system text";
const USER: &str = "probe of the user text";
const ARGUMENTS: [&str; 2] = ["probe of a name", "probe of a value"];
/// Separates a system text from the user's text, and system texts from each other.
const SEPARATOR: &str = "\n\n";

/// Properties of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Support {
    /// If true, a system message changes the text. Others are merged into the next user message.
    system: bool,
    /// If true, content must be a list of parts.
    parts: bool,
    /// If true, the arguments of tool calls must be JSON text instead of objects.
    text_arguments: bool,
}

impl Support {
    /// Renders probes, with a tool if the template is used with tools. A template that rejects even a single user message
    /// is assumed to support all messages in their usual form.
    pub(super) fn of(renderer: &Renderer, with_tools: bool) -> Self {
        let function = json!({ "name": "probe", "description": "Probe.", "parameters": { "type": "object", "properties": {} } });
        let tools = [json!({ "type": "function", "function": function })];
        let tools = if with_tools { &tools[..] } else { &[] };
        let shows = |messages: &[Value], text: &str| {
            let rendered = renderer.render(&Conversation { messages, tools, variables: None });
            rendered.is_ok_and(|rendered| rendered.contains(text))
        };
        let usual = Self { system: true, parts: false, text_arguments: false };
        let in_parts = json!([{ "role": "user", "content": parts(USER) }]);
        let parts = match in_parts.as_array() {
            _ if shows(&[turn("user", USER)], USER) => false,
            Some(messages) if shows(messages, USER) => true,
            _ => return usual,
        };
        let probe = Self { parts, ..usual };
        let show = |messages: Vec<Value>, text: &str| shows(&probe.contents(messages), text);
        let show_text = |messages: Vec<Value>, text: &str| {
            shows(&Self { text_arguments: true, ..probe }.contents(messages), text)
        };
        let system = show(vec![turn("system", SYSTEM), turn("user", USER)], SYSTEM);
        let [name, value] = ARGUMENTS;
        let calls = |arguments: Value| {
            let function = json!({ "name": "probe", "arguments": arguments });
            let call = json!({ "id": "abcdefghi", "type": "function", "function": function });
            let result =
                json!({ "role": "tool", "name": "probe", "tool_call_id": "abcdefghi", "content": "1" });
            vec![
                turn("user", USER),
                json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
                result,
            ]
        };
        let object = || calls(json!({ name: value }));
        let as_python = format!("'{name}': '{value}'");
        let text_arguments = (!show(object(), value) || show(object(), &as_python))
            && show_text(object(), &format!("\"{name}\":\"{value}\""));
        Self { system, parts, text_arguments }
    }

    /// Returns messages in the form that the template supports.
    pub(super) fn adapt(&self, messages: Vec<Value>) -> Vec<Value> {
        let messages = if self.system { messages } else { without_system(messages, 0) };
        self.contents(messages)
    }

    /// Like [`Self::adapt`], for a template that rejected the messages: keeps one system message at the start. Returns
    /// `None` if there are no others.
    pub(super) fn adapt_with_leading_system(&self, messages: &[Value]) -> Option<Vec<Value>> {
        let systems = messages.iter().filter(|message| is_system(message)).count();
        if !self.system || systems <= usize::from(messages.first().is_some_and(is_system)) {
            return None;
        }
        let leading = messages.iter().take_while(|message| is_system(message)).count();
        let texts: Vec<&str> =
            messages[..leading].iter().filter_map(|message| message["content"].as_str()).collect();
        let first = (leading > 0).then(|| turn("system", &texts.join(SEPARATOR)));
        let kept = usize::from(first.is_some());
        let messages = first.into_iter().chain(messages[leading..].iter().cloned()).collect();
        Some(self.contents(without_system(messages, kept)))
    }

    fn contents(&self, mut messages: Vec<Value>) -> Vec<Value> {
        for message in &mut messages {
            if self.parts
                && let Some(text) = message["content"].as_str()
            {
                message["content"] = parts(text);
            }
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for arguments in
                calls.into_iter().flatten().filter_map(|call| call.pointer_mut("/function/arguments"))
            {
                match arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
                    Some(object) if !self.text_arguments => *arguments = object,
                    None if self.text_arguments && !arguments.is_string() => {
                        *arguments = arguments.to_string().into()
                    }
                    _ => {}
                }
            }
        }
        messages
    }
}

fn turn(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn parts(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

/// Puts text before or after the content of a message: a text, or a list of parts.
fn add_text(message: &mut Value, text: &str, is_after: bool) {
    let content = &mut message["content"];
    if let Some(parts) = content.as_array_mut() {
        let index = if is_after { parts.len() } else { 0 };
        return parts.insert(index, json!({ "type": "text", "text": text }));
    }
    let existing = content.as_str().unwrap_or_default();
    *content = if is_after { format!("{existing}{text}") } else { format!("{text}{existing}") }.into();
}

/// Merges the system messages after the first `kept` messages into the preceding user message, otherwise into the next
/// one. They thus keep their position as the conversation grows. Without a user message, they become one.
fn without_system(messages: Vec<Value>, kept: usize) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::with_capacity(messages.len());
    let mut pending = String::new();
    for (index, mut message) in messages.into_iter().enumerate() {
        if is_system(&message) && index >= kept {
            let text = message["content"].as_str().unwrap_or_default();
            match merged.last_mut().filter(|before| before["role"] == "user") {
                Some(before) => {
                    add_text(before, &format!("{SEPARATOR}{text}"), true);
                }
                None => {
                    pending += text;
                    pending += SEPARATOR;
                }
            }
        } else {
            if message["role"] == "user" && !pending.is_empty() {
                add_text(&mut message, &std::mem::take(&mut pending), false);
            }
            merged.push(message);
        }
    }
    if !pending.is_empty() {
        merged.push(turn("user", pending.trim_end_matches(SEPARATOR)));
    }
    merged
}

/// Checks messages, adds absent content as null, and joins the text parts of content by newlines unless there are pictures
/// among them.
pub(super) fn normalized(messages: &Value) -> Result<Vec<Value>> {
    let Some(messages) = messages.as_array() else { bail!("messages must be an array, not {messages}") };
    messages.iter().map(message).collect()
}

fn message(message: &Value) -> Result<Value> {
    ensure!(message.is_object(), "a message must be an object, not {message}");
    let mut message = message.clone();
    // Messages with only tool calls may omit the content; templates test whether it is none.
    if message.get("content").is_none() {
        message["content"] = Value::Null;
    }
    let is_picture = |part: &Value| part["type"] == "image";
    if let Some(parts) = message["content"].as_array() {
        let has_picture = parts.iter().any(is_picture);
        let mut texts = Vec::new();
        for part in parts.iter().filter(|part| !is_picture(part)) {
            let Some(text) = part["text"].as_str() else {
                bail!("the model accepts only text, not a part of type {}", part["type"])
            };
            texts.push(text);
        }
        if !has_picture {
            message["content"] = texts.join("\n").into();
        }
    }
    Ok(message)
}
