//! Devices, their loaded kernels, and kernel launches.
//!
//! | file | subject |
//! |---|---|
//! | `device` | opening a GPU, its stream, copies, and state attached by higher layers |
//! | `attachments` | the append-only list of attachments |
//! | `kernels`, `launch` | built-in kernels: loading and launching |
//! | `custom` | user-supplied kernels |
//! | `graph`, `graph_faults` | graphs: capturing and replaying work, and known faults of drivers |
//! | `faults` | out-of-range indices reported by kernels |
//! | `memory` | public queries and settings of device memory |
//! | `properties` | properties of a GPU that can be read without opening it |
//! | `availability`, `doctor` | checks before a device is used, and the diagnostic report |
//! | `traps` | known problems of kernels, firmware, ROCm's versions and variables |
mod attachments;
mod availability;
mod custom;
#[allow(clippy::module_inception, reason = "the type that gives the folder its name")]
mod device;
mod doctor;
mod faults;
mod graph;
mod graph_faults;
mod kernels;
mod launch;
mod memory;
mod properties;
mod traps;

pub use custom::{KernelArg, Launch, RocmKernel};
pub(crate) use device::{Attachment, DeviceState, Rng};
pub use device::{DeviceId, RocmDevice};
pub use doctor::{GpuReport, LibraryReport, Report};
pub use graph::{RocmGraph, RocmGraphMemory};
pub use graph_faults::{GraphState, GRAPHS_VARIABLE};
pub use launch::LaunchConfig;
pub(crate) use launch::{max_elements, set_max_elements, Order};
pub use traps::KnownProblem;
