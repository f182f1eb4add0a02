//! Conversion of tools and the tool choice to the format of `/v1/chat/completions`.
use std::collections::HashMap;

use serde_json::{Value, json};
use worker_core::ApiError;

use crate::api::object::Object;
use crate::api::request::{NamedFunction, ToolChoice};

/// Name of the only argument of a tool whose input is free text.
pub const FREE_TEXT: &str = "input";

/// Tools that OpenAI's servers run or that need its models. They are left out, since the model cannot call them here.
const HOSTED: [&str; 15] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];

const FIELDS: [&str; 9] = [
    "allowed_callers",
    "defer_loading",
    "description",
    "format",
    "name",
    "output_schema",
    "parameters",
    "strict",
    "type",
];

/// Tools in the format of `/v1/chat/completions`.
#[derive(Debug, Default)]
pub struct Tools {
    /// All tools that the model may call.
    pub functions: Vec<Value>,
    /// Their names in this API, by those that the model sees.
    pub names: HashMap<String, ToolName>,
    /// Tools that may or must be called.
    pub choice: Option<ToolChoice>,
}

/// Name of a tool in calls.
#[derive(Clone, Debug)]
pub struct ToolName {
    /// Name within its namespace.
    pub name: String,
    /// Namespace, if it has one.
    pub namespace: Option<String>,
    /// If true, its input is free text.
    pub is_custom: bool,
}

/// Returns the name that the model sees.
pub fn visible_name(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |space| format!("{}__{name}", space.trim_end_matches('_')))
}

/// Converts tools and the tool choice.
///
/// # Errors
/// Returns a 400 error for tools of other types, and for choices that match no tool.
pub fn for_chat(tools: &[Value], choice: Option<&Value>) -> Result<Tools, ApiError> {
    let mut converted = Tools::default();
    converted.add(tools, "tools", None)?;
    if let Some(choice) = choice.filter(|choice| !choice.is_null()) {
        converted.choose(choice)?;
    }
    Ok(converted)
}

impl Tools {
    fn add(&mut self, tools: &[Value], path: &str, namespace: Option<&str>) -> Result<(), ApiError> {
        for (i, tool) in tools.iter().enumerate() {
            let tool = Object::new(format!("{path}[{i}]"), tool)?;
            match tool.required_text("type")? {
                "function" => self.add_one(&tool, tool.get("parameters").cloned(), namespace, false)?,
                "custom" => {
                    let parameters = json!({
                        "type": "object",
                        "properties": { FREE_TEXT: { "type": "string" } },
                        "required": [FREE_TEXT],
                        "additionalProperties": false,
                    });
                    self.add_one(&tool, Some(parameters), namespace, true)?;
                }
                "namespace" if namespace.is_none() => {
                    tool.check_known(&["type", "name", "description", "tools"])?;
                    let inner = tool.get("tools").and_then(Value::as_array);
                    let inner = inner.ok_or_else(|| tool.error("tools", "must be a list of tools"))?;
                    self.add(inner, &tool.path("tools"), Some(tool.required_text("name")?))?;
                }
                hosted if HOSTED.contains(&hosted) => {}
                other => {
                    let message = format!("is {other:?}, but must be function, custom or namespace");
                    return Err(tool.error("type", message));
                }
            }
        }
        Ok(())
    }

    fn add_one(
        &mut self,
        tool: &Object,
        parameters: Option<Value>,
        namespace: Option<&str>,
        is_custom: bool,
    ) -> Result<(), ApiError> {
        tool.check_known(&FIELDS)?;
        let name = tool.required_text("name")?;
        let visible = visible_name(namespace, name);
        let mut function = json!({ "name": visible });
        let description = tool.text("description")?.map(Value::from);
        for (field, value) in [("description", description), ("parameters", parameters)] {
            if let Some(value) = value {
                function[field] = value;
            }
        }
        self.functions.push(json!({ "type": "function", "function": function }));
        let namespace = namespace.map(str::to_owned);
        self.names.insert(visible, ToolName { name: name.to_owned(), namespace, is_custom });
        Ok(())
    }

