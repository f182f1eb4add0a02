//! Encodings of a key-value cache as bytes, with a scale for each row of a head.
use candle::{bail, DType, Result, Tensor, D};

/// Encoding of the elements of a key-value cache. An element is the product of a number of one byte and the scale of its row
/// of a head, a bf16 that is chosen so that the largest magnitude of the row becomes the largest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheEncoding {
    /// Integers from -127 to 127, stored as u8 plus 128.
    Int8,
    /// Floats of the type E4M3, of which the largest is 448.
    Fp8,
}

/// Smallest scale that is not rounded to zero: the inverses of smaller ones would not be finite.
const SMALLEST_SCALE: f64 = 1e-30;

impl CacheEncoding {
    /// Returns the dtype of tensors with encoded elements.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Int8 => DType::U8,
            Self::Fp8 => DType::F8E4M3,
        }
    }

    /// Returns the encoding whose elements have this dtype.
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::U8 => Some(Self::Int8),
            DType::F8E4M3 => Some(Self::Fp8),
            _ => None,
        }
    }

    /// Returns the largest number that an element can represent.
    const fn largest(self) -> f64 {
        match self {
            Self::Int8 => 127.0,
            Self::Fp8 => 448.0,
        }
    }

    /// Encodes rows (.., width) of a float dtype. Returns the elements and the scales (..), bf16. Decoded elements are finite in
    /// the dtype of the rows, and differ by at most half a step of the encoding; the scale of a row that is not finite is NaN.
    ///
    /// # Errors
    /// If the device fails.
    pub fn encode(self, rows: &Tensor) -> Result<(Tensor, Tensor)> {
        let finite = match rows.dtype() {
            DType::F16 => f64::from(half::f16::MAX),
            _ => f64::from(half::bf16::MAX),
        };
        let x = rows.to_dtype(DType::F32)?;
        let largest = x.abs()?.max_keepdim(D::Minus1)?;
        // A scale that is rounded up must not make the largest number infinite.
        let limit = finite / self.largest() * (1.0 - 1.0 / 256.0);
        let scale = (largest / self.largest())?.minimum(limit)?;
        let scale = (&scale * scale.ge(SMALLEST_SCALE)?.to_dtype(DType::F32)?)?;
        // Zero, or NaN if an element is not finite.
        let scale = (scale + x.affine(0.0, 0.0)?.sum_keepdim(D::Minus1)?)?.to_dtype(DType::BF16)?;
        let rounded = scale.to_dtype(DType::F32)?;
        let inverse = rounded.eq(0.0)?.where_cond(&rounded.zeros_like()?, &rounded.recip()?)?;
        let x = x.broadcast_mul(&inverse)?.clamp(-self.largest(), self.largest())?;
        let elements = match self {
            Self::Int8 => x.round()?.affine(1.0, 128.0)?,
            Self::Fp8 => x,
        };
        Ok((elements.to_dtype(self.dtype())?, scale.squeeze(D::Minus1)?))
    }

    /// Decodes elements (.., width) with scales (..) to f32.
    ///
    /// # Errors
    /// If the shapes do not match or the device fails.
    pub fn decode(elements: &Tensor, scales: &Tensor) -> Result<Tensor> {
        let numbers = elements.to_dtype(DType::F32)?;
        let numbers = match Self::of(elements.dtype()) {
            Some(Self::Int8) => numbers.affine(1.0, -128.0)?,
            Some(Self::Fp8) => numbers,
            None => bail!("decode: elements of {:?} are not encoded; use U8 or F8E4M3", elements.dtype()),
        };
        numbers.broadcast_mul(&scales.to_dtype(DType::F32)?.unsqueeze(D::Minus1)?)
    }
}

/// Scales of an encoded cache.
#[derive(Clone, Copy)]
pub struct CacheScales<'a> {
    /// Scales of keys and of values, contiguous bf16 (.., key heads, 2); the first dims are those of the cache.
    pub scales: &'a Tensor,
    /// Dtype of the rotated queries, to which keys and values are rounded before they are encoded.
    pub queries: DType,
}
