//! Deferred launches, and the memory that they need.
use crate::rocm_backend::ops::row_product::MAX_MATRICES;
use crate::rocm_backend::stream::{Buffer, DeviceBlock, Stream};
use hip_kernels::contract::{BlockFormat, DevicePtr, KernelId};
use std::ops::Range;

/// Result of a deferred launch. It is no longer needed if its tensor was dropped.
#[derive(Clone, Copy)]
pub(super) struct Output {
    pub(super) ptr: DevicePtr,
    pub(super) is_needed: bool,
}

impl Output {
    pub(super) fn at(ptr: DevicePtr) -> Self {
        Self { ptr, is_needed: true }
    }

    /// Returns true if a tensor at `ptr` is this result.
    pub(super) fn is(&self, ptr: DevicePtr) -> bool {
        self.is_needed && self.ptr.0 == ptr.0
    }
}

/// `out = silu(x)` on dense f32.
#[derive(Clone, Copy)]
pub(super) struct Silu {
    pub(super) x: DevicePtr,
    pub(super) out: Output,
    pub(super) numel: usize,
}

/// `out = silu * gate` on dense f32.
#[derive(Clone, Copy)]
pub(super) struct Gated {
    pub(super) silu: Silu,
    pub(super) gate: DevicePtr,
    pub(super) out: Output,
}

/// A quantized matrix of `n` rows, and the result of its product.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) blocks: DevicePtr,
    pub(super) n: usize,
    pub(super) out: Output,
}

/// Products of one row of `k` elements of f32 with matrices of one format.
#[derive(Clone, Copy)]
pub(super) struct Products {
    pub(super) format: BlockFormat,
    pub(super) k: usize,
    pub(super) x: DevicePtr,
    /// The launch that computes the row `x`, fused into this one.
    pub(super) gated: Option<Gated>,
    pub(super) matrices: [Option<Matrix>; MAX_MATRICES],
    /// Summand that is added to the only product, and the result of the sum.
    pub(super) sum: Option<(DevicePtr, Output)>,
    /// SiLU of one of the products.
    pub(super) silu: Option<Silu>,
}

impl Products {
    /// Returns the product if it is the only one and no deferred launch uses it yet.
    pub(super) fn single(&self) -> Option<&Matrix> {
        match &self.matrices {
            [Some(matrix), None, ..] if self.sum.is_none() && self.silu.is_none() => Some(matrix),
            _ => None,
        }
    }
}

#[derive(Default)]
pub(super) enum Work {
    #[default]
    Nothing,
    Products(Products),
    Gated(Gated),
    /// Quantized activations, which need no launch. Later products with the unchanged rows at `from` can reuse them.
    Activations {
        from: DevicePtr,
        quantizer: KernelId,
        rows: usize,
        columns: usize,
        bytes: Buffer<u8>,
    },
}

// SAFETY: the pointers are addresses of device memory, which the host does not dereference.
unsafe impl Send for Work {}

impl Work {
    /// Returns true if a deferred launch reads from `range`, or writes a result there that no other deferred launch uses.
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

    /// Returns the results that other deferred launches use, so that they need not be written to memory.
    fn intermediate(&mut self) -> impl Iterator<Item = &mut Output> {
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

#[derive(Default)]
pub(super) struct Deferred {
    pub(super) work: Work,
    /// Memory that was released while a deferred launch still needs it.
    retained: Vec<(DeviceBlock, Range<usize>)>,
    /// Buffer to drop after the lock is released.
    pub(super) retired: Option<Buffer<u8>>,
    /// An error that could not be returned where it occurred.
    pub(super) failure: Option<crate::Error>,
}

impl Deferred {
    /// Returns true if the stream must call `enqueue` before it enqueues other work.
    pub(super) fn is_pending(&self) -> bool {
        !matches!(self.work, Work::Nothing) || self.failure.is_some()
    }

    /// Returns the memory, unless a deferred launch needs it. Intermediate results in it are no longer needed.
    pub(super) fn retain(&mut self, memory: DeviceBlock, bytes: usize) -> Option<DeviceBlock> {
        let range = memory.address..memory.address + bytes;
        if self.work.needs(&range) {
            self.retained.push((memory, range));
            return None;
        }
        for output in self.work.intermediate() {
            output.is_needed &= output.ptr.0.addr() != memory.address;
        }
        Some(memory)
    }

    /// Releases retained memory that no deferred launch needs any more.
    pub(super) fn release(&mut self, stream: &Stream) {
        let Deferred { work, retained, .. } = self;
        while let Some(at) = retained.iter().position(|(_, range)| !work.needs(range)) {
            stream.return_memory(retained.swap_remove(at).0);
        }
    }
}
