//! Work that is held back until it is known what follows it, so that one launch does what several would: the steps around
//! the quantized products with one row of activations, of which decoding a language model consists.
//!
//! Held back are products with one row, `silu` of such a product, its product with another tensor, and the sum of a product
//! and another tensor. They become one launch where they fit each other:
//!
//! - products of up to three matrices with the same row;
//! - the product with a row that is `silu(x) * gate`;
//! - a product that another tensor is added to.
//!
//! Whatever else is enqueued, waited for or copied on the stream has the held work enqueued before
//! ([`Stream::begin`](crate::rocm_backend::stream::Stream::begin)), so that nobody sees a difference but in the number of
//! launches. A result that another held launch takes up is not computed for itself if its tensor is dropped before; all
//! others are. Memory that held work reads or writes is kept until that is enqueued.
use super::device::{DeviceState, RocmDevice};
use super::launch::LaunchConfig;
use crate::rocm_backend::stream::{Buffer, DeferredWork, Taken};
use crate::rocm_backend::RocmError;
use crate::Result;
use hip_kernels::contract::{
    Binary, BinaryOp, BlockFormat, DevicePtr, Element, KernelId, KernelLayout, QuantizedRow, Swiglu, Unary,
    UnaryOp, LAYOUT_WORDS, QUANTIZED_BESIDE, QUANTIZED_PIECE, QUANTIZED_ROW_BLOCK,
};
use std::ops::Range;
use std::sync::{Mutex, PoisonError, Weak};

/// The matrices of one launch.
const MATRICES: usize = 3;
/// Threads of a multiprocessor that keep its memory busy: half of those that every GPU has room for.
const ENOUGH_THREADS: usize = 1024;
/// The fewest threads that read neighbouring pieces of a row of blocks.
const LEAST_WIDTH: usize = 32;
/// Bytes of the scale and the sums of QUANTIZED_PIECE activations, behind their bytes.
const SCALE_BYTES: usize = 8;

/// Bytes of rows of activations and their scales.
pub(crate) fn activation_bytes(rows: usize, columns: usize) -> usize {
    rows * columns + rows * columns / QUANTIZED_PIECE * SCALE_BYTES
}

/// How the threads of kernels for quantized products share out the rows of a matrix.
pub(crate) struct Groups {
    /// Threads that share QUANTIZED_BESIDE rows: whole lines where it can be, and a piece of the row for each.
    pub(crate) width: u32,
    /// Workgroups.
    pub(crate) grid: u32,
}

impl Groups {
    /// Of `rows` rows, in workgroups of `block` threads that each read a row of activations once: as many threads as
    /// keep the memory busy.
    fn of_device(device: &DeviceState, rows: usize, columns: usize, block: usize) -> Result<Self> {
        let groups = rows.div_ceil(QUANTIZED_BESIDE);
        Self::of(rows, columns, block, (device.multiprocessors * ENOUGH_THREADS / groups).max(LEAST_WIDTH))
    }

    /// The same in workgroups that first bring several rows of activations to LDS: the fewest threads for a row of
    /// blocks, so that they serve many of them.
    pub(crate) fn in_lds(rows: usize, columns: usize, block: usize) -> Result<Self> {
        Self::of(rows, columns, block, LEAST_WIDTH)
    }

    fn of(rows: usize, columns: usize, block: usize, wanted: usize) -> Result<Self> {
        let groups = rows.div_ceil(QUANTIZED_BESIDE);
        let pieces = columns / QUANTIZED_PIECE;
        // A unit of a row for each is a piece, or two of the formats whose blocks have eight.
        let width = 1 << wanted.min(block).min((pieces / 2).max(1)).ilog2();
        match u32::try_from(groups.div_ceil(block / width)).ok().filter(|_| rows < 1 << 31) {
            Some(grid) => Ok(Self { width: width as u32, grid }),
            None => {
                let limit = (1 << 31) - 1;
                Err(RocmError::TooManyElements { op: "quantized-matmul", elements: rows, limit }.into())
            }
        }
    }
}

/// A matrix of blocks, `n` rows of `k`, and the row of f32 that it is multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct RowProduct {
    pub(crate) format: BlockFormat,
    pub(crate) blocks: DevicePtr,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) x: DevicePtr,
    pub(crate) out: DevicePtr,
}

