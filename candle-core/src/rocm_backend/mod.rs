//! ROCm as a Candle device.
//!
//! The way of an operation: a method of [`RocmStorage`] checks its operands, allocates the result, finds the kernel
//! ([`RocmDevice::kernel`]: a lookup after the first use) and launches it on the device's one stream
//! ([`RocmKernel::launch`]: arguments on the stack, dims and strides by value). The host waits
//! where data comes back, and that is where a fault of an earlier kernel is reported. Memory is reused without asking
//! the driver (`memory`), since `hipFree` would wait.
//!
//! | file | subject |
//! |---|---|
//! | `device`, `kernels`, `code_object`, `launch`, `layout` | the device, its loaded kernels, launching one |
//! | `memory`, `buffer`, `storage`, `copy`, `staging` | device memory, and getting data in and out |
//! | `elementwise`, `reduce`, `sort`, `indexing`, `matmul`, `conv`, `pool`, `strided`, `random` | the operations |
//! | `availability`, `doctor` | asking before opening, and what a report needs |
//! | `backend` | Candle's traits |
//! | `wait`, `error`, `fault` | waiting, and what goes wrong |
//!
//! # Custom operations
//!
//! `CustomOp1::rocm_fwd` and its kin get storages and layouts, and give back a new storage:
//!
//! ```no_run
//! use candle_core::rocm::{hip_kernels::Module, LaunchConfig, RocmStorage, Strided};
//! use candle_core::{backend::BackendStorage, Layout, Result, Shape};
//!
//! /// exp(x), with a kernel that ships.
//! fn exp(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
//!     let device = x.device();
//!     let elements = layout.shape().elem_count();
//!     // SAFETY: every element is written by the kernel below.
//!     let out = unsafe { device.alloc::<f32>(elements)? };
//!     let (from, to) = (x.ptr(layout, "exp")?, out.ptr());
//!     let strided = Strided::of("exp", &[layout])?;
//!     let kernel = device.kernel(Module::Unary, &["uexp_f32"])?;
//!     let launch = kernel.launch(LaunchConfig::for_elements("exp", elements)?);
//!     // SAFETY: the arguments of every unary kernel: (numel, num_dims, info, inp, out).
//!     unsafe { launch.arg(&elements).strided(&strided).arg(&from).arg(&to).run()? };
//!     Ok((RocmStorage::wrap_rocm_slice(out, device.clone()), layout.shape().clone()))
//! }
//! ```
//!
//! A kernel of your own is loaded with [`RocmDevice::custom_kernel`] from a code object compiled for the device's
//! [`arch`](RocmDevice::arch): `docs/custom-kernels.md` and `examples/custom_kernel/` show how.
mod availability;
mod backend;
mod buffer;
mod code_object;
mod conv;
mod copy;
mod device;
mod doctor;
mod elementwise;
mod error;
mod fault;
mod indexing;
mod kernels;
mod launch;
mod layout;
mod matmul;
mod memory;
mod pool;
mod random;
mod reduce;
mod sort;
mod staging;
mod storage;
mod strided;
mod wait;

pub use buffer::Buffer;
pub use conv::{conv_workspace, set_conv_workspace};
pub use device::{DeviceId, RocmDevice};
pub use doctor::{GpuReport, LibraryReport, Report};
pub use error::RocmError;
pub use kernels::ModuleId;
pub use launch::{DevicePtr, KernelArg, Launch, LaunchConfig, RocmKernel};
pub use layout::{KernelLayout, Strided};
pub use matmul::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32,
    set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16, set_gemm_reduced_precision_f32,
};
pub use memory::{MemoryStats, PARKED_VARIABLE, SHARE_VARIABLE};
pub use sort::arg_sort;
pub use storage::{RocmDType, RocmStorage, RocmStorageSlice};
pub use wait::DEADLINE_VARIABLE;

pub use {hip_kernels, rocm_loader, rocm_rs};

/// Chooses the driver for this process, before the first device is opened: ROCm, or the software GPU.
///
/// # Errors
/// If another driver is in use already, or the one asked for is not there.
pub fn select_driver(choice: rocm_loader::Choice) -> crate::Result<()> {
    Ok(rocm_loader::select(choice).map_err(RocmError::from)?)
}
