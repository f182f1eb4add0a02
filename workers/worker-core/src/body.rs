//! Parsing of request bodies: one pass over the JSON, into typed parts that are passed on by value.

use crate::ApiError;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use hyper::body::Bytes;
pub use serde::de::MapAccess;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// A group of fields of a request body. Groups can be combined as tuples and are read in one pass.
///
/// [`fields!`](crate::fields) declares such a group.
pub trait Fields: Default {
    /// Treatment of unknown fields; that of the first group of a tuple applies.
    const OTHERS: Others = Others::Invalid;

    /// Reads the value of the field `name` and returns true if this group has the field.
    ///
    /// # Errors
    /// The value has the wrong type.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<bool, A::Error>;
}

/// Treatment of unknown fields. Null values are accepted, except by [`Others::Invalid`].
#[derive(Clone, Copy, Debug)]
pub enum Others {
    /// All unknown fields are rejected with `invalid_value`.
    Invalid,
    /// Unknown fields are rejected with `unsupported_parameter`, unless a table lists this value.
    Unsupported(&'static [Table]),
}

/// Unsupported fields, each with its values without effect, as JSON or as a string; `*` matches any value.
pub type Table = &'static [(&'static str, &'static [&'static str])];

impl Others {
    /// Returns the error code if this field is rejected.
    fn refuse(self, name: &str, value: &Value) -> Option<&'static str> {
        let Others::Unsupported(tables) = self else { return Some("invalid_value") };
        if value.is_null() {
            return None;
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let row = tables.iter().copied().flatten().find(|(field, _)| *field == name);
        let accepted =
            row.is_some_and(|(_, harmless)| harmless.iter().any(|one| *one == "*" || *one == text));
        (!accepted).then_some("unsupported_parameter")
    }
}

macro_rules! tuple {
    ($first:ident $(, $part:ident)*) => {
        impl<$first: Fields, $($part: Fields),*> Fields for ($first, $($part),*) {
            const OTHERS: Others = $first::OTHERS;

            #[allow(non_snake_case, reason = "variables are named after type parameters")]
            fn read<'de, Values: MapAccess<'de>>(&mut self, name: &str, values: &mut Values) -> Result<bool, Values::Error> {
                let ($first, $($part),*) = self;
                Ok($first.read(name, values)? $(|| $part.read(name, values)?)*)
            }
        }
    };
}
tuple!(One, Two);
tuple!(One, Two, Three);
tuple!(One, Two, Three, Four);

/// Declares a group of body fields: a struct of options, which are `None` if the field is missing or null. `as` gives a
/// field another name in JSON.
#[macro_export]
macro_rules! fields {
    ($(#[$meta:meta])* $visibility:vis struct $name:ident $(, others: $others:expr)? => {
        $($(#[$field_meta:meta])* $field:ident $(as $json_name:literal)?: $kind:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $visibility struct $name { $($(#[$field_meta])* pub $field: Option<$kind>,)* }

        impl $crate::body::Fields for $name {
            $(const OTHERS: $crate::body::Others = $others;)?

            fn read<'de, A: $crate::body::MapAccess<'de>>(
                &mut self,
                name: &str,
                values: &mut A,
            ) -> Result<bool, A::Error> {
                match name {
                    $($crate::field_name!($field $($json_name)?) => self.$field = values.next_value()?,)*
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}

/// Returns the name of a field in JSON: that of the struct, or one that follows it.
#[doc(hidden)]
#[macro_export]
macro_rules! field_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $json_name:literal) => {
        $json_name
    };
}

/// Returns the value of a required field.
///
/// # Errors
/// 400 that names the field if it is missing.
pub fn required<T>(value: Option<T>, name: &str) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::field(name, "is missing"))
}

/// Range check of a number: field name, value, permitted range, and unit in the plural (may be empty). A
/// range that starts at `f64::MIN_POSITIVE` excludes 0; one that ends at infinity has no upper limit.
#[derive(Clone, Debug)]
pub struct Limit<'a>(pub &'a str, pub f64, pub RangeInclusive<f64>, pub &'a str);

/// Checks numbers against their ranges.
///
/// # Errors
/// 400 with the name, value and range of the first number that is out of range.
pub fn check(limits: &[Limit]) -> Result<(), ApiError> {
    let Some(Limit(name, value, range, unit)) = limits.iter().find(|limit| !limit.2.contains(&limit.1))
    else {
        return Ok(());
    };
    let (least, most) = (range.start(), range.end());
    let range = match (*least == f64::MIN_POSITIVE, most.is_finite()) {
        (true, _) => format!("above 0 and at most {most}"),
        (false, true) => format!("{least} to {most}"),
        (false, false) => format!("at least {least}"),
    };
    let message = format!("is {value}, but must be {range} {unit}");
    Err(ApiError::field(*name, message.trim_end()))
}

/// Extractor for a JSON request body. Every defect of the body becomes a 4xx error that names the field.
#[derive(Clone, Copy, Debug)]
pub struct Body<T>(pub T);

impl<T: Fields, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE);
        if !kind.is_some_and(|kind| is_json(kind.as_bytes())) {
            let message = "the body must be JSON, with the header `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    ApiError::too_large("the body exceeds the size limit of this worker (--body-limit)")
                }
                _ => ApiError::invalid("the body was not received completely"),
            }
        })?;
        parse(&bytes).map(Body)
    }
}

