//! Pictures as requests and answers carry them.
use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::picture::Picture;

/// Of JPEG, where 100 is the best.
const QUALITY: u8 = 92;
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How pictures are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Every pixel as it was made.
    #[default]
    Png,
    /// Smaller.
    #[serde(alias = "jpg")]
    Jpeg,
}

impl Format {
    /// A picture as base64 of a file.
    ///
    /// # Errors
    /// The encoder fails.
    pub fn base64(self, picture: &Picture) -> crate::Result<String> {
        let file = match self {
            Self::Png => picture.png()?,
            Self::Jpeg => jpeg(picture)?,
        };
        Ok(BASE64_STANDARD.encode(file))
    }
}

fn jpeg(picture: &Picture) -> crate::Result<Vec<u8>> {
    let mut file = Vec::new();
    let (width, height) = (picture.width() as u32, picture.height() as u32);
    JpegEncoder::new_with_quality(&mut file, QUALITY)
        .write_image(picture.rgb(), width, height, ExtendedColorType::Rgb8)
        .map_err(|e| Error::Request(format!("no JPEG of {width} x {height}: {e}")))?;
    Ok(file)
}

/// A picture that a request holds.
#[derive(Debug)]
pub enum Source {
    /// base64, with or without `data:image/png;base64,` before it.
    Text(String),
    /// A file.
    File(Vec<u8>),
}

impl Source {
    /// The file.
    ///
    /// # Errors
    /// What is wrong with the text, as the end of a sentence about it.
    pub fn file(self) -> Result<Vec<u8>, String> {
        let text = match self {
            Self::File(file) => return Ok(file),
            Self::Text(text) => text,
        };
        let text = text.trim();
        if text.starts_with("http://") || text.starts_with("https://") {
            return Err("is a URL: nothing is fetched, send base64 or a data URL".to_owned());
        }
        let data = match text.strip_prefix("data:") {
            None => text,
            Some(url) => match url.split_once(',') {
                Some((kind, data)) if kind.ends_with(";base64") => data,
                _ => return Err("is no data URL of base64: data:image/png;base64,...".to_owned()),
            },
        };
        // Programs for mail and terminals break lines.
        let data = match data.contains(|c: char| c.is_ascii_whitespace()) {
            true => Cow::Owned(data.split_ascii_whitespace().collect::<String>()),
            false => Cow::Borrowed(data),
        };
        if data.is_empty() {
            return Err("is empty".to_owned());
        }
        LENIENT.decode(data.as_bytes()).map_err(|error| format!("is neither base64 nor a data URL: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Limits;

    #[test]
    fn files_come_as_base64_or_data_urls() {
        let text = |text: &str| Source::Text(text.to_owned()).file();
        for good in [
            "aGVsbG8=",
            "aGVsbG8",
            " aGVs\r\nbG8=\n",
            "data:image/png;base64,aGVsbG8=",
            "data:;base64,aGVsbG8",
        ] {
            assert_eq!(text(good).unwrap(), b"hello", "{good}");
        }
        assert_eq!(Source::File(vec![1, 2]).file().unwrap(), [1, 2]);
        for (bad, why) in [
            ("", "empty"),
            ("data:image/png;base64,", "empty"),
            ("data:image/png,hello", "data URL"),
            ("data:nothing", "data URL"),
            ("https://example.org/x.png", "nothing is fetched"),
            ("a b c ?", "neither"),
            ("aGVsbG8==", "neither"),
            ("a", "neither"),
        ] {
            let error = text(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn pictures_survive_their_files() {
        let rgb: Vec<u8> = (0..16 * 8).flat_map(|i| [i as u8, 128, 255 - i as u8]).collect();
        let picture = Picture::new(16, 8, rgb).unwrap();
        let read = |format: Format| {
            let file = Source::Text(format.base64(&picture).unwrap()).file().unwrap();
            Picture::decode(&file, Limits::default()).unwrap()
        };
        assert_eq!(read(Format::Png), picture);
        let near = read(Format::Jpeg);
        let difference = near.rgb().iter().zip(picture.rgb()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(difference < 24 && near.width() == 16, "{difference}");
    }
}
