//! Output of parsers, and the tools that may be called.
use serde_json::Value;

/// Part of an answer. The deltas of an answer are in the order of generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// Beginning of a tool call. Its arguments follow, then its end.
    CallBegin {
        /// Number of the call in its text, counted from 0.
        index: usize,
        /// Name of the tool.
        name: String,
    },
    /// Part of the arguments of the current call, which are JSON once the call has ended.
    Arguments {
        /// Number of the call.
        index: usize,
        /// Text to append.
        text: String,
    },
    /// End of a tool call. If the text ended too early, the arguments are not complete.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
}

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name.
    pub name: String,
    /// JSON schema of the arguments.
    pub parameters: Option<Value>,
}

impl Tool {
    /// Returns the JSON schema of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&Value> {
        self.parameters.as_ref()?.get("properties")?.get(name)
    }

    /// Returns the name of the only parameter, or `None` if there are several or none.
    pub(super) fn only_parameter(&self) -> Option<&str> {
        let mut names = self.parameters.as_ref()?.get("properties")?.as_object()?.keys();
        names.next().filter(|_| names.next().is_none()).map(String::as_str)
    }
}