    fn choose(&mut self, choice: &Value) -> Result<(), ApiError> {
        if let Value::String(word) = choice {
            self.choice = Some(ToolChoice::Word(word.clone()));
            return Ok(());
        }
        let choice = Object::new("tool_choice".to_owned(), choice)?;
        self.choice = Some(match choice.required_text("type")? {
            "function" | "custom" => {
                ToolChoice::Named { function: NamedFunction { name: self.known(&choice)? } }
            }
            "allowed_tools" => {
                let tools = choice.get("tools").and_then(Value::as_array);
                let tools = tools.ok_or_else(|| choice.error("tools", "must be a list of tools"))?;
                let tools = tools.iter().enumerate();
                let names =
                    tools.map(|(i, tool)| self.known(&Object::new(format!("tool_choice.tools[{i}]"), tool)?));
                let names = names.collect::<Result<Vec<String>, _>>()?;
                self.functions.retain(|tool| names.iter().any(|name| tool["function"]["name"] == *name));
                match choice.required_text("mode")? {
                    mode @ ("auto" | "required") => ToolChoice::Word(mode.to_owned()),
                    other => {
                        return Err(
                            choice.error("mode", format!("is {other:?}, but must be auto or required"))
                        );
                    }
                }
            }
            other => {
                let message = format!("is {other:?}, but must be function, custom or allowed_tools");
                return Err(choice.error("type", message));
            }
        });
        Ok(())
    }

    /// Returns the visible name of the tool that `reference` names.
    fn known(&self, reference: &Object) -> Result<String, ApiError> {
        let name = visible_name(reference.text("namespace")?, reference.required_text("name")?);
        match self.names.contains_key(&name) {
            true => Ok(name),
            false => Err(reference.error("name", "is not among the `tools`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_namespaces_have_visible_names() {
        let function = json!({"type": "function", "name": "f"});
        let space = json!({"type": "namespace", "name": "mcp__a__", "description": "d", "tools": [function]});
        let choice = json!({"type": "function", "name": "f", "namespace": "mcp__a__"});
        let converted = for_chat(&[function, space.clone()], Some(&choice)).unwrap();
        let names: Vec<&Value> = converted.functions.iter().map(|tool| &tool["function"]["name"]).collect();
        assert_eq!(names, ["f", "mcp__a__f"]);
        let name = &converted.names["mcp__a__f"];
        assert_eq!((name.name.as_str(), name.namespace.as_deref()), ("f", Some("mcp__a__")));
        assert!(
            matches!(converted.choice, Some(ToolChoice::Named { function }) if function.name == "mcp__a__f")
        );
        let nested = json!({"type": "namespace", "name": "b", "tools": [space]});
        assert_eq!(for_chat(&[nested], None).unwrap_err().param(), Some("tools[0].tools[0].type"));
    }

    #[test]
    fn hosted_tools_are_left_out_and_choices_name_tools() {
        let tools = [
            json!({"type": "web_search"}),
            json!({"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": false}),
            json!({"type": "custom", "name": "g", "format": {"type": "text"}}),
        ];
        let converted = for_chat(&tools, Some(&json!("required"))).unwrap();
        assert_eq!(converted.functions.len(), 2);
        assert_eq!(
            converted.functions[0],
            json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}})
        );
        assert!(converted.names["g"].is_custom && !converted.names["f"].is_custom);
        let only =
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "g"}]});
        assert_eq!(for_chat(&tools, Some(&only)).unwrap().functions[0]["function"]["name"], "g");
        for (choice, param) in [
            (json!({"type": "function", "name": "h"}), "tool_choice.name"),
            (json!({"type": "web_search"}), "tool_choice.type"),
            (
                json!({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "h"}]}),
                "tool_choice.tools[0].name",
            ),
            (json!({"type": "allowed_tools", "mode": "x", "tools": []}), "tool_choice.mode"),
            (json!(7), "tool_choice"),
        ] {
            assert_eq!(for_chat(&tools, Some(&choice)).unwrap_err().param(), Some(param), "{choice}");
        }
        for (tool, param) in [
            (json!({"type": "function", "name": "f", "invented": 1}), "tools[0].invented"),
            (json!({"type": "function"}), "tools[0].name"),
            (json!({"type": "strange"}), "tools[0].type"),
            (json!([]), "tools[0]"),
        ] {
            assert_eq!(for_chat(&[tool], None).unwrap_err().param(), Some(param));
        }
    }
}
