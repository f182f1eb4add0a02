//! Images and masks: decoding, encoding and conversion to tensors.
use candle_core::{DType, Device, Tensor};
use image::codecs::png::PngEncoder;
use image::{DynamicImage, ExtendedColorType, ImageEncoder};
use pictures::Filter;
pub use pictures::Limits;

use crate::{Error, Result};

/// An RGB image with eight bits per channel, in row-major order.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({} x {})", self.width, self.height)
    }
}

impl Picture {
    /// Creates an image from `rgb`, three bytes per pixel.
    ///
    /// # Errors
    /// The image is empty, or the number of bytes does not match the size.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self> {
        let wanted = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(3));
        if wanted != Some(rgb.len()) || rgb.is_empty() {
            return Err(Error::request(format!("{} bytes for an image of {width} x {height}", rgb.len())));
        }
        Ok(Self { width, height, rgb })
    }

    /// Decodes a PNG, JPEG or WebP file and applies its orientation. Transparency is ignored, and only the
    /// first frame of an animation is used.
    ///
    /// # Errors
    /// The format is not supported, or the file is damaged or exceeds `limits`, which is checked first.
    pub fn decode(bytes: &[u8], limits: Limits) -> Result<Self> {
        let decoded = decode(bytes, limits)?.into_rgb8();
        Self::new(decoded.width() as usize, decoded.height() as usize, decoded.into_raw())
    }

    /// Creates a black image.
    pub fn black(width: usize, height: usize) -> Self {
        Self { width, height, rgb: vec![0; 3 * width * height] }
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns three bytes per pixel in row-major order.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Encodes the image as PNG.
    ///
    /// # Errors
    /// The encoder fails.
    pub fn png(&self) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        let (width, height) = (self.width as u32, self.height as u32);
        let written =
            PngEncoder::new(&mut file).write_image(&self.rgb, width, height, ExtendedColorType::Rgb8);
        written.map_err(|e| Error::request(format!("cannot encode {width} x {height} as PNG: {e}")))?;
        Ok(file)
    }

    /// Returns an f32 tensor (1, 3, height, width) with values in [-1, 1].
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let x = Tensor::from_slice(&self.rgb, (1, self.height, self.width, 3), device)?;
        let x = x.to_dtype(DType::F32)?.permute((0, 3, 1, 2))?.contiguous()?;
        Ok(x.affine(2.0 / 255.0, -1.0)?)
    }

    /// Converts a tensor (n, 3, height, width) to images. Values outside [-1, 1] are clamped.
    ///
    /// # Errors
    /// The shape is wrong, or values are not finite because the model overflowed in half precision.
    pub fn from_tensor(pictures: &Tensor) -> Result<Vec<Self>> {
        let (n, channels, height, width) = pictures.dims4()?;
        if channels != 3 {
            return Err(Error::model(format!("an RGB image has 3 channels, got {channels}")));
        }
        let pictures = pictures.to_dtype(DType::F32)?;
        // The product of zero and a value that is not finite is NaN.
        if pictures.affine(0.0, 0.0)?.sum_all()?.to_scalar::<f32>()? != 0.0 {
            let values = pictures.flatten_all()?.to_vec1::<f32>()?;
            let bad = values.into_iter().find(|value| !value.is_finite()).unwrap_or(f32::NAN);
            return Err(Error::model(format!(
                "the image contains {bad}: the model overflows in this dtype; load it, or its VAE, in f32 or bf16"
            )));
        }
        let levels = ((pictures + 1.0)? * 127.5)?.round()?.clamp(0f32, 255f32)?.to_dtype(DType::U8)?;
        let bytes = levels.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1::<u8>()?;
        let size = height * width * 3;
        (0..n).map(|i| Self::new(width, height, bytes[i * size..(i + 1) * size].to_vec())).collect()
    }

    /// Returns the image in another size, scaled with a Lanczos kernel.
    #[must_use]
    pub fn resized(&self, (width, height): (usize, usize), fit: Fit) -> Self {
        let own = (self.width, self.height);
        if own == (width, height) {
            return self.clone();
        }
        match fit {
            Fit::Stretch => self.stretched((width, height)),
            Fit::Crop => {
                // The largest part with the proportions of the new size.
                let part = (
                    own.0.min(proportional(own.1, width, height)),
                    own.1.min(proportional(own.0, height, width)),
                );
                let at = ((own.0 - part.0) / 2, (own.1 - part.1) / 2);
                self.part(at, part).stretched((width, height))
            }
            Fit::Pad => {
                // The largest size with the proportions of the image.
                let inner = (
                    width.min(proportional(height, own.0, own.1)),
                    height.min(proportional(width, own.1, own.0)),
                );
                let scaled = self.stretched(inner);
                let at = ((width - inner.0) / 2, (height - inner.1) / 2);
                let mut padded = Self { width, height, rgb: self.border().repeat(width * height) };
                for (y, row) in scaled.rgb.chunks_exact(3 * inner.0).enumerate() {
                    let start = 3 * ((at.1 + y) * width + at.0);
                    padded.rgb[start..start + row.len()].copy_from_slice(row);
                }
                padded
            }
        }
    }

    /// Returns the image in another size, in which pixels are repeated or omitted.
    #[must_use]
    pub fn repeated(&self, (width, height): (usize, usize)) -> Self {
        // The pixel of this image at the centre of a new one.
        let source = |at: usize, from: usize, to: usize| ((2 * at + 1) * from / (2 * to)).min(from - 1);
        let pixel = |x: usize, y: usize| {
            let at = 3 * (source(y, self.height, height) * self.width + source(x, self.width, width));
            self.rgb[at..at + 3].iter().copied()
        };
        let pixel = &pixel;
        let rgb = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
        Self { width, height, rgb }
    }

    fn stretched(&self, (width, height): (usize, usize)) -> Self {
        let rgb = pictures::resize(&self.rgb, (self.width, self.height), (width, height), Filter::Lanczos);
        Self { width, height, rgb }
    }

    /// Returns the part of this width and height whose upper left corner is at `left` and `top`.
    pub(crate) fn part(&self, (left, top): (usize, usize), (width, height): (usize, usize)) -> Self {
        let rows = self.rgb.chunks_exact(3 * self.width).skip(top).take(height);
        let rgb = rows.flat_map(|row| &row[3 * left..3 * (left + width)]).copied().collect();
        Self { width, height, rgb }
    }

    /// Returns the median of the pixels at the edges.
    fn border(&self) -> [u8; 3] {
        let (width, height) = (self.width, self.height);
        let is_edge = |i: usize| {
            let (x, y) = (i % width, i / width);
            x == 0 || y == 0 || x + 1 == width || y + 1 == height
        };
        std::array::from_fn(|channel| {
            let pixels = self.rgb.chunks_exact(3).enumerate().filter(|(i, _)| is_edge(*i));
            let mut values: Vec<u8> = pixels.map(|(_, pixel)| pixel[channel]).collect();
            values.sort_unstable();
            values[values.len() / 2]
        })
    }

    /// Returns this image inside the mask and `other` outside. All three must have the same size.
    pub(crate) fn composite(mut self, other: &Self, mask: &Mask) -> Self {
        for ((own, other), inpaint) in
            self.rgb.chunks_exact_mut(3).zip(other.rgb.chunks_exact(3)).zip(&mask.inpaint)
        {
            if !inpaint {
                own.copy_from_slice(other);
            }
        }
        self
    }
}

