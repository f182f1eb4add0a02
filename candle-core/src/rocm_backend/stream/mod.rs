//! The lowest layer: a stream of a GPU, its memory, and copies.
//!
//! | file | subject |
//! |---|---|
//! | `handle` | a HIP stream: binding its GPU to a thread, checking calls, waiting |
//! | `stream` | a stream with its memory, upload ring and deferred launches, and its order relative to other streams |
//! | `wait` | waiting, with or without a deadline |
//! | `memory` | the caching allocator for device memory |
//! | `buffer`, `element` | typed device memory, and the types it can hold |
//! | `copy`, `staging` | copies between host and device, within a device, and between devices |
mod buffer;
mod copy;
mod element;
mod handle;
pub(super) mod memory;
mod staging;
#[allow(clippy::module_inception, reason = "the type that gives the folder its name")]
mod stream;
mod wait;

pub use buffer::Buffer;
pub(super) use copy::{clear, copy_to_stream, download, upload};
pub use element::{DeviceElement, ZeroableElement};
pub(super) use handle::{check, StreamId};
pub(super) use memory::Allocation;
pub(super) use stream::{DeferredLaunches, Stream};
pub use wait::DEADLINE_VARIABLE;
