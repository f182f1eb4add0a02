//! The lowest floor: a stream of a GPU, the memory that is handed out in its order, and moving data.
//!
//! | file | subject |
//! |---|---|
//! | `stream` | binding the GPU to a thread, ordering streams, waiting |
//! | `wait` | waiting for good, or until a deadline |
//! | `memory` | device memory that is reused without asking the driver |
//! | `buffer`, `element` | typed device memory, and the types it may hold |
//! | `copy`, `staging` | host to device and back, within a device, between devices |
mod buffer;
mod copy;
mod element;
pub(super) mod memory;
mod staging;
#[allow(clippy::module_inception, reason = "the type that gives the folder its name")]
mod stream;
mod wait;

pub use buffer::Buffer;
pub(super) use copy::{across, clear, download, upload};
pub use element::{DeviceElement, ZeroableElement};
pub(super) use memory::Taken;
pub(super) use stream::{check, HeldLaunches, Stream, StreamId};
pub use wait::DEADLINE_VARIABLE;