/// Memory that a held launch writes, unless its tensor is gone.
#[derive(Clone, Copy)]
struct Output {
    ptr: DevicePtr,
    wanted: bool,
}

impl Output {
    fn at(ptr: DevicePtr) -> Self {
        Self { ptr, wanted: true }
    }

    fn is(&self, ptr: DevicePtr) -> bool {
        self.wanted && self.ptr.0 == ptr.0
    }
}

#[derive(Clone, Copy)]
struct Silu {
    x: DevicePtr,
    out: Output,
    numel: usize,
}

#[derive(Clone, Copy)]
struct Gated {
    silu: Silu,
    gate: DevicePtr,
    out: Output,
}

#[derive(Clone, Copy)]
struct Matrix {
    blocks: DevicePtr,
    n: usize,
    out: Output,
}

#[derive(Clone, Copy)]
struct Products {
    format: BlockFormat,
    k: usize,
    x: DevicePtr,
    /// What the row is made of, instead of lying at `x`.
    gated: Option<Gated>,
    matrices: [Option<Matrix>; MATRICES],
    /// Added to the only product, and where the sum goes.
    sum: Option<(DevicePtr, Output)>,
    /// Of one of the products.
    silu: Option<Silu>,
}

#[derive(Default)]
enum Work {
    #[default]
    Nothing,
    Products(Products),
    Gated(Gated),
    /// Nothing to enqueue: activations as bytes, for further products with what lies at `from` and has not changed.
    Activations {
        from: DevicePtr,
        quantizer: KernelId,
        rows: usize,
        columns: usize,
        bytes: Buffer<u8>,
    },
}

// SAFETY: the pointers are addresses in device memory, which no thread reads through.
unsafe impl Send for Work {}

#[derive(Default)]
struct Held {
    work: Work,
    /// Memory that was given back while held work still reads it.
    kept: Vec<(Taken, Range<usize>)>,
    /// Given back when the lock is open again.
    retired: Option<Buffer<u8>>,
    /// What went wrong where nobody could be told.
    failure: Option<crate::Error>,
}

/// What a device holds back.
#[derive(Default)]
pub(super) struct Deferred(Mutex<Held>);

/// What a stream knows of its device.
pub(super) struct OfDevice(pub(super) Weak<DeviceState>);

impl DeferredWork for OfDevice {
    fn enqueue(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |state| state.enqueue_deferred())
    }

    fn enqueue_silently(&self) {
        if let Some(state) = self.0.upgrade() {
            state.with_held(|held| {
                if let Err(error) = state.enqueue_held(held) {
                    held.failure = Some(error);
                }
            });
        }
    }

    fn keeps(&self, memory: Taken, bytes: usize) -> Option<Taken> {
        match self.0.upgrade() {
            None => Some(memory),
            Some(state) => state.with_held(|held| held.keep(memory, bytes)),
        }
    }
}

impl Held {
    /// The memory again, unless held work needs it. Results in it are not wanted any more.
    fn keep(&mut self, memory: Taken, bytes: usize) -> Option<Taken> {
        let range = memory.address..memory.address + bytes;
        if self.work.needs(&range) {
            self.kept.push((memory, range));
            return None;
        }
        for output in self.work.taken_up() {
            output.wanted &= output.ptr.0.addr() != memory.address;
        }
        Some(memory)
    }
}

impl Work {
    /// Whether held work reads from memory, or leaves a result there that no other held work takes up.
    fn needs(&self, range: &Range<usize>) -> bool {
        let at = |ptr: DevicePtr| range.contains(&ptr.0.addr());
        let of_gated = |gated: &Gated| at(gated.silu.x) || at(gated.gate);
        match self {
            Work::Products(group) => {
                let x = group.gated.as_ref().map_or_else(|| at(group.x), of_gated);
                let matrices = group.matrices.iter().flatten();
                let results = |matrix: &Matrix| group.sum.is_none() && at(matrix.out.ptr);
                x || matrices.into_iter().any(|matrix| at(matrix.blocks) || results(matrix))
                    || group.sum.is_some_and(|(summand, out)| at(summand) || at(out.ptr))
                    || group.silu.is_some_and(|silu| at(silu.out.ptr))
            }
            Work::Gated(gated) => of_gated(gated) || at(gated.out.ptr),
            Work::Nothing | Work::Activations { .. } => false,
        }
    }

