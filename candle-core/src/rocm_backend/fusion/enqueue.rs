//! Enqueues deferred launches: one fused launch if the operations match, otherwise one launch for each.
use super::deferred::{Deferred, Gated, Matrix, Output, Products, Silu, Work};
use crate::rocm_backend::device::{DeviceState, LaunchConfig};
use crate::rocm_backend::ops::row_product::{RowMatrix, RowProducts, RowWeights, MAX_MATRICES};
use crate::{DType, Result};
use hip_kernels::contract::{
    Binary, BinaryOp, DevicePtr, Element, Gated as GatedKernel, GatedOp, KernelLayout, Unary, UnaryOp,
    ACTIVATION_NONE, ADD, LAYOUT_WORDS,
};

static DENSE: KernelLayout = KernelLayout([0; LAYOUT_WORDS]);

/// Returns the geometry of an elementwise launch on dense f32 with four elements per thread.
fn elementwise_config(numel: usize) -> Result<LaunchConfig> {
    LaunchConfig::for_elements("fusion", numel.div_ceil(4))
}

/// Enqueues all deferred launches and releases the memory that was kept for them. The GPU is bound.
pub(super) fn all(device: &DeviceState, deferred: &mut Deferred) -> Result<()> {
    let result = match std::mem::take(&mut deferred.work) {
        Work::Nothing => Ok(()),
        Work::Products(group) => products(device, &group),
        Work::Gated(launch) => gated(device, &launch),
        Work::Activations { bytes, .. } => {
            deferred.retired = Some(bytes);
            Ok(())
        }
    };
    deferred.release(&device.stream);
    result
}

fn gated(device: &DeviceState, gated: &Gated) -> Result<()> {
    silu(device, &gated.silu)?;
    let (lhs, rhs, out, numel) = (gated.silu.x, gated.gate, gated.out.ptr, gated.silu.numel);
    match GatedKernel::kernel(GatedOp::Swiglu, Element::F32) {
        Some(kernel) if gated.out.is_needed => {
            let arguments = GatedKernel { numel, num_dims: 0, info: &DENSE, lhs, rhs, out };
            // SAFETY: the deferred operation checked its operands, and their memory is kept until now.
            unsafe { device.launch_now(kernel, elementwise_config(numel)?, &arguments) }
        }
        _ => Ok(()),
    }
}

fn silu(device: &DeviceState, silu: &Silu) -> Result<()> {
    let Silu { x: inp, out: Output { ptr: out, is_needed }, numel } = *silu;
    match Unary::kernel(UnaryOp::Silu, Element::F32) {
        Some(kernel) if is_needed => {
            let arguments = Unary { numel, num_dims: 0, info: &DENSE, inp, out };
            // SAFETY: as above.
            unsafe { device.launch_now(kernel, elementwise_config(numel)?, &arguments) }
        }
        _ => Ok(()),
    }
}

/// Enqueues products together with the operations that are fused with them. The GPU is bound.
pub(super) fn products(device: &DeviceState, group: &Products) -> Result<()> {
    if let Some(before) = &group.gated {
        gated(device, before)?;
    }
    if let (Some((lhs, sum)), Some(matrix)) = (group.sum, group.matrices[0]) {
        if !matrix.out.is_needed {
            return rows(device, group, [Some(Matrix { out: sum, ..matrix })], Some(lhs));
        }
        rows(device, group, [Some(matrix)], None)?;
        return match Binary::kernel(BinaryOp::Arithmetic, Element::F32) {
            Some(kernel) if sum.is_needed => {
                let (info, numel, rhs, out) = (&DENSE, matrix.n, matrix.out.ptr, sum.ptr);
                let arguments = Binary { numel, num_dims: 0, info, function: ADD, lhs, rhs, out };
                // SAFETY: as above.
                unsafe { device.launch_now(kernel, elementwise_config(numel)?, &arguments) }
            }
            _ => Ok(()),
        };
    }
    rows(device, group, group.matrices, None)?;
    group.silu.map_or(Ok(()), |activation| silu(device, &activation))
}

/// Enqueues one launch for all matrices whose products are needed.
fn rows(
    device: &DeviceState,
    group: &Products,
    matrices: impl IntoIterator<Item = Option<Matrix>>,
    summand: Option<DevicePtr>,
) -> Result<()> {
    let null = DevicePtr(std::ptr::null_mut());
    let mut wanted = [RowMatrix { weights: null, n: 0, out: null }; MAX_MATRICES];
    let mut count = 0;
    for matrix in matrices.into_iter().flatten().filter(|matrix| matrix.out.is_needed) {
        wanted[count] = RowMatrix { weights: matrix.blocks, n: matrix.n, out: matrix.out.ptr };
        count += 1;
    }
    if count == 0 {
        return Ok(());
    }
    let (x, gate) = group.gated.map_or((group.x, None), |gated| (gated.silu.x, Some(gated.gate)));
    let matrices = &wanted[..count];
    let products = RowProducts {
        weights: RowWeights::Blocks(group.format),
        rows: 1,
        k: group.k,
        dtype: DType::F32,
        out_dtype: DType::F32,
        x,
        gate,
        norm: None,
        bias: None,
        activation: ACTIVATION_NONE,
        summand: summand.map(|at| (at, DType::F32)),
        is_constant: false,
        matrices,
    };
    // SAFETY: the deferred products checked rows, matrices and outputs, and their memory is kept until now.
    unsafe { products.launch(device) }
}
