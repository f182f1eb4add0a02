//! Weights of four or eight bits with a scale and a zero point for each group of input features: GPTQ, AWQ and
//! compressed-tensors.
//!
//! A weight is s · (q - z), with q from 0 to 15 or to 255. Where groups consist of whole blocks of GGML, weights become
//! blocks that kernels read: Q4_0, d · (q - 8), if all zero points are 8; otherwise Q4_1, d · q + m, with m = -s · z
//! rounded to f16. Weights of eight bits whose zero points are 128 become Q8_0, d · (q - 128); others become floats.
//! If groups are not in order (`desc_act`), blocks have the input features in the order of their groups. Otherwise weights
//! become floats.
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::DType;
use candle_core::quantized::GgmlDType;
use rayon::prelude::*;

use super::format::Format;
use super::matrix::{Ranges, Region, StoredMatrix};
use super::numbers;

/// Largest number of weights of a word of 32 bits.
const MAX_PER_WORD: usize = 8;
/// Number of weights of a block.
pub const BLOCK: usize = 32;
/// Index of the zero points among the matrices.
const ZEROS: usize = 2;
/// Number of rows that are converted together, whose words share cache lines.
const ROWS_PER_TASK: usize = 32;

/// Direction of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Axis {
    /// Neighbors are in a row.
    Row,
    /// Neighbors are in a column.
    Column,
}

/// Layout of a checkpoint's tensors.
#[derive(Debug, PartialEq)]
pub struct Layout {
    /// Endings of the tensors' names: weights, scales, zero points, and groups of the input features.
    pub names: [&'static str; 4],
    /// If true, matrices have a row for each input feature or group; otherwise they have one for each output feature.
    pub inputs_first: bool,
    /// Direction of the weights of a word.
    pub weights: Axis,
    /// Direction of the zero points of a word.
    pub zeros: Axis,
    /// Number of bits of a weight: 4 or 8.
    pub bits: usize,
    /// Positions in a word of its numbers.
    pub places: [u8; MAX_PER_WORD],
}

impl Layout {
    /// Returns the number of weights of a word.
    pub fn per_word(&self) -> usize {
        32 / self.bits
    }

    /// Returns the zero point of symmetric weights.
    fn middle(&self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Returns the words of the numbers in some rows and columns.
    fn words(&self, axis: Axis, [rows, columns]: [Range<usize>; 2]) -> [Range<usize>; 2] {
        let per_word = self.per_word();
        let words = |range: Range<usize>| range.start / per_word..range.end.div_ceil(per_word);
        match axis {
            Axis::Row => [rows, words(columns)],
            Axis::Column => [words(rows), columns],
        }
    }

    /// Returns the rows and columns of a matrix.
    fn oriented(&self, outputs: &Range<usize>, inputs: &Range<usize>) -> [Range<usize>; 2] {
        match self.inputs_first {
            true => [inputs.clone(), outputs.clone()],
            false => [outputs.clone(), inputs.clone()],
        }
    }
}

/// Layout of GPTQ with weights of four bits.
pub const GPTQ: Layout = Layout { bits: 4, ..GPTQ_8_BITS };

/// Layout of GPTQ with weights of eight bits.
pub const GPTQ_8_BITS: Layout = Layout {
    names: ["qweight", "scales", "qzeros", "g_idx"],
    inputs_first: true,
    weights: Axis::Column,
    zeros: Axis::Row,
    bits: 8,
    places: [0, 1, 2, 3, 4, 5, 6, 7],
};

/// Layout of AWQ, version GEMM.
pub static AWQ: Layout = Layout { weights: Axis::Row, places: [0, 4, 1, 5, 2, 6, 3, 7], ..GPTQ };

/// Layout of compressed-tensors, format pack-quantized.
pub static COMPRESSED_TENSORS: Layout = Layout {
    names: ["weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"],
    inputs_first: false,
    weights: Axis::Row,
    zeros: Axis::Column,
    ..GPTQ
};

/// Zero points of groups.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeroPoints {
    /// Packed numbers.
    pub matrix: StoredMatrix,
    /// Summand of each word.
    pub offset: u32,
    /// If true, all of them must be in the middle of the range.
    pub symmetric: bool,
}

/// Weights of a matrix (outputs, inputs).
#[derive(Clone, Debug, PartialEq)]
pub struct PackedBits {
    /// Layout of the tensors.
    pub layout: &'static Layout,
    /// Number of input features of a group.
    pub group: usize,
    /// Packed weights.
    pub weights: StoredMatrix,
    /// Scales, and their type.
    pub scales: (StoredMatrix, DType),
    /// Zero points. Without them, all are in the middle of the range.
    pub zeros: Option<ZeroPoints>,
    /// Groups of the input features, i32, if files contain them.
    pub groups: Option<StoredMatrix>,
    /// If false, the groups of the input features are in order.
    pub is_reordered: bool,
    /// Input features in the order of their groups, if groups are not in order. Without it, they can only be floats.
    pub order: Option<Arc<[u32]>>,
}

impl PackedBits {
    /// Returns the format that the weights of `inputs` input features become. Floats have type `dtype`.
    pub fn format(&self, inputs: usize, dtype: DType) -> Format {
        match self.blocks(inputs) {
            Some(blocks) if !self.is_reordered => Format::Blocks(blocks),
            _ => Format::Floats(dtype),
        }
    }

