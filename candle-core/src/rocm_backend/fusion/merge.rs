//! Decides which launches are deferred and which later launches they are fused with.
use super::deferred::{Deferred, Gated, Matrix, Output, Products, Silu, Work};
use super::enqueue;
use crate::op::{BinaryOpT, UnaryOpT};
use crate::rocm_backend::device::{Attachment, DeviceState, RocmDevice};
use crate::rocm_backend::ops::elementwise::{BinaryFunction, ContractOp, UnaryFunction};
use crate::rocm_backend::ops::row_product::{row_kernel, RowWeights};
use crate::rocm_backend::ops::Operand;
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::stream::{Buffer, DeferredLaunches, DeviceBlock};
use crate::{DType, Layout, Result};
use hip_kernels::contract::{BlockFormat, DevicePtr, KernelId, UnaryOp};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Environment variable; `0` disables fusion on devices that are opened later.
pub const FUSION_VARIABLE: &str = "CANDLE_ROCM_FUSION";

/// The deferred launches of a device, and the switch of fusion.
struct Fusion {
    enabled: AtomicBool,
    /// The launches that are deferred for execution, and those of the graph capture in progress.
    deferred: [Mutex<Deferred>; 2],
}

impl Attachment for Fusion {
    fn attach(device: &Arc<DeviceState>) -> Self {
        device.stream.set_deferred_launches(Box::new(WeakDevice(Arc::downgrade(device))));
        let enabled = std::env::var_os(FUSION_VARIABLE).is_none_or(|value| value != "0");
        Self { enabled: AtomicBool::new(enabled), deferred: Default::default() }
    }

    fn before_close(&self, device: &DeviceState) -> Result<()> {
        self.enqueue(device)
    }
}

impl Fusion {
    /// Calls `work` with the deferred launches locked, then records in the stream whether any are pending.
    fn with_deferred<R>(&self, device: &DeviceState, work: impl FnOnce(&mut Deferred) -> R) -> R {
        let deferred = &self.deferred[usize::from(device.stream.is_capturing())];
        let mut deferred = deferred.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut deferred);
        device.stream.set_has_deferred(deferred.is_pending());
        let retired = deferred.retired.take();
        drop(deferred);
        drop(retired);
        result
    }

    /// Like [`Self::with_deferred`]; if fusion is disabled, enqueues what `work` deferred.
    fn defer(&self, device: &DeviceState, work: impl FnOnce(&mut Deferred) -> Result<()>) -> Result<()> {
        let result = self.with_deferred(device, work);
        match self.enabled.load(Ordering::Relaxed) {
            true => result,
            false => result.and(self.enqueue(device)),
        }
    }

    fn enqueue(&self, device: &DeviceState) -> Result<()> {
        self.with_deferred(device, |deferred| {
            let enqueued = enqueue::all(device, deferred);
            deferred.failure.take().map_or(enqueued, Err)
        })
    }
}

/// Access of a stream to the deferred launches of its device.
struct WeakDevice(Weak<DeviceState>);

impl DeferredLaunches for WeakDevice {
    fn enqueue(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |device| device.attachment::<Fusion>().enqueue(&device))
    }

    fn enqueue_silently(&self) {
        if let Some(device) = self.0.upgrade() {
            device.attachment::<Fusion>().with_deferred(&device, |deferred| {
                if let Err(error) = enqueue::all(&device, deferred) {
                    deferred.failure = Some(error);
                }
            });
        }
    }

    fn retain(&self, memory: DeviceBlock, bytes: usize) -> Option<DeviceBlock> {
        match self.0.upgrade() {
            None => Some(memory),
            Some(device) => device
                .attachment::<Fusion>()
                .with_deferred(&device, |deferred| deferred.retain(memory, bytes)),
        }
    }
}

/// A product of one row `x` of f32 with a quantized matrix of `n` rows of `k` elements.
#[derive(Clone, Copy)]
pub(crate) struct RowProduct {
    pub(crate) format: BlockFormat,
    pub(crate) blocks: DevicePtr,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) x: DevicePtr,
    pub(crate) out: DevicePtr,
}

