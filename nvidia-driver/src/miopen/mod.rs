//! MIOpen's functions, implemented on libcudnn. Handles are cuDNN's; MIOpen's descriptors are structures of this crate
//! that hold cuDNN's.
mod convolution;
pub(crate) mod cudnn;
mod descriptor;
mod geometry;
mod handle;
mod tensor;

use rocm_driver_api::miopen::*;
use rocm_driver_api::{Table, table};

/// MIOpen's functions under their C names.
mod functions {
    pub(super) use super::convolution::*;
    pub(super) use super::geometry::*;
    pub(super) use super::handle::*;
    pub(super) use super::tensor::*;
}

pub(crate) const TABLE: Table = rocm_driver_api::miopen_functions!(table functions);
