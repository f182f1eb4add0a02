//! Conversion of messages and tools to the input of chat templates.
use serde_json::{Map, Value, json};
use worker_core::ApiError;

use super::parsers::Tool;
use super::pictures::{PictureParts, content_of, text_part};
use super::references;
use super::request::{Content, Message, MessageToolCall, Part, Role, ToolChoice};

/// Converts messages: content parts become text, unless there are pictures, and arguments of tool calls become JSON.
///
/// # Errors
/// Returns a 400 error if content is missing, or is neither text nor a picture that the model reads.
pub fn for_template(messages: Vec<Message>, pictures: &mut PictureParts) -> Result<Value, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "is empty; at least one message is required"));
    }
    messages.into_iter().enumerate().map(|(i, message)| template_message(i, message, pictures)).collect()
}

/// Copies the reasoning of messages to `thinking`, which some templates read. gpt-oss' template rejects it in a
/// message that also has content.
pub fn add_thinking(messages: &mut Value) {
    for message in messages.as_array_mut().into_iter().flatten() {
        let has_content = message["content"].as_str().is_some_and(|content| !content.is_empty());
        let reasoning = message.get("reasoning_content").filter(|_| !has_content).cloned();
        if let Some(reasoning) = reasoning {
            message["thinking"] = reasoning;
        }
    }
}

fn template_message(i: usize, message: Message, pictures: &mut PictureParts) -> Result<Value, ApiError> {
    let calls = message.tool_calls.unwrap_or_default();
    let role = match message.role {
        // Templates expect the older name.
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let content = match message.content {
        Some(content) => content_for_template(i, role, content, pictures)?,
        None if message.role == Role::Assistant && !calls.is_empty() => "".into(),
        None => return Err(ApiError::field(format!("messages[{i}].content"), "is missing")),
    };
    let mut turn = Map::new();
    turn.insert("role".into(), role.into());
    turn.insert("content".into(), content);
    for (name, value) in [("name", message.name), ("tool_call_id", message.tool_call_id)] {
        turn.extend(value.map(|value| (name.to_owned(), Value::String(value))));
    }
    let reasoning = message.reasoning_content.map(Value::String).or(message.reasoning);
    let reasoning = reasoning.filter(|reasoning| reasoning.as_str().is_some_and(|text| !text.is_empty()));
    turn.extend(reasoning.map(|reasoning| ("reasoning_content".to_owned(), reasoning)));
    if !calls.is_empty() {
        turn.insert("tool_calls".into(), calls.into_iter().map(call).collect());
    }
    Ok(Value::Object(turn))
}

fn content_for_template(
    i: usize,
    role: &str,
    content: Content,
    pictures: &mut PictureParts,
) -> Result<Value, ApiError> {
    let parts = match content {
        Content::Text(text) => return Ok(text.into()),
        Content::Parts(parts) => parts,
    };
    let mut converted = Vec::with_capacity(parts.len());
    for (j, Part { kind, text, image_url }) in parts.into_iter().enumerate() {
        let path = format!("messages[{i}].content[{j}]");
        converted.push(match (kind.as_str(), text) {
            ("text", Some(text)) => text_part(text),
            ("text", None) => return Err(ApiError::field(format!("{path}.text"), "is missing")),
            ("image_url", _) => {
                pictures.check_picture(role, &path, &kind)?;
                let url = image_url.as_ref().and_then(|url| url.as_str().or_else(|| url["url"].as_str()));
                let missing =
                    || ApiError::field(format!("{path}.image_url.url"), "is missing or not a string");
                pictures.add(&path, &kind, "image_url.url", url.ok_or_else(missing)?)?
            }
            (other, _) => {
                pictures.check(&path, other)?;
                let message = format!("is {other:?}, but must be text or image_url");
                return Err(ApiError::field(format!("{path}.type"), message));
            }
        });
    }
    Ok(content_of(converted))
}

fn call(call: MessageToolCall) -> Value {
    let arguments = match call.function.arguments {
        // Templates serialize the arguments themselves.
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        Value::Null => json!({}),
        other => other,
    };
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.function.name, "arguments": arguments },
    })
}

/// Tools that may be called, and the constraint if one must be.
#[derive(Debug, Default)]
pub struct Tools {
    /// Tools that may be called.
    pub callable: Vec<Tool>,
    /// JSON schema of the text, if a call is required.
    pub schema: Option<Value>,
    /// Tools for the template, if any may be called.
    pub for_template: Option<Value>,
}

/// A function that the model may call.
struct Function<'a> {
    name: &'a str,
    /// JSON schema of its arguments.
    parameters: Option<&'a Value>,
}