/// Scaling of an image with other proportions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// Changes the proportions.
    #[default]
    Stretch,
    /// Omits what is outside of the middle.
    Crop,
    /// Adds edges in the median colour of the image's own edges.
    Pad,
}

/// Returns `side` · `a` / `b`, rounded, at least 1.
fn proportional(side: usize, a: usize, b: usize) -> usize {
    ((side as f64 * a as f64 / b as f64).round() as usize).max(1)
}

/// Mask of the pixels to regenerate, in row-major order.
#[derive(Clone, PartialEq, Eq)]
pub struct Mask {
    width: usize,
    height: usize,
    inpaint: Vec<bool>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.inpaint.iter().filter(|inpaint| **inpaint).count();
        write!(f, "Mask({} x {}, {count} pixels)", self.width, self.height)
    }
}

impl Mask {
    /// Creates a mask from `inpaint`, one value per pixel.
    ///
    /// # Errors
    /// The mask is empty, or the number of values does not match the size.
    pub fn new(width: usize, height: usize, inpaint: Vec<bool>) -> Result<Self> {
        if width.checked_mul(height) != Some(inpaint.len()) || inpaint.is_empty() {
            return Err(Error::request(format!(
                "{} values do not match a mask of {width} x {height}",
                inpaint.len()
            )));
        }
        Ok(Self { width, height, inpaint })
    }

