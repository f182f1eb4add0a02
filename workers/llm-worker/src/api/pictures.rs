//! Pictures of conversations: parts of requests, their files, and what the model reads of them.
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llm_engine::model::vision::ProcessedPicture;
use llm_engine::step::TEXT_ONLY;
use pictures::{Limits, RgbPicture, dimensions, file_of_text};
use serde_json::{Value, json};
use worker_core::{ApiError, blocking};

use super::failure;
use crate::picture_options::name_and_port;
use crate::served::ServedModel;

/// Time limit for fetching the pictures of a request.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the fetched pictures of a request, in bytes.
const MAX_FETCHED_BYTES: usize = 64 << 20;

/// A picture of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureSource {
    /// Path of the field.
    pub path: String,
    /// Base64 text, data URL or HTTP URL.
    pub url: String,
}

/// Pictures of a conversation, in the order of their places.
#[derive(Debug)]
pub struct PictureParts {
    /// Reason why the model accepts no pictures; `None` if it accepts them.
    unsupported_reason: Option<&'static str>,
    sources: Vec<PictureSource>,
}

impl Default for PictureParts {
    /// Creates an empty list for a model that accepts no pictures.
    fn default() -> Self {
        Self { unsupported_reason: Some(TEXT_ONLY), sources: Vec::new() }
    }
}

impl PictureParts {
    /// Creates an empty list for a model.
    pub fn of(served: &ServedModel) -> Self {
        Self { unsupported_reason: served.engine.image_processor().err(), sources: Vec::new() }
    }

    /// Adds the picture of a part of the type `kind` at `path`, whose field `field` has its URL. Returns the part for the
    /// template.
    ///
    /// # Errors
    /// Returns a 400 error if the model reads no pictures.
    pub fn add(&mut self, path: &str, kind: &str, field: &str, url: &str) -> Result<Value, ApiError> {
        self.check(path, kind)?;
        self.sources.push(PictureSource { path: format!("{path}.{field}"), url: url.to_owned() });
        Ok(json!({ "type": "image" }))
    }

    /// Checks that the model reads pictures, in a part of the type `kind` at `path`.
    ///
    /// # Errors
    /// Returns a 400 error that names the type.
    pub fn check(&self, path: &str, kind: &str) -> Result<(), ApiError> {
        match self.unsupported_reason {
            Some(reason) => {
                Err(ApiError::field(format!("{path}.type"), format!("is {kind:?}, but this model {reason}")))
            }
            None => Ok(()),
        }
    }

    /// Checks that a message of `role` may contain the picture of type `kind` at `path`.
    ///
    /// # Errors
    /// Returns a 400 error that names the type.
    pub fn check_picture(&self, role: &str, path: &str, kind: &str) -> Result<(), ApiError> {
        self.check(path, kind)?;
        match role {
            "user" => Ok(()),
            _ => {
                let message = format!(
                    "is {kind:?} in a message of {role}, but pictures are allowed only in messages of the user"
                );
                Err(ApiError::field(format!("{path}.type"), message))
            }
        }
    }

    /// Returns the pictures.
    pub fn into_sources(self) -> Vec<PictureSource> {
        self.sources
    }
}

/// Returns the content of a turn: a list of parts if there is a picture among them, otherwise their lines.
pub fn content_of(parts: Vec<Value>) -> Value {
    if parts.iter().any(|part| part["type"] == "image") {
        return Value::Array(parts);
    }
    let lines: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    lines.join("\n").into()
}

/// Returns the text part of a turn's content.
pub fn text_part(text: impl Into<String>) -> Value {
    json!({ "type": "text", "text": text.into() })
}

/// Returns the files of pictures with their paths: those of data URLs, and those that HTTP URLs name, which are downloaded.
///
/// # Errors
/// Returns a 400 error for too many pictures, for hosts that are not allowed, and if a file cannot be fetched.
pub async fn fetch(
    sources: Vec<PictureSource>,
    served: &ServedModel,
    param: &str,
) -> Result<Vec<(String, Vec<u8>)>, ApiError> {
    let options = &served.pictures;
    if sources.len() > options.count {
        let message = format!("has {} pictures, but at most {} are allowed", sources.len(), options.count);
        return Err(ApiError::field(param, message));
    }
    let mut has_urls = false;
    for PictureSource { path, url } in &sources {
        let Some((authority, default_port)) = authority_of(url) else { continue };
        has_urls = true;
        let Some((name, port)) = name_and_port(authority) else {
            let message =
                "is a URL without a valid host, or with a user name, which is not allowed; send a data URL";
            return Err(ApiError::field(path, message));
        };
        let port = port.unwrap_or(default_port);
        if !options.hosts.iter().any(|host| host.allows(name, port)) {
            let message = format!(
                "is a URL of the host {authority:?}, which is not allowed; send a data URL, or start the worker with \
                 --image-hosts {authority}"
            );
            return Err(ApiError::field(path, message));
        }
    }
    if sources.is_empty() {
        return Ok(Vec::new());
    }
    // The semaphore is never closed.
    let permit = if has_urls { served.fetching.clone().acquire_owned().await.ok() } else { None };
    blocking(move || {
        let (deadline, mut left) = (Instant::now() + FETCH_TIMEOUT, MAX_FETCHED_BYTES);
        let mut read = |PictureSource { path, url }| {
            let file = match authority_of(&url) {
                Some(_) => download(&url, deadline, &mut left),
                None => file_of_text(&url),
            };
            match file {
                Ok(file) => Ok((path, file)),
                Err(message) => Err(ApiError::field(path, message)),
            }
        };
        let files = sources.into_iter().map(&mut read).collect();
        drop(permit);
        files
    })
    .await
}