impl<'a> Function<'a> {
    /// Reads the function of the tool number `index`.
    fn of(index: usize, tool: &'a Value) -> Result<Self, ApiError> {
        let text = |value: &'a Value, field: &str| {
            let missing = || ApiError::field(format!("tools[{index}].{field}"), "is missing or not a string");
            value.as_str().ok_or_else(missing)
        };
        match text(&tool["type"], "type")? {
            "function" => {}
            kind => {
                let message = format!("is {kind:?}, but only `function` is supported");
                return Err(ApiError::field(format!("tools[{index}].type"), message));
            }
        }
        let function = &tool["function"];
        if !function.is_object() {
            return Err(ApiError::field(format!("tools[{index}].function"), "is missing or not an object"));
        }
        let unknown = |object: &'a Value, known: &[&str]| {
            let fields = object.as_object().into_iter().flatten();
            let mut fields =
                fields.filter(|(name, value)| !known.contains(&name.as_str()) && !value.is_null());
            fields.next().map(|(name, _)| name.as_str())
        };
        let unknown = unknown(tool, &["type", "function"]).map(str::to_owned).or_else(|| {
            let known = ["name", "description", "parameters", "strict"];
            unknown(function, &known).map(|name| format!("function.{name}"))
        });
        if let Some(name) = unknown {
            let error = ApiError::field(format!("tools[{index}].{name}"), "is not supported by this server");
            return Err(error.with_code("unsupported_parameter"));
        }
        let name = text(&function["name"], "function.name")?;
        Ok(Self { name, parameters: function.get("parameters").filter(|parameters| !parameters.is_null()) })
    }

    fn callable(&self) -> Tool {
        Tool { name: self.name.to_owned(), parameters: self.parameters.cloned() }
    }

    /// Returns the JSON schema of a call, for the location `at` (a JSON pointer).
    fn schema(&self, at: &str) -> Value {
        let parameters = self.parameters.cloned();
        let parameters =
            parameters.map(|own| references::rebased(own, &format!("{at}/properties/arguments")));
        json!({
            "type": "object",
            "properties": {
                "name": { "const": self.name },
                "arguments": parameters.unwrap_or_else(|| json!({ "type": "object" })),
            },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    }
}

/// Validates the tools and the tool choice.
///
/// # Errors
/// Returns a 400 error for tools of other types, and for choices that match no tool.
pub fn tools(tools: Vec<Value>, choice: Option<ToolChoice>) -> Result<Tools, ApiError> {
    let functions = tools.iter().enumerate().map(|(index, tool)| Function::of(index, tool));
    let functions = functions.collect::<Result<Vec<_>, _>>()?;
    let all = || functions.iter().map(Function::callable).collect();
    let (callable, schema): (Vec<Tool>, Option<Value>) = match choice {
        None => (all(), None),
        Some(ToolChoice::Word(word)) => match word.as_str() {
            "none" => return Ok(Tools::default()),
            "auto" => (all(), None),
            "required" if functions.is_empty() => {
                return Err(ApiError::field("tool_choice", "is required, but there are no `tools`"));
            }
            "required" => {
                let schemas = functions.iter().enumerate();
                let schemas: Vec<Value> =
                    schemas.map(|(i, function)| function.schema(&format!("/anyOf/{i}"))).collect();
                (all(), Some(json!({ "anyOf": schemas })))
            }
            other => {
                let message = format!(
                    "is {other:?}, but must be none, auto, required or an object that names a function"
                );
                return Err(ApiError::field("tool_choice", message));
            }
        },
        Some(ToolChoice::Named { function: named }) => {
            let found = functions.iter().find(|function| function.name == named.name);
            let found = found
                .ok_or_else(|| ApiError::field("tool_choice.function.name", "is not among the `tools`"))?;
            let schema = found.schema("");
            (vec![found.callable()], Some(schema))
        }
    };
    let for_template = (!callable.is_empty()).then(|| Value::Array(tools));
    Ok(Tools { callable, schema, for_template })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(value: Value) -> Result<Value, ApiError> {
        for_template(serde_json::from_value(value).unwrap(), &mut PictureParts::default())
    }

    #[test]
    fn parts_become_lines_and_arguments_become_json() {
        let converted = messages(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
            {"role": "assistant", "content": "3", "reasoning_content": "why", "reasoning": "other"},
            {"role": "assistant", "content": "3", "reasoning": "how"},
            {"role": "assistant", "content": "3", "reasoning": {"effort": 1}, "reasoning_content": ""},
        ]));
        assert_eq!(
            converted.unwrap(),
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "a\nb", "name": "me"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
                {"role": "tool", "content": "2", "tool_call_id": "1"},
                {"role": "assistant", "content": "3", "reasoning_content": "why"},
                {"role": "assistant", "content": "3", "reasoning_content": "how"},
                {"role": "assistant", "content": "3"},
            ])
        );
    }

    #[test]
    fn thinking_is_added_without_content() {
        let mut turns = json!([{"content": "", "reasoning_content": "a"}, {"content": "b", "reasoning_content": "c"}, {"content": "d"}]);
        add_thinking(&mut turns);
        assert_eq!(
            turns,
            json!([{"content": "", "reasoning_content": "a", "thinking": "a"}, {"content": "b", "reasoning_content": "c"}, {"content": "d"}])
        );
    }

    #[test]
    fn unsupported_content_is_rejected_by_field() {
        for (value, param) in [
            (json!([]), "messages"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "assistant", "content": null}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
                "messages[0].content[0].type",
            ),
        ] {
            assert_eq!(messages(value).unwrap_err().param(), Some(param));
        }
    }

    #[test]
    fn tool_choice_selects_the_tools() {
        let both = json!([
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g"}},
        ]);
        let choose = |choice: Value| {
            tools(
                serde_json::from_value(both.clone()).unwrap(),
                serde_json::from_value::<Option<ToolChoice>>(choice).unwrap(),
            )
        };
        let names = |tools: Tools| tools.callable.into_iter().map(|tool| tool.name).collect::<Vec<_>>();
        assert_eq!(names(choose(Value::Null).unwrap()), ["f", "g"]);
        assert!(choose(json!("none")).unwrap().callable.is_empty());
        assert_eq!(
            choose(json!("required")).unwrap().schema.unwrap()["anyOf"][1]["properties"]["name"]["const"],
            "g"
        );
        let named = choose(json!({"type": "function", "function": {"name": "g"}})).unwrap();
        assert!(named.schema.is_some());
        assert_eq!(names(named), ["g"]);
        for (wrong, param) in [
            (json!("sometimes"), "tool_choice"),
            (json!({"function": {"name": "h"}}), "tool_choice.function.name"),
        ] {
            assert_eq!(choose(wrong).unwrap_err().param(), Some(param));
        }
    }
}
