//! Tensors in files: their location, encoding, format and shape.
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use candle_core::DType;

use super::format::Format;
use super::matrix::{Ranges, Region, StoredMatrix};
use super::mxfp4;
use super::packed_bits::PackedBits;
use super::scaled::Scaled;

/// Encoding of a tensor in its file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Encoding {
    /// The format of the tensor.
    Same,
    /// Elements of MXFP4 blocks, and their scales at an offset of a file.
    Mxfp4(usize, u64),
    /// Weights of four bits.
    PackedBits(Box<PackedBits>),
    /// Weights of eight bits with scales.
    Scaled(Box<Scaled>),
}

/// Location, format and shape of a tensor in a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) encoding: Encoding,
    /// Format of its elements. Tensors in other encodings are converted to it when they are read.
    pub format: Format,
    /// Dimensions, rows first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Returns its size in bytes.
    ///
    /// # Errors
    /// Returns an error if the elements do not fill whole blocks or the size overflows.
    pub fn bytes(&self) -> Result<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let bytes = elements.and_then(|elements| self.format.bytes(elements));
        bytes.with_context(|| format!("shape {:?} cannot be stored as {}", self.shape, self.format))
    }

    /// Returns the numbers of rows and columns. All dimensions before the last one count rows.
    pub(super) fn rows_and_columns(&self) -> [usize; 2] {
        let width = self.shape.last().copied().unwrap_or(1);
        [self.shape.iter().rev().skip(1).fold(1, |product, &dim| product.saturating_mul(dim)), width]
    }

    /// Returns the format of rows whose columns are in an order of their own, and this order, if there is one. Such rows are
    /// smaller than the floats that they are otherwise converted to.
    pub fn ordered(&self) -> Option<(Format, &Arc<[u32]>)> {
        match &self.encoding {
            Encoding::PackedBits(weights) => weights.ordered(self.rows_and_columns()[1]),
            _ => None,
        }
    }

    /// Changes the type of the floats to which weights in other encodings are converted.
    pub(super) fn dequantize_as(&mut self, dtype: DType) {
        if let (Encoding::PackedBits(_) | Encoding::Scaled(_), Format::Floats(_)) =
            (&self.encoding, self.format)
        {
            self.format = Format::Floats(dtype);
        }
    }

    /// Returns the matrices in files that encode it.
    pub(super) fn matrices(&self) -> Vec<StoredMatrix> {
        let [rows, columns] = self.rows_and_columns();
        let matrix = |file, offset, elements: usize, unit| StoredMatrix {
            file,
            offset,
            rows,
            columns: columns / elements,
            unit,
        };
        let own = |elements, unit| matrix(self.file, self.offset, elements, unit);
        match &self.encoding {
            Encoding::Same => {
                let (elements, unit) = self.format.unit();
                vec![own(elements, unit)]
            }
            Encoding::Mxfp4(file, offset) => {
                vec![own(mxfp4::BLOCK, mxfp4::ELEMENTS), matrix(*file, *offset, mxfp4::BLOCK, 1)]
            }
            Encoding::PackedBits(weights) => weights.matrices(),
            Encoding::Scaled(weights) => weights.matrices(),
        }
    }

    /// Returns the regions of its matrices that encode some rows and columns, which must be whole blocks.
    pub(super) fn regions(&self, rows: &Range<usize>, columns: &Range<usize>) -> Vec<Region> {
        match &self.encoding {
            Encoding::PackedBits(weights) => weights.regions(rows, columns),
            Encoding::Scaled(weights) => weights.regions(rows, columns),
            _ => {
                let (elements, _) = self.format.unit();
                let columns = columns.start / elements..columns.end / elements;
                let region = |matrix: StoredMatrix| matrix.region(rows.clone(), columns.clone());
                self.matrices().into_iter().map(region).collect()
            }
        }
    }

    /// Converts the bytes of its regions to `format`.
    pub(super) fn decode(&self, format: Format, ranges: Ranges, mut data: Vec<Vec<u8>>) -> Result<Vec<u8>> {
        Ok(match (&self.encoding, &data[..]) {
            (Encoding::PackedBits(weights), data) => weights.decode(format, ranges, data)?,
            (Encoding::Scaled(weights), data) => weights.decode(format, ranges, data)?,
            (Encoding::Mxfp4(..), [elements, scales]) => mxfp4::join(elements, scales),
            _ => data.swap_remove(0),
        })
    }
}
