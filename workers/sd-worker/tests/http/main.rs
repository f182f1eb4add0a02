//! Tests of the complete HTTP API with a tiny random model on the CPU.
mod callback;
mod controlnets;
#[path = "../../../worker-core/tests/shared/deploy.rs"]
mod deploy;
mod errors;
mod faults;
mod fixture;
mod fuzz;
mod images;
mod jobs;
mod loras;
mod openai;
mod page;
mod queue;
mod refiner;
mod sdapi;
mod several_models;
#[path = "../../../worker-core/tests/shared/mod.rs"]
mod shared;
mod shared_steps;
#[path = "../tiny_model/mod.rs"]
mod tiny_model;
mod trained;
#[path = "../transformer/fixture.rs"]
mod transformer_models;
mod transformers;