/// Defers the unary operation `U` if it can be fused with a deferred product; otherwise returns `None`.
#[inline]
pub(crate) fn unary<U: UnaryOpT>(src: &RocmStorage, layout: &Layout) -> Result<Option<RocmStorage>> {
    match ContractOp::<U>::UNARY == UnaryFunction::Own(UnaryOp::Silu)
        && src.device.state().stream.has_deferred()
    {
        true => operation(U::NAME, [(src, layout); 2], |deferred, _, [x, _], out, numel| {
            Ok(silu(deferred, x, out, numel))
        }),
        false => Ok(None),
    }
}

/// Defers the binary operation `B` if it can be fused; otherwise returns `None`. The layouts must have the same dims.
#[inline]
pub(crate) fn binary<B: BinaryOpT>(lhs: Operand, rhs: Operand) -> Result<Option<RocmStorage>> {
    let merge = match ContractOp::<B>::BINARY {
        BinaryFunction::ADD => sum,
        BinaryFunction::MUL => gate,
        _ => return Ok(None),
    };
    match lhs.0.device.state().stream.has_deferred() {
        true => operation(B::NAME, [lhs, rhs], merge),
        false => Ok(None),
    }
}

/// Returns the result of an operation on dense f32 if `merge` defers it.
fn operation(
    op: &'static str,
    [(lhs, lhs_layout), (rhs, rhs_layout)]: [Operand; 2],
    merge: impl FnOnce(&mut Deferred, &DeviceState, [DevicePtr; 2], DevicePtr, usize) -> Result<bool>,
) -> Result<Option<RocmStorage>> {
    let device = &lhs.device;
    let is_dense = |storage: &RocmStorage, layout: &Layout| {
        storage.slice.dtype() == DType::F32 && layout.is_contiguous() && storage.device.id() == device.id()
    };
    if !is_dense(lhs, lhs_layout) || !is_dense(rhs, rhs_layout) {
        return Ok(None);
    }
    let numel = lhs_layout.shape().elem_count();
    let operands = [lhs.ptr(lhs_layout, op)?, rhs.ptr(rhs_layout, op)?];
    // SAFETY: the deferred launch writes every element before anything reads it.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, numel, op)? };
    let (state, out) = (device.state(), dst.slice.ptr());
    state.stream.bind()?;
    let fusion = state.attachment::<Fusion>();
    let is_deferred = fusion.with_deferred(state, |deferred| merge(deferred, state, operands, out, numel))?;
    Ok(is_deferred.then_some(dst))
}

/// Defers `out = silu(x)` if `x` is a deferred product.
fn silu(deferred: &mut Deferred, x: DevicePtr, out: DevicePtr, numel: usize) -> bool {
    let Work::Products(group) = &mut deferred.work else { return false };
    let mut products = group.matrices.iter().flatten();
    let is_product = group.silu.is_none()
        && group.sum.is_none()
        && products.any(|matrix| matrix.out.is(x) && matrix.n == numel);
    if is_product {
        group.silu = Some(Silu { x, out: Output::at(out), numel });
    }
    is_product
}

/// Returns the other operand if exactly one of the two is the deferred result `deferred`.
fn other_operand(deferred: Output, [lhs, rhs]: [DevicePtr; 2]) -> Option<DevicePtr> {
    match (deferred.is(lhs), deferred.is(rhs)) {
        (true, false) => Some(rhs),
        (false, true) => Some(lhs),
        _ => None,
    }
}

/// Defers `out = lhs * rhs` if one operand is a deferred `silu`, and enqueues the products.
fn gate(
    deferred: &mut Deferred,
    device: &DeviceState,
    operands: [DevicePtr; 2],
    out: DevicePtr,
    numel: usize,
) -> Result<bool> {
    let Work::Products(group) = deferred.work else { return Ok(false) };
    let Some(silu) = group.silu.filter(|silu| silu.numel == numel) else { return Ok(false) };
    let Some(gate) = other_operand(silu.out, operands) else { return Ok(false) };
    let result = enqueue::products(device, &Products { silu: None, ..group });
    deferred.work = Work::Gated(Gated { silu, gate, out: Output::at(out) });
    deferred.release(&device.stream);
    result.map(|()| true)
}

