//! Bodies of requests.

use crate::ApiError;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_path_to_error::{Path, Segment};

/// The JSON body of a request as a `T`; whatever is wrong with it becomes a 4xx that names the field.
///
/// Fields that `T` does not have are refused where `T` has `#[serde(deny_unknown_fields)]`.
#[derive(Clone, Copy, Debug)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE);
        if !kind.is_some_and(|kind| is_json(kind.as_bytes())) {
            let message = "send JSON, with the header `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    ApiError::too_large("the body is larger than this worker takes (--body-limit)")
                }
                _ => ApiError::invalid("the body did not arrive whole"),
            }
        })?;
        parse(&bytes).map(Body)
    }
}

/// Parses JSON as [`Body`] does, where it comes by another way: a part of a form, a line of a file.
///
/// # Errors
/// 400 for bytes that are not UTF-8, for what is not JSON, and for JSON that is no `T`.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        ApiError::invalid(format!("the body is not UTF-8 from byte {at} on")).with_code("invalid_utf8")
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().clone();
        refuse(&path, &error.into_inner())
    })?;
    json.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

fn refuse(at: &Path, error: &serde_json::Error) -> ApiError {
    if error.classify() != Category::Data {
        return not_json(error);
    }
    let message = short(error.to_string());
    let mut param = path(at);
    // Serde names a field that is missing, unknown or twice there; the path may end at the object around it.
    let named = NAMED.iter().find_map(|start| Some((start, message.strip_prefix(start)?.split_once('`')?.0)));
    if let Some((start, name)) = named {
        let last = matches!(at.iter().next_back(), Some(Segment::Map { key }) if key == name);
        if *start == MISSING || !last {
            param = if param.is_empty() { name.to_owned() } else { format!("{param}.{name}") };
        }
    }
    let place = if param.is_empty() { "the body" } else { param.as_str() };
    let error = ApiError::invalid(format!("{place}: {message}")).with_code("invalid_value");
    if param.is_empty() { error } else { error.with_param(param) }
}

const MISSING: &str = "missing field `";
const NAMED: [&str; 3] = [MISSING, "unknown field `", "duplicate field `"];

/// Characters of what a client wrote that are sent back to it.
const ECHO: usize = 400;

fn short(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(ECHO) {
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::invalid(format!("the body is not JSON: {error}")).with_code("invalid_json")
}

/// The path as OpenAI writes it, `messages[0].content`; empty for the body itself.
fn path(at: &Path) -> String {
    let text = at.to_string();
    if text == "." || text == "?" { String::new() } else { short(text) }
}

/// Whether a content type is application/json or something+json; parameters do not matter.
fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let kind = kind.to_ascii_lowercase();
    kind == b"application/json" || (kind.starts_with(b"application/") && kind.ends_with(b"+json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read by serde alone")]
    struct Ask {
        #[serde(default)]
        max_tokens: Option<u32>,
        messages: Vec<Message>,
    }

    #[derive(Deserialize, Debug)]
    #[expect(dead_code, reason = "read by serde alone")]
    struct Message {
        role: String,
    }

    #[test]
    fn each_fault_names_its_field() {
        let table: &[(&[u8], &str, Option<&str>)] = &[
            (br#"{"messages": [{"role": 1}]}"#, "invalid_value", Some("messages[0].role")),
            (br#"{"messages": [{"role": "a"}, {}]}"#, "invalid_value", Some("messages[1].role")),
            (br#"{"messages": 1}"#, "invalid_value", Some("messages")),
            (br#"{}"#, "invalid_value", Some("messages")),
            (br#"{"messages": [], "max_tokens": -1}"#, "invalid_value", Some("max_tokens")),
            (br#"{"messages": [], "max_tokens": 1e99}"#, "invalid_value", Some("max_tokens")),
            (br#"{"messages": [], "max_tokens": 4294967296}"#, "invalid_value", Some("max_tokens")),
            (br#"{"messages": [], "max_token": 1}"#, "invalid_value", Some("max_token")),
            (br#"{"messages": [], "messages": []}"#, "invalid_value", Some("messages")),
            (br#"[]"#, "invalid_value", None),
            (br#"7"#, "invalid_value", None),
            (br#"{"messages": []} x"#, "invalid_json", None),
            (br#"{"messages": ["#, "invalid_json", None),
            (b"", "invalid_json", None),
            (b"{\"messages\": [{\"role\": \"\xff\"}]}", "invalid_utf8", None),
        ];
        for &(body, code, param) in table {
            let error = parse::<Ask>(body).expect_err(&String::from_utf8_lossy(body));
            let found = (error.status().as_u16(), error.code(), error.param());
            assert_eq!(found, (400, code, param), "{}: {error}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn a_field_inside_one_of_the_same_name_is_told_apart() {
        #[derive(Deserialize, Debug)]
        #[expect(dead_code, reason = "read by serde alone")]
        struct Outer {
            role: Message,
        }
        let error = parse::<Outer>(br#"{"role": {}}"#).unwrap_err();
        assert_eq!(error.param(), Some("role.role"));
    }

    #[test]
    fn little_of_a_large_field_is_sent_back() {
        let error = parse::<Ask>(format!("{{\"{}\": 1}}", "é".repeat(100_000)).as_bytes()).unwrap_err();
        assert!(error.body().to_string().len() < 5000);
        let text = format!(r#"{{"messages": [], "max_tokens": "{}"}}"#, "é".repeat(100_000));
        let error = parse::<Ask>(text.as_bytes()).unwrap_err();
        assert!(error.message().len() < 1000 && error.param() == Some("max_tokens"));
    }

    #[test]
    fn deep_nesting_is_refused_before_the_stack_ends() {
        let deep = "[".repeat(1_000_000);
        assert_eq!(parse::<serde_json::Value>(deep.as_bytes()).unwrap_err().code(), "invalid_json");
    }

    #[test]
    fn knows_json_by_its_content_type() {
        for yes in ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"] {
            assert!(is_json(yes.as_bytes()), "{yes}");
        }
        for no in ["", "text/json", "application/jsonx", "application/x-www-form-urlencoded", "text/a+json"] {
            assert!(!is_json(no.as_bytes()), "{no}");
        }
    }
}
