//! Copies of strided layouts within a device, concatenation, and filling with a value.
use super::{for_packs, found, MAX_SINGLE_PACKS};
use crate::op::BackpropOp;
use crate::rocm_backend::device::{max_elements, LaunchConfig, RocmDevice};
use crate::rocm_backend::error::dtype_mismatch;
use crate::rocm_backend::layout::{in_pieces, runs, Strided};
use crate::rocm_backend::storage::{copy_element, copy_element_of_size, offset_by_elements, RocmStorage};
use crate::rocm_backend::stream::clear;
use crate::scalar::Scalar;
use crate::{DType, Layout, Result, Storage, Tensor};
use hip_kernels::contract::{
    dim_word, Bits, ConstSet, Copy2d, Copy2dUnit, DevicePtr, Transpose, Unary, UnaryOp, BLOCK,
    MAX_COPY_SOURCES, PACKS_IN_FLIGHT, PACK_BYTES,
};

/// Copies the elements of `layout` densely to `dst`, starting at element `dst_offset`.
pub(crate) fn copy_strided(
    src: &RocmStorage,
    layout: &Layout,
    dst: &mut RocmStorage,
    dst_offset: usize,
) -> Result<()> {
    const OP: &str = "copy";
    let dtype = same_dtype(src, dst, OP)?;
    let elements = layout.shape().elem_count();
    if elements == 0 {
        return Ok(());
    }
    let to = dst.rows_ptr((1, elements), elements, dst_offset, OP)?;
    dst.order_after(src)?;
    run_copy(OP, &dst.device, dtype, src, layout, to)
}

/// Returns a dense copy of the elements of `layout`.
pub(crate) fn dense(src: &RocmStorage, layout: &Layout, op: &'static str) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let elements = layout.shape().elem_count();
    // SAFETY: the copy below writes every element.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, op)? };
    run_copy(op, &src.device, dtype, src, layout, dst.slice.ptr())?;
    Ok(dst)
}

/// Copies the whole storage without waiting for the device.
pub(crate) fn duplicate(src: &RocmStorage) -> Result<RocmStorage> {
    let dst = RocmStorage { slice: src.slice.alloc_like()?, device: src.device.clone() };
    let (dtype, from, to, len) = (src.slice.dtype(), src.slice.ptr(), dst.slice.ptr(), src.slice.len());
    for (first, numel) in runs(len, max_elements()) {
        let (inp, out) = (offset_by_elements(from, dtype, first), offset_by_elements(to, dtype, first));
        // SAFETY: source and destination have all elements.
        unsafe { launch_copy("copy", &src.device, dtype, (numel, &Strided::CONTIGUOUS), inp, out)? };
    }
    Ok(dst)
}

/// Copies by a kernel, which is faster than a HIP memory copy. `to` must have space for all elements of `layout`.
fn run_copy(
    op: &'static str,
    device: &RocmDevice,
    dtype: DType,
    src: &RocmStorage,
    layout: &Layout,
    to: DevicePtr,
) -> Result<()> {
    in_pieces(op, [layout], |[layout], strided, first, numel| {
        let (inp, out) = (src.ptr(layout, op)?, offset_by_elements(to, dtype, first));
        // SAFETY: `inp` was checked against its buffer, and the caller guarantees the space at `to`.
        unsafe { launch_copy(op, device, dtype, (numel, strided), inp, out) }
    })
}

/// Copies `numel` elements from a strided source to a dense destination.
///
/// # Safety
/// Source and destination must have all elements.
unsafe fn launch_copy(
    op: &'static str,
    device: &RocmDevice,
    dtype: DType,
    (numel, strided): (usize, &Strided),
    inp: DevicePtr,
    out: DevicePtr,
) -> Result<()> {
    let (size, ends) = (dtype.size_in_bytes().max(1), inp.0.addr() | out.0.addr());
    if let Some(transposition) = strided.transposition() {
        let arguments = Transpose {
            num_dims: transposition.matrices.num_dims,
            info: &transposition.matrices.layout,
            inp,
            out,
            batches: transposition.batches as u32,
            rows: transposition.rows as u32,
            columns: transposition.columns as u32,
            in_stride: transposition.in_stride,
            out_stride: transposition.out_stride,
            whole: transposition.in_packs(size, ends),
        };
        let mut config = LaunchConfig::for_elements(op, BLOCK)?;
        config.grid = transposition.grid(size);
        let kernel = found(Transpose::kernel(copy_element(dtype)), op, dtype)?;
        // SAFETY: guaranteed by the caller.
        return unsafe { device.launch(kernel, config, &arguments) };
    }
    let (strided, size, numel) = strided.widened(size, numel, ends);
    let kernel = found(Unary::kernel(UnaryOp::Copy, copy_element_of_size(size)), op, dtype)?;
    let config = for_packs(op, numel, &strided, &[size; 2], 1)?;
    let arguments = Unary { numel, num_dims: strided.num_dims, info: &strided.layout, inp, out };
    // SAFETY: guaranteed by the caller.
    unsafe { device.launch(kernel, config, &arguments) }
}

