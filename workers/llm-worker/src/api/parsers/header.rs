//! The name of a call before its arguments: `f[ARGS]{`, `functions.f:0<|tool_call_argument_begin|>{`, `f(`, `call:f{`,
//! `f<arg_key>`.
use super::delta::Tool;
use super::tags::{ARGUMENT_TAGS, Tags};

/// Maximum number of bytes between the name and the arguments.
const MAX_SEPARATOR: usize = 128;
/// Prefix of Gemma 4.
const RAW_PREFIX: &str = "call:";
/// Texts that may precede a name.
const PREFIXES: [&str; 5] = ["function<｜tool▁sep｜>", "functions.", "default_api.", "print(", RAW_PREFIX];
/// Beginnings of the text between a name and arguments in JSON or tags.
const SEPARATORS: [&str; 9] = [
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁sep｜>",
    "<|tool_call_argument_begin|>",
    "```json",
    ":",
    "{",
    "<arg_key>",
    "</tool_call>",
];

/// Form of the arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum ArgumentForm {
    /// A JSON object, whose brace follows the header.
    Json,
    /// Arguments as in Python; the header includes the parenthesis.
    Python,
    /// Arguments of Gemma 4; the header includes the brace.
    Raw,
    /// Parameters in tags, which follow the header.
    Tags(&'static Tags),
}

/// Result of reading a header.
#[derive(Clone, Copy, Debug)]
pub(super) enum Header {
    /// More text is needed.
    More,
    /// The text is not a header.
    Reject,
    /// The header of a call of the tool number `tool` has `len` bytes.
    Call { tool: usize, len: usize, form: ArgumentForm },
}

/// Reads the header at the beginning of `text`.
pub(super) fn read(text: &str, tools: &[Tool]) -> Header {
    let (mut rest, mut is_raw) = (text, false);
    while let Some(prefix) = PREFIXES.iter().find(|prefix| rest.starts_with(**prefix)) {
        rest = &rest[prefix.len()..];
        is_raw |= *prefix == RAW_PREFIX;
    }
    if PREFIXES.iter().any(|prefix| prefix.starts_with(rest)) {
        return Header::More;
    }
    let named = tools.iter().enumerate().filter(|(_, tool)| rest.starts_with(&tool.name));
    let Some((tool, named)) = named.max_by_key(|(_, tool)| tool.name.len()) else {
        let is_begun = tools.iter().any(|tool| tool.name.starts_with(rest));
        return if is_begun { Header::More } else { Header::Reject };
    };
    let after = &rest[named.name.len()..];
    // A longer name may follow.
    let may_grow = tools.iter().any(|tool| tool.name.len() > rest.len() && tool.name.starts_with(rest));
    match arguments(after) {
        Header::Reject if may_grow => Header::More,
        Header::Call { len, form, .. } => {
            let len = text.len() - after.len() + len;
            match form {
                ArgumentForm::Json if is_raw => Header::Call { tool, len: len + 1, form: ArgumentForm::Raw },
                form => Header::Call { tool, len, form },
            }
        }
        other => other,
    }
}

/// Reads what follows the name. The tool in the result has no meaning.
fn arguments(after: &str) -> Header {
    for python in ["(", ".call("] {
        if after.starts_with(python) {
            return Header::Call { tool: 0, len: python.len(), form: ArgumentForm::Python };
        }
    }
    let trimmed = after.trim_start();
    let is_begun = |mark: &&str| trimmed.len() < mark.len() && mark.starts_with(trimmed);
    if after.len() <= MAX_SEPARATOR && (".call(".starts_with(after) || SEPARATORS.iter().any(is_begun)) {
        return Header::More;
    }
    if !SEPARATORS.iter().any(|separator| trimmed.starts_with(separator)) {
        return Header::Reject;
    }
    if [ARGUMENT_TAGS.key, ARGUMENT_TAGS.end].iter().any(|tag| trimmed.starts_with(tag)) {
        let len = after.len() - trimmed.len();
        return Header::Call { tool: 0, len, form: ArgumentForm::Tags(&ARGUMENT_TAGS) };
    }
    match after.find('{') {
        Some(len) if len <= MAX_SEPARATOR => Header::Call { tool: 0, len, form: ArgumentForm::Json },
        None if after.len() <= MAX_SEPARATOR => Header::More,
        _ => Header::Reject,
    }
}
