//! Tests readers of model files with truncated, damaged and invalid files. Each must give one error that
//! names tensor and field, without panics, endless reading, or allocations for a length that exceeds the
//! file.
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

/// Checks that `result` is an error whose text contains all of these words.
#[track_caller]
fn assert_error<T: Debug>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(read) => panic!("expected an error with {words:?}, got {read:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}
