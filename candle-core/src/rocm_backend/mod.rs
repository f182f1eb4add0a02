//! The ROCm backend of Candle.
//!
//! An operation is a method of [`RocmStorage`]. It checks its operands, allocates the result, looks up the kernel by its
//! number in the contract ([`hip_kernels::contract`]) and launches it on the device's stream ([`RocmDevice::launch`]).
//! Arguments are on the stack; dims and strides are passed by value. The host only waits when data is copied back, and
//! that call also reports faults of earlier kernels. Freed memory is reused without a call to the driver.
//!
//! The modules are layers, listed from the top. A file may only use lower layers, which the test
//! `xtask/tests/layers_of_files` enforces:
//!
//! | file or folder | subject |
//! |---|---|
//! | `fused_product/` | products with the operations around them in a decoder layer |
//! | `backend` | implementations of Candle's backend traits |
//! | `collective/` | operations between the ranks of a communicator |
//! | `fusion/` | deferred launches, so that one kernel computes several operations |
//! | `ops/` | the operations: `attention`, `elementwise`, `reduce`, `scan`, `sort`, `indexing`, `matmul`, `norm`, `conv`, `pooling`, `strided`, `random` |
//! | `storage`, `layout` | memory of a tensor; conversion of layouts to kernel arguments |
//! | `libraries/` | rocBLAS, hipBLASLt, MIOpen: their handles, and the algorithm chosen for a shape |
//! | `device/` | a GPU: its kernels, launches, faults, and checks before it is opened; higher layers attach state to it |
//! | `stream/` | a stream: binding, ordering, waiting, memory, copies |
//! | `error` | errors |
//!
//! # Custom operations
//!
//! `CustomOp1::rocm_fwd` and its variants receive storages and layouts, and return a new storage:
//!
//! ```no_run
//! use candle_core::rocm::hip_kernels::contract::{Element, Unary, UnaryOp};
//! use candle_core::rocm::{LaunchConfig, RocmStorage, Strided};
//! use candle_core::{backend::BackendStorage, Error, Layout, Result, Shape};
//!
//! /// Computes exp(x) with a built-in kernel.
//! fn exp(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
//!     let device = x.device();
//!     let numel = layout.shape().elem_count();
//!     let kernel = Unary::kernel(UnaryOp::Exp, Element::F32).ok_or(Error::msg("no exp"))?;
//!     // SAFETY: the kernel below writes every element.
//!     let dst = unsafe { device.alloc::<f32>(numel)? };
//!     let (inp, out) = (x.ptr(layout, "exp")?, dst.ptr());
//!     let Strided { num_dims, layout: info } = &Strided::of("exp", &[layout])?;
//!     let arguments = Unary { numel, num_dims: *num_dims, info, inp, out };
//!     // SAFETY: the layout was checked against the input, and the output has as many elements.
//!     unsafe { device.launch(kernel, LaunchConfig::for_elements("exp", numel)?, &arguments)? };
//!     Ok((RocmStorage::wrap_rocm_slice(dst, device.clone()), layout.shape().clone()))
//! }
//! ```
//!
//! [`RocmDevice::custom_kernel`] loads your own kernel from a code object compiled for the device's
//! [`arch`](RocmDevice::arch); see `docs/how-to/write-your-own-kernel.md` and `examples/custom_kernel/`.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod backend;
pub mod collective;
mod device;
mod error;
mod fused_product;
mod fusion;
mod layout;
mod libraries;
mod ops;
mod storage;
mod stream;

pub use device::{
    DeviceId, GpuReport, GraphState, KernelArg, KnownProblem, Launch, LaunchConfig, LibraryReport, Report,
    RocmDevice, RocmGraph, RocmGraphMemory, RocmKernel, GRAPHS_VARIABLE,
};
pub use error::RocmError;
pub use fused_product::{
    ExpertGroups, FusedExperts, FusedProduct, GateActivation, ProductWeight, Router, RouterFunction,
};
pub(crate) use fusion::RowProduct;
pub use fusion::FUSION_VARIABLE;
pub use hip_kernels::contract::{DevicePtr, KernelLayout};
pub use layout::Strided;
pub use libraries::{
    conv_workspace, set_conv_library, set_conv_tiles, set_conv_tuning, set_conv_workspace,
    CONV_CACHE_VARIABLE, CONV_LIBRARY_VARIABLE, CONV_TUNE_VARIABLE, CONV_WORKSPACE_VARIABLE,
    PRODUCT_LIBRARY_VARIABLE,
};
pub use ops::attention::{Attention, AttentionOutput, AttentionSequences, ATTENTION_MAX_WIDTH};
pub use ops::attention_append::{AppendedHeads, AppendedNorms};
pub use ops::attention_encoded::{ATTENTION_ENCODED_STEP, ATTENTION_MAX_ENCODED_WIDTH};
pub use ops::attention_gradients::AttentionGradients;
pub use ops::attention_rows::AttentionOperand;
pub use ops::conv::{conv1d_with_bias, conv2d_with_bias};
pub(crate) use ops::conv::{
    grouped_conv1d, grouped_conv2d, grouped_conv_transpose1d, grouped_conv_transpose2d,
};
pub(crate) use ops::copy_from_host::read_storage;
pub use ops::copy_from_host::{copy_to_tensor, read_tensor};
pub(crate) use ops::elementwise::clamp;
pub use ops::elementwise::{geglu, multiply_add, swiglu, unary_function};
pub(crate) use ops::few_rows::uses_row_kernel;
pub use ops::indexing::{deterministic, set_deterministic};
pub use ops::linear::{linear, linear_with, LinearEpilogue};
pub use ops::matmul::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32, matmul_f8,
    set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16, set_gemm_reduced_precision_f32,
};
pub(crate) use ops::matmul::{library_product, Output};
pub(crate) use ops::quantized_row::{activation_bytes, Groups};
pub(crate) use ops::reduce::{norm, scaled_sum, variance};
pub(crate) use ops::row_product::{float_code, RowMatrix, RowProducts, RowWeights};
pub use ops::sampling::sample;
pub(crate) use ops::scan::cumsum;
pub use ops::sort::arg_sort;
pub(crate) use ops::strided::{cat, pad_with_zeros};
pub use storage::{element, offset_by_elements, RocmDType, RocmStorage, RocmStorageSlice};
pub use stream::memory::{
    MemoryPools, MemoryStats, PoolSize, CACHE_VARIABLE, IDLE_VARIABLE, RESERVE_VARIABLE, SHARE_VARIABLE,
};
pub use stream::{Buffer, DeviceElement, ReadBytes, ZeroableElement, DEADLINE_VARIABLE};

pub use {hip_kernels, rocm_loader, rocm_rs};

/// Selects the driver of this process; call it before the first device is opened. `choice` is a value of
/// `CANDLE_ROCM_DRIVER`, such as `native`, or `emulator:gfx1100` for the software GPU.
///
/// # Errors
/// If another driver is already in use, or the selected driver is not available.
pub fn select_driver(choice: &str) -> crate::Result<()> {
    Ok(rocm_loader::select(choice).map_err(RocmError::from)?)
}

/// Sets the maximum number of elements of a launch, so that tests can split tensors that have fewer than 2^31 elements.
/// `None` restores the default.
#[doc(hidden)]
pub fn set_launch_limit(elements: Option<usize>) {
    device::set_max_elements(elements);
}