/// Parses JSON like [`Body`], from bytes.
///
/// # Errors
/// 400 if the bytes are not UTF-8 or not JSON, or if a value has the wrong type.
pub fn parse<T: Fields>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        ApiError::invalid(format!("the body is not UTF-8: invalid byte {at}")).with_code("invalid_utf8")
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let object = read::<T, _>(&mut json, text)?;
    json.end().map_err(|error| not_json(&error))?;
    object.accepted()
}

/// Parses fields that do not come from JSON text, such as those of a form.
///
/// # Errors
/// 400 if a value has the wrong type or a field is not accepted.
pub fn from_fields<T: Fields>(fields: Map<String, Value>) -> Result<T, ApiError> {
    read::<T, _>(Value::Object(fields), "")?.accepted()
}

fn read<'de, T: Fields, D: Deserializer<'de, Error = serde_json::Error>>(
    from: D,
    text: &str,
) -> Result<Object<T>, ApiError> {
    serde_path_to_error::deserialize(from).map_err(|error| {
        let path = error.path().clone();
        data_error(&path, &error.into_inner(), text)
    })
}

/// Parsed fields, and name and error code of the first rejected field.
struct Object<T> {
    parts: T,
    refused: Option<(String, &'static str)>,
}

impl<T> Object<T> {
    fn accepted(self) -> Result<T, ApiError> {
        let Some((name, code)) = self.refused else { return Ok(self.parts) };
        let why = if code == "invalid_value" { NOT_A_FIELD } else { NOT_SUPPORTED };
        Err(ApiError::field(name.chars().take(MAX_NAME_CHARS).collect::<String>(), why).with_code(code))
    }
}

impl<'de, T: Fields> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts<T>(PhantomData<T>);

        impl<'de, T: Fields> Visitor<'de> for Parts<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<Object<T>, A::Error> {
                let mut object = Object { parts: T::default(), refused: None };
                let mut seen = HashSet::new();
                while let Some(name) = values.next_key::<String>()? {
                    if seen.contains(&name) {
                        return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                    if !object.parts.read(&name, &mut values)? {
                        let value: Value = values.next_value()?;
                        let code = T::OTHERS.refuse(&name, &value);
                        object.refused = object.refused.or_else(|| Some((name.clone(), code?)));
                    }
                    seen.insert(name);
                }
                Ok(object)
            }
        }

        deserializer.deserialize_map(Parts(PhantomData))
    }
}

/// An object within a body, whose unknown fields are treated like those of the body.
#[derive(Clone, Debug, Default)]
pub struct Nested<T>(pub T);

impl<'de, T: Fields> Deserialize<'de> for Nested<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Object { parts, refused } = Object::deserialize(deserializer)?;
        let Some((name, code)) = refused else { return Ok(Nested(parts)) };
        let kind = if code == "invalid_value" { UNKNOWN } else { UNSUPPORTED };
        let name: String = name.chars().take(MAX_NAME_CHARS).collect();
        Err(D::Error::custom(format_args!("{kind}{name}`")))
    }
}

