//! Tool calls in responses.
use serde::Serialize;

use super::call_ids;
use super::parsers::Delta;

/// A tool call in a response, or a part of one in a stream.
#[derive(Clone, Debug, Serialize)]
pub struct ToolCall {
    /// Number of the call in the response; only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// Id that the tool's result must refer to; in the first part of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// `function` in the first part of a call.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionCall,
}

#[derive(Clone, Debug, Default, Serialize)]
struct FunctionCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// JSON, or a part of it.
    arguments: String,
}

impl ToolCall {
    /// Returns the calls in `deltas` as parts of a stream. The parts of one call are joined.
    pub fn parts(deltas: &[Delta]) -> Vec<ToolCall> {
        let mut parts: Vec<ToolCall> = Vec::new();
        for delta in deltas {
            match delta {
                Delta::CallBegin { index, name } => {
                    let function = FunctionCall { name: Some(name.clone()), ..FunctionCall::default() };
                    let id = Some(call_ids::unique());
                    parts.push(ToolCall { index: Some(*index), id, kind: Some("function"), function });
                }
                Delta::Arguments { index, text } => match parts.last_mut() {
                    Some(part) if part.index == Some(*index) => part.function.arguments.push_str(text),
                    _ => {
                        let function = FunctionCall { name: None, arguments: text.clone() };
                        parts.push(ToolCall { index: Some(*index), id: None, kind: None, function });
                    }
                },
                _ => {}
            }
        }
        parts
    }

    /// Adds the calls of a piece to those of a whole response.
    pub fn extend(calls: &mut Vec<ToolCall>, deltas: &[Delta]) {
        for part in Self::parts(deltas) {
            match calls.last_mut() {
                Some(call) if part.id.is_none() => call.function.arguments.push_str(&part.function.arguments),
                _ => calls.push(ToolCall { index: None, ..part }),
            }
        }
    }
}
