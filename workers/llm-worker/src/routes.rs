//! All routes of the worker.
use axum::Router;
use worker_core::device::DeviceKind;
use worker_core::{App, Metrics, api as shared};

use crate::models::Api;
use crate::{api, jobs, page};

/// Builds the application; `worker_id` is the worker's name. The model may be loaded later.
pub fn app(api: &Api, metrics: Metrics, worker_id: &str, kind: DeviceKind) -> App {
    let package = env!("CARGO_PKG_NAME");
    let router = Router::new()
        .merge(api::router(api.clone()))
        .merge(shared::models(api, package))
        .merge(jobs::router(api.clone(), worker_id.to_owned()))
        .merge(page::page().router());
    let drained = api.clone();
    App::new(router, api.lifecycle.clone(), metrics)
        .public_path("/")
        .doctor_of(kind, package)
        .error_format(api::MESSAGES, api::messages_error)
        .on_drain(move || {
            if let Ok(served) = drained.served() {
                served.loaded().for_each(|served| served.engine.drain());
            }
        })
}
