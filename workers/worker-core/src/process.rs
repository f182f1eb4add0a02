//! The life of a worker's process: arguments, loading beside the server, and an end within a time limit.

use crate::api::{Api, Served};
use crate::device::{self, DeviceKind};
use crate::heartbeat::{self, Beat};
use crate::progress::Progress;
use crate::{App, Lifecycle, Metrics, ServerArguments, arguments, logging, serve};
use anyhow::{Context, Result, ensure};
use clap::{CommandFactory, FromArgMatches};
use model_thread::error_summary;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// The parts that a worker adds to the life of a process.
pub trait Worker: 'static {
    /// Its command line.
    type Arguments: CommandFactory + FromArgMatches + Send + 'static;
    /// Its model.
    type Served: Served;
    /// Name of its package.
    const PACKAGE: &'static str;
    /// Its own defaults of [`ServerArguments`].
    const DEFAULTS: &'static [(&'static str, &'static str)];

    /// The arguments that every worker has.
    fn server(arguments: &Self::Arguments) -> &ServerArguments;

    /// The worker as it is served. The model comes later.
    ///
    /// # Errors
    /// The system cannot start a thread.
    fn app(
        arguments: &Self::Arguments,
        kind: DeviceKind,
        api: &Api<Self::Served>,
        metrics: Metrics,
    ) -> Result<App>;

    /// Fetches the model, loads it and computes something with it, so that it is ready. Takes its time.
    ///
    /// # Errors
    /// Says which step failed and what to do.
    fn load(
        arguments: &Self::Arguments,
        kind: DeviceKind,
        metrics: &Metrics,
        progress: &Progress,
    ) -> Result<Self::Served>;
}

/// Runs a worker to its end. Returns 0 where it was told to end, and 1, with a line that says why, where it could not work.
pub fn main<W: Worker>(kind: DeviceKind) -> ExitCode {
    let arguments: W::Arguments = arguments::parse(W::DEFAULTS);
    match run::<W>(kind, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: logs of containers are read by lines.
            eprintln!("error: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn run<W: Worker>(kind: DeviceKind, arguments: W::Arguments) -> Result<()> {
    let server = W::server(&arguments);
    logging::init(server)?;
    let limit = server.shutdown();
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("the system cannot start threads")?;
    let ended = runtime.block_on(live::<W>(kind, arguments));
    runtime.shutdown_timeout(limit);
    ended
}

async fn live<W: Worker>(kind: DeviceKind, arguments: W::Arguments) -> Result<()> {
    let (api, metrics) = (Api::<W::Served>::new(Lifecycle::new()), Metrics::new());
    let server = W::server(&arguments).clone();
    let app = W::app(&arguments, kind, &api, metrics.clone())?;
    let (watched, worker_id) = (api.clone(), server.worker_id.clone());
    let program = kind.binary(W::PACKAGE);
    let beat = move |address| beat(&watched, &worker_id, &program, address);
    let (app, beating) = heartbeat::of_app(app, &server, beat);
    load::<W>(kind, arguments, api.clone(), metrics)?;
    let served = serve(app, &server).await;
    beating.stop();
    let stopped = api.served().map_or(true, |served| served.stop_within(server.shutdown()));
    if tokio::time::timeout(server.shutdown(), api.lifecycle.idle()).await.is_err() {
        tracing::warn!("the worker ends before the ends of all jobs were reported");
    }
    served?;
    let limit = server.shutdown_seconds;
    ensure!(
        stopped,
        "a step did not end within {limit} s of shutdown (--shutdown-seconds): check the device"
    );
    Ok(())
}

/// Loads on a thread; a worker that cannot load has failed for good.
fn load<W: Worker>(
    kind: DeviceKind,
    arguments: W::Arguments,
    api: Api<W::Served>,
    metrics: Metrics,
) -> Result<()> {
    let load = move || {
        let progress = Progress::new(&api.lifecycle);
        match W::load(&arguments, kind, &metrics, &progress) {
            Ok(served) => {
                progress.finish();
                let on = device::describe(&served.device().device);
                tracing::info!(model = served.name().as_str(), on, "loaded");
                api.serve(served);
                api.lifecycle.ready();
            }
            Err(error) => {
                tracing::error!("{error:#}");
                let summary = error_summary(&error);
                api.lifecycle.fail(format!("{} cannot serve: {summary}", kind.binary(W::PACKAGE)));
            }
        }
    };
    let thread = std::thread::Builder::new().name("loading".to_owned()).spawn(load);
    thread.context("the system cannot start threads")?;
    Ok(())
}

/// Returns the report for the hive.
fn beat<S: Served>(api: &Api<S>, worker_id: &str, program: &str, address: SocketAddr) -> Beat {
    let served = api.served().ok();
    let [running, waiting] = served.as_ref().map(|served| served.requests()).unwrap_or_default();
    Beat {
        worker_id: worker_id.to_owned(),
        kind: program.to_owned(),
        models: served.iter().map(|served| served.name().as_str().to_owned()).collect(),
        address: address.to_string(),
        ready: api.lifecycle.is_ready(),
        running,
        waiting,
        vram_bytes: served.map_or(0, |served| device::vram_bytes(&served.device().device)),
    }
}
