//! Detection of tool calls in generated text: plain JSON, or JSON after the markers of common models.
use serde::Serialize;
use serde_json::Value;

/// Tags around a call within a text.
const OPEN_TAG: &str = "<tool_call>";
const CLOSE_TAG: &str = "</tool_call>";
/// Markers without an end tag: the rest of the text is the call.
const PREFIX_MARKERS: [&str; 2] = ["<|python_tag|>", "[TOOL_CALLS]"];

/// A detected call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

/// A tool call in a response.
#[derive(Clone, Debug, Serialize)]
pub struct ToolCall {
    /// Index among the calls of the response; only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Id that the tool's result must refer to.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Called function.
    pub function: FunctionCall,
}

/// Called function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionCall {
    /// Name of the tool.
    pub name: String,
    /// Arguments as a JSON string.
    pub arguments: String,
}

/// Extracts tool calls from a stream of text; the rest is content.
#[derive(Clone, Debug)]
pub struct CallFinder {
    names: Vec<String>,
    single: bool,
    /// Text that may be or become a call.
    held: String,
    /// True if all further text belongs to `held`.
    holding: bool,
    /// True once content other than white space was returned.
    has_content: bool,
}

impl CallFinder {
    /// Creates a finder for tools with these names. If `single`, only the first call is returned.
    pub fn new(names: Vec<String>, single: bool) -> Self {
        Self { names, single, held: String::new(), holding: false, has_content: false }
    }

    /// Adds text, and returns new content that is certainly not part of a call.
    pub fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.holding {
            return String::new();
        }
        let trimmed = self.held.trim_start();
        if !self.has_content && (trimmed.is_empty() || trimmed.starts_with(['{', '['])) {
            // White space before a call is not content.
            self.holding = !trimmed.is_empty();
            return String::new();
        }
        let marks = || PREFIX_MARKERS.into_iter().chain([OPEN_TAG]);
        let found = marks().filter_map(|mark| self.held.find(mark)).min();
        self.holding = found.is_some();
        let certain = found.unwrap_or_else(|| {
            let tail = marks().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0);
            self.held.len() - tail
        });
        let rest = self.held.split_off(certain);
        let content = std::mem::replace(&mut self.held, rest);
        self.has_content |= !content.trim().is_empty();
        content
    }

    /// Returns the remaining content and the calls, at the end of the text.
    pub fn finish(&mut self) -> (String, Vec<Call>) {
        let held = std::mem::take(&mut self.held);
        match self.calls(&held) {
            Some((content, mut calls)) if !calls.is_empty() => {
                if self.single {
                    calls.truncate(1);
                }
                (content, calls)
            }
            _ => (held, Vec::new()),
        }
    }

    /// Parses the calls in `text` and the content around them; `None` if any apparent call is invalid.
    fn calls(&self, text: &str) -> Option<(String, Vec<Call>)> {
        let mut text = text.trim();
        if let Some(rest) = PREFIX_MARKERS.iter().find_map(|mark| text.strip_prefix(mark)) {
            return Some((String::new(), self.json_calls(rest)?));
        }
        if !text.contains(OPEN_TAG) {
            return Some((String::new(), self.json_calls(text)?));
        }
        let (mut content, mut calls) = (String::new(), Vec::new());
        while let Some((before, after)) = text.split_once(OPEN_TAG) {
            content.push_str(before.trim());
            let (call, rest) = after.split_once(CLOSE_TAG).unwrap_or((after, ""));
            calls.extend(self.json_calls(call)?);
            text = rest.trim_start();
        }
        content.push_str(text);
        Some((content, calls))
    }

    /// Parses consecutive JSON values, each a call or a list of calls.
    fn json_calls(&self, text: &str) -> Option<Vec<Call>> {
        let mut calls = Vec::new();
        for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            match value.ok()? {
                Value::Array(values) => {
                    calls.extend(values.iter().map(|value| self.call(value)).collect::<Option<Vec<_>>>()?);
                }
                value => calls.push(self.call(&value)?),
            }
        }
        Some(calls)
    }

    fn call(&self, value: &Value) -> Option<Call> {
        // Some models generate OpenAI's nested form.
        let value = value.get("function").filter(|function| function.is_object()).unwrap_or(value);
        let name = value.get("name")?.as_str()?;
        let arguments = match value.get("arguments").or_else(|| value.get("parameters")) {
            Some(Value::String(text)) => text.clone(),
            Some(arguments @ Value::Object(_)) => arguments.to_string(),
            None => "{}".to_owned(),
            Some(_) => return None,
        };
        self.names.iter().any(|known| known == name).then(|| Call { name: name.to_owned(), arguments })
    }
}

/// Returns the number of bytes at the end of `text` that may be the beginning of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|&len| mark.is_char_boundary(len) && text.ends_with(&mark[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, pieces: usize) -> (String, Vec<(String, String)>) {
        let mut finder = CallFinder::new(vec!["add".into(), "now".into()], false);
        let characters: Vec<char> = text.chars().collect();
        let mut content = String::new();
        for piece in characters.chunks(pieces) {
            content += &finder.push(&piece.iter().collect::<String>());
        }
        let (rest, calls) = finder.finish();
        content += &rest;
        (content, calls.into_iter().map(|call| (call.name, call.arguments)).collect())
    }

    #[test]
    fn calls_are_found_in_all_formats_and_chunkings() {
        const ADD: (&str, &str) = ("add", r#"{"a":1}"#);
        const NOW: (&str, &str) = ("now", "{}");
        type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);
        let cases: &[Case] = &[
            ("plain text", "plain text", &[]),
            ("1 < 2 and <tool", "1 < 2 and <tool", &[]),
            (r#"{"name": "add", "arguments": {"a": 1}}"#, "", &[ADD]),
            (r#" {"name": "add", "parameters": {"a": 1}}"#, "", &[ADD]),
            (r#"{"type":"function","function":{"name":"add","arguments":"{\"a\":1}"}}"#, "", &[ADD]),
            (r#"[{"name": "add", "arguments": {"a": 1}}, {"name": "now"}]"#, "", &[ADD, NOW]),
            (r#"[TOOL_CALLS] [{"name": "now", "arguments": {}}]"#, "", &[NOW]),
            (r#"<|python_tag|>{"name": "now", "parameters": {}}"#, "", &[NOW]),
            ("<tool_call>\n{\"name\": \"now\"}\n</tool_call>", "", &[NOW]),
            (
                "Let me see. <tool_call>{\"name\":\"now\"}</tool_call>\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>",
                "Let me see. ",
                &[NOW, ADD],
            ),
            (r#"{"name": "subtract", "arguments": {}}"#, r#"{"name": "subtract", "arguments": {}}"#, &[]),
            (r#"{"a": 1}"#, r#"{"a": 1}"#, &[]),
            (r#"{"name": "add", "argum"#, r#"{"name": "add", "argum"#, &[]),
            ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", &[]),
            ("[1] is a reference", "[1] is a reference", &[]),
        ];
        for &(text, content, calls) in cases {
            for pieces in [1, 3, 7, 1000] {
                let (found, found_calls) = all(text, pieces);
                let found_calls: Vec<_> =
                    found_calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
                assert_eq!(
                    (found.as_str(), found_calls.as_slice()),
                    (content, calls),
                    "{text:?} by {pieces}"
                );
            }
        }
    }
}
