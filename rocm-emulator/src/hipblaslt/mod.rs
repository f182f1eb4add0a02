//! hipBLASLt: matrix products with a bias, configured by descriptors and computed on the host in stream order.
//!
//! Arguments are checked during the call and reported with hipBLAS' status codes. The memory of matrices, bias and
//! workspace is checked when the work runs, as for rocBLAS, whose arithmetic is used. As with the real library, a handle
//! can be created on every architecture, and the heuristic finds nothing if the library has no kernels.
//!
//! # Safety
//! As in C, host pointers must be null or valid for the function's reads and writes. Handles, descriptors and device
//! addresses may have any value; invalid ones cause errors.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod algorithm;
mod descriptors;
mod functions;
mod product;
mod types;

#[cfg(test)]
mod tests;

pub use algorithm::{MatmulAlgo, MatmulHeuristicResult};
pub use functions::*;
pub use types::Status;
