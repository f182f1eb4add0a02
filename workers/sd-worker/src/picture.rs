//! Pictures and masks, in files and as tensors.
use std::io::Cursor;

use candle_core::{DType, Device, Tensor};
use image::codecs::png::PngEncoder;
use image::{DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageFormat, ImageReader};

use crate::{Error, Result};

/// What a file may ask of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of the file.
    pub bytes: usize,
    /// Of one side.
    pub side: u32,
    /// Of all.
    pub pixels: u64,
}

impl Default for Limits {
    /// 20 MB, 8192 a side, 4096 · 4096 pixels.
    fn default() -> Self {
        Self { bytes: 20 << 20, side: 8192, pixels: 1 << 24 }
    }
}

/// An RGB picture, eight bits a channel, by rows.
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
    /// A picture of `rgb`, three bytes a pixel.
    ///
    /// # Errors
    /// There are no pixels, or more or fewer bytes than the size says.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self> {
        let wanted = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(3));
        if wanted != Some(rgb.len()) || rgb.is_empty() {
            return Err(Error::request(format!("{} bytes are no picture of {width} x {height}", rgb.len())));
        }
        Ok(Self { width, height, rgb })
    }

    /// Reads PNG, JPEG or WebP, turned as the file says; what is transparent counts as opaque. Of an animation the
    /// first picture.
    ///
    /// # Errors
    /// Another format, a damaged file, or more than `limits` allow, which is seen before anything is decoded.
    pub fn decode(bytes: &[u8], limits: Limits) -> Result<Self> {
        let decoded = decode(bytes, limits)?.into_rgb8();
        Self::new(decoded.width() as usize, decoded.height() as usize, decoded.into_raw())
    }

    /// Width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Three bytes a pixel, by rows.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The picture as PNG.
    ///
    /// # Errors
    /// The encoder fails.
    pub fn png(&self) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        let (width, height) = (self.width as u32, self.height as u32);
        let written =
            PngEncoder::new(&mut file).write_image(&self.rgb, width, height, ExtendedColorType::Rgb8);
        written.map_err(|e| Error::request(format!("no PNG of {width} x {height}: {e}")))?;
        Ok(file)
    }

    /// f32 (1, 3, height, width) in [-1, 1].
    ///
    /// # Errors
    /// The device has no memory left.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let x = Tensor::from_slice(&self.rgb, (1, self.height, self.width, 3), device)?;
        let x = x.to_dtype(DType::F32)?.permute((0, 3, 1, 2))?.contiguous()?;
        Ok(x.affine(2.0 / 255.0, -1.0)?)
    }

    /// Pictures of a tensor (n, 3, height, width) in about [-1, 1]; what lies outside is cut off.
    ///
    /// # Errors
    /// Another shape, or numbers that are none: half precision was not enough for them.
    pub fn from_tensor(pictures: &Tensor) -> Result<Vec<Self>> {
        let (n, channels, height, width) = pictures.dims4()?;
        if channels != 3 {
            return Err(Error::model(format!("{channels} channels are no RGB picture")));
        }
        let values = pictures.to_dtype(DType::F32)?.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1::<f32>()?;
        if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::model(format!(
                "the picture holds {bad}: the model overflows at this dtype; load it, or its VAE, in f32 or bf16"
            )));
        }
        let bytes: Vec<u8> = values.iter().map(|value| byte(*value)).collect();
        let size = height * width * 3;
        (0..n).map(|i| Self::new(width, height, bytes[i * size..(i + 1) * size].to_vec())).collect()
    }

    /// This picture where the mask says so, `other` elsewhere. All three are of one size.
    pub(crate) fn over(mut self, other: &Self, mask: &Mask) -> Self {
        for ((own, other), repaint) in
            self.rgb.chunks_exact_mut(3).zip(other.rgb.chunks_exact(3)).zip(&mask.repaint)
        {
            if !repaint {
                own.copy_from_slice(other);
            }
        }
        self
    }
}

