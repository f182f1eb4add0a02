//! HTTP tests of the whole API, over a tiny random Llama on the CPU.
mod adapters;
mod agents;
mod answers;
mod anthropic;
mod constraints;
#[path = "../../../worker-core/tests/shared/deploy.rs"]
mod deploy;
mod embeddings;
mod errors;
mod extensions;
mod fixture;
mod fuzz;
mod isolation;
mod jobs;
mod limits;
mod page;
mod pictures;
mod responses;
mod scoring;
mod scripted;
mod settings;
mod several_models;
#[path = "../../../worker-core/tests/shared/mod.rs"]
mod shared;
mod speculation;
mod streams;
mod templates;
mod tiny_llama;
mod tokens;
mod tools;

#[global_allocator]
static ALLOCATOR: shared::allocations::Counting = shared::allocations::Counting;