/// Returns the authority of an HTTP URL, which is its host, and the default port; `None` for another text.
fn authority_of(url: &str) -> Option<(&str, u16)> {
    let (url, schemes) = (url.trim(), [("http://", 80), ("https://", 443)]);
    let mut rest = schemes.into_iter().filter_map(|(scheme, port)| Some((url.strip_prefix(scheme)?, port)));
    let (rest, port) = rest.next()?;
    Some((rest.split(['/', '?', '#', '\\']).next().unwrap_or_default(), port))
}

/// Downloads a file of at most `left` bytes, which is reduced by its size.
fn download(url: &str, deadline: Instant, left: &mut usize) -> Result<Vec<u8>, String> {
    let seconds = FETCH_TIMEOUT.as_secs();
    let late = || {
        format!(
            "cannot be fetched: the pictures of a request took more than {seconds} seconds; send data URLs"
        )
    };
    let timeout = deadline.saturating_duration_since(Instant::now());
    if timeout.is_zero() {
        return Err(late());
    }
    let failed = |error: &dyn std::fmt::Display| match Instant::now() >= deadline {
        true => late(),
        false => format!("cannot be fetched: {error}"),
    };
    let agent = ureq::AgentBuilder::new().timeout(timeout).redirects(0).build();
    let response = agent.get(url.trim()).call().map_err(|error| failed(&error))?;
    if response.status() != 200 {
        return Err(format!("cannot be fetched: the host answered with status {}", response.status()));
    }
    let (limit, mut file) = (Limits::default().bytes.min(*left), Vec::new());
    let read = response.into_reader().take(limit as u64 + 1).read_to_end(&mut file);
    read.map_err(|error| failed(&error))?;
    match left.checked_sub(file.len()) {
        Some(rest) if file.len() <= limit => *left = rest,
        _ if limit < Limits::default().bytes => {
            return Err(format!(
                "cannot be fetched: the pictures of a request have more than {MAX_FETCHED_BYTES} bytes, which is the limit; \
                 send smaller pictures"
            ));
        }
        _ => return Err(format!("has more than {limit} bytes, which is the limit; send a smaller picture")),
    }
    Ok(file)
}

/// Decodes and scales pictures, which together may have `limit` tokens.
///
/// # Errors
/// Returns a 400 error that names the picture, or `param` for too many tokens, before any pixels are decoded.
pub async fn processed(
    served: &Arc<ServedModel>,
    files: Vec<(String, Vec<u8>)>,
    limit: usize,
    param: &'static str,
) -> Result<Vec<Arc<ProcessedPicture>>, ApiError> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    // The semaphore is never closed.
    let permit = served.decoding.clone().acquire_owned().await;
    let served = served.clone();
    blocking(move || {
        let processed = decoded(&served, files, limit, param);
        drop(permit);
        processed
    })
    .await
}

fn decoded(
    served: &ServedModel,
    files: Vec<(String, Vec<u8>)>,
    limit: usize,
    param: &str,
) -> Result<Vec<Arc<ProcessedPicture>>, ApiError> {
    let invalid =
        |path: &str, error: &dyn std::fmt::Display| ApiError::field(path, format!("is invalid: {error}"));
    let processor = served.engine.image_processor();
    let processor = processor
        .map_err(|reason| ApiError::field(param, format!("has a picture, but this model {reason}")))?;
    let mut tokens = 0usize;
    for (path, file) in &files {
        let size = dimensions(file, Limits::default()).map_err(|error| invalid(path, &error))?;
        tokens += processor.tokens_of_size(size).map_err(|error| invalid(path, &error))?;
        if tokens > limit {
            return Err(failure::too_long(limit, param));
        }
    }
    let read = |(path, file): (String, Vec<u8>)| {
        let picture = RgbPicture::decode(&file, Limits::default()).map_err(|error| invalid(&path, &error))?;
        processor.process(&picture).map(Arc::new).map_err(|error| invalid(&path, &error))
    };
    files.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_from_urls() {
        for (url, authority) in [
            ("https://example.org/a.png?x", Some(("example.org", 443))),
            (" http://example.org:8080", Some(("example.org:8080", 80))),
            ("https://example.org\\@other.org/", Some(("example.org", 443))),
            ("https://example.org@other.org/", Some(("example.org@other.org", 443))),
            ("http://[::1]/a", Some(("[::1]", 80))),
            ("https:///example.org", Some(("", 443))),
            ("http://", Some(("", 80))),
            ("data:image/png;base64,aa", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(authority_of(url), authority, "{url}");
        }
    }
}
