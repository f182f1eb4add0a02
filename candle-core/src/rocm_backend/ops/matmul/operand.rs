//! Operands of a product in the form that BLAS accepts. Operands with strides that BLAS supports are used in place; others
//! are copied.
use crate::rocm_backend::device::RocmDevice;
use crate::rocm_backend::ops::strided;
use crate::rocm_backend::storage::RocmStorage;
use crate::{Layout, Result};
use hip_kernels::contract::DevicePtr;

/// The name of the operation in errors.
pub(super) const OP: &str = "matmul";

/// Destination of a product (b, m, n), and the device whose stream computes it. Rows are dense; strides are in elements.
pub(crate) struct Output<'a> {
    pub device: &'a RocmDevice,
    pub ptr: DevicePtr,
    pub row_stride: usize,
    pub batch_stride: usize,
}

/// Strides of one operand of a product in BLAS terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    /// True if the stride of rows is 1 and that of columns is `leading`; false for the reverse.
    pub transposed: bool,
    pub leading: usize,
    /// Stride of the matrices of the batch in elements; 0 if they share one matrix.
    pub batch_stride: usize,
}

impl Operand {
    /// Returns the strides of one matrix of `layout`, or `None` if BLAS does not support them.
    fn of(layout: &Layout, rows: usize, columns: usize) -> Option<Self> {
        let [.., row_stride, column_stride] = *layout.stride() else { return None };
        // The stride of a dim of size 1 is not used.
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

/// Returns the single stride that covers all batch dims in order, if there is one.
fn single_stride(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let mut innermost = None;
    let mut next_outer = 0;
    for (&dim, &stride) in dims.iter().zip(strides).rev().filter(|(&dim, _)| dim != 1) {
        match innermost {
            None => innermost = Some(stride),
            Some(_) if stride != next_outer => return None,
            Some(_) => {}
        }
        next_outer = stride.checked_mul(dim)?;
    }
    Some(innermost.unwrap_or(0))
}

/// One operand of a product, in place or as a copy that BLAS can read.
pub(super) struct Side<'a> {
    storage: &'a RocmStorage,
    layout: &'a Layout,
    copy: Option<(RocmStorage, Layout)>,
    operand: Operand,
    rows: usize,
    columns: usize,
}

impl<'a> Side<'a> {
    /// Creates an operand of matrices (rows, columns), and copies it if BLAS cannot read it in place.
    pub(super) fn of(
        storage: &'a RocmStorage,
        layout: &'a Layout,
        rows: usize,
        columns: usize,
    ) -> Result<Self> {
        let (copy, operand) = match Operand::of(layout, rows, columns) {
            Some(operand) => (None, operand),
            None => (Some(dense_without_broadcast(storage, layout)?), Operand::dense(rows, columns)),
        };
        Ok(Self { storage, layout, copy, operand, rows, columns })
    }

    /// Returns the storage that is multiplied.
    pub(super) fn storage(&self) -> &RocmStorage {
        self.copy.as_ref().map_or(self.storage, |(copy, _)| copy)
    }

    fn layout(&self) -> &Layout {
        self.copy.as_ref().map_or(self.layout, |(_, layout)| layout)
    }

    /// Returns the address of the first element after checking the layout against the buffer.
    pub(super) fn ptr(&self) -> Result<DevicePtr> {
        self.storage().ptr(self.layout(), OP)
    }

    /// Returns the strides of one matrix.
    pub(super) fn operand(&self) -> Operand {
        self.operand
    }

    /// Returns dims and strides of the batches.
    pub(super) fn batches(&self) -> (&[usize], &[usize]) {
        let (dims, strides) = (self.layout().dims(), self.layout().stride());
        let rank = dims.len().saturating_sub(2);
        (&dims[..rank], &strides[..rank])
    }

    /// Returns the single stride that covers all batches, if there is one.
    pub(super) fn single_stride(&self) -> Option<usize> {
        let (dims, strides) = self.batches();
        single_stride(dims, strides)
    }

    /// Returns the stride of all batches. If no single stride covers them, they are copied first.
    pub(super) fn make_evenly_spaced(&mut self) -> Result<usize> {
        if let Some(stride) = self.single_stride() {
            return Ok(stride);
        }
        let dense = strided::dense(self.storage, self.layout, OP)?;
        self.copy = Some((dense, Layout::contiguous(self.layout.shape())));
        self.operand = Operand::dense(self.rows, self.columns);
        Ok(self.operand.batch_stride)
    }
}

/// Returns a dense copy of the matrices of `layout` in which broadcast batch dims keep a stride of 0, and its layout.
fn dense_without_broadcast(storage: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Layout)> {
    let (dims, strides, rank) = (layout.dims(), layout.stride(), layout.dims().len());
    let broadcast = |dim: usize| dim + 2 < rank && strides[dim] == 0;
    let distinct: Vec<usize> = (0..rank).map(|dim| if broadcast(dim) { 1 } else { dims[dim] }).collect();
    let source = Layout::new(distinct.into(), strides.to_vec(), layout.start_offset());
    let dense = Layout::contiguous(source.shape());
    let copied = (0..rank).map(|dim| if broadcast(dim) { 0 } else { dense.stride()[dim] }).collect();
    Ok((strided::dense(storage, &source, OP)?, Layout::new(layout.shape().clone(), copied, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn operand(dims: &[usize], strides: &[usize]) -> Option<Operand> {
        let layout = Layout::new(Shape::from(dims), strides.to_vec(), 0);
        let [batch @ .., rows, columns] = dims else { return None };
        let batch_stride = single_stride(batch, &strides[..batch.len()])?;
        Some(Operand { batch_stride, ..Operand::of(&layout, *rows, *columns)? })
    }

    #[test]
    fn layouts_convert_to_blas_strides() {
        let op = |transposed, leading, batch_stride| Some(Operand { transposed, leading, batch_stride });
        assert_eq!(operand(&[2, 3, 4], &[12, 4, 1]), op(false, 4, 12));
        assert_eq!(operand(&[2, 3, 4], &[12, 1, 3]), op(true, 3, 12));
        // Narrowed rows keep the row stride of the original tensor.
        assert_eq!(operand(&[3, 4], &[10, 1]), op(false, 10, 0));
        // Attention heads, (b, h, t, d) from (b, t, h, d): no single stride covers the batch dims.
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