/// Defers `out = lhs + rhs` if one operand is a deferred product.
fn sum(
    deferred: &mut Deferred,
    _: &DeviceState,
    operands: [DevicePtr; 2],
    out: DevicePtr,
    numel: usize,
) -> Result<bool> {
    let Work::Products(group) = &mut deferred.work else { return Ok(false) };
    let Some(matrix) = group.single().filter(|matrix| matrix.n == numel) else { return Ok(false) };
    let Some(summand) = other_operand(matrix.out, operands) else { return Ok(false) };
    group.sum = Some((summand, Output::at(out)));
    Ok(true)
}

/// Binds the GPU and loads a kernel before launches are deferred, because loading its module enqueues copies.
fn preload(device: &DeviceState, kernel: KernelId) -> Result<()> {
    if device.is_loaded(kernel) {
        return device.stream.bind();
    }
    device.stream.bind_and_flush()?;
    device.function(kernel).map(|_| ())
}

impl RocmDevice {
    /// Enables or disables the fusion of launches, overriding `CANDLE_ROCM_FUSION`. Results are bitwise the same either
    /// way. Deferred launches are enqueued first.
    ///
    /// # Errors
    /// If enqueueing the deferred launches fails.
    pub fn set_fusion(&self, enabled: bool) -> Result<()> {
        self.state().stream.bind_and_flush()?;
        self.state().attachment::<Fusion>().enabled.store(enabled, Ordering::Relaxed);
        Ok(())
    }

    /// Defers the product of one row with a matrix, or enqueues it if fusion is disabled. The quantized row must fit
    /// into LDS.
    ///
    /// # Errors
    /// If there is no kernel for the format, or enqueueing earlier deferred launches fails.
    ///
    /// # Safety
    /// `x` must have `k` elements aligned for vector loads, the matrix `n` rows of `k`, and `out` space for `n`.
    pub(crate) unsafe fn defer_product(&self, product: RowProduct) -> Result<()> {
        let state = self.state();
        let RowProduct { format, blocks, n, k, x, out } = product;
        preload(state, row_kernel(RowWeights::Blocks(format), DType::F32)?)?;
        let matrix = Matrix { blocks, n, out: Output::at(out) };
        state.attachment::<Fusion>().defer(state, |deferred| {
            let gated = match &mut deferred.work {
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
                None => enqueue::all(state, deferred),
            };
            let matrices = [Some(matrix), None, None];
            deferred.work = Work::Products(Products { format, k, x, gated, matrices, sum: None, silu: None });
            result
        })
    }

    /// Calls `launch` with the address of quantized activations. It reuses those of the preceding product if `kernels[0]`
    /// made them from the same rows and nothing was enqueued since; otherwise `make` enqueues their quantization.
    /// `make` and `launch` must each enqueue one of `kernels` by [`DeviceState::launch_now`], and nothing else.
    pub(crate) fn with_activations(
        &self,
        from: DevicePtr,
        (rows, columns): (usize, usize),
        kernels: [KernelId; 2],
        make: impl FnOnce() -> Result<Buffer<u8>>,
        launch: impl FnOnce(DevicePtr) -> Result<()>,
    ) -> Result<()> {
        let state = self.state();
        kernels.into_iter().try_for_each(|kernel| preload(state, kernel))?;
        state.attachment::<Fusion>().defer(state, |deferred| {
            if let Work::Activations { from: of, quantizer, rows: r, columns: c, bytes } = &deferred.work {
                if (of.0, *quantizer, *r, *c) == (from.0, kernels[0], rows, columns) {
                    return launch(bytes.ptr());
                }
            }
            enqueue::all(state, deferred)?;
            let bytes = make()?;
            let result = launch(bytes.ptr());
            deferred.work = Work::Activations { from, quantizer: kernels[0], rows, columns, bytes };
            result
        })
    }
}