    /// Decodes a PNG, JPEG or WebP file. If any pixel is transparent, the transparent part is regenerated, as
    /// in OpenAI's API; otherwise the light part.
    ///
    /// # Errors
    /// Returns the errors of [`Picture::decode`].
    pub fn decode(bytes: &[u8], limits: Limits) -> Result<Self> {
        let decoded = decode(bytes, limits)?;
        if let Some(mask) = Self::of_transparent(&decoded)? {
            return Ok(mask);
        }
        let decoded = decoded.into_luma8();
        let pixels = decoded.pixels().map(|pixel| pixel.0[0] >= 128).collect();
        Self::new(decoded.width() as usize, decoded.height() as usize, pixels)
    }

    /// Decodes the transparent part of an image, or returns `None` if all of its pixels are opaque.
    ///
    /// # Errors
    /// Returns the errors of [`Picture::decode`].
    pub fn decode_transparent(bytes: &[u8], limits: Limits) -> Result<Option<Self>> {
        Self::of_transparent(&decode(bytes, limits)?)
    }

    fn of_transparent(decoded: &DynamicImage) -> Result<Option<Self>> {
        if !decoded.color().has_alpha() {
            return Ok(None);
        }
        let decoded = decoded.to_luma_alpha8();
        if decoded.pixels().all(|pixel| pixel.0[1] == 255) {
            return Ok(None);
        }
        let pixels = decoded.pixels().map(|pixel| pixel.0[1] < 128).collect();
        Self::new(decoded.width() as usize, decoded.height() as usize, pixels).map(Some)
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns for each pixel whether it is regenerated.
    pub fn inpaint(&self) -> &[bool] {
        &self.inpaint
    }

    /// Returns an f32 tensor (1, 1, height / factor, width / factor) that is 1 for cells with any masked
    /// pixel and 0 elsewhere. Sides must be multiples of `factor`.
    pub(crate) fn cells(&self, factor: usize, device: &Device) -> Result<Tensor> {
        let (width, height) = (self.width / factor, self.height / factor);
        let mut cells = vec![0f32; width * height];
        for (i, _) in self.inpaint.iter().enumerate().filter(|(_, inpaint)| **inpaint) {
            let (x, y) = (i % self.width / factor, i / self.width / factor);
            cells[y * width + x] = 1.0;
        }
        Ok(Tensor::from_vec(cells, (1, 1, height, width), device)?)
    }
}

fn decode(bytes: &[u8], limits: Limits) -> Result<DynamicImage> {
    pictures::decode(bytes, limits).map_err(|error| Error::request(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_with_other_proportions_are_fitted() {
        // Columns of red, green, blue and red.
        let (red, green, blue) = ([255, 0, 0], [0, 255, 0], [0, 0, 255]);
        let wide = Picture::new(4, 2, [red, green, blue, red].concat().repeat(2)).unwrap();
        let cropped = wide.resized((2, 2), Fit::Crop);
        assert_eq!(cropped.rgb(), [green, blue].concat().repeat(2));
        let padded = wide.resized((4, 4), Fit::Pad);
        let edge = [red; 4].concat();
        let middle = [red, green, blue, red].concat();
        assert_eq!(padded.rgb(), [edge.clone(), middle.clone(), middle, edge].concat());
        for (from, to) in [((1, 100), (64, 3)), ((100, 1), (3, 64)), ((3, 3), (1, 1)), ((1, 1), (5, 9))] {
            let picture = Picture::new(from.0, from.1, vec![7; from.0 * from.1 * 3]).unwrap();
            for fit in [Fit::Stretch, Fit::Crop, Fit::Pad] {
                let resized = picture.resized(to, fit);
                assert_eq!((resized.width(), resized.height()), to, "{from:?} {fit:?}");
                assert!(resized.rgb() == vec![7; to.0 * to.1 * 3], "{from:?} {fit:?}");
            }
        }
        assert_eq!(wide.resized((4, 2), Fit::Pad), wide);
        let repeated = wide.repeated((8, 1));
        assert_eq!(repeated.rgb(), [red, red, green, green, blue, blue, red, red].concat());
        assert_eq!(wide.repeated((2, 2)).rgb(), [green, red].concat().repeat(2));
    }
}
