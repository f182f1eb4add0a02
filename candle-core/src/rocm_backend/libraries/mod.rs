//! AMD's libraries on a device: their handles, and what was chosen for a shape. Each attaches itself to the device.
//!
//! | file | subject |
//! |---|---|
//! | `rocblas` | the handle of rocBLAS, and whether it has kernels for the GPU |
//! | `hipblaslt` | hipBLASLt's products with a bias |
//! | `convolutions`, `convolution_shape`, `convolution_choices` | whether MIOpen or our kernels compute a convolution, and what was measured |
//! | `miopen` | MIOpen's immediate mode |
//! | `owned` | handles and descriptors, and the failures of calls |
mod convolution_choices;
mod convolution_shape;
mod convolutions;
mod hipblaslt;
mod miopen;
mod owned;
mod rocblas;

pub(crate) use convolution_choices::ConvMethod;
pub use convolution_choices::CACHE_VARIABLE as CONV_CACHE_VARIABLE;
pub(crate) use convolution_shape::{Axis, ConvShape, Direction};
pub use convolutions::{
    conv_workspace, set_conv_library, set_conv_tiles, set_conv_tuning, set_conv_workspace,
    LIBRARY_VARIABLE as CONV_LIBRARY_VARIABLE, TUNE_VARIABLE as CONV_TUNE_VARIABLE,
    WORKSPACE_VARIABLE as CONV_WORKSPACE_VARIABLE,
};
pub(crate) use convolutions::{Candidate, Computed, Plan};
pub(crate) use hipblaslt::BiasedProduct;
pub use hipblaslt::LIBRARY_VARIABLE as PRODUCT_LIBRARY_VARIABLE;
pub(crate) use rocblas::ProductLibrary;
