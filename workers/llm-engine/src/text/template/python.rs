//! Values as text, as Python's `str` and `repr` return them.
use std::fmt::Write as _;

use minijinja::value::{Value as Jinja, ValueKind};

/// Returns the text that Python prints for a value.
pub(super) fn str(value: &Jinja) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => {
            let mut out = String::new();
            repr(&mut out, value);
            out
        }
    }
}

fn repr(out: &mut String, value: &Jinja) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => string(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(out, &item);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(out, &key);
                out.push_str(": ");
                repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// Writes a string in single quotes, or in double quotes if it only contains single ones.
fn string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if is_printable(character) => out.push(character),
            _ => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Rust and Python regard the same categories as not printable. Combining characters are only escaped at the start.
fn is_printable(character: char) -> bool {
    let text: String = ['a', character].iter().collect();
    matches!(character, '"' | '\'') || text.escape_debug().count() == 2
}

/// Returns a floating-point number with the fewest digits that identify it.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() { "nan".into() } else { format!("{number}") };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent if number != 0.0 && !(-4..16).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => {
            let plain = format!("{number}");
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}
