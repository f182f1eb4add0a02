//! Image files in requests: base64 and data URLs, decoding within limits, and scaling as Pillow computes it.
mod decode;
mod resample;
mod text;

pub use decode::{DecodeError, Limits, decode};
pub use resample::{Filter, resize};
pub use text::file_of_text;

/// An RGB image with eight bits per channel, in row-major order.
#[derive(Clone, PartialEq, Eq)]
pub struct RgbPicture {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Three bytes per pixel.
    pub rgb: Vec<u8>,
}

impl std::fmt::Debug for RgbPicture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RgbPicture({} x {})", self.width, self.height)
    }
}

impl RgbPicture {
    /// Decodes a PNG, JPEG or WebP file and applies its orientation. Transparency is ignored, and only the first frame of an
    /// animation is used.
    ///
    /// # Errors
    /// Returns an error if the format is not supported, or the file is damaged or exceeds `limits`, which is checked first.
    pub fn decode(file: &[u8], limits: Limits) -> Result<Self, DecodeError> {
        let decoded = decode(file, limits)?.into_rgb8();
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        Ok(Self { width, height, rgb: decoded.into_raw() })
    }

    /// Returns the image in another size, which is not 0.
    pub fn resized(&self, (width, height): (usize, usize), filter: Filter) -> Self {
        let rgb = resize(&self.rgb, (self.width, self.height), (width, height), filter);
        Self { width, height, rgb }
    }

    /// Returns the rectangle at `(left, top)` of this size, which must be inside of the image.
    pub fn part(&self, (left, top): (usize, usize), (width, height): (usize, usize)) -> Self {
        let rows = self.rgb.chunks_exact(3 * self.width).skip(top).take(height);
        let rgb = rows.flat_map(|row| &row[3 * left..3 * (left + width)]).copied().collect();
        Self { width, height, rgb }
    }
}