/// Copies `d1` rows of `d2` elements. Strides and offsets of source and destination are in elements.
#[allow(clippy::too_many_arguments, reason = "the signature of the backend's trait")]
pub(crate) fn copy2d(
    src: &RocmStorage,
    dst: &mut RocmStorage,
    d1: usize,
    d2: usize,
    src_s: usize,
    dst_s: usize,
    src_offset: usize,
    dst_offset: usize,
) -> Result<()> {
    let mut copies = RowCopies::into(dst, dst_s, "copy2d");
    copies.add(src, (d1, d2), src_s, src_offset, dst_offset)?;
    copies.launch()
}

/// Concatenates `args` along `dim` into `to`, with up to [`MAX_COPY_SOURCES`] tensors per launch. Returns false if a tensor is not on
/// a ROCm device.
pub(crate) fn cat<A: AsRef<Tensor>>(args: &[A], dim: usize, to: &mut Storage) -> Result<bool> {
    let Storage::Rocm(dst) = to else { return Ok(false) };
    let row = |tensor: &Tensor| tensor.dims()[dim..].iter().product::<usize>();
    let mut copies = RowCopies::into(dst, args.iter().map(|arg| row(arg.as_ref())).sum(), "cat");
    let mut column = 0;
    for arg in args.iter().map(AsRef::as_ref) {
        let (layout, columns) = (arg.layout(), row(arg));
        let stride = match layout.is_contiguous() {
            true => columns,
            false => layout.outer_stride_for_dim(dim).unwrap_or(columns),
        };
        let rows = arg.dims()[..dim].iter().product();
        match &*arg.storage() {
            Storage::Rocm(src) => copies.add(src, (rows, columns), stride, layout.start_offset(), column)?,
            _ => return Ok(false),
        }
        column += columns;
    }
    copies.launch().map(|()| true)
}

/// Pads `dim` with `left` zeros before and `right` zeros after the elements, in one launch. Returns `None` on other devices,
/// if gradients are tracked, and for layouts whose rows are not dense; upstream's operations must be used then.
pub(crate) fn pad_with_zeros(x: &Tensor, dim: usize, left: usize, right: usize) -> Result<Option<Tensor>> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Rocm(src) = &*storage else { return Ok(None) };
    let mut dims = x.dims().to_vec();
    let rows: usize = dims[..dim].iter().product();
    let inner: usize = dims[dim + 1..].iter().product();
    let columns = dims[dim] * inner;
    let pitch = match layout.is_contiguous() {
        true => Some(columns),
        false => layout.outer_stride_for_dim(dim),
    };
    let Some(pitch) = pitch.filter(|_| !x.track_op()) else { return Ok(None) };
    dims[dim] += left + right;
    let width = dims[dim] * inner;
    // SAFETY: the copies below write every element.
    let dst = unsafe { RocmStorage::alloc(&src.device, x.dtype(), rows * width, "pad_with_zeros")? };
    let mut copies = RowCopies::into(&dst, width, "pad_with_zeros");
    copies.add_zeros((rows, left * inner), 0)?;
    copies.add(src, (rows, columns), pitch, layout.start_offset(), left * inner)?;
    copies.add_zeros((rows, right * inner), left * inner + columns)?;
    copies.launch()?;
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), dims, BackpropOp::none(), false)))
}

/// Collects copies of rows into a tensor, and launches up to [`MAX_COPY_SOURCES`] of them together.
struct RowCopies<'a> {
    op: &'static str,
    dst: &'a RocmStorage,
    /// Row stride of the destination in elements.
    pitch: usize,
    sources: [RowCopy; MAX_COPY_SOURCES],
    count: usize,
}

