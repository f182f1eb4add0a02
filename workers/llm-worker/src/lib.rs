//! An OpenAI-compatible server of language models.
//!
//! | file or folder | subject |
//! |---|---|
//! | `run` | the life of the process, and from arguments to a model that is warm |
//! | `arguments` | the command line |
//! | `fetch` | the files of a model on the Hub |
//! | `served` | the model as handlers know it |
//! | `routes` | everything that is answered |
//! | `api/` | OpenAI's API |
//! | `jobs` | the API of jobs |
//! | `page/` | the chat page |
//! | `metrics` | what Prometheus reads |
pub mod api;
pub mod arguments;
pub mod fetch;
pub mod jobs;
pub mod metrics;
pub mod page;
pub mod routes;
pub mod run;
pub mod served;
