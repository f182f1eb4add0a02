//! Image files as text: base64 and data URLs.
use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the binary file of a base64 text or a base64 data URL.
///
/// # Errors
/// Returns a message about the text that follows the name of the field, as in "is empty".
pub fn file_of_text(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    if text.starts_with("http://") || text.starts_with("https://") {
        return Err("is an HTTP URL, which is not supported; send base64 or a data URL".to_owned());
    }
    let data = match text.strip_prefix("data:") {
        None => text,
        Some(url) => match url.split_once(',') {
            Some((kind, data)) if kind.ends_with(";base64") => data,
            _ => return Err("is not a base64 data URL (data:image/png;base64,...)".to_owned()),
        },
    };
    // Base64 text may contain line breaks.
    let data = match data.contains(|c: char| c.is_ascii_whitespace()) {
        true => Cow::Owned(data.split_ascii_whitespace().collect::<String>()),
        false => Cow::Borrowed(data),
    };
    if data.is_empty() {
        return Err("is empty".to_owned());
    }
    BASE64.decode(data.as_bytes()).map_err(|error| format!("is neither base64 nor a data URL: {error}"))
}