    /// Returns the format of whole rows whose input features are in the order of their groups, and this order, if groups are
    /// not in order.
    pub fn ordered(&self, inputs: usize) -> Option<(Format, &Arc<[u32]>)> {
        Some((Format::Blocks(self.blocks(inputs)?), self.order.as_ref()?))
    }

    fn blocks(&self, inputs: usize) -> Option<GgmlDType> {
        let is_symmetric = self.zeros.as_ref().is_none_or(|zeros| zeros.symmetric);
        let has_blocks = self.group.is_multiple_of(BLOCK) && inputs.is_multiple_of(BLOCK);
        let blocks = match (self.layout.bits, is_symmetric) {
            (4, true) => Some(GgmlDType::Q4_0),
            (4, false) => Some(GgmlDType::Q4_1),
            (_, is_symmetric) => is_symmetric.then_some(GgmlDType::Q8_0),
        };
        blocks.filter(|_| has_blocks)
    }

    /// Returns all matrices: weights, scales, zero points and groups.
    pub fn matrices(&self) -> Vec<StoredMatrix> {
        let zeros = self.zeros.as_ref().map(|zeros| &zeros.matrix);
        [Some(&self.weights), Some(&self.scales.0), zeros, self.groups.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Returns the number of groups.
    fn group_count(&self) -> usize {
        if self.layout.inputs_first { self.scales.0.rows } else { self.scales.0.columns }
    }

    /// Returns the groups to which some input features belong.
    fn groups_of(&self, inputs: &Range<usize>) -> Range<usize> {
        match self.is_reordered {
            true => 0..self.group_count(),
            false => inputs.start / self.group..inputs.end.div_ceil(self.group),
        }
    }

    /// Returns the regions of the [`Self::matrices`] that a part of the weights needs.
    pub fn regions(&self, outputs: &Range<usize>, inputs: &Range<usize>) -> Vec<Region> {
        let layout = self.layout;
        let region = |matrix: &StoredMatrix, axis, inputs| {
            let [rows, columns] = layout.words(axis, layout.oriented(outputs, inputs));
            matrix.region(rows, columns)
        };
        let groups = &self.groups_of(inputs);
        let [rows, columns] = layout.oriented(outputs, groups);
        let mut all =
            vec![region(&self.weights, layout.weights, inputs), self.scales.0.region(rows, columns)];
        all.extend(self.zeros.as_ref().map(|zeros| region(&zeros.matrix, layout.zeros, groups)));
        all.extend(self.groups.as_ref().map(|groups| groups.region(0..1, inputs.clone())));
        all
    }

    /// Converts a part of the weights to `format`. `data` are the bytes of its [`Self::regions`]. If groups are not in order,
    /// blocks are those of [`Self::ordered`] rows.
    ///
    /// # Errors
    /// Returns an error for scales outside of the range of f16, groups that do not exist or are not in order, and zero points
    /// that are not symmetric although the configuration requires it.
    pub fn decode(&self, format: Format, [outputs, inputs]: Ranges, data: &[Vec<u8>]) -> Result<Vec<u8>> {
        let mut data: Vec<Cow<[u8]>> = data.iter().map(|bytes| Cow::Borrowed(&bytes[..])).collect();
        if let (Some(zeros), Some(words)) = (&self.zeros, data.get_mut(ZEROS)) {
            for word in words.to_mut().as_chunks_mut().0 {
                *word = u32::from_le_bytes(*word).wrapping_add(zeros.offset).to_le_bytes();
            }
        }
        let view = self.view(outputs, inputs, &data)?;
        let row = format.bytes(inputs.len()).context("internal error: parts of blocks")?;
        let mut out = vec![0; row * outputs.len()];
        let tasks = out.par_chunks_mut((row * ROWS_PER_TASK).max(1)).enumerate();
        tasks.try_for_each(|(task, out)| {
            let first = outputs.start + task * ROWS_PER_TASK;
            match format {
                Format::Floats(dtype) => {
                    for (index, out) in out.chunks_exact_mut(row).enumerate() {
                        numbers::write(
                            out,
                            inputs.clone().map(|input| view.weight(first + index, input)),
                            dtype,
                        )?;
                    }
                    Ok(())
                }
                Format::Blocks(dtype) => view.write_blocks(out, row, first, dtype),
            }
        })?;
        Ok(out)
    }

    fn view<'a>(
        &'a self,
        outputs: &Range<usize>,
        inputs: &Range<usize>,
        data: &'a [Cow<'a, [u8]>],
    ) -> Result<View<'a>> {
        let (layout, groups) = (self.layout, self.groups_of(inputs));
        let mut data = data.iter();
        let mut next = || data.next().context("internal error: a matrix is missing");
        let packed = |bytes, axis, inputs| {
            let [rows, columns] = layout.oriented(outputs, inputs);
            Numbers::new(bytes, axis, layout, [rows, columns])
        };
        let weights = packed(next()?, layout.weights, inputs);
        let scales = numbers::to_f32(next()?, self.scales.1)?;
        let zeros = match &self.zeros {
            Some(_) => Some(packed(next()?, layout.zeros, &groups)),
            None => None,
        };
        let of_inputs = match &self.groups {
            Some(_) => Some(self.check_groups(next()?, inputs)?),
            None => None,
        };
        let group = self.group;
        let (outputs, inputs) = (outputs.clone(), inputs.clone());
        let order = self.order.as_deref();
        let view = View { layout, weights, scales, zeros, of_inputs, order, group, outputs, inputs, groups };
        if self.zeros.as_ref().is_some_and(|zeros| zeros.symmetric) {
            view.check_symmetry()?;
        }
        Ok(view)
    }

