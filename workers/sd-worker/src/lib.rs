//! Pictures by Stable Diffusion: 1.5, 2.1, XL and their Turbo versions, from folders in diffusers' layout.
//!
//! * [`model`]: a folder's tokenizers, text encoders, UNet and VAE on a device
//! * [`schedulers`]: the steps from noise to a picture, their coefficients computed in f64 on the host
//! * [`pipeline`]: text to image, image to image, inpainting
//! * [`picture`]: RGB pictures and masks, to and from PNG, JPEG and WebP
//!
//! Building blocks are candle-transformers'. What is put together from them here, and not taken whole, says why.
//! All random numbers are drawn on the host from the seed, so that one seed means one picture on every device.

mod error;
pub mod model;
pub mod picture;
pub mod pipeline;
pub mod schedulers;

pub use error::{Error, Result};