/// A copy of `rows` rows of `columns` elements with a row stride of `pitch` to element `place` of the destination. If `from`
/// is null, zeros are written.
#[derive(Clone, Copy)]
struct RowCopy {
    from: DevicePtr,
    rows: usize,
    columns: usize,
    pitch: usize,
    place: usize,
}

impl<'a> RowCopies<'a> {
    fn into(dst: &'a RocmStorage, pitch: usize, op: &'static str) -> Self {
        let none = RowCopy { from: DevicePtr::NULL, rows: 0, columns: 0, pitch: 0, place: 0 };
        Self { op, dst, pitch, sources: [none; MAX_COPY_SOURCES], count: 0 }
    }

    /// Adds a copy of rows that start at element `offset` of `src` and element `place` of the destination.
    fn add(
        &mut self,
        src: &RocmStorage,
        (rows, columns): (usize, usize),
        pitch: usize,
        offset: usize,
        place: usize,
    ) -> Result<()> {
        same_dtype(src, self.dst, self.op)?;
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let from = src.rows_ptr((rows, columns), pitch, offset, self.op)?;
        self.dst.order_after(src)?;
        self.add_rows(from, (rows, columns), pitch, place)
    }

    /// Adds rows of zeros that start at element `place` of the destination.
    fn add_zeros(&mut self, (rows, columns): (usize, usize), place: usize) -> Result<()> {
        match rows * columns {
            0 => Ok(()),
            _ => self.add_rows(DevicePtr::NULL, (rows, columns), columns, place),
        }
    }

