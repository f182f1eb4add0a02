//! Everything that is answered.
use axum::Router;
use worker_core::device::DeviceKind;
use worker_core::{App, Metrics, api as shared};

use crate::callback::Callback;
use crate::pipeline::Bounds;
use crate::served::Api;
use crate::{jobs, openai, page};

/// Describes the worker before there is a model.
#[derive(Clone)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// Its device.
    pub kind: DeviceKind,
    /// Where the ends of jobs are reported.
    pub callback: Option<Callback>,
    /// What a request may ask at most.
    pub bounds: Bounds,
    /// Steps from one preview to the next; 0: none.
    pub preview_every: usize,
}

/// The worker as it is served. The model may come later.
pub fn app(api: &Api, metrics: Metrics, worker: Worker) -> App {
    let Worker { id, kind, callback, bounds, preview_every } = worker;
    let package = env!("CARGO_PKG_NAME");
    let router = Router::new()
        .merge(openai::router(api.clone()))
        .merge(shared::models(api, package))
        .merge(jobs::router(api.clone(), &id, callback, (bounds, preview_every)))
        .merge(page::page().router());
    App::new(router, api.lifecycle.clone(), metrics).open("/").doctor_of(kind, package)
}
