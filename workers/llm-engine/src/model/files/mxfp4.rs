//! MXFP4: blocks of 32 numbers of four bits with one power of two as scale. Candle has no such type, but Q5_0 contains its
//! numbers.
use anyhow::{Result, ensure};
use rayon::prelude::*;

/// Number of elements of a block.
pub const BLOCK: usize = 32;
/// Size of the numbers of a block, in bytes.
pub const NUMBERS: usize = BLOCK / 2;

/// Numbers in units of half the scale, by the three low bits. The fourth is the sign.
const MAGNITUDES: [i32; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
/// Exponents of the smallest and the largest power of two in f16.
const MIN_EXPONENT: i32 = -24;
const MAX_EXPONENT: i32 = 15;
/// Bias of the exponents of scales, plus one, since numbers are in units of half of them.
const BIAS: i32 = 128;

/// Size of a block of Q5_0, in bytes.
const Q5_0_BYTES: usize = 22;
/// Minimum number of blocks that a thread converts at a time.
const MIN_BLOCKS: usize = 4096;
/// Number of bits that a number loses if its scale is far below the range of f16; more leave none.
const MAX_LOST: i32 = 8;
/// Numbers of Q5_0, from 0 to 31, of the 16 numbers, by the number of bits that they lose.
const Q5_0_NUMBERS: [[u8; 16]; MAX_LOST as usize + 1] = {
    let mut table = [[0; 16]; MAX_LOST as usize + 1];
    let mut lost = 0;
    while lost < table.len() {
        let mut nibble = 0;
        while nibble < 16 {
            let magnitude = (MAGNITUDES[nibble & 7] + ((1 << lost) >> 1)) >> lost;
            table[lost][nibble] = (16 + if nibble & 8 == 0 { magnitude } else { -magnitude }) as u8;
            nibble += 1;
        }
        lost += 1;
    }
    table
};

/// Order of a block's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A byte contains two neighbors, as in safetensors.
    Neighbors,
    /// A byte contains a number of the first and one of the second half, as in GGUF.
    Halves,
}

/// Returns `count` blocks as Q5_0. `block` returns the scale and the numbers of the block of an index. Scales below the range
/// of f16 are rounded to its smallest number, 2⁻²⁴.
///
/// # Errors
/// Returns an error if a scale is above the range of f16.
pub fn q5_0<'a>(
    count: usize,
    block: impl Fn(usize) -> (u8, &'a [u8]) + Sync,
    order: Order,
) -> Result<Vec<u8>> {
    let mut out = vec![0; count * Q5_0_BYTES];
    let blocks = out.par_chunks_exact_mut(Q5_0_BYTES).with_min_len(MIN_BLOCKS).enumerate();
    blocks.try_for_each(|(index, out)| {
        let (scale, numbers) = block(index);
        write_q5_0(out, scale, numbers, order)
    })?;
    Ok(out)
}

fn write_q5_0(block: &mut [u8], scale: u8, numbers: &[u8], order: Order) -> Result<()> {
    let exponent = i32::from(scale) - BIAS;
    let stored = exponent.max(MIN_EXPONENT);
    ensure!(
        stored <= MAX_EXPONENT,
        "an MXFP4 block has the scale 2^{}, above the range of f16",
        exponent + 1
    );
    let bits: u16 = match stored + 14 {
        normal @ 0.. => ((normal + 1) as u16) << 10,
        _ => 1 << (stored - MIN_EXPONENT),
    };
    let numbers_of = &Q5_0_NUMBERS[(stored - exponent).min(MAX_LOST) as usize];
    let nibble = |byte: u8, second: bool| usize::from(if second { byte >> 4 } else { byte & 15 });
    let mut high = 0u32;
    for at in 0..NUMBERS {
        let [first, second] = match order {
            Order::Neighbors => [0, NUMBERS / 2].map(|half| nibble(numbers[half + at / 2], at % 2 == 1)),
            Order::Halves => [false, true].map(|second| nibble(numbers[at], second)),
        };
        let (first, second) = (numbers_of[first], numbers_of[second]);
        high |= u32::from(first >> 4) << at | u32::from(second >> 4) << (NUMBERS + at);
        block[Q5_0_BYTES - NUMBERS + at] = first & 15 | (second & 15) << 4;
    }
    block[..2].copy_from_slice(&bits.to_le_bytes());
    block[2..6].copy_from_slice(&high.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use candle_core::quantized::GgmlDType;
    use candle_core::quantized::ggml_file::qtensor_from_ggml;

    use super::*;

    #[test]
    fn blocks_keep_their_numbers() {
        let table = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let numbers: Vec<u8> = (0..16).map(|at| at | (15 - at) << 4).collect();
        let value = |nibble: u8| table[usize::from(nibble & 7)] * if nibble < 8 { 1.0 } else { -1.0 };
        for (scale, factor) in [(127, 1.0), (118, 2f32.powi(-9)), (142, 2f32.powi(15)), (104, 2f32.powi(-23))]
        {
            for order in [Order::Neighbors, Order::Halves] {
                let blocks = q5_0(1, |_| (scale, &numbers[..]), order).unwrap();
                let blocks =
                    qtensor_from_ggml(GgmlDType::Q5_0, &blocks, vec![1, BLOCK], &Device::Cpu).unwrap();
                let got: Vec<f32> =
                    blocks.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
                let expected = |at: usize| match order {
                    Order::Neighbors => value(numbers[at / 2] >> (4 * (at % 2)) & 15),
                    Order::Halves => value(numbers[at % 16] >> (4 * (at / 16)) & 15),
                };
                let expected: Vec<f32> = (0..BLOCK).map(|at| expected(at) * factor).collect();
                assert_eq!(got, expected, "scale {scale}, {order:?}");
            }
        }
    }

    #[test]
    fn scales_beyond_f16_are_rounded_or_rejected() {
        // 12 · 2⁻²⁶ and 1 · 2⁻²⁶ become 3 · 2⁻²⁴ and 0.
        let two = [(102, &[0x71; 16][..]), (0, &[0x77; 16])];
        let blocks = q5_0(2, |index| two[index], Order::Halves).unwrap();
        assert_eq!((&blocks[..2], blocks[6]), (&[1, 0][..], 0x30));
        assert_eq!(blocks[22 + 6], 0);
        let error = q5_0(1, |_| (144, &[0; 16][..]), Order::Halves).unwrap_err();
        assert!(error.to_string().contains("2^17"), "{error}");
    }
}
