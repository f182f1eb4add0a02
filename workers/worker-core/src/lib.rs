//! The shared parts of the workers: HTTP, jobs, streams, metrics, devices, shutdown.
//!
//! This crate is independent of the kind of model. A worker builds an [`App`] from its routes, parses
//! [`ServerArguments`] together with its own arguments, and calls [`serve`]:
//!
//! ```no_run
//! use axum::{Json, Router, routing::post};
//! use worker_core::body::required;
//! use worker_core::{ApiError, App, Body, Lifecycle, Metrics, ServerArguments, fields, logging, serve};
//!
//! #[derive(clap::Parser)]
//! struct Arguments {
//!     #[command(flatten)]
//!     server: ServerArguments,
//! }
//!
//! fields! {
//!     struct LengthRequest => { text: String, }
//! }
//!
//! async fn length(Body(request): Body<LengthRequest>) -> Result<Json<usize>, ApiError> {
//!     Ok(Json(required(request.text, "text")?.len()))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let arguments: Arguments = worker_core::arguments::parse(&[("port", "8081")]);
//!     logging::init(&arguments.server)?;
//!     let lifecycle = Lifecycle::new();
//!     lifecycle.ready();
//!     let app = App::new(Router::new().route("/length", post(length)), lifecycle, Metrics::new());
//!     Ok(serve(app, &arguments.server).await?)
//! }
//! ```

mod admission;
mod advertise;
pub mod api;
pub mod arguments;
pub mod auth;
pub mod body;
mod connections;
pub mod device;
pub mod error;
mod guarded;
pub mod heartbeat;
pub mod hub;
pub mod jobs;
pub mod lifecycle;
pub mod logging;
pub mod memory;
pub mod metrics;
mod model_location;
mod origin;
pub mod page;
pub mod post;
pub mod process;
pub mod progress;
pub mod routes;
pub mod server;
pub mod sse;
mod unread;
mod writes;

pub use admission::{Client, WorkPermit};
pub use api::{Api, LoadedModel, ModelEntry, ModelName, blocking, unix_seconds};
pub use arguments::ServerArguments;
pub use body::Body;
pub use error::ApiError;
pub use jobs::{Job, Jobs};
pub use lifecycle::Lifecycle;
pub use metrics::Metrics;
pub use model_location::ModelLocation;
pub use routes::App;
pub use server::serve;