    /// Results that other held work takes up: they need not be computed for themselves.
    fn taken_up(&mut self) -> impl Iterator<Item = &mut Output> {
        let (gated, sum) = match self {
            Work::Products(group) => {
                let first = group.matrices[0].as_mut().filter(|_| group.sum.is_some());
                let gated = group.gated.as_mut().map(|gated| (&mut gated.silu.out, Some(&mut gated.out)));
                (gated, first.map(|matrix| &mut matrix.out))
            }
            Work::Gated(gated) => (Some((&mut gated.silu.out, None)), None),
            _ => (None, None),
        };
        gated.into_iter().flat_map(|(silu, out)| std::iter::once(silu).chain(out)).chain(sum)
    }
}

impl Products {
    /// The only product, if nothing was made of it yet.
    fn alone(&self) -> Option<&Matrix> {
        match &self.matrices {
            [Some(matrix), None, ..] if self.sum.is_none() && self.silu.is_none() => Some(matrix),
            _ => None,
        }
    }
}

impl DeviceState {
    /// Locks what is held back, and tells the stream afterwards whether there is anything.
    fn with_held<R>(&self, work: impl FnOnce(&mut Held) -> R) -> R {
        let mut held = self.deferred.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut held);
        self.stream.set_deferred(!matches!(held.work, Work::Nothing) || held.failure.is_some());
        let retired = held.retired.take();
        drop(held);
        drop(retired);
        result
    }

    /// Enqueues what is held back. The GPU is bound.
    pub(super) fn enqueue_deferred(&self) -> Result<()> {
        self.with_held(|held| {
            let enqueued = self.enqueue_held(held);
            held.failure.take().map_or(enqueued, Err)
        })
    }

    fn enqueue_held(&self, held: &mut Held) -> Result<()> {
        let result = match std::mem::take(&mut held.work) {
            Work::Nothing => Ok(()),
            Work::Products(products) => self.enqueue_products(&products),
            Work::Gated(gated) => self.enqueue_gated(&gated),
            Work::Activations { bytes, .. } => {
                held.retired = Some(bytes);
                Ok(())
            }
        };
        self.release(held);
        result
    }

    /// Gives back what held work does not read any more.
    fn release(&self, held: &mut Held) {
        let Held { work, kept, .. } = held;
        while let Some(at) = kept.iter().position(|(_, range)| !work.needs(range)) {
            self.stream.release_memory(kept.swap_remove(at).0);
        }
    }

    fn enqueue_gated(&self, gated: &Gated) -> Result<()> {
        self.enqueue_silu(&gated.silu)?;
        let (lhs, rhs, out, numel) = (gated.silu.x, gated.gate, gated.out.ptr, gated.silu.numel);
        match Swiglu::kernel(Element::F32) {
            Some(kernel) if gated.out.wanted => {
                let info = &DENSE;
                // SAFETY: the operation that was held back has checked its operands, and they are kept.
                unsafe {
                    self.launch_now(kernel, each(numel)?, &Swiglu { numel, num_dims: 0, info, lhs, rhs, out })
                }
            }
            _ => Ok(()),
        }
    }

    fn enqueue_silu(&self, silu: &Silu) -> Result<()> {
        let Silu { x: inp, out, numel } = *silu;
        match Unary::kernel(UnaryOp::Silu, Element::F32) {
            Some(kernel) if out.wanted => {
                let (info, out) = (&DENSE, out.ptr);
                // SAFETY: as above.
                unsafe {
                    self.launch_now(kernel, each(numel)?, &Unary { numel, num_dims: 0, info, inp, out })
                }
            }
            _ => Ok(()),
        }
    }

    fn enqueue_products(&self, products: &Products) -> Result<()> {
        if let Some(gated) = &products.gated {
            self.enqueue_gated(gated)?;
        }
        if let (Some((lhs, sum)), Some(matrix)) = (products.sum, products.matrices[0]) {
            if !matrix.out.wanted {
                let matrix = Matrix { out: sum, ..matrix };
                return self.enqueue_rows(products, &[matrix], Some(lhs));
            }
            self.enqueue_rows(products, &[matrix], None)?;
            return match Binary::kernel(BinaryOp::Badd, Element::F32) {
                Some(kernel) if sum.wanted => {
                    let (info, numel, rhs, out) = (&DENSE, matrix.n, matrix.out.ptr, sum.ptr);
                    // SAFETY: as above.
                    unsafe {
                        let arguments = Binary { numel, num_dims: 0, info, lhs, rhs, out };
                        self.launch_now(kernel, each(numel)?, &arguments)
                    }
                }
                _ => Ok(()),
            };
        }
        let mut wanted = [Matrix { blocks: NULL, n: 0, out: Output::at(NULL) }; MATRICES];
        let mut count = 0;
        for matrix in products.matrices.iter().flatten().filter(|matrix| matrix.out.wanted) {
            wanted[count] = *matrix;
            count += 1;
        }
        self.enqueue_rows(products, &wanted[..count], None)?;
        products.silu.map_or(Ok(()), |silu| self.enqueue_silu(&silu))
    }

    /// Binds the GPU, and loads a kernel whose module enqueues when it is loaded, before anything is held back.
    fn load_ahead(&self, id: KernelId) -> Result<()> {
        if self.kernels.holds(id) {
            return self.stream.bind();
        }
        self.stream.begin()?;
        self.kernels.function(id, self).map(|_| ())
    }

    /// One launch for all of `matrices`.
    fn enqueue_rows(
        &self,
        products: &Products,
        matrices: &[Matrix],
        summand: Option<DevicePtr>,
    ) -> Result<()> {
        let wanted = |at: usize| matrices.get(at).filter(|matrix| matrix.out.wanted);
        let Some(kernel) = QuantizedRow::kernel(products.format).filter(|_| wanted(0).is_some()) else {
            return Ok(());
        };
        let end = |count: usize| matrices.iter().take(count).map(|matrix| matrix.n).sum::<usize>();
        let blocks = |at| wanted(at).map_or(NULL, |matrix| matrix.blocks);
        let out = |at| wanted(at).map_or(NULL, |matrix| matrix.out.ptr);
        let Groups { width, grid } = Groups::of_device(self, end(MATRICES), products.k, QUANTIZED_ROW_BLOCK)?;
        let arguments = QuantizedRow {
            x: products.gated.map_or(products.x, |gated| gated.silu.x),
            gate: products.gated.map_or(NULL, |gated| gated.gate),
            summand: summand.unwrap_or(NULL),
            w0: blocks(0),
            w1: blocks(1),
            w2: blocks(2),
            out0: out(0),
            out1: out(1),
            out2: out(2),
            end0: end(1) as u32,
            end1: end(2) as u32,
            end2: end(3) as u32,
            pieces: (products.k / QUANTIZED_PIECE) as u32,
            width,
        };
        // Runs of bytes change places within two pieces.
        let lds_bytes = (activation_bytes(1, products.k) + QUANTIZED_PIECE) as u32;
        // More would make bytes of the same row once more each.
        let grid = grid.min((self.multiprocessors * ENOUGH_THREADS / QUANTIZED_ROW_BLOCK) as u32);
        let block = (QUANTIZED_ROW_BLOCK as u32, 1, 1);
        let config = LaunchConfig { grid: (grid, 1, 1), block, lds_bytes };
        // SAFETY: whoever held the products back has counted rows, matrices and outputs, and they are kept.
        unsafe { self.launch_now(kernel, config, &arguments) }
    }
}

