//! The name of a call before its arguments: `f[ARGS]{`, `functions.f:0<|tool_call_argument_begin|>{`, `f(`.
use super::delta::Tool;

/// Maximum number of bytes between the name and the arguments.
const MAX_SEPARATOR: usize = 128;
/// Texts that may precede a name.
const PREFIXES: [&str; 4] = ["function<｜tool▁sep｜>", "functions.", "default_api.", "print("];
/// Beginnings of the text between a name and JSON arguments.
const SEPARATORS: [&str; 7] =
    ["[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<|tool_call_argument_begin|>", "```json", ":", "{"];

/// Form of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentForm {
    /// A JSON object, whose brace follows the header.
    Json,
    /// Arguments as in Python; the header includes the parenthesis.
    Python,
}

/// Result of reading a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    let mut rest = text;
    loop {
        if let Some(after) = PREFIXES.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
            rest = after;
            continue;
        }
        break;
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
        Header::Call { len, form, .. } => Header::Call { tool, len: text.len() - after.len() + len, form },
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
    match after.find('{') {
        Some(len) if len <= MAX_SEPARATOR => Header::Call { tool: 0, len, form: ArgumentForm::Json },
        None if after.len() <= MAX_SEPARATOR => Header::More,
        _ => Header::Reject,
    }
}