    /// Returns the groups of input features.
    fn check_groups(&self, bytes: &[u8], inputs: &Range<usize>) -> Result<Vec<u32>> {
        let groups: Vec<u32> = bytes.as_chunks().0.iter().map(|group| u32::from_le_bytes(*group)).collect();
        let count = self.group_count();
        for (input, group) in inputs.clone().zip(&groups) {
            let group = *group as usize;
            ensure!(
                group < count,
                "input feature {input} belongs to group {group}, but there are {count} groups"
            );
            ensure!(
                self.is_reordered || group == input / self.group,
                "input feature {input} belongs to group {group} instead of {}; set \"desc_act\" to true in config.json",
                input / self.group
            );
        }
        Ok(groups)
    }
}

/// Region of packed numbers.
struct Numbers<'a> {
    bytes: &'a [u8],
    axis: Axis,
    layout: &'static Layout,
    /// Row and column of the first number of the first word.
    first: [usize; 2],
    /// Number of words of a row.
    width: usize,
}

impl<'a> Numbers<'a> {
    fn new(bytes: &'a [u8], axis: Axis, layout: &'static Layout, [rows, columns]: [Range<usize>; 2]) -> Self {
        let ([rows, columns], per_word) = (layout.words(axis, [rows, columns]), layout.per_word());
        let first = match axis {
            Axis::Row => [rows.start, columns.start * per_word],
            Axis::Column => [rows.start * per_word, columns.start],
        };
        Self { bytes, axis, layout, first, width: columns.len() }
    }