    fn add_rows(
        &mut self,
        from: DevicePtr,
        (rows, columns): (usize, usize),
        pitch: usize,
        place: usize,
    ) -> Result<()> {
        let dtype = self.dst.slice.dtype();
        self.dst.rows_ptr((rows, columns), self.pitch, place, self.op)?;
        // Split into rows, or parts of rows, that fit into one launch.
        let limit = max_elements();
        for (row, rows) in runs(rows, (limit / columns).clamp(1, rows)) {
            for (column, columns) in runs(columns, columns.min(limit)) {
                if self.count == MAX_COPY_SOURCES {
                    self.launch()?;
                }
                let from = match from.0.is_null() {
                    true => from,
                    false => offset_by_elements(from, dtype, row * pitch + column),
                };
                let place = place + row * self.pitch + column;
                self.sources[self.count] = RowCopy { from, rows, columns, pitch, place };
                self.count += 1;
            }
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let (sources, dst) = (&self.sources[..self.count], self.dst);
        let (dtype, out) = (dst.slice.dtype(), dst.slice.ptr());
        let size = dtype.size_in_bytes().max(1);
        // The widest unit, a power of two, that divides all sizes, strides and addresses. The stride of a single row does
        // not matter.
        let bits = sources.iter().fold(PACK_BYTES | out.0.addr(), |bits, source| {
            let pitches = if source.rows > 1 { source.pitch | self.pitch } else { 0 };
            bits | source.from.0.addr() | ((source.columns | source.place | pitches) * size)
        });
        let unit = bits & bits.wrapping_neg();
        let units = |elements: usize| elements * size / unit;
        let (mut info, mut from, mut most) =
            (Strided::CONTIGUOUS.layout, [DevicePtr::NULL; MAX_COPY_SOURCES], 0);
        for (i, source) in sources.iter().enumerate() {
            let dense = source.rows == 1 || (source.pitch == source.columns && self.pitch == source.columns);
            let numel = units(source.rows * source.columns);
            let row = if dense { numel } else { units(source.columns) };
            let words =
                [numel, dim_word(row), if dense { row } else { units(source.pitch) }, units(source.place)];
            info.0[4 * i..4 * i + 4].copy_from_slice(&words);
            (from[i], most) = (source.from, most.max(numel));
        }
        let each = if most > MAX_SINGLE_PACKS { PACKS_IN_FLIGHT } else { 1 };
        let mut config = LaunchConfig::for_elements(self.op, most.div_ceil(each))?;
        config.grid.1 = self.count as u32;
        let [inp0, inp1, inp2, inp3, inp4, inp5, inp6, inp7] = from;
        let (info, out_pitch) = (&info, units(self.pitch));
        let arguments = Copy2d { info, out_pitch, out, inp0, inp1, inp2, inp3, inp4, inp5, inp6, inp7 };
        let kernel = found(Copy2d::kernel(Copy2dUnit::ALL[unit.ilog2() as usize]), self.op, dtype)?;
        self.count = 0;
        // SAFETY: `add` checked all rows against both buffers, and the kernel waits for earlier launches at its start.
        unsafe { dst.device.launch_overlapping(kernel, config, &arguments) }
    }
}

/// Writes `value` to every element of `layout`.
pub(crate) fn const_set(dst: &mut RocmStorage, value: Scalar, layout: &Layout) -> Result<()> {
    const OP: &str = "const-set";
    let (dtype, given) = (dst.slice.dtype(), value.dtype());
    if dtype != given {
        let message = format!("{OP} dtype mismatch, expected {dtype:?} but got {given:?}");
        return Err(crate::Error::Msg(message).bt());
    }
    let kernel = found(ConstSet::kernel(copy_element(dtype)), OP, dtype)?;
    let value = bits_of(value);
    // Write each element in memory only once, even if it is broadcast.
    let distinct;
    let layout = match layout.stride().contains(&0) {
        true => {
            distinct = without_repeats(layout);
            &distinct
        }
        false => layout,
    };
    in_pieces(OP, [layout], |[layout], strided, _, numel| {
        let Strided { num_dims, layout: info } = strided;
        let arguments = ConstSet { numel, num_dims: *num_dims, info, value, out: dst.ptr(layout, OP)? };
        let config = for_packs(OP, numel, strided, &[dtype.size_in_bytes().max(1)], 1)?;
        // SAFETY: the layout was checked against its buffer, and the kernel's elements have the same size.
        unsafe { dst.device.launch(kernel, config, &arguments) }
    })
}

/// Returns a layout that covers each element in memory once: broadcast dims become 1.
fn without_repeats(layout: &Layout) -> Layout {
    let dims = layout.dims().iter().zip(layout.stride());
    let once: Vec<usize> = dims.map(|(&dim, &stride)| if stride == 0 { dim.min(1) } else { dim }).collect();
    Layout::new(once.into(), layout.stride().to_vec(), layout.start_offset())
}

/// Returns zeros with the dtype of `src` and the shape of `layout`.
pub(crate) fn zeros_of(src: &RocmStorage, layout: &Layout, op: &'static str) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    // SAFETY: every element is written below.
    let mut dst = unsafe { RocmStorage::alloc(&src.device, dtype, layout.shape().elem_count(), op)? };
    const_set(&mut dst, Scalar::zero(dtype), &Layout::contiguous(layout.shape()))?;
    Ok(dst)
}

fn bits_of(value: Scalar) -> Bits {
    Bits(match value {
        Scalar::U8(v) => v.into(),
        Scalar::F8E4M3(v) => v.to_bits().into(),
        Scalar::I16(v) => (v as u16).into(),
        Scalar::F16(v) => v.to_bits().into(),
        Scalar::BF16(v) => v.to_bits().into(),
        Scalar::U32(v) => v.into(),
        Scalar::I32(v) => (v as u32).into(),
        Scalar::F32(v) => v.to_bits().into(),
        Scalar::I64(v) => v as u64,
        Scalar::F64(v) => v.to_bits(),
    })
}

pub(crate) fn zeros(device: &RocmDevice, dtype: DType, elements: usize) -> Result<RocmStorage> {
    // SAFETY: the storage is cleared below.
    let storage = unsafe { RocmStorage::alloc(device, dtype, elements, "zeros")? };
    // SAFETY: the storage has exactly this size.
    unsafe { clear(&device.state().stream, storage.slice.ptr(), storage.slice.size_in_bytes())? };
    Ok(storage)
}

fn same_dtype(src: &RocmStorage, dst: &RocmStorage, op: &'static str) -> Result<DType> {
    let (lhs, rhs) = (src.slice.dtype(), dst.slice.dtype());
    if lhs == rhs {
        Ok(lhs)
    } else {
        Err(dtype_mismatch(op, lhs, rhs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_dims_are_written_once() {
        let once = |dims: &[usize], strides: &[usize]| {
            let layout = without_repeats(&Layout::new(dims.into(), strides.to_vec(), 3));
            assert_eq!((layout.stride(), layout.start_offset()), (strides, 3));
            layout.dims().to_vec()
        };
        assert_eq!(once(&[16, 7], &[0, 1]), [1, 7]);
        assert_eq!(once(&[2, 33, 4], &[33, 1, 0]), [2, 33, 1]);
        assert_eq!(once(&[0, 5], &[0, 1]), [0, 5]);
        assert_eq!(once(&[3, 5], &[5, 1]), [3, 5]);
    }
}
