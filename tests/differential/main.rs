//! Every operation on ROCm against the CPU device: random cases, the table of what is supported, and the
//! calls of HIP. All three walk the table in `ops`. docs/testing.md says how to use them.
#![cfg(feature = "rocm-emulator")]
mod calls;
mod case;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod devices;
mod fuzz;
mod ops;
mod strategy;
mod support;
mod values;
