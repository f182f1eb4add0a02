//! Inference engine for language models: continuous batching over a paged key-value cache, without HTTP.
//!
//! | file or folder | subject |
//! |---|---|
//! | `request` | requests, events and errors of the engine |
//! | `engine/` | thread that owns the model, its handle, the scheduler, the block pool of the cache |
//! | `step` | input of one forward pass; the trait between engine and model |
//! | `model/` | decoders: configurations, weights, layers, paged attention |
//! | `sampling/` | batched sampling on the device |
//! | `text/` | tokenizers, chat templates, stop strings, grammars |
pub mod engine;
pub mod model;
pub mod request;
pub mod sampling;
pub mod step;
pub mod text;
