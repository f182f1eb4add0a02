//! Decoding of image files within limits that are checked before pixels are allocated.
use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader};

/// Limits for decoding a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the file in bytes.
    pub bytes: usize,
    /// Maximum width and height in pixels.
    pub side: u32,
    /// Maximum number of pixels.
    pub pixels: u64,
}

impl Default for Limits {
    /// Returns limits of 20 MiB, 8192 pixels per side and 4096 · 4096 pixels in total.
    fn default() -> Self {
        Self { bytes: 20 << 20, side: 8192, pixels: 1 << 24 }
    }
}

/// Reason why a file cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The file is too large.
    #[error("file of {bytes} bytes exceeds the limit of {limit}")]
    TooManyBytes {
        /// Size of the file.
        bytes: usize,
        /// Maximum size.
        limit: usize,
    },
    /// The image is too large.
    #[error("image of {width} x {height} pixels exceeds the limit of {} per side and {} in total", limits.side, limits.pixels)]
    TooManyPixels {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Limits that it exceeds.
        limits: Limits,
    },
    /// The file has another format.
    #[error("unsupported image format; expected PNG, JPEG or WebP")]
    UnsupportedFormat,
    /// The file is damaged.
    #[error("cannot decode the image: {0}")]
    Damaged(#[from] ImageError),
}

/// Decodes a PNG, JPEG or WebP file and applies its orientation.
///
/// # Errors
/// Returns an error if the format is not supported, or the file is damaged or exceeds `limits`, which is checked first.
pub fn decode(file: &[u8], limits: Limits) -> Result<DynamicImage, DecodeError> {
    let mut decoder = open(file, limits)?;
    let orientation = decoder.orientation()?;
    let mut decoded = DynamicImage::from_decoder(decoder)?;
    decoded.apply_orientation(orientation);
    Ok(decoded)
}

/// Returns the width and height of a PNG, JPEG or WebP file after applying its orientation, without decoding its pixels.
///
/// # Errors
/// Returns an error if the format is not supported, or the file's metadata is damaged or it exceeds `limits`.
pub fn dimensions(file: &[u8], limits: Limits) -> Result<(usize, usize), DecodeError> {
    let mut decoder = open(file, limits)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    Ok(match decoder.orientation()? {
        Orientation::Rotate90
        | Orientation::Rotate270
        | Orientation::Rotate90FlipH
        | Orientation::Rotate270FlipH => (height, width),
        _ => (width, height),
    })
}

/// Reads a file's metadata and checks its limits.
fn open(file: &[u8], limits: Limits) -> Result<impl ImageDecoder, DecodeError> {
    if file.len() > limits.bytes {
        return Err(DecodeError::TooManyBytes { bytes: file.len(), limit: limits.bytes });
    }
    let format = image::guess_format(file).ok();
    let Some(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) = format else {
        return Err(DecodeError::UnsupportedFormat);
    };
    // 16-bit RGBA, and as much again for internal buffers of the decoder.
    let within = |pixels: u64| {
        let mut own = image::Limits::no_limits();
        own.max_alloc = Some(pixels * 16 + (1 << 20));
        own
    };
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    // Metadata before the pixels may be compressed, so limit it too.
    reader.limits(within(limits.pixels));
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if width.max(height) > limits.side || pixels > limits.pixels {
        return Err(DecodeError::TooManyPixels { width, height, limits });
    }
    decoder.set_limits(within(pixels))?;
    Ok(decoder)
}
