//! OpenAI-compatible server for language models.
//!
//! | file or folder | subject |
//! |---|---|
//! | `run` | process entry point; loading and warming up of the model |
//! | `arguments` | command line |
//! | `speculative` | value of `--speculative-config` |
//! | `lora_modules` | value of `--lora-modules` |
//! | `adapters` | loaded adapters by name |
//! | `fetch` | model files on the Hugging Face Hub |
//! | `identity` | names and chat template of the served model |
//! | `models` | the models of the worker, loaded at start or on demand |
//! | `picture_options` | limits of the pictures of requests |
//! | `served` | state of a loaded model |
//! | `ranks` | devices of a model that is divided among several GPUs |
//! | `routes` | all routes |
//! | `api/` | OpenAI's API |
//! | `jobs` | job API |
//! | `kv_events` | events of the prefix cache over ZeroMQ |
//! | `page/` | chat page |
//! | `metrics` | Prometheus metrics |
pub mod adapters;
pub mod api;
pub mod arguments;
pub mod fetch;
pub mod identity;
pub mod jobs;
pub mod kv_events;
pub mod lora_modules;
pub mod metrics;
pub mod models;
pub mod page;
pub mod picture_options;
pub mod presets;
pub mod ranks;
pub mod routes;
pub mod run;
pub mod served;
pub mod speculative;
