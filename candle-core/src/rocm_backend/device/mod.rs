//! A GPU as Candle sees it: what is loaded on it, and launching kernels.
//!
//! | file | subject |
//! |---|---|
//! | `device` | opening a GPU, its streams, its memory, and what higher floors attach to it |
//! | `attachments` | the list of what is attached |
//! | `kernels`, `launch` | the shipped kernels by number, and launching them |
//! | `custom` | kernels of the caller's own |
//! | `faults` | indices out of range that kernels report |
//! | `memory` | what users ask of device memory, and set |
//! | `properties` | what is asked of a GPU without opening it |
//! | `availability`, `doctor` | asking before opening, and what a report needs |
mod attachments;
mod availability;
mod custom;
#[allow(clippy::module_inception, reason = "the type that gives the folder its name")]
mod device;
mod doctor;
mod faults;
mod kernels;
mod launch;
mod memory;
mod properties;

pub use custom::{KernelArg, Launch, RocmKernel};
pub(crate) use device::{Attachment, DeviceState, Rng};
pub use device::{DeviceId, RocmDevice};
pub use doctor::{GpuReport, LibraryReport, Report};
pub use launch::LaunchConfig;
pub(crate) use launch::{max_elements, set_max_elements};
