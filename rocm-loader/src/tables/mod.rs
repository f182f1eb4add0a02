//! The forwarded functions, one table per library. Their prototypes are rocm-rs' own, but for hipBLASLt, which it
//! does not declare.
#![allow(non_snake_case)] // C's parameter names

pub mod hip;
pub mod hipblaslt;
pub mod miopen;
pub mod rocblas;
