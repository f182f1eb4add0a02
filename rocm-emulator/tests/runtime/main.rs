//! The HIP functions as a C program calls them, on two software GPUs.
mod devices;
mod faults;
mod gpu;
mod launches;
mod memory;
mod modules;
mod streams;
