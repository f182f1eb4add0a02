//! ROCm as a Candle device.
//!
//! The way of an operation: a method of [`RocmStorage`] checks its operands, allocates the result, picks the kernel by
//! its number in the contract ([`hip_kernels::contract`]) and launches it on the device's one stream
//! ([`RocmDevice::launch`]: arguments on the stack, dims and strides by value). The host waits where data comes back,
//! and that is where a fault of an earlier kernel is reported. Memory is reused without asking the driver.
//!
//! The floors, from the top; a file uses only what lies below it, and `tests/layers_of_files.rs` of
//! the root package holds that:
//!
//! | file or folder | subject |
//! |---|---|
//! | `backend` | Candle's traits, each method sent to the file of its subject |
//! | `fusion/` | launches that are held back, so that one does what several would |
//! | `ops/` | the operations: `attention`, `elementwise`, `reduce`, `scan`, `sort`, `indexing`, `matmul`, `conv`, `pooling`, `strided`, `random` |
//! | `storage`, `layout` | what a tensor holds; dims and strides as kernels take them |
//! | `libraries/` | rocBLAS, hipBLASLt, MIOpen: their handles, and what was chosen for a shape |
//! | `device/` | a GPU: its kernels, launching one, faults, asking before opening; what is above attaches itself to it by type |
//! | `stream/` | a stream: binding, ordering, waiting, memory, moving data |
//! | `error` | what goes wrong |
//!
//! # Custom operations
//!
//! `CustomOp1::rocm_fwd` and its kin get storages and layouts, and give back a new storage:
//!
//! ```no_run
//! use candle_core::rocm::hip_kernels::contract::{Element, Unary, UnaryOp};
//! use candle_core::rocm::{LaunchConfig, RocmStorage, Strided};
//! use candle_core::{backend::BackendStorage, Error, Layout, Result, Shape};
//!
//! /// exp(x), with a kernel that ships.
//! fn exp(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
//!     let device = x.device();
//!     let numel = layout.shape().elem_count();
//!     let kernel = Unary::kernel(UnaryOp::Exp, Element::F32).ok_or(Error::msg("no exp"))?;
//!     // SAFETY: every element is written by the kernel below.
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
//! A kernel of your own is loaded with [`RocmDevice::custom_kernel`] from a code object compiled for the device's
//! [`arch`](RocmDevice::arch): `docs/custom-kernels.md` and `examples/custom_kernel/` show how.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod backend;
mod device;
mod error;
mod fusion;
mod layout;
mod libraries;
mod ops;
mod storage;
mod stream;

pub use device::{
    DeviceId, GpuReport, KernelArg, Launch, LaunchConfig, LibraryReport, Report, RocmDevice, RocmKernel,
};
pub use error::RocmError;
pub(crate) use fusion::RowProduct;
pub use fusion::FUSION_VARIABLE;
pub use hip_kernels::contract::{DevicePtr, KernelLayout};
pub use layout::Strided;
pub use libraries::{
    conv_workspace, set_conv_library, set_conv_tiles, set_conv_tuning, set_conv_workspace,
    CONV_CACHE_VARIABLE, CONV_LIBRARY_VARIABLE, CONV_TUNE_VARIABLE, CONV_WORKSPACE_VARIABLE,
    PRODUCT_LIBRARY_VARIABLE,
};
pub use ops::attention::{Attended, Attention, AttentionOperand, AttentionSequences, ATTENTION_MAX_WIDTH};
pub use ops::attention_gradients::AttentionGradients;
pub use ops::conv::{conv1d_with_bias, conv2d_with_bias};
pub(crate) use ops::conv::{whole_conv1d, whole_conv2d, whole_conv_transpose1d, whole_conv_transpose2d};
pub use ops::elementwise::{swiglu, unary_function};
pub use ops::indexing::{deterministic, set_deterministic};
pub use ops::linear::linear;
pub use ops::matmul::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32, matmul_f8,
    set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16, set_gemm_reduced_precision_f32,
};
pub(crate) use ops::matmul::{widening_product, Output};
pub(crate) use ops::quantized_row::{activation_bytes, Groups};
pub(crate) use ops::reduce::{norm, scaled_sum, variance};
pub(crate) use ops::scan::cumsum;
pub use ops::sort::arg_sort;
pub(crate) use ops::strided::cat;
pub use storage::{element, offset_by_elements, RocmDType, RocmStorage, RocmStorageSlice};
pub use stream::memory::{MemoryStats, IDLE_VARIABLE, PARKED_VARIABLE, RESERVE_VARIABLE, SHARE_VARIABLE};
pub use stream::{Buffer, DeviceElement, ZeroableElement, DEADLINE_VARIABLE};

pub use {hip_kernels, rocm_loader, rocm_rs};

/// Chooses the driver for this process, before the first device is opened, by a value of `CANDLE_ROCM_DRIVER`:
/// `native`, or `emulator:gfx1100` for the software GPU.
///
/// # Errors
/// If another driver is in use already, or the one asked for is not there.
pub fn select_driver(choice: &str) -> crate::Result<()> {
    Ok(rocm_loader::select(choice).map_err(RocmError::from)?)
}

/// Has every launch count at most so many elements instead of 2^31, so that larger tensors are cut: for tests of what
/// happens to tensors above 2^31 elements. `None` is the default.
#[doc(hidden)]
pub fn set_launch_limit(elements: Option<usize>) {
    device::set_max_elements(elements);
}
