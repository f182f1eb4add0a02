//! HTTP tests of the whole API, over a tiny random Llama on the CPU.
mod answers;
mod constraints;
mod errors;
mod extensions;
mod fixture;
mod fuzz;
mod jobs;
mod limits;
mod page;
mod scoring;
mod settings;
#[path = "../../../worker-core/tests/shared/mod.rs"]
mod shared;
mod tiny_llama;