const NULL: DevicePtr = DevicePtr(std::ptr::null_mut());
static DENSE: KernelLayout = KernelLayout([0; LAYOUT_WORDS]);

/// Dense f32, in packs.
fn each(numel: usize) -> Result<LaunchConfig> {
    LaunchConfig::for_elements("deferred", numel.div_ceil(4))
}

impl RocmDevice {
    /// The product of one row with a matrix, held back for what follows. It takes rows that fit into LDS as bytes.
    ///
    /// # Safety
    /// `x` has `k` elements in packs, the matrix `n` rows of `k`, and `out` room for `n`.
    pub(crate) unsafe fn defer_product(&self, product: RowProduct) -> Result<()> {
        let state = &**self.state();
        let RowProduct { format, blocks, n, k, x, out } = product;
        let Some(kernel) = QuantizedRow::kernel(format) else {
            return Err(RocmError::Unsupported(format!("no kernel multiplies {}", format.name())).into());
        };
        state.load_ahead(kernel.id())?;
        let matrix = Matrix { blocks, n, out: Output::at(out) };
        state.with_held(|held| {
            let gated = match &mut held.work {
                Work::Products(group) if group.format == format && group.k == k && group.sum.is_none() => {
                    let free = group.matrices.iter_mut().find(|matrix| matrix.is_none());
                    match free.filter(|_| group.gated.is_none() && group.x.0 == x.0) {
                        Some(free) => {
                            *free = Some(matrix);
                            return Ok(());
                        }
                        None => None,
                    }
                }
                Work::Gated(gated) if gated.out.is(x) && gated.silu.numel == k => Some(*gated),
                _ => None,
            };
            let result = match gated {
                Some(_) => Ok(()),
                None => state.enqueue_held(held),
            };
            let matrices = [Some(matrix), None, None];
            held.work = Work::Products(Products { format, k, x, gated, matrices, sum: None, silu: None });
            result
        })
    }

