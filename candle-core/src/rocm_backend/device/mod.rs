//! A GPU as Candle sees it: what is loaded on it, and launching kernels.
//!
//! | file | subject |
//! |---|---|
//! | `device` | opening a GPU, its streams, its memory |
//! | `kernels`, `launch` | the shipped kernels by number, and launching them |
//! | `deferred` | work that is held back so that several launches become one |
//! | `custom` | kernels of the caller's own |
//! | `faults` | indices out of range that kernels report |
//! | `convolutions`, `convolution_shape`, `convolution_choices` | whether MIOpen or our kernels compute a convolution, and what was measured |
//! | `miopen` | MIOpen's immediate mode |
//! | `blaslt` | hipBLASLt's products with a bias |
//! | `products` | the handle of rocBLAS, and whether it has kernels for the GPU |
//! | `memory` | what users ask of device memory, and set |
//! | `properties` | what is asked of a GPU without opening it |
//! | `availability`, `doctor` | asking before opening, and what a report needs |
mod availability;
mod blaslt;
mod convolution_choices;
mod convolution_shape;
mod convolutions;
mod custom;
mod deferred;
#[allow(clippy::module_inception, reason = "the type that gives the folder its name")]
mod device;
mod doctor;
mod faults;
mod kernels;
mod launch;
mod memory;
mod miopen;
mod products;
mod properties;

pub(crate) use blaslt::BiasedProduct;
pub use blaslt::LIBRARY_VARIABLE as PRODUCT_LIBRARY_VARIABLE;
pub(crate) use convolution_choices::Way;
pub use convolution_choices::CACHE_VARIABLE as CONV_CACHE_VARIABLE;
pub(crate) use convolution_shape::{Axis, ConvShape, Direction};
pub use convolutions::{
    conv_workspace, set_conv_library, set_conv_tiles, set_conv_tuning, set_conv_workspace,
    LIBRARY_VARIABLE as CONV_LIBRARY_VARIABLE, TUNE_VARIABLE as CONV_TUNE_VARIABLE,
    WORKSPACE_VARIABLE as CONV_WORKSPACE_VARIABLE,
};
pub(crate) use convolutions::{Candidate, Computed, Plan};
pub use custom::{KernelArg, Launch, RocmKernel};
pub(crate) use deferred::{activation_bytes, Groups, RowProduct};
pub use device::{DeviceId, RocmDevice};
pub(crate) use device::{DeviceState, Rng};
pub use doctor::{GpuReport, LibraryReport, Report};
pub use launch::LaunchConfig;
pub(crate) use launch::{max_elements, set_max_elements};
pub(crate) use products::ProductLibrary;
