//! Model files that are cut off, damaged or made up: each is one error that names the tensor and the field.
//! No panic, no endless reading, no allocation for a length that the file cannot have.
mod bytes;
#[path = "../common/mod.rs"]
mod common;
mod device_memory;
mod fuzz;

mod ggml;
mod gguf;
mod imatrix;
mod memory;
mod safetensors;
mod tokenizer;

use std::fmt::Debug;

use candle_core::Result;

/// The text of the error that this must be. It holds all of these words.
#[track_caller]
fn assert_error<T: Debug>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(read) => panic!("{words:?} was expected, but this was read: {read:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}
