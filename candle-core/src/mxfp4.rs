//! MXFP4 for the CPU device: blocks of 32 floats of four bits with one power of two as scale, as in GGUF files.
//!
//! The format is that of the OCP Microscaling Formats (MX) Specification 1.0: E2M1 elements with an E8M0 scale.
#![deny(missing_docs, unsafe_code)]
use crate::quantized::k_quants::{BlockQ8_0, GgmlType};
use crate::quantized::GgmlDType;

/// Number of elements of a block.
pub(crate) const QK_MXFP4: usize = 32;

/// Elements by their four bits, in units of half the scale. The fourth bit is the sign.
const ELEMENTS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Bias of the exponents in a block and in f32.
const BIAS: u32 = 127;
/// Number of mantissa bits of f32.
const MANTISSA_BITS: u32 = 23;
/// Exponent of the largest magnitude of an element, 6.
const MAX_ELEMENT_EXPONENT: u32 = 2;
/// Minimum exponent of blocks with an element other than 0, for which half the scale is a normal number.
const MIN_EXPONENT: u32 = 2;

/// A block of 32 elements in MXFP4.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// The scale is 2 to the power of this number minus 127.
    pub(crate) exponent: u8,
    /// Elements 0 to 15 in the low half of each byte, 16 to 31 in the high half.
    pub(crate) qs: [u8; QK_MXFP4 / 2],
}
const _: () = assert!(size_of::<BlockMxfp4>() == 17);

/// Returns the element of the four low bits, in units of half the scale.
fn element(bits: u8) -> i32 {
    ELEMENTS[usize::from(bits & 15)].into()
}

/// Returns the four bits of the element nearest to a multiple of half the scale; the smaller of two.
fn nearest(value: f32) -> u8 {
    let is_above = |pair: &&[i8]| value.abs() > f32::from(pair[0] + pair[1]) / 2.0;
    let magnitude = ELEMENTS[..8].windows(2).filter(is_above).count() as u8;
    magnitude | if value < 0.0 && magnitude > 0 { 8 } else { 0 }
}

impl BlockMxfp4 {
    /// Returns half the scale.
    fn half_scale(&self) -> f32 {
        let exponent = u32::from(self.exponent);
        // The two smallest are subnormal.
        f32::from_bits(match exponent {
            0 | 1 => 1 << (MANTISSA_BITS - 2 + exponent),
            _ => (exponent - 1) << MANTISSA_BITS,
        })
    }
}

impl GgmlType for BlockMxfp4 {
    const DTYPE: GgmlDType = GgmlDType::MXFP4;
    const BLCK_SIZE: usize = QK_MXFP4;
    type VecDotType = BlockQ8_0;

    fn to_float(xs: &[Self], ys: &mut [f32]) {
        for (block, ys) in xs.iter().zip(ys.chunks_exact_mut(QK_MXFP4)) {
            let scale = block.half_scale();
            let (low, high) = ys.split_at_mut(QK_MXFP4 / 2);
            for ((byte, low), high) in block.qs.iter().zip(low).zip(high) {
                *low = element(*byte) as f32 * scale;
                *high = element(byte >> 4) as f32 * scale;
            }
        }
    }

    fn from_float(xs: &[f32], ys: &mut [Self]) {
        for (xs, block) in xs.chunks_exact(QK_MXFP4).zip(ys) {
            let largest =
                xs.iter().fold(0.0f32, |largest, x| if x.abs() > largest { x.abs() } else { largest });
            let exponent = match largest.to_bits() >> MANTISSA_BITS {
                _ if largest == 0.0 => 0,
                exponent => exponent.saturating_sub(MAX_ELEMENT_EXPONENT).max(MIN_EXPONENT),
            };
            // 1 / half the scale, a normal number.
            let inverse = f32::from_bits((2 * BIAS + 1 - exponent.max(MIN_EXPONENT)) << MANTISSA_BITS);
            block.exponent = exponent as u8;
            for (at, byte) in block.qs.iter_mut().enumerate() {
                *byte = nearest(xs[at] * inverse) | nearest(xs[at + QK_MXFP4 / 2] * inverse) << 4;
            }
        }
    }

    fn vec_dot(n: usize, xs: &[Self], ys: &[BlockQ8_0]) -> f32 {
        Self::vec_dot_unopt(n, xs, ys)
    }

    fn vec_dot_unopt(_: usize, xs: &[Self], ys: &[BlockQ8_0]) -> f32 {
        let product = |(x, y): (&Self, &BlockQ8_0)| {
            let (low, high) = y.qs.split_at(QK_MXFP4 / 2);
            let pairs = x.qs.iter().zip(low).zip(high);
            let sum: i32 = pairs
                .map(|((byte, low), high)| {
                    element(*byte) * i32::from(*low) + element(byte >> 4) * i32::from(*high)
                })
                .sum();
            sum as f32 * x.half_scale() * y.d.to_f32()
        };
        xs.iter().zip(ys).map(product).sum()
    }
}
