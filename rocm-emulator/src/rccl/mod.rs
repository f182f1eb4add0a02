//! RCCL: operations between the ranks of a communicator, which are devices of this process or of several processes.
//!
//! The ranks share a segment of memory. A collective operation is a command of each rank's stream: all ranks publish a
//! part of their data, each computes its own result from all parts, and the next part follows. Sums are computed in the
//! order of the ranks, f16 and bf16 in f32 and rounded once, so that results do not depend on timing.
//!
//! Only non-blocking communicators are supported. A rank that has ended, has aborted, or disagrees about an operation is
//! reported by `ncclCommGetAsyncError` of the others, with its number in `ncclGetLastError`. As with the real library,
//! an operation of a failed communicator keeps its stream waiting until `ncclCommAbort`.
//!
//! # Safety
//! As in C, host pointers must be null or valid for the function's reads and writes. Handles and device addresses may
//! have any value; invalid ones cause errors.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod call;
mod communicator;
mod exchange;
mod functions;
mod reduce;
mod segment;
mod types;
mod work;

pub use functions::*;
pub use types::{Config, Status, UniqueId, status_name};
