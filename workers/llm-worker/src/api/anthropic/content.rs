//! Conversion of messages to turns.
use serde_json::{Value, json};
use worker_core::ApiError;

use crate::api::object::{Object, result_text_of, text_of};
use crate::api::pictures::{PictureParts, content_of, text_part};
use crate::api::turns::Turns;

const TEXT: &[&str] = &["text"];
/// Beginning of a line that Claude Code puts before its system message. The line differs between sessions, so it would keep
/// their common prompt from being found in the cache.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// Returns the turns of the system message and of the messages, whose pictures are added to `pictures`.
///
/// # Errors
/// Returns a 400 error that names the field.
pub fn turns(
    system: Option<&Value>,
    messages: &[Value],
    pictures: &mut PictureParts,
) -> Result<Turns, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "is empty; at least one message is required"));
    }
    let mut turns = Turns::default();
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let text = text_of("system", system, TEXT)?;
        let text = match text.strip_prefix(BILLING_HEADER) {
            Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest).to_owned(),
            None => text,
        };
        turns.text("system", text);
    }
    for (i, message) in messages.iter().enumerate() {
        add(&mut turns, &Object::new(format!("messages[{i}]"), message)?, pictures)?;
    }
    Ok(turns)
}

fn add(turns: &mut Turns, message: &Object, pictures: &mut PictureParts) -> Result<(), ApiError> {
    let role = match message.required_text("role")? {
        role @ ("user" | "assistant" | "system") => role,
        other => return Err(message.error("role", format!("is {other:?}, but must be user or assistant"))),
    };
    let path = message.path("content");
    let blocks = match message.get("content") {
        Some(Value::String(text)) => {
            turns.text(role, text.clone());
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        Some(_) => return Err(ApiError::field(path, "must be a string or a list of blocks")),
        None => return Err(ApiError::field(path, "is missing")),
    };
    let mut parts: Vec<Value> = Vec::new();
    let mut has_others = false;
    for (j, block) in blocks.iter().enumerate() {
        let block = Object::new(format!("{path}[{j}]"), block)?;
        let kind = block.required_text("type")?;
        if kind == "text" {
            parts.push(text_part(block.required_text("text")?));
            continue;
        }
        if kind == "image" {
            pictures.check_picture(role, block.own_path(), kind)?;
            let source = block.get("source").ok_or_else(|| block.error("source", "is missing"))?;
            let source = Object::new(block.path("source"), source)?;
            let field = match source.required_text("type")? {
                "base64" => "data",
                "url" => "url",
                other => {
                    return Err(source.error("type", format!("is {other:?}, but must be base64 or url")));
                }
            };
            parts.push(pictures.add(source.own_path(), kind, field, source.required_text(field)?)?);
            continue;
        }
        has_others = true;
        if kind != "thinking" && kind != "redacted_thinking" {
            flush(turns, role, &mut parts);
        }
        match (role, kind) {
            ("assistant", "thinking") => turns.reasoning(block.required_text("thinking")?),
            // Only Anthropic's servers can read it.
            ("assistant", "redacted_thinking") => {}
            ("assistant", "tool_use") => {
                let input = block.get("input").cloned().unwrap_or_else(|| json!({}));
                turns.call(block.required_text("id")?, block.required_text("name")?, input);
            }
            ("user", "tool_result") => {
                let text = match block.get("content") {
                    Some(content) => result_text_of(&block.path("content"), content, TEXT)?,
                    None => String::new(),
                };
                turns.result(block.required_text("tool_use_id")?, text);
            }
            (_, kind @ ("thinking" | "tool_use" | "tool_result")) => {
                return Err(
                    block.error("type", format!("is {kind:?}, which a message of {role} cannot contain"))
                );
            }
            (_, kind) => return Err(block.unsupported_type(kind)),
        }
    }
    if !parts.is_empty() || !has_others {
        turns.content(role, content_of(parts));
    }
    Ok(())
}

/// Adds the texts and pictures so far as a turn.
fn flush(turns: &mut Turns, role: &str, parts: &mut Vec<Value>) {
    if !parts.is_empty() {
        turns.content(role, content_of(std::mem::take(parts)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_turns() {
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "why", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "2", "name": "g"}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}, {"type": "image", "source": {}}]},
                {"type": "tool_result", "tool_use_id": "2", "is_error": true},
                {"type": "text", "text": "go on"}]},
        ]);
        let system = json!([{"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"},
                {"type": "text", "text": "s", "cache_control": null}, {"type": "text", "text": "t"}]);
        let mut none = PictureParts::default();
        let turns = turns(Some(&system), messages.as_array().unwrap(), &mut none).unwrap();
        let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            turns.into_value(),
            json!([
                {"role": "system", "content": "s\nt"},
                {"role": "user", "content": "a\nb"},
                {"role": "assistant", "content": "I look.", "reasoning_content": "why",
                    "tool_calls": [call("1", "f", json!({"x": 1})), call("2", "g", json!({}))]},
                {"role": "tool", "tool_call_id": "1", "content": "r\n[image omitted: results of tools are read as text]"},
                {"role": "tool", "tool_call_id": "2", "content": ""},
                {"role": "user", "content": "go on"},
            ])
        );
    }

    #[test]
    fn unsupported_blocks_are_named() {
        for (message, param) in [
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "king", "content": "x"}), "messages[0].role"),
            (json!({"role": "user", "content": 3}), "messages[0].content"),
            (
                json!({"role": "user", "content": [{"type": "image", "source": {}}]}),
                "messages[0].content[0].type",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f"}]}),
                "messages[0].content[0].type",
            ),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}),
                "messages[0].content[0].id",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{}]}]}),
                "messages[0].content[0].content[0].type",
            ),
        ] {
            let error = turns(None, &[message], &mut PictureParts::default()).unwrap_err();
            assert_eq!(error.param(), Some(param));
        }
    }
}
