//! Conversions of numbers in files.
use anyhow::{Result, bail, ensure};
use candle_core::DType;
use half::{bf16, f16};

/// Converts the bytes of f32, f16 or bf16 numbers to f32.
///
/// # Errors
/// Returns an error for other types.
pub fn to_f32(bytes: &[u8], dtype: DType) -> Result<Vec<f32>> {
    fn convert<const SIZE: usize>(bytes: &[u8], number: impl Fn([u8; SIZE]) -> f32) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
    }
    Ok(match dtype {
        DType::F32 => convert(bytes, f32::from_le_bytes),
        DType::F16 => convert(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        DType::BF16 => convert(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        other => bail!("scales of type {other:?} are not supported; use f32, f16 or bf16"),
    })
}

/// Writes `numbers` as f32, f16 or bf16, rounded to the nearest, to `out`, which has their size.
///
/// # Errors
/// Returns an error for other types.
pub fn write(out: &mut [u8], numbers: impl Iterator<Item = f32>, dtype: DType) -> Result<()> {
    fn convert<const SIZE: usize>(
        out: &mut [u8],
        numbers: impl Iterator<Item = f32>,
        bytes: impl Fn(f32) -> [u8; SIZE],
    ) {
        out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, number)| *out = bytes(number));
    }
    match dtype {
        DType::F32 => convert(out, numbers, f32::to_le_bytes),
        DType::F16 => convert(out, numbers, |number| f16::from_f32(number).to_le_bytes()),
        DType::BF16 => convert(out, numbers, |number| bf16::from_f32(number).to_le_bytes()),
        other => bail!("weights cannot be converted to {other:?}; use f32, f16 or bf16"),
    }
    Ok(())
}

/// Returns the bytes of a block's scale or minimum, rounded to f16.
///
/// # Errors
/// Returns an error if it is above the range of f16 or no number.
pub fn block_number(number: f32) -> Result<[u8; 2]> {
    let rounded = f16::from_f32(number);
    ensure!(
        rounded.is_finite(),
        "{number:e} is outside of the range of f16, in which blocks store scales and minimums"
    );
    Ok(rounded.to_le_bytes())
}

/// Returns the value of a float of 8 bits: a sign, 4 bits of the exponent with a bias of 7, and 3 of the fraction. There is no
/// infinity, and 0x7f and 0xff are no numbers (OCP's e4m3, e4m3fn).
pub fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (byte & 0x7f, exponent) {
        (0x7f, _) => f32::NAN,
        (_, 0) => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn floats_of_8_bits_have_the_values_of_candle() {
        let bytes: Vec<u8> = (0..=255).collect();
        let tensor = Tensor::from_raw_buffer(&bytes, DType::F8E4M3, &[256], &Device::Cpu).unwrap();
        let expected: Vec<f32> = tensor.to_dtype(DType::F32).unwrap().to_vec1().unwrap();
        for (byte, expected) in bytes.into_iter().zip(expected) {
            let got = e4m3(byte);
            assert!(got == expected || (got.is_nan() && expected.is_nan()), "{byte}: {got}, not {expected}");
        }
    }
}
