//! Calls that are JSON objects: `{"name": …, "arguments": …}` and similar.
use serde::de::IgnoredAny;

use super::delta::Tool;
use super::nesting::Nesting;

/// Keys of the name of the tool.
const NAME_KEYS: [&str; 2] = ["name", "tool_name"];
/// Keys of the arguments.
const ARGUMENT_KEYS: [&str; 2] = ["arguments", "parameters"];
/// Keys that may precede the name.
const OTHER_KEYS: [&str; 5] = ["type", "id", "tool_call_id", "call_id", "function"];

/// Result of a scan.
pub(super) enum ObjectStep {
    /// More text is needed.
    More,
    /// The object is not a call.
    Reject,
    /// The arguments of the tool `tool` begin at byte `start`. `levels` objects around them are open.
    Arguments { tool: usize, start: usize, levels: usize },
    /// The call is complete and ends at byte `end`.
    Complete { tool: usize, arguments: String, end: usize },
}

/// Scanner of an object, after its opening brace.
#[derive(Clone, Debug)]
pub(super) struct ObjectScan {
    pos: usize,
    nesting: Nesting,
    /// Depth of the keys: 1, or 2 for OpenAI's form, which nests name and arguments in `function`.
    level: usize,
    string_start: usize,
    key: Option<String>,
    value_start: Option<usize>,
    tool: Option<usize>,
    /// Bytes of arguments that precede the name or are not an object.
    arguments: Option<std::ops::Range<usize>>,
    /// True if the object has a key that calls don't have.
    has_unknown_key: bool,
}

impl ObjectScan {
    pub(super) fn new() -> Self {
        Self {
            pos: 0,
            nesting: Nesting::within(1),
            level: 1,
            string_start: 0,
            key: None,
            value_start: None,
            tool: None,
            arguments: None,
            has_unknown_key: false,
        }
    }

    /// Returns the number of scanned bytes.
    pub(super) fn scanned(&self) -> usize {
        self.pos
    }

    /// Scans new bytes of `text`, which begins after the opening brace.
    pub(super) fn advance(&mut self, text: &str, tools: &[Tool]) -> ObjectStep {
        while let Some(&byte) = text.as_bytes().get(self.pos) {
            let at = self.pos;
            self.pos += 1;
            let (was_string, depth) = (self.nesting.is_string(), self.nesting.depth());
            let closed = self.nesting.advance(byte);
            let accepted = if was_string {
                let ended = !self.nesting.is_string() && depth == self.level;
                !ended || self.end_string(text, at, tools)
            } else if depth == self.level {
                if self.starts_arguments(byte)
                    && let Some(tool) = self.tool
                {
                    return ObjectStep::Arguments { tool, start: at, levels: depth };
                }
                self.structure(text, (at, byte), tools)
            } else if self.nesting.depth() == self.level && matches!(byte, b'}' | b']') {
                self.end_value(text, self.pos, tools)
            } else {
                true
            };
            if !accepted {
                return ObjectStep::Reject;
            }
            if closed {
                return self.complete(&text[..self.pos]).unwrap_or(ObjectStep::Reject);
            }
        }
        ObjectStep::More
    }

    fn starts_arguments(&self, byte: u8) -> bool {
        let is_arguments = self.key.as_deref().is_some_and(|key| ARGUMENT_KEYS.contains(&key));
        byte == b'{' && is_arguments && self.value_start.is_none()
    }

    /// Handles a byte outside of strings at the depth of the keys. Returns false if the object is not a call.
    fn structure(&mut self, text: &str, (at, byte): (usize, u8), tools: &[Tool]) -> bool {
        match byte {
            b'"' => {
                self.string_start = at;
                if self.key.is_some() && self.value_start.is_none() {
                    self.value_start = Some(at);
                }
            }
            b',' | b'}' => {
                if self.value_start.is_some() && !self.end_value(text, at, tools) {
                    return false;
                }
                self.key = None;
                if byte == b'}' {
                    self.level = self.level.saturating_sub(1).max(1);
                }
            }
            b'{' if self.key.as_deref() == Some("function") && self.level == 1 => {
                (self.level, self.key) = (2, None);
            }
            b':' => return self.key.is_some(),
            byte if byte.is_ascii_whitespace() => {}
            _ if self.key.is_none() => return false,
            _ => self.value_start = self.value_start.or(Some(at)),
        }
        true
    }

    /// Handles the closing quote at `at`.
    fn end_string(&mut self, text: &str, at: usize, tools: &[Tool]) -> bool {
        if self.key.is_some() {
            return self.value_start != Some(self.string_start) || self.end_value(text, at + 1, tools);
        }
        let Ok(key) = serde_json::from_str::<String>(&text[self.string_start..=at]) else { return false };
        let is_known =
            [&NAME_KEYS[..], &ARGUMENT_KEYS, &OTHER_KEYS].iter().any(|keys| keys.contains(&key.as_str()));
        self.has_unknown_key |= !is_known;
        self.key = Some(key);
        is_known || self.tool.is_some()
    }

    /// Handles the value that ends before `end`. Returns false if the object is not a call.
    fn end_value(&mut self, text: &str, end: usize, tools: &[Tool]) -> bool {
        let Some(start) = self.value_start.take() else { return true };
        let Some(key) = self.key.as_deref() else { return false };
        let value = text[start..end].trim_end();
        let string = || serde_json::from_str::<String>(value).ok();
        if NAME_KEYS.contains(&key) {
            self.tool = string().and_then(|name| tools.iter().position(|tool| tool.name == name));
            return self.tool.is_some();
        }
        if ARGUMENT_KEYS.contains(&key) {
            self.arguments = Some(start..end);
        }
        key != "type" || string().as_deref() == Some("function")
    }

    /// Returns the call of a complete object.
    fn complete(&self, text: &str) -> Option<ObjectStep> {
        let tool = self.tool?;
        serde_json::from_str::<IgnoredAny>(&format!("{{{text}")).ok()?;
        let arguments = match self.arguments.clone().map(|range| text[range].trim_end()) {
            None if self.has_unknown_key => return None,
            None | Some("null") => "{}".to_owned(),
            Some(object) if object.starts_with('{') => object.to_owned(),
            Some(value) => match serde_json::from_str::<String>(value).ok()? {
                empty if empty.trim().is_empty() => "{}".to_owned(),
                arguments => arguments,
            },
        };
        Some(ObjectStep::Complete { tool, arguments, end: text.len() })
    }
}
