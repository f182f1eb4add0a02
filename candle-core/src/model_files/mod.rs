//! Validation for the readers of model files, which may be truncated or malicious.
//!
//! Upstream's readers of GGUF, GGML, imatrix and safetensors files call these functions, on every
//! device; `rocmify`'s reader rules insert the calls. An invalid file returns one error that names
//! the tensor and the field. Before a reader allocates memory for a length, it checks that the file
//! has that many bytes.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod blocks;
mod fields;
mod gguf;
mod safetensors;

pub(crate) use blocks::{blocks, blocks_of_tensor, size_in_bytes};
pub(crate) use fields::{in_file, in_tensor, read_fields, FieldReader};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use gguf::check_merges;
pub(crate) use gguf::{check_tensors, checked_alignment, reserve_values};
pub(crate) use safetensors::deserialize;
