//! The lowest floor: a stream of a GPU, the memory that is handed out in its order, and moving data.
//!
//! | file | subject |
//! |---|---|
//! | `handle` | HIP's stream: binding the GPU to a thread, checking calls, waiting |
//! | `stream` | a stream with what belongs to it, and its order among others |
//! | `wait` | waiting for good, or until a deadline |
//! | `memory` | device memory that is reused without asking the driver |
//! | `buffer`, `element` | typed device memory, and the types it may hold |
//! | `copy`, `staging` | host to device and back, within a device, between devices |
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
pub(super) use copy::{across, clear, download, upload};
pub use element::{DeviceElement, ZeroableElement};
pub(super) use handle::{check, StreamId};
pub(super) use memory::Allocation;
pub(super) use stream::{HeldLaunches, Stream};
pub use wait::DEADLINE_VARIABLE;
