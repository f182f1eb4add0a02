//! Convolutions, transposed convolutions and weight gradients in one and two dimensions.
//!
//! | file | subject |
//! |---|---|
//! | `gradients` | convolutions as operations of the autograd graph |
//! | `convolve` | Candle's four convolutions, by MIOpen or the built-in kernels |
//! | `output`, `input`, `weights` | the built-in algorithms for each direction |
//! | `rows` | products with an input that is unfolded along rows only |
//! | `tiles`, `direct` | implicit products on tiles, and direct convolution |
//! | `shape`, `operand` | sizes and operands |
//! | `unfolding`, `pieces` | unfolded inputs, and splitting of scratch memory into pieces |
mod convolve;
mod direct;
mod gradients;
mod input;
mod operand;
mod output;
mod pieces;
mod rows;
mod shape;
mod tiles;
mod unfolding;
mod weights;

pub(crate) use convolve::{conv1d, conv2d, conv_transpose1d, conv_transpose2d};
pub use gradients::{conv1d_with_bias, conv2d_with_bias};
pub(crate) use gradients::{
    grouped_conv1d, grouped_conv2d, grouped_conv_transpose1d, grouped_conv_transpose2d,
};
pub(crate) use operand::{fits_32_bits, flat};
