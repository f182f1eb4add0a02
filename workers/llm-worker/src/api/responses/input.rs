//! Conversion of input items to turns.
use serde_json::{Value, json};
use worker_core::ApiError;

use super::tools::{FREE_TEXT, visible_name};
use crate::api::object::{Object, result_text_of, text_of, text_of_part};
use crate::api::pictures::{PictureParts, content_of, text_part};
use crate::api::turns::Turns;

/// Types of parts that contain text.
const TEXT_PARTS: [&str; 4] = ["input_text", "output_text", "text", "refusal"];

/// Returns the turns of `instructions` and `input`, which is a text or a list of items. Its pictures are added to `pictures`.
///
/// # Errors
/// Returns a 400 error that names the field.
pub fn turns(
    instructions: Option<String>,
    input: &Value,
    pictures: &mut PictureParts,
) -> Result<Turns, ApiError> {
    let mut turns = Turns::default();
    if let Some(instructions) = instructions {
        turns.text("system", instructions);
    }
    match input {
        Value::String(text) => turns.text("user", text.clone()),
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError::field("input", "is empty; at least one item is required"));
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                add(&mut turns, &Object::new(format!("input[{i}]"), item)?, pictures)?;
            }
        }
        _ => return Err(ApiError::field("input", "must be a string or a list of items")),
    }
    Ok(turns)
}

fn add(turns: &mut Turns, item: &Object, pictures: &mut PictureParts) -> Result<(), ApiError> {
    match item.text("type")?.unwrap_or("message") {
        "message" => {
            let role = match item.required_text("role")? {
                // Templates expect the older name.
                "system" | "developer" => "system",
                role @ ("user" | "assistant") => role,
                other => {
                    let message = format!("is {other:?}, but must be user, assistant, system or developer");
                    return Err(item.error("role", message));
                }
            };
            turns.content(role, content(item, role, pictures)?);
        }
        "function_call" => {
            let arguments = item.required_text("arguments")?;
            // Templates serialize the arguments themselves.
            let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
            turns.call(item.required_text("call_id")?, &name(item)?, arguments);
        }
        "custom_tool_call" => {
            let arguments = json!({ FREE_TEXT: item.required_text("input")? });
            turns.call(item.required_text("call_id")?, &name(item)?, arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.get("output").ok_or_else(|| item.error("output", "is missing"))?;
            let text = result_text_of(&item.path("output"), output, &TEXT_PARTS)?;
            turns.result(item.required_text("call_id")?, text);
        }
        "reasoning" => {
            if let Some(content) = item.get("content") {
                turns.reasoning(&text_of(&item.path("content"), content, &["reasoning_text", "text"])?);
            }
        }
        "item_reference" => {
            return Err(item.error("type", "is \"item_reference\", but this server does not store items"));
        }
        other => {
            let message = format!("is {other:?}, which this server does not support");
            return Err(item.error("type", message).with_code("unsupported_parameter"));
        }
    }
    Ok(())
}

fn name(item: &Object) -> Result<String, ApiError> {
    Ok(visible_name(item.text("namespace")?, item.required_text("name")?))
}

fn content(item: &Object, role: &str, pictures: &mut PictureParts) -> Result<Value, ApiError> {
    let content = item.get("content").ok_or_else(|| item.error("content", "is missing"))?;
    let path = item.path("content");
    let is_picture = |part: &Value| part["type"] == "input_image";
    let Some(parts) = content.as_array().filter(|parts| parts.iter().any(is_picture)) else {
        return text_of(&path, content, &TEXT_PARTS).map(Value::String);
    };
    let mut converted = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        if !is_picture(part) {
            converted.push(text_part(text_of_part(format!("{path}[{i}]"), part, &TEXT_PARTS)?));
            continue;
        }
        let part = Object::new(format!("{path}[{i}]"), part)?;
        pictures.check_picture(role, part.own_path(), "input_image")?;
        if part.get("file_id").is_some() {
            return Err(part
                .error("file_id", "is not supported, since this server stores no files; send `image_url`"));
        }
        let url = part.required_text("image_url")?;
        converted.push(pictures.add(part.own_path(), "input_image", "image_url", url)?);
    }
    Ok(content_of(converted))
}
