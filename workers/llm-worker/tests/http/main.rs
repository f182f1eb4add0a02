//! HTTP tests of the whole API, over a tiny random Llama on the CPU.
mod answers;
mod errors;
mod extensions;
mod fixture;
mod fuzz;
mod jobs;
mod limits;
mod page;
mod settings;
#[path = "../../../worker-core/tests/shared/mod.rs"]
mod shared;
mod templates;
mod tiny_llama;