    fn get(&self, row: usize, column: usize) -> u8 {
        let (row, column) = (row - self.first[0], column - self.first[1]);
        let per_word = self.layout.per_word();
        let (word, index) = match self.axis {
            Axis::Row => (row * self.width + column / per_word, column % per_word),
            Axis::Column => (row / per_word * self.width + column, row % per_word),
        };
        let place = usize::from(self.layout.places[index]);
        match self.layout.bits {
            8 => self.bytes[word * 4 + place],
            _ => self.bytes[word * 4 + place / 2] >> (4 * (place % 2)) & 15,
        }
    }
}

/// Part of the weights.
struct View<'a> {
    layout: &'static Layout,
    weights: Numbers<'a>,
    scales: Vec<f32>,
    zeros: Option<Numbers<'a>>,
    of_inputs: Option<Vec<u32>>,
    /// Input features of blocks, if they are not in order.
    order: Option<&'a [u32]>,
    group: usize,
    outputs: Range<usize>,
    inputs: Range<usize>,
    groups: Range<usize>,
}

impl View<'_> {
    fn at(&self, numbers: &Numbers, output: usize, input: usize) -> u8 {
        match self.layout.inputs_first {
            true => numbers.get(input, output),
            false => numbers.get(output, input),
        }
    }

    fn scale(&self, output: usize, group: usize) -> f32 {
        let (output, group) = (output - self.outputs.start, group - self.groups.start);
        self.scales[match self.layout.inputs_first {
            true => group * self.outputs.len() + output,
            false => output * self.groups.len() + group,
        }]
    }

    fn zero(&self, output: usize, group: usize) -> i32 {
        match &self.zeros {
            Some(zeros) => i32::from(self.at(zeros, output, group)),
            None => self.layout.middle(),
        }
    }

    fn weight(&self, output: usize, input: usize) -> f32 {
        let group = match &self.of_inputs {
            Some(groups) => groups[input - self.inputs.start] as usize,
            None => input / self.group,
        };
        let number = i32::from(self.at(&self.weights, output, input)) - self.zero(output, group);
        self.scale(output, group) * number as f32
    }

    fn check_symmetry(&self) -> Result<()> {
        for (output, group) in
            self.outputs.clone().flat_map(|output| self.groups.clone().map(move |group| (output, group)))
        {
            let (zero, middle) = (self.zero(output, group), self.layout.middle());
            ensure!(
                zero == middle,
                "group {group} of output feature {output} has the zero point {zero}, but symmetric weights have {middle}; \
                 set \"sym\" to false in config.json"
            );
        }
        Ok(())
    }

    /// Writes the blocks of rows of `row` bytes, of which `first` is the first.
    fn write_blocks(&self, out: &mut [u8], row: usize, first: usize, dtype: GgmlDType) -> Result<()> {
        let size = dtype.type_size();
        for (block, input) in self.inputs.clone().step_by(BLOCK).enumerate() {
            let group = input / self.group;
            for (index, out) in out.chunks_exact_mut(row).enumerate() {
                let (output, out) = (first + index, &mut out[block * size..][..size]);
                let scale = self.scale(output, group);
                let (header, numbers) = out.split_at_mut(size - BLOCK * self.layout.bits / 8);
                header[..2].copy_from_slice(&numbers::block_number(scale)?);
                if dtype == GgmlDType::Q4_1 {
                    let minimum = -scale * self.zero(output, group) as f32;
                    header[2..].copy_from_slice(&numbers::block_number(minimum)?);
                }
                let feature = |at| self.order.map_or(input + at, |order| order[input + at] as usize);
                let number = |at| self.at(&self.weights, output, feature(at));
                if dtype == GgmlDType::Q8_0 {
                    // Numbers less 128, as signed integers.
                    numbers.iter_mut().enumerate().for_each(|(at, out)| *out = number(at) ^ 0x80);
                    continue;
                }
                for (at, out) in numbers.iter_mut().enumerate() {
                    *out = number(at) | number(at + BLOCK / 2) << 4;
                }
            }
        }
        Ok(())
    }
}
