//! Everything that is answered.
use axum::Router;
use worker_core::{App, Lifecycle, Metrics};

use crate::api::{self, Api};
use crate::{jobs, page};
use worker_core::device::{self, DeviceKind};

/// The worker as it is served; `worker_id` is its name. The model may come later.
pub fn app(api: &Api, metrics: Metrics, worker_id: &str, kind: DeviceKind) -> App {
    let lifecycle: Lifecycle = api.lifecycle.clone();
    let router = Router::new()
        .merge(api::router(api.clone()))
        .merge(jobs::router(api.clone(), worker_id.to_owned()))
        .merge(page::router());
    let drained = api.clone();
    App::new(router, lifecycle, metrics)
        .open("/")
        .doctor(move || device::doctor(kind, &kind.binary(env!("CARGO_PKG_NAME"))))
        .on_drain(move || {
            if let Ok(served) = drained.served() {
                served.engine.drain();
            }
        })
}
