//! Images in requests and responses: file formats and base64.
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::picture::Picture;

/// JPEG quality, 1 to 100.
const JPEG_QUALITY: u8 = 92;

/// File format of images in responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// PNG, lossless.
    #[default]
    Png,
    /// JPEG, lossy and smaller.
    #[serde(alias = "jpg")]
    Jpeg,
    /// WebP, lossless.
    Webp,
}

impl Format {
    /// Encodes an image as a base64 string of a file.
    ///
    /// # Errors
    /// The encoder fails.
    pub fn base64(self, picture: &Picture) -> crate::Result<String> {
        let mut file = Vec::new();
        match self {
            Self::Png => file = picture.png()?,
            Self::Jpeg => {
                encode(picture, JpegEncoder::new_with_quality(&mut file, JPEG_QUALITY), "JPEG")?;
            }
            Self::Webp => encode(picture, WebPEncoder::new_lossless(&mut file), "WebP")?,
        }
        Ok(BASE64_STANDARD.encode(file))
    }
}

fn encode(picture: &Picture, encoder: impl ImageEncoder, format: &str) -> crate::Result<()> {
    let (width, height) = (picture.width() as u32, picture.height() as u32);
    encoder
        .write_image(picture.rgb(), width, height, ExtendedColorType::Rgb8)
        .map_err(|e| Error::Request(format!("cannot encode {width} x {height} as {format}: {e}")))
}

/// An image file in a request.
#[derive(Debug)]
pub enum Source {
    /// Base64 text or a base64 data URL.
    Text(String),
    /// Binary file.
    File(Vec<u8>),
}

impl Source {
    /// Returns the binary file.
    ///
    /// # Errors
    /// Returns the message to append to the name of the field, such as "is empty".
    pub fn file(self) -> Result<Vec<u8>, String> {
        match self {
            Self::File(file) => Ok(file),
            Self::Text(text) => pictures::file_of_text(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Limits;

    #[test]
    fn base64_and_data_urls_are_decoded() {
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
            ("https://example.org/x.png", "not supported"),
            ("a b c ?", "neither"),
            ("aGVsbG8==", "neither"),
            ("a", "neither"),
        ] {
            let error = text(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn encoded_images_can_be_decoded() {
        let rgb: Vec<u8> = (0..16 * 8).flat_map(|i| [i as u8, 128, 255 - i as u8]).collect();
        let picture = Picture::new(16, 8, rgb).unwrap();
        let read = |format: Format| {
            let file = Source::Text(format.base64(&picture).unwrap()).file().unwrap();
            Picture::decode(&file, Limits::default()).unwrap()
        };
        assert_eq!(read(Format::Png), picture);
        assert_eq!(read(Format::Webp), picture);
        let near = read(Format::Jpeg);
        let difference = near.rgb().iter().zip(picture.rgb()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(difference < 24 && near.width() == 16, "{difference}");
    }
}
