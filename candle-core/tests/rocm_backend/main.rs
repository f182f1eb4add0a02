//! Every operation of the ROCm backend, compared with the CPU device, on the software GPU or the driver that
//! `CANDLE_ROCM_DRIVER` selects.
#![cfg(feature = "rocm-emulator")]

// Files shared by the tests of several crates use this name.
extern crate candle_core as candle;

mod attention;
mod attention_formula;
mod concurrency;
mod conv;
mod conv_gradients;
mod copies;
mod elementwise;
mod errors;
mod families;
mod few;
mod fixture;
mod fused_experts;
mod fused_product;
mod fusion;
mod graphs;
mod indexing;
mod library;
mod matmul;
mod matmul_batches;
mod matmul_f8;
mod pool;
mod quantize;
mod quantized;
mod random;
mod reduce;
mod scan;
mod sort;
mod tiles;
mod upsample;
