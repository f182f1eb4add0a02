//! Objects of a request body whose fields depend on their type, read with their paths for errors.
use serde_json::{Map, Value};
use worker_core::ApiError;

/// An object and its path in the body.
pub struct Object<'a> {
    path: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    /// Reads the value at `path`.
    ///
    /// # Errors
    /// Returns a 400 error if the value is not an object.
    pub fn new(path: String, value: &'a Value) -> Result<Self, ApiError> {
        match value.as_object() {
            Some(fields) => Ok(Self { path, fields }),
            None => Err(ApiError::field(path, "must be an object")),
        }
    }

    /// Returns the value of a field that is not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Returns the path of a field.
    pub fn path(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// Returns a 400 error about a field. The message follows its name.
    pub fn error(&self, name: &str, message: impl AsRef<str>) -> ApiError {
        ApiError::field(self.path(name), message)
    }

    /// Returns the value of a string field.
    ///
    /// # Errors
    /// Returns a 400 error if the value is not a string.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| self.error(name, "must be a string"));
        self.get(name).map(text).transpose()
    }

    /// Returns the value of a string field that must be present.
    ///
    /// # Errors
    /// Returns a 400 error if the field is missing or not a string.
    pub fn required_text(&self, name: &str) -> Result<&'a str, ApiError> {
        self.text(name)?.ok_or_else(|| self.error(name, "is missing"))
    }

    /// Checks that all fields are among `known` or null.
    ///
    /// # Errors
    /// Returns a 400 error that names the first other field.
    pub fn check_known(&self, known: &[&str]) -> Result<(), ApiError> {
        let unknown = |(name, value): &(&String, &Value)| !known.contains(&name.as_str()) && !value.is_null();
        match self.fields.iter().find(unknown) {
            None => Ok(()),
            Some((name, _)) => {
                Err(self.error(name, "is not supported by this server").with_code("unsupported_parameter"))
            }
        }
    }

    /// Returns the path of the object.
    pub fn own_path(&self) -> &str {
        &self.path
    }

    /// Returns the error for a type that the model cannot read.
    pub fn unsupported_type(&self, kind: &str) -> ApiError {
        self.error("type", format!("is {kind:?}, but this model accepts only text"))
    }
}

/// Returns the text of the content at `path`: a string, or a list of parts whose types are among `types`. The parts become
/// lines.
///
/// # Errors
/// Returns a 400 error that names the first part of another type.
pub fn text_of(path: &str, content: &Value, types: &[&str]) -> Result<String, ApiError> {
    lines(path, content, types, |part, kind| Err(part.unsupported_type(kind)))
}

/// Like [`text_of`], for the result of a tool: a note replaces parts of other types. Agents repeat a result in all further
/// requests, so an error would end the conversation.
///
/// # Errors
/// Returns a 400 error if the content has no such form.
pub fn result_text_of(path: &str, content: &Value, types: &[&str]) -> Result<String, ApiError> {
    lines(path, content, types, |_, kind| Ok(format!("[{kind} omitted: results of tools are read as text]")))
}

/// Returns the text of the part at `path`, whose type is among `types`.
///
/// # Errors
/// Returns a 400 error for a part of another type.
pub fn text_of_part(path: String, part: &Value, types: &[&str]) -> Result<String, ApiError> {
    part_text(path, part, types, |part, kind| Err(part.unsupported_type(kind)))
}

fn part_text(
    path: String,
    part: &Value,
    types: &[&str],
    other: fn(&Object, &str) -> Result<String, ApiError>,
) -> Result<String, ApiError> {
    let part = Object::new(path, part)?;
    match part.required_text("type")? {
        kind if types.contains(&kind) => {
            part.required_text(if kind == "refusal" { kind } else { "text" }).map(str::to_owned)
        }
        kind => other(&part, kind),
    }
}

fn lines(
    path: &str,
    content: &Value,
    types: &[&str],
    other: fn(&Object, &str) -> Result<String, ApiError>,
) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(path, "must be a string or a list of parts with a type")),
    };
    let text = |(i, part)| part_text(format!("{path}[{i}]"), part, types, other);
    Ok(parts.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
}
