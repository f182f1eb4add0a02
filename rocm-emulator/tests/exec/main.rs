//! Tests that run the fixtures' machine code and compare the results with plain Rust.
mod broken;
mod code_object;
mod faults;
mod gfx9;
mod matrix;
mod order;
mod profile;
mod raw_code;
mod results;
mod split_barriers;
mod waves;
mod wmma;
