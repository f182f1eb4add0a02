//! HTTP routes of the worker.
use axum::Router;
use worker_core::device::DeviceKind;
use worker_core::{App, Metrics, api as shared};

use crate::callback::Callback;
use crate::models::Api;
use crate::pipeline::Bounds;
use crate::{jobs, openai, page, sdapi};

/// Settings of the worker that are known before the model is loaded.
#[derive(Clone)]
pub struct Worker {
    /// Name of the worker.
    pub id: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Callback for results of jobs.
    pub callback: Option<Callback>,
    /// Limits of a request.
    pub bounds: Bounds,
    /// Number of steps between previews; 0 disables previews.
    pub preview_every: usize,
}

/// Creates the application. The model can be set later.
pub fn app(api: &Api, metrics: Metrics, worker: Worker) -> App {
    let Worker { id, kind, callback, bounds, preview_every } = worker;
    let package = env!("CARGO_PKG_NAME");
    let router = Router::new()
        .merge(openai::router(api.clone()))
        .merge(sdapi::router(api.clone()))
        .merge(shared::models(api, package))
        .merge(jobs::router(api.clone(), &id, callback, (bounds, preview_every)))
        .merge(page::page().router());
    App::new(router, api.lifecycle.clone(), metrics).public_path("/").doctor_of(kind, package)
}
