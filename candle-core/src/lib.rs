//! candle-core 0.11.1 with ROCm as a device.
//!
//! At build time, the crate `rocmify` copies upstream's published source and adds a ROCm counterpart
//! wherever it names CUDA. The modules declared below are written by hand. `candle_core` is used as
//! upstream documents it; [`Device::new_rocm`] opens a ROCm device like [`Device::new_cuda`] a CUDA device:
//!
//! ```rust
//! use candle_core::{Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::rocm_if_available(0)?;
//! let a = Tensor::arange(0f32, 6f32, &device)?.reshape((2, 3))?;
//! let b = Tensor::arange(0f32, 12f32, &device)?.reshape((3, 4))?;
//! assert_eq!(a.matmul(&b)?.to_vec2::<f32>()?[0], [20., 23., 26., 29.]);
//! # Ok(())
//! # }
//! ```

include!(concat!(env!("OUT_DIR"), "/upstream/lib.rs"));
mod model_files;
mod mxfp4;
#[cfg(feature = "rocm")]
mod quantized_rocm;
#[cfg(feature = "rocm")]
pub mod rocm_backend;
mod sizes;
