//! hipBLASLt: matrix products with a bias, by descriptors, computed on the host in the order of the stream that is
//! given.
//!
//! Arguments are checked at the call with hipBLAS' status codes. Whether matrices, bias and workspace lie in live
//! memory of the device shows when the work runs, as for rocBLAS, whose arithmetic this is. As with the real library
//! a handle can be made on every architecture, and the heuristic finds nothing where the library has no kernels.
//!
//! # Safety
//! As in C: host pointers must be null or valid for what the function reads or writes through them. Handles,
//! descriptors and device addresses may be anything; those that are not live are errors.
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
