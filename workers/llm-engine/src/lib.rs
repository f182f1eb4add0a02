//! Serves language models: many requests in one batch over a paged cache of keys and values. Knows nothing of HTTP.
//!
//! | file or folder | subject |
//! |---|---|
//! | `request` | what is asked, and what comes back |
//! | `engine/` | the thread that owns the model; the handle to it; the scheduler; blocks of the cache |
//! | `step` | what one step computes: the door between engine and model |
//! | `model/` | decoders: configurations, weights, layers, attention over pages |
//! | `sampling/` | the next tokens of a batch, on the device |
//! | `text/` | tokens to text and back, chat templates, stop strings, grammars |
pub mod engine;
pub mod model;
pub mod request;
pub mod sampling;
pub mod step;
pub mod text;
