//! Convolutions of (batch, channel, length) and (batch, channel, height, width): plain, transposed, and of the weights.
//!
//! | file | subject |
//! |---|---|
//! | `gradients` | a convolution as one operation of a graph |
//! | `convolve` | Candle's four convolutions; whether MIOpen or our kernels compute a shape |
//! | `output`, `input`, `weights` | our kernels for each direction, which are one another's gradients |
//! | `tiles`, `direct` | products on matrix tiles, and one kernel that goes through the windows |
//! | `shape`, `operand`, `pieces` | sizes, operands, and bounds for what is made beside a result |
mod convolve;
mod direct;
mod gradients;
mod input;
mod operand;
mod output;
mod pieces;
mod shape;
mod tiles;
mod weights;

pub(crate) use convolve::{conv1d, conv2d, conv_transpose1d, conv_transpose2d};
pub use gradients::{conv1d_with_bias, conv2d_with_bias};
pub(crate) use gradients::{whole_conv1d, whole_conv2d, whole_conv_transpose1d, whole_conv_transpose2d};
pub(crate) use operand::{fits_32_bits, flat};
