//! Image files in requests: base64 and data URLs, decoding within limits, and scaling as Pillow computes it.
mod decode;
mod resample;
mod text;

pub use decode::{DecodeError, Limits, decode, dimensions};
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
    /// Decodes a PNG, JPEG or WebP file and applies its orientation. Transparent pixels are blended with white, as
    /// Pillow's `alpha_composite` does, and only the first frame of an animation is used.
    ///
    /// # Errors
    /// Returns an error if the format is not supported, or the file is damaged or exceeds `limits`, which is checked first.
    pub fn decode(file: &[u8], limits: Limits) -> Result<Self, DecodeError> {
        let decoded = decode(file, limits)?;
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        let rgb = match decoded.color().has_alpha() {
            true => on_white(decoded.into_rgba8().as_raw()),
            false => decoded.into_rgb8().into_raw(),
        };
        Ok(Self { width, height, rgb })
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

/// Blends RGBA pixels with white.
fn on_white(rgba: &[u8]) -> Vec<u8> {
    let blend = |value: u8, alpha: u8| {
        let (value, alpha) = (u32::from(value), u32::from(alpha));
        ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
    };
    let (pixels, _) = rgba.as_chunks::<4>();
    pixels
        .iter()
        .flat_map(|&[red, green, blue, alpha]| [red, green, blue].map(|value| blend(value, alpha)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::{DynamicImage, GrayAlphaImage, ImageFormat, RgbImage, RgbaImage};

    use super::*;

    fn png(image: impl Into<DynamicImage>) -> Vec<u8> {
        let mut file = Vec::new();
        image.into().write_to(&mut Cursor::new(&mut file), ImageFormat::Png).unwrap();
        file
    }

    /// Values of Pillow's `alpha_composite` on a white image.
    #[test]
    fn transparent_pixels_are_blended_with_white() {
        let rgba = [
            [10, 200, 30, 128],
            [0, 0, 0, 0],
            [255, 0, 0, 1],
            [77, 88, 99, 200],
            [1, 2, 3, 254],
            [5, 6, 7, 255],
        ];
        let image = RgbaImage::from_raw(3, 2, rgba.concat()).unwrap();
        let picture = RgbPicture::decode(&png(image), Limits::default()).unwrap();
        let expected =
            [[132, 227, 142], [255, 255, 255], [255, 254, 254], [115, 124, 133], [2, 3, 4], [5, 6, 7]];
        assert_eq!((picture.width, picture.height, picture.rgb), (3, 2, expected.concat()));
        let gray = GrayAlphaImage::from_raw(2, 1, vec![10, 128, 200, 7]).unwrap();
        let picture = RgbPicture::decode(&png(gray), Limits::default()).unwrap();
        assert_eq!(picture.rgb, [132, 132, 132, 253, 253, 253]);
    }

    #[test]
    fn dimensions_are_read_without_pixels() {
        let file = png(RgbImage::new(7, 3));
        assert_eq!(dimensions(&file, Limits::default()).unwrap(), (7, 3));
        // The header and the beginning of the pixels.
        assert_eq!(dimensions(&file[..45], Limits::default()).unwrap(), (7, 3));
        let limits = Limits { side: 6, ..Limits::default() };
        assert!(matches!(
            dimensions(&file, limits),
            Err(DecodeError::TooManyPixels { width: 7, height: 3, .. })
        ));
    }
}
