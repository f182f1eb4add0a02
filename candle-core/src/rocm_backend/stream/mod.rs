//! The lowest layer: a stream of a GPU, its memory, and copies.
//!
//! | file | subject |
//! |---|---|
//! | `handle` | a HIP stream: binding its GPU to a thread, checking calls, waiting |
//! | `stream` | a stream with its memory, rings for copies, and deferred launches, and its order relative to other streams |
//! | `wait` | waiting, with or without a deadline |
//! | `memory` | the caching allocator for device memory |
//! | `capture_id`, `capturing` | the graph capture of the calling thread, and the memory of a graph |
//! | `capture` | capturing the work of a stream into a graph |
//! | `buffer`, `element` | typed device memory, and the types it can hold |
//! | `copy`, `staging` | copies between host and device, within a device, and between devices |
mod buffer;
mod capture;
mod capture_id;
pub(super) mod capturing;
mod copy;
mod element;
mod handle;
pub(super) mod memory;
mod staging;
#[allow(clippy::module_inception, reason = "the type that gives the folder its name")]
mod stream;
mod wait;

pub use buffer::Buffer;
pub(super) use capture::{Capture, Captured};
pub(super) use capturing::{DeviceBlock, GraphMemory};
pub use copy::ReadBytes;
pub(super) use copy::{clear, copy_to_stream, download, upload, upload_files};
pub use element::{DeviceElement, ZeroableElement};
pub(super) use handle::{check, StreamId};
pub(super) use stream::{DeferredLaunches, Stream};
pub use wait::DEADLINE_VARIABLE;
pub(super) use wait::{seconds, WorkMonitor};
