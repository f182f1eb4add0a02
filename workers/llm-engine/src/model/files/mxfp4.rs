//! MXFP4 in safetensors, where the elements and the scales of a matrix are two tensors.
use rayon::prelude::*;

/// Number of elements of a block.
pub const BLOCK: usize = 32;
/// Size of the elements of a block, in bytes.
pub const ELEMENTS: usize = BLOCK / 2;
/// Minimum number of blocks that a thread joins at a time.
const MIN_BLOCKS: usize = 4096;

/// Returns blocks as GGUF files have them: the scale, then bytes of an element of the first and one of the second half. In
/// `elements`, a byte contains two neighbors.
pub fn join(elements: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = vec![0; scales.len() * (1 + ELEMENTS)];
    let blocks = out.par_chunks_exact_mut(1 + ELEMENTS).with_min_len(MIN_BLOCKS);
    blocks.zip(elements.par_chunks_exact(ELEMENTS)).zip(scales).for_each(|((block, elements), scale)| {
        let (first, second) = elements.split_at(ELEMENTS / 2);
        block[0] = *scale;
        for ((pair, first), second) in block[1..].chunks_exact_mut(2).zip(first).zip(second) {
            pair[0] = first & 15 | second << 4;
            pair[1] = first >> 4 | second & 0xf0;
        }
    });
    out
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
        let elements: Vec<u8> = (0..32).map(|at| (at * 7 % 16) | (15 - at % 16) << 4).collect();
        let value = |bits: u8| table[usize::from(bits & 7)] * if bits < 8 { 1.0 } else { -1.0 };
        for exponents in [[0u8, 1], [2, 3], [127, 118], [253, 104]] {
            let blocks = join(&elements, &exponents);
            let blocks = qtensor_from_ggml(GgmlDType::MXFP4, &blocks, vec![2, BLOCK], &Device::Cpu).unwrap();
            let got =
                blocks.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let expected = |at: usize| {
                let scale = 2f64.powi(i32::from(exponents[at / BLOCK]) - 127);
                (f64::from(value(elements[at / 2] >> (4 * (at % 2)) & 15)) * scale) as f32
            };
            assert_eq!(got, (0..2 * BLOCK).map(expected).collect::<Vec<_>>(), "exponents {exponents:?}");
        }
        assert!(join(&[], &[]).is_empty());
    }
}
