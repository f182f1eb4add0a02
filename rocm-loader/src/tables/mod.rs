//! The forwarded functions, one table per library. Their prototypes are rocm-rs' own.
#![allow(non_snake_case)] // C's parameter names

pub mod hip;
pub mod miopen;
pub mod rocblas;
