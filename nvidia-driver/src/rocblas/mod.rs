//! rocBLAS' functions, implemented on libcublas.
pub(crate) mod cublas;
mod handle;
mod products;

use rocm_driver_api::rocblas::*;
use rocm_driver_api::{Table, table};

/// rocBLAS' functions under their C names.
mod functions {
    pub(super) use super::handle::*;
    pub(super) use super::products::*;
}

pub(crate) const TABLE: Table = rocm_driver_api::rocblas_functions!(table functions);
