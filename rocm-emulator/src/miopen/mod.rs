//! MIOpen: convolutions in immediate mode, computed on the host in the order of the handle's stream.
//!
//! Arguments are checked during the call and reported with MIOpen's status codes. The memory of tensors and workspaces is
//! checked when the work runs; a failure is reported like a kernel fault, by the stream's next synchronizing call. All
//! sums are computed in f64 and rounded once.
//!
//! Solutions have the identifiers and conditions of some of AMD's. They differ in workspace and estimated time, but
//! compute the same result.
//!
//! # Safety
//! As in C, host pointers must be null or valid for the function's reads and writes. Handles, descriptors and device
//! addresses may have any value; invalid ones cause errors.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod axis;
mod compute;
mod convolution_functions;
mod descriptor;
mod functions;
mod handle;
mod operand;
mod problem;
mod solution;
mod status;

#[cfg(test)]
mod tests;

pub use convolution_functions::*;
pub use functions::*;
pub(crate) use handle::compiles;
pub use solution::ConvSolution;
pub use status::{Status, status_name};
