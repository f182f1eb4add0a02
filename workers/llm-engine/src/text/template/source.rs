//! Changes to the source of templates that replace what Minijinja lacks.
use std::fmt::Write as _;
use std::ops::Range;

/// Filter that raises an exception for values which Python cannot iterate over.
pub(super) const ITERATE: &str = "iterable_or_raise";

/// Replaces `{% generation %}` tags, which mark text for training, by comments with the same white-space control. Passes
/// the values of loops through the filter [`ITERATE`], because Minijinja iterates over none without an error.
pub(super) fn adapted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut copied = 0;
    for tag in tags(text) {
        let inner = &text[tag.start + 2..tag.end - 2];
        let body = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']);
        out.push_str(&text[copied..tag.start]);
        copied = tag.end;
        if matches!(body.trim(), "generation" | "endgeneration") {
            let dash = |is_trimmed: bool| if is_trimmed { "-" } else { "" };
            // Jinja removes the newline after a block tag, and also after a comment.
            let _ = write!(out, "{{#{} {}#}}", dash(inner.starts_with('-')), dash(inner.ends_with('-')));
        } else if let Some(range) = loop_values(body) {
            let offset = body.as_ptr() as usize - text.as_ptr() as usize;
            let (start, end) = (range.start + offset, range.end + offset);
            let (before, values, after) = (&text[tag.start..start], &text[start..end], &text[end..tag.end]);
            let _ = write!(out, "{before}({values}) | {ITERATE} {after}");
        } else {
            out.push_str(&text[tag]);
        }
    }
    out.push_str(&text[copied..]);
    out
}

/// Returns the ranges of all `{% ... %}` tags, outside of comments, expressions and raw blocks.
fn tags(text: &str) -> Vec<Range<usize>> {
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find('{').map(|found| at + found) {
        let end = match text.as_bytes().get(start + 1) {
            Some(b'#') => text[start + 2..].find("#}").map(|found| start + 2 + found + 2),
            Some(b'{') => end_of_code(text, start + 2, "}}"),
            Some(b'%') => end_of_code(text, start + 2, "%}"),
            _ => Some(start + 1),
        };
        let Some(end) = end else { break };
        at = end;
        if text[start..].starts_with("{%") {
            tags.push(start..end);
            let is_raw = text[start + 2..end - 2].trim_matches(['-', '+']).trim() == "raw";
            if is_raw {
                at += text[end..].find("endraw").unwrap_or(text.len() - end);
            }
        }
    }
    tags
}

/// Returns the end of code that begins at `start` and ends with `sign`, outside of strings and brackets.
fn end_of_code(text: &str, start: usize, sign: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut skipped = start;
    for (index, character) in
        text[start..].char_indices().map(|(index, character)| (start + index, character))
    {
        if index < skipped {
            continue;
        }
        if depth == 0 && text[index..].starts_with(sign) {
            return Some(index + sign.len());
        }
        match character {
            '\'' | '"' => skipped = end_of_string(text, index)?,
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Returns the end of the string literal that begins at `start`.
fn end_of_string(text: &str, start: usize) -> Option<usize> {
    let quote = text[start..].chars().next()?;
    let mut escaped = false;
    for (index, character) in text[start + 1..].char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return Some(start + 1 + index + 1),
            _ => {}
        }
    }
    None
}

/// Returns the range of the values in the tag `for x in values if condition recursive`.
fn loop_values(body: &str) -> Option<Range<usize>> {
    let rest = body.trim_start().strip_prefix("for")?;
    if !rest.starts_with(char::is_whitespace) {
        return None;
    }
    let words = words(body);
    let start = words.iter().find(|word| &body[(*word).clone()] == "in")?.end;
    let end = words.iter().filter(|word| word.start >= start);
    let end = end.clone().find(|word| matches!(&body[(*word).clone()], "if" | "recursive"));
    Some(start..end.map_or(body.len(), |word| word.start))
}

/// Returns the ranges of the words outside of strings and brackets.
fn words(text: &str) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    let (mut depth, mut skipped) = (0usize, 0);
    for (index, character) in text.char_indices() {
        if index < skipped {
            continue;
        }
        match character {
            '\'' | '"' => skipped = end_of_string(text, index).unwrap_or(text.len()),
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && (character.is_alphanumeric() || character == '_') => {
                let end = index + character.len_utf8();
                match words.last_mut().filter(|word| word.end == index) {
                    Some(word) => word.end = end,
                    None => words.push(index..end),
                }
            }
            _ => {}
        }
    }
    words
}
