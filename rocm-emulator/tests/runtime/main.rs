//! Tests of the HIP functions, called like from a C program, on three software GPUs.
mod archs;
mod devices;
mod faults;
mod gpu;
mod graphs;
#[path = "../../../tests/common/injected.rs"]
mod injected;
mod injection;
mod launches;
mod memory;
mod modules;
mod parts;
mod streams;
