//! Elements of grammars in llguidance's dialect of Lark.

/// Matches any text, including line breaks.
pub(super) const ANY_TEXT: &str = "(?s:.*)";

/// Returns a regular expression that matches exactly one character, without characters that end an expression in Lark.
pub(super) fn character(character: char) -> String {
    match character.is_ascii_alphanumeric() {
        true => character.into(),
        false => format!("\\x{{{:x}}}", u32::from(character)),
    }
}

/// Returns a regular expression that matches exactly `text`.
pub(super) fn pattern(text: &str) -> String {
    text.chars().map(character).collect()
}

/// Returns the expression that matches exactly `text`.
pub(super) fn literal(text: &str) -> String {
    // Lark's regular expressions may not be empty.
    if text.is_empty() { "\"\"".into() } else { format!("/{}/", pattern(text)) }
}
