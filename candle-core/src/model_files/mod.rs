//! What the readers of model files check before they believe a number that a file holds.
//!
//! Upstream's readers of GGUF, GGML, imatrix and safetensors files call these functions, on every
//! device, at the places that `rocmify`'s reader rules name. What is wrong with a file is one error
//! that names the tensor and the field; nothing is allocated for a length before the file was seen to
//! hold that much.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod blocks;
mod fields;
mod gguf;
mod safetensors;

pub(crate) use blocks::{blocks, blocks_of_tensor, size_in_bytes};
pub(crate) use fields::{in_file, in_tensor, read_fields, FieldReader};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use gguf::check_merges;
pub(crate) use gguf::{check_tensors, checked_alignment, room_for};
pub(crate) use safetensors::deserialize;
