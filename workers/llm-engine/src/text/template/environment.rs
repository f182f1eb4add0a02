//! The Jinja environment of chat templates: functions, filters, tests and methods as in Transformers and jinja2.
use std::fmt::Write as _;

use chrono::{DateTime, Local};
use minijinja::value::{Kwargs, Rest, Value as Jinja, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::json::tojson;
use super::{python, source};

/// Returns an environment like that of Transformers. `now` replaces the current time, in Unix seconds.
pub(super) fn environment(now: Option<i64>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, _, value| {
        out.write_str(&python::str(value)).map_err(|_| error("cannot write the text".into()))
    });
    environment
        .add_function("raise_exception", |message: String| -> Result<String, Error> { Err(error(message)) });
    environment.add_function("strftime_now", move |format: String| strftime(now, &format));
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Jinja| python::str(value));
    environment.add_filter("join", join);
    for name in ["length", "count"] {
        environment.add_filter(
            name,
            |value: &Jinja| if value.is_undefined() { Ok(0) } else { filters::length(value) },
        );
    }
    environment.add_filter("int", int);
    environment.add_filter("title", |text: String| title(&text));
    for (name, filter) in [
        ("map", Jinja::from_function(filters::map)),
        ("reject", Jinja::from_function(filters::reject)),
        ("rejectattr", Jinja::from_function(filters::rejectattr)),
        ("select", Jinja::from_function(filters::select)),
        ("selectattr", Jinja::from_function(filters::selectattr)),
    ] {
        environment.add_filter(name, move |state: &State, arguments: Rest<Jinja>| -> Result<Jinja, Error> {
            generator(&filter.call(state, &arguments)?)
        });
    }
    environment.add_filter(source::ITERATE, |value: Jinja| match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            Err(error(format!("{} is not iterable", value.kind())))
        }
        _ => Ok(value),
    });
    environment.add_test("iterable", |value: &Jinja| {
        !matches!(value.kind(), ValueKind::None) && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: &Jinja| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    environment
        .add_test("number", |value: &Jinja| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment
}

pub(super) fn error(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Formats the local time as Python's `strftime` does.
fn strftime(now: Option<i64>, format: &str) -> Result<String, Error> {
    let now = match now {
        Some(seconds) => DateTime::from_timestamp(seconds, 0).unwrap_or_default().with_timezone(&Local),
        None => Local::now(),
    };
    let mut text = String::new();
    match write!(text, "{}", now.format(format)) {
        Ok(()) => Ok(text),
        Err(_) => Err(error(format!("{format:?} is not a valid date format"))),
    }
}

/// Returns a generator: an iterator without a length, which can be used once.
fn generator(values: &Jinja) -> Result<Jinja, Error> {
    Ok(Jinja::make_one_shot_iterator(values.try_iter()?.collect::<Vec<_>>().into_iter()))
}

/// Joins the texts of items, or of one attribute of them.
fn join(
    values: &Jinja,
    separator: Option<String>,
    attribute: Option<String>,
    options: Kwargs,
) -> Result<String, Error> {
    let option = |given: Option<String>, name: &str| match given {
        Some(given) => Ok(Some(given)),
        None => options.get::<Option<String>>(name),
    };
    let (separator, attribute) =
        (option(separator, "d")?.unwrap_or_default(), option(attribute, "attribute")?);
    options.assert_all_used()?;
    let mut texts = Vec::new();
    for value in values.try_iter()? {
        texts.push(match &attribute {
            Some(attribute) => python::str(&value.get_attr(attribute)?),
            None => python::str(&value),
        });
    }
    Ok(texts.join(&separator))
}

/// Converts a value to an integer; returns `default` for a text that is not a number.
fn int(value: &Jinja, default: Option<Jinja>) -> Jinja {
    let number = match value.as_str().map(str::trim) {
        Some(text) => {
            text.parse::<i64>().ok().or_else(|| text.parse::<f64>().ok().map(|number| number as i64))
        }
        None if value.kind() == ValueKind::Bool => Some(i64::from(value.is_true())),
        None => value.as_i64().or_else(|| f64::try_from(value.clone()).ok().map(|number| number as i64)),
    };
    number.map_or_else(|| default.unwrap_or_else(|| Jinja::from(0)), Jinja::from)
}

/// Capitalizes words. They begin behind white space, a hyphen or an opening bracket.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut first = true;
    for character in text.chars() {
        match first {
            true => out.extend(character.to_uppercase()),
            false => out.extend(character.to_lowercase()),
        }
        first = character.is_whitespace() || matches!(character, '-' | '(' | '{' | '[' | '<');
    }
    out
}

/// Implements methods of Python's strings, lists and dicts.
fn method(state: &State, value: &Jinja, name: &str, arguments: &[Jinja]) -> Result<Jinja, Error> {
    let found = match value.as_str() {
        Some(text) => string_method(text, name, arguments)?,
        None if name == "copy" && matches!(value.kind(), ValueKind::Map | ValueKind::Seq) => {
            Some(value.clone())
        }
        None => None,
    };
    match found {
        Some(found) => Ok(found),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// Implements string methods that `pycompat` lacks or that differ from Python's.
fn string_method(text: &str, name: &str, arguments: &[Jinja]) -> Result<Option<Jinja>, Error> {
    let argument = || -> Result<&str, Error> { Ok(from_args::<(&str,)>(arguments)?.0) };
    let position = |found: Option<usize>| match found {
        Some(bytes) => text[..bytes].chars().count() as i64,
        None => -1,
    };
    Ok(Some(match name {
        "find" => position(text.find(argument()?)).into(),
        "rfind" => position(text.rfind(argument()?)).into(),
        "removeprefix" => text.strip_prefix(argument()?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(argument()?).unwrap_or(text).into(),
        "partition" => match text.split_once(argument()?) {
            Some((before, after)) => list(&[before, argument()?, after]),
            None => list(&[text, "", ""]),
        },
        "rpartition" => match text.rsplit_once(argument()?) {
            Some((before, after)) => list(&[before, argument()?, after]),
            None => list(&["", "", text]),
        },
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(arguments)?;
            let count =
                limit.and_then(|limit| usize::try_from(limit).ok()).map_or(usize::MAX, |limit| limit + 1);
            let mut parts: Vec<&str> = match separator {
                Some(separator) => text.rsplitn(count, separator).collect(),
                None => {
                    text.trim().rsplitn(count, char::is_whitespace).filter(|part| !part.is_empty()).collect()
                }
            };
            parts.reverse();
            list(&parts)
        }
        // For the empty string, Rust's conditions hold and Python's do not.
        "isalnum" | "isalpha" | "isdigit" | "islower" | "isnumeric" | "isspace" | "isupper"
            if text.is_empty() =>
        {
            false.into()
        }
        _ => return Ok(None),
    }))
}

fn list(parts: &[&str]) -> Jinja {
    parts.iter().map(|part| Jinja::from(*part)).collect()
}
