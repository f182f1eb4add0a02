//! Main program of a worker: arguments, background loading, serving, and shutdown within a time limit.

use crate::api::{Api, LoadedModel};
use crate::device::{self, DeviceKind};
use crate::heartbeat::{self, Report};
use crate::progress::Progress;
use crate::{App, Lifecycle, Metrics, ServerArguments, arguments, logging, serve};
use anyhow::{Context, Result, anyhow, ensure};
use clap::{CommandFactory, FromArgMatches};
use model_thread::{catch_panic, error_summary};
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Worker-specific parts of the main program.
pub trait Worker: 'static {
    /// Command-line arguments.
    type Arguments: CommandFactory + FromArgMatches + Send + 'static;
    /// Loaded model.
    type Model: LoadedModel;
    /// Name of the Cargo package.
    const PACKAGE: &'static str;
    /// Defaults that replace those of [`ServerArguments`].
    const DEFAULTS: &'static [(&'static str, &'static str)];

    /// Returns the arguments shared by all workers.
    fn server(arguments: &Self::Arguments) -> &ServerArguments;

    /// Creates the application. The model is added to `api` later.
    ///
    /// # Errors
    /// The system cannot start a thread.
    fn app(
        arguments: &Self::Arguments,
        kind: DeviceKind,
        api: &Api<Self::Model>,
        metrics: Metrics,
    ) -> Result<App>;

    /// Downloads, loads and warms up the model. This function blocks.
    ///
    /// # Errors
    /// Names the step that failed and the remedy.
    fn load(
        arguments: &Self::Arguments,
        kind: DeviceKind,
        metrics: &Metrics,
        progress: &Progress,
    ) -> Result<Self::Model>;
}

/// Runs a worker. Returns 0 after a requested shutdown; otherwise prints a one-line error and returns 1.
pub fn main<W: Worker>(kind: DeviceKind) -> ExitCode {
    let arguments: W::Arguments = arguments::parse(W::DEFAULTS);
    match run::<W>(kind, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Print a single line, because container logs are processed line by line.
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
    let runtime = runtime.context("the operating system cannot start threads")?;
    let ended = runtime.block_on(serve_until_shutdown::<W>(kind, arguments));
    runtime.shutdown_timeout(limit);
    ended
}

async fn serve_until_shutdown<W: Worker>(kind: DeviceKind, arguments: W::Arguments) -> Result<()> {
    let (api, metrics) = (Api::<W::Model>::new(Lifecycle::new()), Metrics::new());
    let server = W::server(&arguments).clone();
    let app = W::app(&arguments, kind, &api, metrics.clone())?;
    let (watched_api, worker_id) = (api.clone(), server.worker_id.clone());
    let program = kind.binary(W::PACKAGE);
    let beat = move |address| beat(&watched_api, &worker_id, &program, address);
    let (app, heartbeat) = heartbeat::attach(app, &server, beat);
    load::<W>(kind, arguments, api.clone(), metrics)?;
    let served = serve(app, &server).await;
    heartbeat.stop();
    let stopped = api.served().map_or(true, |served| served.stop_within(server.shutdown()));
    if tokio::time::timeout(server.shutdown(), api.lifecycle.idle()).await.is_err() {
        tracing::warn!("shutdown: not all finished jobs could be reported in time");
    }
    served?;
    let limit = server.shutdown_seconds;
    ensure!(
        stopped,
        "the current step did not finish within {limit} s of shutdown (--shutdown-seconds); check the device"
    );
    Ok(())
}

/// Starts loading on another thread. If loading fails, the worker fails permanently.
fn load<W: Worker>(
    kind: DeviceKind,
    arguments: W::Arguments,
    api: Api<W::Model>,
    metrics: Metrics,
) -> Result<()> {
    let load = move || {
        let progress = Progress::new(&api.lifecycle);
        let loaded = catch_panic(|| W::load(&arguments, kind, &metrics, &progress))
            .unwrap_or_else(|panic| Err(anyhow!("loading panicked: {panic}")));
        progress.finish();
        match loaded {
            Ok(served) => {
                let device = device::describe(&served.device().device);
                tracing::info!(models = served.names().join(", "), device, "loaded");
                api.serve(served);
                api.lifecycle.ready();
            }
            Err(error) => {
                // With RUST_BACKTRACE, Candle's errors end with a backtrace.
                let summary = error_summary(&error);
                tracing::error!("{summary}");
                tracing::debug!("{error:#}");
                api.lifecycle.fail(format!("{} cannot serve: {summary}", kind.binary(W::PACKAGE)));
            }
        }
    };
    let thread = std::thread::Builder::new().name("loading".to_owned()).spawn(load);
    thread.context("the operating system cannot start threads")?;
    Ok(())
}

fn beat<S: LoadedModel>(api: &Api<S>, worker_id: &str, program: &str, address: SocketAddr) -> Report {
    let served = api.served().ok();
    let [running, waiting] = served.as_ref().map(|served| served.requests()).unwrap_or_default();
    Report {
        worker_id: worker_id.to_owned(),
        kind: program.to_owned(),
        models: served.as_ref().map(|served| served.names()).unwrap_or_default(),
        address: address.to_string(),
        ready: api.lifecycle.is_ready(),
        running,
        waiting,
        vram_bytes: served.map_or(0, |served| device::vram_bytes(&served.device().device)),
    }
}
