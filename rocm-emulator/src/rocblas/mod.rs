//! rocBLAS: handles and matrix products, computed on the host in the order of the handle's stream.
//!
//! Arguments are checked during the call and reported with rocBLAS' status codes. The matrices' memory is checked when
//! the work runs; a failure is reported like a kernel fault, by the stream's next synchronizing call. f16, bf16 and i8
//! are widened, computed in f32 or i32, and rounded once. Matrices are column-major.
//!
//! # Safety
//! As in C, host pointers must be null or valid for the function's reads and writes. Handles and device addresses may
//! have any value; invalid ones cause errors.
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
