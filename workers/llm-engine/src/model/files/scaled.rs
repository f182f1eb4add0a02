//! Weights of eight bits with scales: floats (e4m3), and integers of compressed-tensors.
use std::ops::Range;

use anyhow::{Context, Result, bail};
use candle_core::DType;
use candle_core::quantized::GgmlDType;
use rayon::prelude::*;

use super::format::Format;
use super::matrix::{Ranges, Region, StoredMatrix};
use super::numbers;

/// Number of weights of a block.
const BLOCK: usize = 32;

/// Type of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// OCP's e4m3 (e4m3fn).
    Float,
    /// Signed integers.
    Integer,
}

/// Weights of a matrix (outputs, inputs).
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// Type of weights.
    pub number: Number,
    /// Weights.
    pub weights: StoredMatrix,
    /// Scales, and their type.
    pub scales: (StoredMatrix, DType),
    /// Numbers of outputs and inputs that share a scale.
    pub shared_by: [usize; 2],
}

impl Scaled {
    /// Returns the format that the weights become: Q8_0 for integers whose scales are shared by whole blocks, otherwise
    /// floats of type `dtype`.
    pub fn format(&self, dtype: DType) -> Format {
        let has_blocks =
            [self.weights.columns, self.shared_by[1]].iter().all(|size| size.is_multiple_of(BLOCK));
        match self.number {
            Number::Integer if has_blocks => Format::Blocks(GgmlDType::Q8_0),
            _ => Format::Floats(dtype),
        }
    }

    /// Returns all matrices: weights and scales.
    pub fn matrices(&self) -> Vec<StoredMatrix> {
        vec![self.weights.clone(), self.scales.0.clone()]
    }

    /// Returns the regions of the [`Self::matrices`] that a part of the weights needs.
    pub fn regions(&self, outputs: &Range<usize>, inputs: &Range<usize>) -> Vec<Region> {
        let [rows, columns] = self.scale_ranges(outputs, inputs);
        vec![self.weights.region(outputs.clone(), inputs.clone()), self.scales.0.region(rows, columns)]
    }

    fn scale_ranges(&self, outputs: &Range<usize>, inputs: &Range<usize>) -> [Range<usize>; 2] {
        let [rows, columns] = self.shared_by;
        [
            outputs.start / rows..outputs.end.div_ceil(rows),
            inputs.start / columns..inputs.end.div_ceil(columns),
        ]
    }

    /// Converts a part of the weights to `format`. `data` are the bytes of its [`Self::regions`].
    ///
    /// # Errors
    /// Returns an error for scales outside of the range of f16, if weights become blocks.
    pub fn decode(&self, format: Format, [outputs, inputs]: Ranges, data: &[Vec<u8>]) -> Result<Vec<u8>> {
        let [weights, scales] = data else { bail!("internal error: weights without scales") };
        let [rows, columns] = self.scale_ranges(outputs, inputs);
        let scales = numbers::to_f32(scales, self.scales.1)?;
        let scale = |output: usize, input: usize| {
            let (row, column) = (output / self.shared_by[0], input / self.shared_by[1]);
            scales[(row - rows.start) * columns.len() + column - columns.start]
        };
        let values: [f32; 256] = std::array::from_fn(|byte| match self.number {
            Number::Float => numbers::e4m3(byte as u8),
            Number::Integer => f32::from(byte as u8 as i8),
        });
        let row = format.bytes(inputs.len()).context("internal error: parts of blocks")?;
        let mut out = vec![0; row * outputs.len()];
        let of_rows = out.par_chunks_mut(row.max(1)).zip(weights.par_chunks(inputs.len().max(1)));
        of_rows.zip(outputs.clone()).try_for_each(|((out, weights), output)| -> Result<()> {
            match format {
                Format::Floats(dtype) => {
                    let (shared, size) = (self.shared_by[1], dtype.size_in_bytes());
                    let mut start = 0;
                    while start < weights.len() {
                        let input = inputs.start + start;
                        let end = weights.len().min(start + shared - input % shared);
                        let scale = scale(output, input);
                        let weights = weights[start..end].iter();
                        let floats = weights.map(|byte| values[usize::from(*byte)] * scale);
                        numbers::write(&mut out[start * size..end * size], floats, dtype)?;
                        start = end;
                    }
                }
                Format::Blocks(dtype) => {
                    let blocks = out.chunks_exact_mut(dtype.type_size()).zip(weights.chunks_exact(BLOCK));
                    for (index, (out, weights)) in blocks.enumerate() {
                        let scale = scale(output, inputs.start + index * BLOCK);
                        out[..2].copy_from_slice(&numbers::block_number(scale)?);
                        out[2..].copy_from_slice(weights);
                    }
                }
            }
            Ok(())
        })?;
        Ok(out)
    }
}
