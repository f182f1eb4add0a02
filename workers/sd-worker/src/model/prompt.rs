//! Weights of words in prompts, in the notation of AUTOMATIC1111.
use crate::{Error, Result};

/// Factor of `(words)`; `[words]` has its reciprocal.
const EMPHASIS: f64 = 1.1;
/// Maximum absolute weight of a word.
const MAX_WEIGHT: f64 = 100.0;

/// Part of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Segment {
    /// Text with a weight.
    Text(String, f64),
    /// The word BREAK, which begins another chunk.
    Break,
}

/// Splits a prompt into parts of equal weight: `(words)` and `[words]` raise and lower it by a factor of 1.1,
/// `(words:1.3)` sets it, and a backslash makes a bracket part of the text.
///
/// # Errors
/// A weight is too large.
pub fn parse(prompt: &str) -> Result<Vec<Segment>> {
    let mut parts: Vec<Segment> = Vec::new();
    // Indices of the first part in each open bracket.
    let (mut round, mut square) = (Vec::new(), Vec::new());
    let mut rest = prompt;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        match first {
            '\\' => {
                let escaped = rest[1..].chars().next().filter(|next| "()[]\\".contains(*next));
                length += escaped.map_or(0, char::len_utf8);
                parts.push(Segment::Text(escaped.map(String::from).unwrap_or_default(), 1.0));
            }
            '(' => round.push(parts.len()),
            '[' => square.push(parts.len()),
            ':' if let Some((weight, end)) = explicit_weight(rest)
                && let Some(start) = round.pop() =>
            {
                multiply(&mut parts[start..], weight);
                length = end;
            }
            ')' if let Some(start) = round.pop() => multiply(&mut parts[start..], EMPHASIS),
            ']' if let Some(start) = square.pop() => multiply(&mut parts[start..], 1.0 / EMPHASIS),
            ')' | ']' | ':' => parts.push(Segment::Text(first.to_string(), 1.0)),
            _ => {
                length = rest.find(['\\', '(', ')', '[', ']', ':']).unwrap_or(rest.len());
                push_text(&mut parts, &rest[..length]);
            }
        }
        rest = &rest[length..];
    }
    round.into_iter().for_each(|start| multiply(&mut parts[start..], EMPHASIS));
    square.into_iter().for_each(|start| multiply(&mut parts[start..], 1.0 / EMPHASIS));
    merged(parts)
}

/// Parses `:1.3)` and returns the number and the length of the text.
fn explicit_weight(text: &str) -> Option<(f64, usize)> {
    let end = text.find(')')?;
    let number = text[1..end].trim();
    let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    Some((number.parse().ok().filter(|_| is_number)?, end + 1))
}

fn multiply(parts: &mut [Segment], factor: f64) {
    for part in parts {
        if let Segment::Text(_, weight) = part {
            *weight *= factor;
        }
    }
}

/// Appends text, split at the word BREAK.
fn push_text(parts: &mut Vec<Segment>, text: &str) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut rest, mut from) = (text, 0);
    while let Some(at) = rest[from..].find("BREAK").map(|at| from + at) {
        let end = at + "BREAK".len();
        if rest[..at].ends_with(is_word) || rest[end..].starts_with(is_word) {
            from = end;
            continue;
        }
        parts.push(Segment::Text(rest[..at].trim_end().to_owned(), 1.0));
        parts.push(Segment::Break);
        rest = rest[end..].trim_start();
        from = 0;
    }
    parts.push(Segment::Text(rest.to_owned(), 1.0));
}

/// Joins adjacent texts of equal weight.
fn merged(parts: Vec<Segment>) -> Result<Vec<Segment>> {
    let mut merged: Vec<Segment> = Vec::new();
    for part in parts {
        if let Segment::Text(text, weight) = &part {
            if !(-MAX_WEIGHT..=MAX_WEIGHT).contains(weight) {
                let word: String = text.chars().take(40).collect();
                return Err(Error::request(format!(
                    "the weight of {word:?} in the prompt is {weight:.3e}, but must be -{MAX_WEIGHT} to {MAX_WEIGHT}"
                )));
            }
            if let Some(Segment::Text(last, of_last)) = merged.last_mut()
                && of_last == weight
            {
                last.push_str(text);
                continue;
            }
        }
        merged.push(part);
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(prompt: &str) -> Vec<(String, f64)> {
        let parts = parse(prompt).unwrap().into_iter();
        parts
            .map(|part| match part {
                Segment::Text(text, weight) => (text, weight),
                Segment::Break => ("BREAK".to_owned(), f64::INFINITY),
            })
            .collect()
    }

    #[test]
    fn weights_are_those_of_automatic1111() {
        let table: [(&str, &[(&str, f64)]); 14] = [
            ("", &[]),
            ("normal text", &[("normal text", 1.0)]),
            ("an (important) word", &[("an ", 1.0), ("important", 1.1), (" word", 1.0)]),
            ("(unbalanced", &[("unbalanced", 1.1)]),
            (r"\(literal\]", &[("(literal]", 1.0)]),
            ("(unnecessary)(parens)", &[("unnecessaryparens", 1.1)]),
            (
                "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
                &[
                    ("a ", 1.0),
                    ("house", 1.573),
                    (" ", 1.1),
                    ("on", 1.0),
                    (" a ", 1.1),
                    ("hill", 0.55),
                    (", sun, ", 1.1),
                    ("sky", 1.4641),
                    (".", 1.1),
                ],
            ),
            ("[[a]] (b: +2 )", &[("a", 1.0 / 1.21), (" ", 1.0), ("b", 2.0)]),
            ("(a:-1.5)c", &[("a", -1.5), ("c", 1.0)]),
            ("3:2 x) y]", &[("3:2 x) y]", 1.0)]),
            ("(a:b) (c:1e3)", &[("a:b", 1.1), (" ", 1.0), ("c:1e3", 1.1)]),
            (r"a\b\", &[("ab", 1.0)]),
            ("a BREAK (b BREAKs)", &[("a", 1.0), ("BREAK", f64::INFINITY), ("", 1.0), ("b BREAKs", 1.1)]),
            ("(ü(é:1.2)", &[("ü", 1.1), ("é", 1.32)]),
        ];
        for (prompt, expected) in table {
            let found = texts(prompt);
            assert_eq!(found.len(), expected.len(), "{prompt}: {found:?}");
            for ((text, weight), (expected_text, expected_weight)) in found.iter().zip(expected) {
                let near = weight == expected_weight || (weight - expected_weight).abs() < 1e-9;
                assert!(text == expected_text && near, "{prompt}: {found:?}");
            }
        }
    }

    #[test]
    fn extreme_weights_are_refused() {
        for prompt in ["(a:101)", "(a:-1000)", &"(".repeat(3000)] {
            let outcome = parse(&format!("{prompt}x"));
            assert!(
                outcome.is_err_and(|error| error.to_string().contains("but must be -100 to 100")),
                "{prompt:.9}"
            );
        }
        assert!(parse(&"((a".repeat(3000)).is_err());
        assert!(parse(&"[a(b".repeat(2500)).is_ok());
    }
}
