//! HIP's functions, implemented on libcuda.
pub(crate) mod context;
mod event;
mod graph;
mod memory;
mod module;
mod names;
mod properties;
pub(crate) mod status;
mod stream;

use rocm_driver_api::hip::*;
use rocm_driver_api::{Address, Table, table};

/// HIP's functions under their C names.
mod functions {
    pub(super) use super::context::*;
    pub(super) use super::event::*;
    pub(super) use super::graph::*;
    pub(super) use super::memory::*;
    pub(super) use super::module::*;
    pub(super) use super::names::*;
    pub(super) use super::properties::*;
    pub(super) use super::status::*;
    pub(super) use super::stream::*;
}

pub(crate) const TABLE: Table = rocm_driver_api::hip_functions!(table functions);
/// HIP's functions that drivers may lack.
pub(crate) const OPTIONAL: Table = &[("hipDrvLaunchKernelEx", {
    let function: unsafe extern "C" fn(
        *const HIP_LAUNCH_CONFIG,
        hipFunction_t,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> hipError_t = module::hipDrvLaunchKernelEx;
    // SAFETY: both are function pointers; callers cast the address back to its prototype.
    Some(unsafe { std::mem::transmute::<*const (), Address>(function as *const ()) })
})];
