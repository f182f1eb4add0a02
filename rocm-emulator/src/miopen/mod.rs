//! MIOpen: convolutions in immediate mode, computed on the host in the order of the handle's stream.
//!
//! Arguments are checked at the call with MIOpen's status codes. Whether tensors and workspaces lie in live memory of
//! the device shows when the work runs: a failure surfaces like a kernel fault, at the stream's next synchronising
//! call. Everything is summed in f64 and rounded once.
//!
//! Solutions have the numbers and conditions of some of AMD's. They differ in what they ask for and how fast they say
//! they are, not in what they compute.
//!
//! # Safety
//! As in C: host pointers must be null or valid for what the function reads or writes through them.
//! Handles, descriptors and device addresses may be anything; those that are not live are errors.
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
