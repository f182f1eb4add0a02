//! The `tojson` filter, with the arguments and the output of Transformers' filter, which calls Python's `json.dumps`.
use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, Value as Jinja, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::Value;

use super::python;

/// Separators and options of `json.dumps`.
struct Format {
    item: String,
    key: String,
    /// Text of one nesting level, with each item on its own line; `None` writes one line.
    indent: Option<String>,
    ascii: bool,
}

/// Implements `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`. HTML is not escaped.
pub(super) fn tojson(value: Jinja, arguments: Rest<Jinja>, options: Kwargs) -> Result<Jinja, Error> {
    let option = |index: usize, name: &str| -> Result<Jinja, Error> {
        match arguments.get(index) {
            Some(given) => Ok(given.clone()),
            None => Ok(options.get::<Option<Jinja>>(name)?.unwrap_or_else(|| Jinja::from(()))),
        }
    };
    let (ascii, indent) = (option(0, "ensure_ascii")?.is_true(), option(1, "indent")?);
    let (separators, sorted) = (option(2, "separators")?, option(3, "sort_keys")?.is_true());
    options.assert_all_used()?;
    let is_generator = value.kind() == ValueKind::Iterable && value.len().is_none();
    if value.is_undefined() || is_generator {
        return Err(error(format!("a value of type {} is not JSON serializable", value.kind())));
    }
    let indent = match (indent.as_str(), indent.as_i64()) {
        _ if indent.is_none() => None,
        (Some(text), _) => Some(text.to_owned()),
        (None, Some(width)) => Some(" ".repeat(usize::try_from(width).unwrap_or(0))),
        (None, None) => return Err(error(format!("the indent {indent} is neither a number nor a string"))),
    };
    let mut format = Format {
        item: if indent.is_some() { ",".into() } else { ", ".into() },
        key: ": ".into(),
        indent,
        ascii,
    };
    if !separators.is_none() {
        let given: Vec<Jinja> = separators.try_iter()?.collect();
        let [Some(item), Some(key)] = [given.first(), given.get(1)].map(|part| part.and_then(Jinja::as_str))
        else {
            return Err(error("separators must be two strings".into()));
        };
        (format.item, format.key) = (item.to_owned(), key.to_owned());
    }
    let json = serde_json::to_value(&value);
    let mut json = json.map_err(|cause| error(format!("the value is not JSON serializable: {cause}")))?;
    if sorted {
        json.sort_all_objects();
    }
    let mut out = String::new();
    write(&mut out, &json, &format, 0);
    Ok(Jinja::from_safe_string(out))
}

fn error(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn write(out: &mut String, value: &Value, format: &Format, depth: usize) {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => out.push_str(&python::float(number)),
            None => {
                let _ = write!(out, "{number}");
            }
        },
        Value::String(text) => string(out, text, format.ascii),
        Value::Array(items) => {
            sequence(out, ['[', ']'], items, format, depth, |out, item| write(out, item, format, depth + 1));
        }
        Value::Object(fields) => {
            sequence(out, ['{', '}'], fields, format, depth, |out, (name, value)| {
                string(out, name, format.ascii);
                out.push_str(&format.key);
                write(out, value, format, depth + 1);
            });
        }
        Value::Null | Value::Bool(_) => {
            let _ = write!(out, "{value}");
        }
    }
}

fn sequence<T>(
    out: &mut String,
    [begin, end]: [char; 2],
    items: impl IntoIterator<Item = T>,
    format: &Format,
    depth: usize,
    mut write_item: impl FnMut(&mut String, T),
) {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &format.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(begin);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(&format.item);
        }
        empty = false;
        line(out, depth + 1);
        write_item(out, item);
    }
    if !empty {
        line(out, depth);
    }
    out.push(end);
}

fn string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            character if character < ' ' || (ascii && character > '~') => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            character => out.push(character),
        }
    }
    out.push('"');
}
