//! Everything that is answered.
use axum::Router;
use worker_core::{App, Metrics};

use crate::callback::Callback;
use crate::pipeline::Bounds;
use crate::served::Api;
use crate::{jobs, openai, page};
use worker_core::device::{self, DeviceKind};

/// What the routes have to know of the worker before there is a model.
#[derive(Clone)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// Its device.
    pub kind: DeviceKind,
    /// Who is told how jobs ended.
    pub callback: Option<Callback>,
    /// What a request may ask at most.
    pub bounds: Bounds,
    /// Steps from one preview to the next; 0: none.
    pub preview_every: usize,
}

/// The worker as it is served. The model may come later.
pub fn app(api: &Api, metrics: Metrics, worker: Worker) -> App {
    let Worker { id, kind, callback, bounds, preview_every } = worker;
    let router = Router::new()
        .merge(openai::router(api.clone()))
        .merge(jobs::router(api.clone(), &id, callback, (bounds, preview_every)))
        .merge(page::router());
    App::new(router, api.lifecycle.clone(), metrics)
        .open("/")
        .doctor(move || device::doctor(kind, &kind.binary(env!("CARGO_PKG_NAME"))))
}
