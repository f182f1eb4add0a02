//! The life of the process.
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use worker_core::device::{self, DeviceKind};
use worker_core::heartbeat::{self, Beat};
use worker_core::{Lifecycle, Metrics, arguments, process, serve};

use llm_engine::engine::said;

use crate::api::Api;
use crate::arguments::{Arguments, DEFAULTS};
use crate::{loading, routes};

/// How often the engine is asked whether it has failed.
const WATCH: Duration = Duration::from_millis(500);

/// A worker from its command line to its end: 0 where it was told to end, 1 where it could not work.
pub fn main(kind: DeviceKind) -> ExitCode {
    let arguments: Arguments = arguments::parse(&DEFAULTS);
    let server = arguments.server.clone();
    process::run(&server, live(kind, arguments))
}

async fn live(kind: DeviceKind, arguments: Arguments) -> Result<()> {
    let (lifecycle, metrics) = (Lifecycle::new(), Metrics::new());
    let api = Api::new(lifecycle.clone());
    let server = arguments.server.clone();
    let app = routes::app(&api, metrics.clone(), &server.worker_id, kind);
    let (told, worker_id) = (api.clone(), server.worker_id.clone());
    let (app, beating) =
        heartbeat::of_app(app, &server, move |address| beat(&told, &worker_id, kind, address));
    load(kind, arguments, &api, metrics)?;
    let served = serve(app, &server).await;
    beating.stop();
    let stopped = api.served().map_or(true, |served| served.engine.stop_within(process::PATIENCE));
    served?;
    ensure!(stopped, "a step did not end within {} s: look after the device", process::PATIENCE.as_secs());
    Ok(())
}

/// Loads on a thread, then watches over the engine; a worker that cannot load, or whose engine has failed, is lost.
fn load(kind: DeviceKind, arguments: Arguments, api: &Api, metrics: Metrics) -> Result<()> {
    let api = api.clone();
    let watch = tokio::runtime::Handle::current();
    let bring_up = move || match loading::bring_up(&arguments, kind, &api, &metrics) {
        Ok(served) => {
            watch.spawn(async move {
                let mut pause = tokio::time::interval(WATCH);
                while !served.note_failure() {
                    pause.tick().await;
                }
            });
        }
        Err(error) => {
            tracing::error!("{error:#}");
            api.lifecycle.lost(format!(
                "{} cannot serve: {}",
                kind.binary(env!("CARGO_PKG_NAME")),
                said(&error)
            ));
        }
    };
    thread::Builder::new()
        .name("loading".to_owned())
        .spawn(bring_up)
        .context("the system has no thread to give")?;
    Ok(())
}

/// What the hive is told.
fn beat(api: &Api, worker_id: &str, kind: DeviceKind, address: SocketAddr) -> Beat {
    let served = api.served().ok();
    let status = served.as_ref().map(|served| served.engine.status()).unwrap_or_default();
    Beat {
        worker_id: worker_id.to_owned(),
        kind: kind.binary(env!("CARGO_PKG_NAME")),
        models: served.iter().map(|served| served.name.clone()).collect(),
        address: address.to_string(),
        ready: api.lifecycle.is_ready(),
        running: status.running,
        waiting: status.waiting,
        vram_bytes: served.map_or(0, |served| device::vram_bytes(&served.opened.device)),
    }
}