/// Converts the error for the value at `at` of the body `text`.
fn data_error(at: &Path, error: &serde_json::Error, text: &str) -> ApiError {
    let message = truncated(without_rust_types(error.to_string()));
    let message = match error.classify() {
        Category::Data => message,
        // serde_json also reports values that it cannot represent, and a number in place of a variant's name, as syntax
        // errors.
        Category::Syntax if serde_json::from_str::<IgnoredAny>(text).is_ok() => {
            if message.starts_with("expected value") {
                "the value has the wrong type".to_owned()
            } else {
                message
            }
        }
        _ => return not_json(error),
    };
    let mut param = path(at);
    // For missing, duplicate and unknown fields the path may end at the enclosing object; serde's text has the name.
    let named = NAMED.iter().find_map(|start| Some((start, message.strip_prefix(start)?.split_once('`')?.0)));
    if let Some((start, name)) = named {
        let last = matches!(at.iter().next_back(), Some(Segment::Map { key }) if key == name);
        if *start == MISSING || !last {
            param = if param.is_empty() { name.to_owned() } else { format!("{param}.{name}") };
        }
    }
    match named {
        Some((&UNSUPPORTED, _)) => {
            return ApiError::field(param, NOT_SUPPORTED).with_code("unsupported_parameter");
        }
        Some((&UNKNOWN, _)) => return ApiError::field(param, NOT_A_FIELD),
        _ => {}
    }
    let location = if param.is_empty() { "the body" } else { param.as_str() };
    let error = ApiError::invalid(format!("{location}: {message}")).with_code("invalid_value");
    if param.is_empty() { error } else { error.with_param(param) }
}

const MISSING: &str = "missing field `";
const UNSUPPORTED: &str = "unsupported field `";
const UNKNOWN: &str = "unknown field `";
const NAMED: [&str; 4] = [MISSING, "duplicate field `", UNSUPPORTED, UNKNOWN];

const NOT_SUPPORTED: &str = "is not supported by this server";
const NOT_A_FIELD: &str = "is not a field of this request body";

/// Replaces the name of a Rust type at the end of serde's message.
fn without_rust_types(message: String) -> String {
    let Some((start, rest)) = message.rsplit_once("expected ") else { return message };
    let name = rest.split(' ').next().unwrap_or_default();
    let words = match name {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        _ => return message,
    };
    format!("{start}expected {words}{}", &rest[name.len()..])
}

/// Maximum number of characters of a field name in an error.
const MAX_NAME_CHARS: usize = 64;
/// Maximum number of characters of client input in an error.
const MAX_ECHOED_CHARS: usize = 400;

fn truncated(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_ECHOED_CHARS) {
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::invalid(format!("the body is not JSON: {error}")).with_code("invalid_json")
}

/// Returns the path in OpenAI's notation, `messages[0].content`; empty for the body itself.
fn path(at: &Path) -> String {
    let text = at.to_string();
    if text == "." || text == "?" { String::new() } else { truncated(text) }
}

/// Returns true for `application/json` and `application/*+json`; parameters of the content type are ignored.
fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let kind = kind.to_ascii_lowercase();
    kind == b"application/json" || (kind.starts_with(b"application/") && kind.ends_with(b"+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_effect_are_accepted() {
        const TABLES: &[Table] = &[&[("user", &["*"])], &[("best_of", &["1", "1.0"]), ("echo", &["false"])]];
        let of = |others: Others, body: &str| {
            let body: Map<String, Value> = serde_json::from_str(body).unwrap();
            body.iter().find_map(|(name, value)| others.refuse(name, value))
        };
        for (body, refused) in [
            (r#"{"user": {"a": 1}, "best_of": 1, "echo": false, "other": null}"#, false),
            (r#"{"best_of": 1.0, "echo": "false"}"#, false),
            (r#"{"best_of": 2}"#, true),
            (r#"{"echo": true}"#, true),
            (r#"{"echo": null}"#, false),
            (r#"{"other": 1}"#, true),
        ] {
            let code = refused.then_some("unsupported_parameter");
            assert_eq!(of(Others::Unsupported(TABLES), body), code, "{body}");
            assert_eq!(of(Others::Invalid, body), Some("invalid_value"), "{body}");
        }
    }

    #[test]
    fn json_content_types_are_recognized() {
        for yes in ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"] {
            assert!(is_json(yes.as_bytes()), "{yes}");
        }
        for no in ["", "text/json", "application/jsonx", "application/x-www-form-urlencoded", "text/a+json"] {
            assert!(!is_json(no.as_bytes()), "{no}");
        }
    }
}
