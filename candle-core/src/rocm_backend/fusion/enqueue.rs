//! Enqueueing what is held back: one launch where the parts fit each other, else one for each.
use super::held::{Gated, Held, Matrix, Output, Products, Silu, Work};
use crate::rocm_backend::device::{DeviceState, LaunchConfig};
use crate::rocm_backend::ops::quantized_row::{RowMatrix, RowProducts, MAX_MATRICES};
use crate::Result;
use hip_kernels::contract::{
    Binary, BinaryOp, DevicePtr, Element, KernelLayout, Swiglu, Unary, UnaryOp, LAYOUT_WORDS,
};

static DENSE: KernelLayout = KernelLayout([0; LAYOUT_WORDS]);

/// A launch over dense f32, in packs.
fn each(numel: usize) -> Result<LaunchConfig> {
    LaunchConfig::for_elements("fusion", numel.div_ceil(4))
}

/// Enqueues all that is held back, and gives back the memory that was kept for it. The GPU is bound.
pub(super) fn all(device: &DeviceState, held: &mut Held) -> Result<()> {
    let result = match std::mem::take(&mut held.work) {
        Work::Nothing => Ok(()),
        Work::Products(group) => products(device, &group),
        Work::Gated(launch) => gated(device, &launch),
        Work::Activations { bytes, .. } => {
            held.retired = Some(bytes);
            Ok(())
        }
    };
    held.release(&device.stream);
    result
}

fn gated(device: &DeviceState, gated: &Gated) -> Result<()> {
    silu(device, &gated.silu)?;
    let (lhs, rhs, out, numel) = (gated.silu.x, gated.gate, gated.out.ptr, gated.silu.numel);
    match Swiglu::kernel(Element::F32) {
        Some(kernel) if gated.out.is_wanted => {
            let arguments = Swiglu { numel, num_dims: 0, info: &DENSE, lhs, rhs, out };
            // SAFETY: the operation that was held back has checked its operands, and they are kept.
            unsafe { device.launch_now(kernel, each(numel)?, &arguments) }
        }
        _ => Ok(()),
    }
}

fn silu(device: &DeviceState, silu: &Silu) -> Result<()> {
    let Silu { x: inp, out: Output { ptr: out, is_wanted }, numel } = *silu;
    match Unary::kernel(UnaryOp::Silu, Element::F32) {
        Some(kernel) if is_wanted => {
            let arguments = Unary { numel, num_dims: 0, info: &DENSE, inp, out };
            // SAFETY: as above.
            unsafe { device.launch_now(kernel, each(numel)?, &arguments) }
        }
        _ => Ok(()),
    }
}

/// Enqueues products, with what is held back around them. The GPU is bound.
pub(super) fn products(device: &DeviceState, group: &Products) -> Result<()> {
    if let Some(before) = &group.gated {
        gated(device, before)?;
    }
    if let (Some((lhs, sum)), Some(matrix)) = (group.sum, group.matrices[0]) {
        if !matrix.out.is_wanted {
            return rows(device, group, [Some(Matrix { out: sum, ..matrix })], Some(lhs));
        }
        rows(device, group, [Some(matrix)], None)?;
        return match Binary::kernel(BinaryOp::Badd, Element::F32) {
            Some(kernel) if sum.is_wanted => {
                let (info, numel, rhs, out) = (&DENSE, matrix.n, matrix.out.ptr, sum.ptr);
                let arguments = Binary { numel, num_dims: 0, info, lhs, rhs, out };
                // SAFETY: as above.
                unsafe { device.launch_now(kernel, each(numel)?, &arguments) }
            }
            _ => Ok(()),
        };
    }
    rows(device, group, group.matrices, None)?;
    group.silu.map_or(Ok(()), |activation| silu(device, &activation))
}

/// Enqueues one launch for all matrices whose products are wanted.
fn rows(
    device: &DeviceState,
    group: &Products,
    matrices: impl IntoIterator<Item = Option<Matrix>>,
    summand: Option<DevicePtr>,
) -> Result<()> {
    let null = DevicePtr(std::ptr::null_mut());
    let mut wanted = [RowMatrix { blocks: null, n: 0, out: null }; MAX_MATRICES];
    let mut count = 0;
    for matrix in matrices.into_iter().flatten().filter(|matrix| matrix.out.is_wanted) {
        wanted[count] = RowMatrix { blocks: matrix.blocks, n: matrix.n, out: matrix.out.ptr };
        count += 1;
    }
    if count == 0 {
        return Ok(());
    }
    let (x, gate) = group.gated.map_or((group.x, None), |gated| (gated.silu.x, Some(gated.gate)));
    let matrices = &wanted[..count];
    let products = RowProducts { format: group.format, k: group.k, x, gate, summand, matrices };
    // SAFETY: the products that were held back have counted rows, matrices and outputs, and they are kept.
    unsafe { products.launch(device) }
}
