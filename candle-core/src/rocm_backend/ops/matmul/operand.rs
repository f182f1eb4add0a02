//! The sides of a product as BLAS takes them. Whatever strides it can express is used where it lies; anything else is made
//! dense first.
use crate::rocm_backend::device::RocmDevice;
use crate::rocm_backend::ops::strided;
use crate::rocm_backend::storage::RocmStorage;
use crate::{Layout, Result};
use hip_kernels::contract::DevicePtr;

/// The name of the operation in errors.
pub(super) const OP: &str = "matmul";

/// Where a product (b, m, n) is written, and on whose stream: rows are dense, and apart by `row_stride` elements.
pub(crate) struct Output<'a> {
    pub device: &'a RocmDevice,
    pub ptr: DevicePtr,
    pub row_stride: usize,
    pub batch_stride: usize,
}

/// One side of a product as BLAS sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    /// Whether rows are apart by 1 and columns by the leading dimension, instead of the other way round.
    pub transposed: bool,
    pub leading: usize,
    /// Elements from one matrix of the batch to the next; 0 where all share one.
    pub batch_stride: usize,
}

impl Operand {
    /// Returns how BLAS can read one matrix of `layout`, if it can.
    fn of(layout: &Layout, rows: usize, columns: usize) -> Option<Self> {
        let [.., row_stride, column_stride] = *layout.stride() else { return None };
        // The stride along a dim of size 1 is never walked.
        let (transposed, leading) =
            if (column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1) {
                (false, if rows == 1 { columns } else { row_stride })
            } else if (row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1) {
                (true, if columns == 1 { rows } else { column_stride })
            } else {
                return None;
            };
        Some(Self { transposed, leading: leading.max(1), batch_stride: 0 })
    }

    pub(super) fn dense(rows: usize, columns: usize) -> Self {
        Self { transposed: false, leading: columns.max(1), batch_stride: rows * columns }
    }
}

/// The single stride that walks through all batch dims in order, if there is one.
fn one_stride(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let mut walked = None;
    let mut next_outer = 0;
    for (&dim, &stride) in dims.iter().zip(strides).rev().filter(|(&dim, _)| dim != 1) {
        match walked {
            None => walked = Some(stride),
            Some(_) if stride != next_outer => return None,
            Some(_) => {}
        }
        next_outer = stride.checked_mul(dim)?;
    }
    Some(walked.unwrap_or(0))
}

/// One side of a product where it lies, or a copy of it that BLAS can read.
pub(super) struct Side<'a> {
    storage: &'a RocmStorage,
    layout: &'a Layout,
    copy: Option<(RocmStorage, Layout)>,
    operand: Operand,
    rows: usize,
    columns: usize,
}

impl<'a> Side<'a> {
    /// A side of matrices (rows, columns).
    pub(super) fn of(
        storage: &'a RocmStorage,
        layout: &'a Layout,
        rows: usize,
        columns: usize,
    ) -> Result<Self> {
        let (copy, operand) = match Operand::of(layout, rows, columns) {
            Some(operand) => (None, operand),
            None => (Some(each_matrix_once(storage, layout)?), Operand::dense(rows, columns)),
        };
        Ok(Self { storage, layout, copy, operand, rows, columns })
    }

    /// The storage that is multiplied.
    pub(super) fn storage(&self) -> &RocmStorage {
        self.copy.as_ref().map_or(self.storage, |(copy, _)| copy)
    }

    fn layout(&self) -> &Layout {
        self.copy.as_ref().map_or(self.layout, |(_, layout)| layout)
    }

    /// Where it begins, after a check that all of it lies within its buffer.
    pub(super) fn ptr(&self) -> Result<DevicePtr> {
        self.storage().ptr(self.layout(), OP)
    }

    /// Returns how BLAS reads one matrix of it.
    pub(super) fn operand(&self) -> Operand {
        self.operand
    }

