//! Compares every operation on ROCm with the CPU device: random cases, the table of supported dtypes, and the
//! number of HIP calls. All three use the operation table in `ops`. docs/contributing/testing.md explains how to run them.
#![cfg(feature = "rocm-emulator")]
mod calls;
mod case;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod devices;
mod fuzz;
mod graphs;
mod ops;
mod strategy;
mod support;
mod values;
