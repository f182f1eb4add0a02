//! Pictures of conversations: parts of requests, their files, and what the model reads of them.
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use llm_engine::model::vision::ProcessedPicture;
use llm_engine::step::TEXT_ONLY;
use pictures::{Limits, RgbPicture, file_of_text};
use serde_json::{Value, json};
use worker_core::{ApiError, blocking};

use super::failure;
use crate::picture_options::PictureOptions;
use crate::served::ServedModel;

/// Time limit for fetching a picture.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// Error if the model reads no pictures.
    blind: Option<&'static str>,
    sources: Vec<PictureSource>,
}

impl Default for PictureParts {
    /// Creates parts of a model that reads no pictures.
    fn default() -> Self {
        Self { blind: Some(TEXT_ONLY), sources: Vec::new() }
    }
}

impl PictureParts {
    /// Creates parts of a model.
    pub fn of(served: &ServedModel) -> Self {
        Self { blind: served.engine.image_processor().err(), sources: Vec::new() }
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
        match self.blind {
            Some(reason) => {
                Err(ApiError::field(format!("{path}.type"), format!("is {kind:?}, but this model {reason}")))
            }
            None => Ok(()),
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

/// Replaces HTTP URLs by the files that they name, as data URLs.
///
/// # Errors
/// Returns a 400 error for too many pictures, for hosts that are not allowed, and if a file cannot be fetched.
pub async fn fetch(
    mut sources: Vec<PictureSource>,
    options: &PictureOptions,
    param: &str,
) -> Result<Vec<(String, Vec<u8>)>, ApiError> {
    if sources.len() > options.count {
        let message = format!("has {} pictures, but at most {} are allowed", sources.len(), options.count);
        return Err(ApiError::field(param, message));
    }
    for source in &sources {
        if let Some(host) = host_of(&source.url)
            && !options.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
        {
            let message = format!(
                "is a URL of the host {host:?}, which is not allowed; send a data URL, or start the worker with --image-hosts {host}"
            );
            return Err(ApiError::field(&source.path, message));
        }
    }
    let read = |PictureSource { path, url }: PictureSource| {
        let file = if host_of(&url).is_some() { download(&url) } else { file_of_text(&url) };
        let file = file.map_err(|message| ApiError::field(&path, message))?;
        Ok((path, file))
    };
    if sources.is_empty() {
        return Ok(Vec::new());
    }
    let all = std::mem::take(&mut sources);
    blocking(move || all.into_iter().map(read).collect()).await
}

/// Returns the host of an HTTP URL; empty if it has a user name, which hosts do not.
fn host_of(url: &str) -> Option<&str> {
    let rest = url.trim().strip_prefix("http://").or_else(|| url.trim().strip_prefix("https://"))?;
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    if authority.contains('@') {
        return Some("");
    }
    Some(authority.rsplit_once(':').map_or(authority, |(host, _)| host))
}

fn download(url: &str) -> Result<Vec<u8>, String> {
    let limit = Limits::default().bytes;
    let agent = ureq::AgentBuilder::new().timeout(FETCH_TIMEOUT).redirects(0).build();
    let response = agent.get(url.trim()).call().map_err(|error| format!("cannot be fetched: {error}"))?;
    if response.status() != 200 {
        return Err(format!("cannot be fetched: the host answered with status {}", response.status()));
    }
    let mut file = Vec::new();
    let read = response.into_reader().take(limit as u64 + 1).read_to_end(&mut file);
    read.map_err(|error| format!("cannot be fetched: {error}"))?;
    match file.len() > limit {
        true => Err(format!("has more than {limit} bytes, which is the limit")),
        false => Ok(file),
    }
}

/// Decodes and scales pictures, which together may have `limit` tokens. Blocks.
///
/// # Errors
/// Returns a 400 error that names the picture.
pub fn processed(
    served: &ServedModel,
    files: Vec<(String, Vec<u8>)>,
    limit: usize,
    param: &str,
) -> Result<Vec<Arc<ProcessedPicture>>, ApiError> {
    let mut tokens = 0;
    let read = |(path, file): (String, Vec<u8>)| {
        let processor = served.engine.image_processor();
        let processor = processor
            .map_err(|reason| ApiError::field(&path, format!("is a picture, but this model {reason}")))?;
        let invalid = |error: &dyn std::fmt::Display| ApiError::field(&path, format!("is invalid: {error}"));
        let picture = RgbPicture::decode(&file, Limits::default()).map_err(|error| invalid(&error))?;
        let picture = processor.process(&picture).map_err(|error| invalid(&error))?;
        tokens += picture.tokens();
        match tokens > limit {
            true => Err(failure::too_long(limit, param)),
            false => Ok(Arc::new(picture)),
        }
    };
    files.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_from_urls() {
        for (url, host) in [
            ("https://example.org/a.png?x", Some("example.org")),
            (" http://example.org:8080", Some("example.org")),
            ("https://example.org\\@other.org/", Some("example.org")),
            ("https://example.org@other.org/", Some("")),
            ("https://example.org:x@other.org/", Some("")),
            ("http://", Some("")),
            ("data:image/png;base64,aa", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(host_of(url), host, "{url}");
        }
    }
}
