//! rocBLAS: handles and matrix products, computed on the host in the order of the handle's stream.
//!
//! Arguments are checked at the call with rocBLAS' status codes. Whether the matrices lie in live
//! memory of the device shows when the work runs: a failure surfaces like a kernel fault, at the
//! stream's next synchronising call. f16, bf16 and i8 are widened, computed in f32 or i32, and
//! rounded once. Matrices are column-major.
//!
//! # Safety
//! As in C: host pointers must be null or valid for what the function reads or writes through them.
//! Handles and device addresses may be anything; those that are not live are errors.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

pub(crate) mod compute;
pub(crate) mod element;
mod functions;
pub(crate) mod handle;
pub(crate) mod problem;
pub(crate) mod types;

#[cfg(test)]
mod tests;

pub(crate) use element::{Element, Rounded};
pub use functions::*;
pub(crate) use handle::stream_on;
pub(crate) use problem::require;
pub use types::{Status, status_name};