    /// `out = silu(x)` of dense f32, if it can be held back.
    pub(crate) fn defer_silu(&self, x: DevicePtr, out: DevicePtr, numel: usize) -> bool {
        let state = &**self.state();
        state.stream.has_deferred()
            && state.with_held(|held| match &mut held.work {
                Work::Products(group) if group.silu.is_none() && group.sum.is_none() => {
                    let mut products = group.matrices.iter().flatten();
                    let found = products.any(|matrix| matrix.out.is(x) && matrix.n == numel);
                    if found {
                        group.silu = Some(Silu { x, out: Output::at(out), numel });
                    }
                    found
                }
                _ => false,
            })
    }

    /// `out = lhs * rhs` of dense f32, if it can be held back: one side is a `silu` that is.
    pub(crate) fn defer_gate(
        &self,
        lhs: DevicePtr,
        rhs: DevicePtr,
        out: DevicePtr,
        numel: usize,
    ) -> Result<bool> {
        let state = &**self.state();
        if !state.stream.has_deferred() {
            return Ok(false);
        }
        state.stream.bind()?;
        state.with_held(|held| {
            let silu = match &held.work {
                Work::Products(Products { silu: Some(silu), .. }) if silu.numel == numel => *silu,
                _ => return Ok(false),
            };
            let gate = match (silu.out.is(lhs), silu.out.is(rhs)) {
                (true, false) => rhs,
                (false, true) => lhs,
                _ => return Ok(false),
            };
            let Work::Products(group) = std::mem::take(&mut held.work) else { return Ok(false) };
            let result = state.enqueue_products(&Products { silu: None, ..group });
            held.work = Work::Gated(Gated { silu, gate, out: Output::at(out) });
            state.release(held);
            result.map(|()| true)
        })
    }

    /// `out = lhs + rhs` of dense f32, if it can be held back: one side is a product that is.
    pub(crate) fn defer_sum(&self, lhs: DevicePtr, rhs: DevicePtr, out: DevicePtr, numel: usize) -> bool {
        let state = &**self.state();
        state.stream.has_deferred()
            && state.with_held(|held| {
                let Work::Products(group) = &mut held.work else { return false };
                let Some(matrix) = group.alone().filter(|matrix| matrix.n == numel) else { return false };
                let summand = match (matrix.out.is(lhs), matrix.out.is(rhs)) {
                    (true, false) => rhs,
                    (false, true) => lhs,
                    _ => return false,
                };
                group.sum = Some((summand, Output::at(out)));
                true
            })
    }

    /// Has `launch` enqueue a product with activations as bytes: with those that the product before used, if nothing
    /// else was enqueued since and they were made by the first of `kernels`, or those that `make` enqueues. Both
    /// enqueue one of `kernels` each and nothing else, by [`DeviceState::launch_now`].
    pub(crate) fn with_activations(
        &self,
        from: DevicePtr,
        (rows, columns): (usize, usize),
        kernels: [KernelId; 2],
        make: impl FnOnce() -> Result<Buffer<u8>>,
        launch: impl FnOnce(DevicePtr) -> Result<()>,
    ) -> Result<()> {
        let state = &**self.state();
        kernels.into_iter().try_for_each(|id| state.load_ahead(id))?;
        state.with_held(|held| {
            if let Work::Activations { from: of, quantizer, rows: r, columns: c, bytes } = &held.work {
                if (of.0, *quantizer, *r, *c) == (from.0, kernels[0], rows, columns) {
                    return launch(bytes.ptr());
                }
            }
            state.enqueue_held(held)?;
            let bytes = make()?;
            let result = launch(bytes.ptr());
            held.work = Work::Activations { from, quantizer: kernels[0], rows, columns, bytes };
            result
        })
    }
}