fn byte(value: f32) -> u8 {
    ((value + 1.0) * 127.5).round().clamp(0.0, 255.0) as u8
}

/// Which pixels are painted anew, by rows.
#[derive(Clone, PartialEq, Eq)]
pub struct Mask {
    width: usize,
    height: usize,
    repaint: Vec<bool>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.repaint.iter().filter(|repaint| **repaint).count();
        write!(f, "Mask({} x {}, {count} pixels)", self.width, self.height)
    }
}

impl Mask {
    /// A mask of `repaint`, one a pixel.
    ///
    /// # Errors
    /// There are no pixels, or more or fewer than the size says.
    pub fn new(width: usize, height: usize, repaint: Vec<bool>) -> Result<Self> {
        if width.checked_mul(height) != Some(repaint.len()) || repaint.is_empty() {
            return Err(Error::request(format!(
                "{} pixels are no mask of {width} x {height}",
                repaint.len()
            )));
        }
        Ok(Self { width, height, repaint })
    }

    /// Reads PNG, JPEG or WebP. If any pixel is transparent, the transparent half is painted anew (as OpenAI has it),
    /// otherwise the light half.
    ///
    /// # Errors
    /// As [`Picture::decode`].
    pub fn decode(bytes: &[u8], limits: Limits) -> Result<Self> {
        let decoded = decode(bytes, limits)?.into_luma_alpha8();
        let by_alpha = decoded.pixels().any(|pixel| pixel.0[1] < 255);
        let repaint = |[light, alpha]: [u8; 2]| if by_alpha { alpha < 128 } else { light >= 128 };
        let pixels = decoded.pixels().map(|pixel| repaint(pixel.0)).collect();
        Self::new(decoded.width() as usize, decoded.height() as usize, pixels)
    }

    /// Width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Whether each pixel is painted anew.
    pub fn repaint(&self) -> &[bool] {
        &self.repaint
    }

    /// f32 (1, 1, height / factor, width / factor): one where any pixel of the cell is painted anew, zero elsewhere.
    /// Sides are multiples of `factor`.
    pub(crate) fn cells(&self, factor: usize, device: &Device) -> Result<Tensor> {
        let (width, height) = (self.width / factor, self.height / factor);
        let mut cells = vec![0f32; width * height];
        for (i, _) in self.repaint.iter().enumerate().filter(|(_, repaint)| **repaint) {
            let (x, y) = (i % self.width / factor, i / self.width / factor);
            cells[y * width + x] = 1.0;
        }
        Ok(Tensor::from_vec(cells, (1, 1, height, width), device)?)
    }
}

fn decode(bytes: &[u8], limits: Limits) -> Result<DynamicImage> {
    if bytes.len() > limits.bytes {
        return Err(Error::request(format!("a picture of {} bytes; at most {}", bytes.len(), limits.bytes)));
    }
    let bad = |e: image::ImageError| Error::request(format!("the picture cannot be read: {e}"));
    let format = image::guess_format(bytes).ok();
    let Some(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) = format else {
        return Err(Error::request("the picture is no PNG, JPEG or WebP"));
    };
    // Sixteen bits of RGBA, and as much for the decoder's own use.
    let within = |pixels: u64| {
        let mut own = image::Limits::no_limits();
        own.max_alloc = Some(pixels * 16 + (1 << 20));
        own
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    // What stands before the pixels is unpacked, too.
    reader.limits(within(limits.pixels));
    let mut decoder = reader.into_decoder().map_err(bad)?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if width.max(height) > limits.side || pixels > limits.pixels {
        return Err(Error::request(format!(
            "a picture of {width} x {height}; at most {} a side and {} in all",
            limits.side, limits.pixels
        )));
    }
    decoder.set_limits(within(pixels)).map_err(bad)?;
    let orientation = decoder.orientation().map_err(bad)?;
    let mut decoded = DynamicImage::from_decoder(decoder).map_err(bad)?;
    decoded.apply_orientation(orientation);
    Ok(decoded)
}