    /// Dims and strides of its batches.
    pub(super) fn batches(&self) -> (&[usize], &[usize]) {
        let (dims, strides) = (self.layout().dims(), self.layout().stride());
        let rank = dims.len().saturating_sub(2);
        (&dims[..rank], &strides[..rank])
    }

    /// The single stride that walks through all of them, if there is one.
    pub(super) fn one_stride(&self) -> Option<usize> {
        let (dims, strides) = self.batches();
        one_stride(dims, strides)
    }

    /// The stride of all batches, which are copied into a line if they lie in none.
    pub(super) fn line_up(&mut self) -> Result<usize> {
        if let Some(stride) = self.one_stride() {
            return Ok(stride);
        }
        let dense = strided::dense(self.storage, self.layout, OP)?;
        self.copy = Some((dense, Layout::contiguous(self.layout.shape())));
        self.operand = Operand::dense(self.rows, self.columns);
        Ok(self.operand.batch_stride)
    }
}

/// A dense copy of the matrices of `layout`, of each one only, and the layout that shows them as that did.
fn each_matrix_once(storage: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Layout)> {
    let (dims, strides, rank) = (layout.dims(), layout.stride(), layout.dims().len());
    let shared = |dim: usize| dim + 2 < rank && strides[dim] == 0;
    let once: Vec<usize> = (0..rank).map(|dim| if shared(dim) { 1 } else { dims[dim] }).collect();
    let source = Layout::new(once.into(), strides.to_vec(), layout.start_offset());
    let dense = Layout::contiguous(source.shape());
    let shown = (0..rank).map(|dim| if shared(dim) { 0 } else { dense.stride()[dim] }).collect();
    Ok((strided::dense(storage, &source, OP)?, Layout::new(layout.shape().clone(), shown, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn operand(dims: &[usize], strides: &[usize]) -> Option<Operand> {
        let layout = Layout::new(Shape::from(dims), strides.to_vec(), 0);
        let [batch @ .., rows, columns] = dims else { return None };
        let batch_stride = one_stride(batch, &strides[..batch.len()])?;
        Some(Operand { batch_stride, ..Operand::of(&layout, *rows, *columns)? })
    }

    #[test]
    fn rows_columns_and_batches_as_blas_sees_them() {
        let op = |transposed, leading, batch_stride| Some(Operand { transposed, leading, batch_stride });
        assert_eq!(operand(&[2, 3, 4], &[12, 4, 1]), op(false, 4, 12));
        assert_eq!(operand(&[2, 3, 4], &[12, 1, 3]), op(true, 3, 12));
        // A narrowed row keeps its parent's leading dimension.
        assert_eq!(operand(&[3, 4], &[10, 1]), op(false, 10, 0));
        // Heads of an attention, (b, h, t, d) from (b, t, h, d): the batch dims do not walk as one.
        assert_eq!(operand(&[2, 5, 3, 4], &[60, 4, 20, 1]), None);
        assert_eq!(operand(&[1, 5, 3, 4], &[60, 4, 20, 1]), op(false, 20, 4));
        // Broadcast over all batches, and over one of two.
        assert_eq!(operand(&[2, 5, 3, 4], &[0, 0, 4, 1]), op(false, 4, 0));
        assert_eq!(operand(&[2, 5, 3, 4], &[12, 0, 4, 1]), None);
        // Neither rows nor columns are dense.
        assert_eq!(operand(&[3, 4], &[8, 2]), None);
        // A broadcast row has no leading dimension.
        assert_eq!(operand(&[3, 4], &[0, 1]), None);
    }

    #[test]
    fn single_rows_and_columns_ignore_their_stride() {
        assert_eq!(
            operand(&[1, 4], &[99, 1]),
            Some(Operand { transposed: false, leading: 4, batch_stride: 0 })
        );
        assert_eq!(
            operand(&[4, 1], &[5, 99]),
            Some(Operand { transposed: false, leading: 5, batch_stride: 0 })
        );
        assert_eq!(
            operand(&[1, 4], &[1, 7]),
            Some(Operand { transposed: true, leading: 7, batch_stride: 0 })
        );
    }
}
