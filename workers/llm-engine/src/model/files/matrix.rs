//! Matrices in files, of which regions are read.
use std::ops::Range;

/// Rows and columns of a part of a matrix.
pub type Ranges<'a> = [&'a Range<usize>; 2];

/// Matrix in a file, whose rows follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMatrix {
    /// Index of the file.
    pub file: usize,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Number of rows.
    pub rows: usize,
    /// Number of units of a row.
    pub columns: usize,
    /// Size of a unit in bytes.
    pub unit: usize,
}

impl StoredMatrix {
    /// Returns the region of some rows and columns, which must be within the matrix.
    pub fn region(&self, rows: Range<usize>, columns: Range<usize>) -> Region {
        Region { matrix: self.clone(), rows, columns }
    }

    /// Returns the region of all rows and columns.
    pub fn whole(&self) -> Region {
        self.region(0..self.rows, 0..self.columns)
    }

    /// Returns the offset after the last byte.
    pub fn end(&self) -> u64 {
        let bytes = self.rows.saturating_mul(self.columns).saturating_mul(self.unit);
        self.offset.saturating_add(bytes as u64)
    }
}

/// Rows and columns of a matrix in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Matrix.
    pub matrix: StoredMatrix,
    /// Rows.
    pub rows: Range<usize>,
    /// Columns.
    pub columns: Range<usize>,
}

impl Region {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.len() * self.columns.len() * self.matrix.unit
    }

    /// Returns the contiguous ranges in the file that hold its bytes from number `first` on: the offset and the size of each.
    pub fn ranges_from(&self, first: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
        let StoredMatrix { offset, columns, unit, .. } = self.matrix;
        let (row, start) = (columns * unit, self.columns.start * unit);
        // Whole rows are one range.
        let (count, length) = match self.columns.len() == columns {
            true => (1, self.bytes()),
            false => (self.rows.len(), self.columns.len() * unit),
        };
        let (skipped, within) = (first / length.max(1), first % length.max(1));
        let begin = offset + (row * self.rows.start + start) as u64;
        (skipped..count).map(move |index| {
            let within = if index == skipped { within } else { 0 };
            (begin + (row * index + within) as u64, length - within)
        })
    }
}
