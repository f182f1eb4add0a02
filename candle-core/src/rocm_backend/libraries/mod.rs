//! AMD's libraries: their handles, and the algorithm chosen for each shape. All are stored as attachments of a device.
//!
//! | file | subject |
//! |---|---|
//! | `rocblas` | the rocBLAS handle, and whether it has kernels for the GPU |
//! | `hipblaslt` | matrix products with a bias by hipBLASLt |
//! | `convolutions`, `convolution_shape`, `convolution_choices` | the choice between MIOpen and the built-in kernels, and its tuning cache |
//! | `miopen` | wrapper for MIOpen's immediate mode |
//! | `owned` | owned handles and descriptors, and the failures of calls |
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
pub(crate) use convolutions::{Candidate, ConvBackend, Plan};
pub(crate) use hipblaslt::EpilogueProduct;
pub use hipblaslt::LIBRARY_VARIABLE as PRODUCT_LIBRARY_VARIABLE;
pub(crate) use rocblas::ProductLibrary;
