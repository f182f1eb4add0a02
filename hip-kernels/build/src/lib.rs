//! Compiles CUDA sources to AMD code objects: translates the kernels of `candle-kernels` ([`hipify`]), compiles every module
//! for every target with a clang that supports AMDGPU ([`compiler`]), and reads the resource usage of each kernel
//! ([`resources`]).
//!
//! The build script of `hip-kernels` uses it. To run it manually:
//! `cargo run -p hip-kernels-build -- --archs gfx90a,gfx11-generic`.

pub mod bindings;
pub mod check;
pub mod comparison;
pub mod compiler;
#[path = "../../../candle-kernels/contract/mod.rs"]
pub mod contract;
pub mod embed;
mod error;
pub mod hipify;
mod lexer;
pub mod nvidia;
pub mod pipeline;
pub mod resources;
pub mod sources;
pub mod target;

pub use error::BuildError;
pub use pipeline::{BuiltObject, Failure, Options, Progress, Report, build};
pub use target::Target;
