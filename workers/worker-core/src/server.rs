//! Listens, serves, and ends in order.

use crate::{App, Lifecycle, ServerArguments};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::ServiceExt;

/// Time that the last bytes have to leave after the deadline.
const FLUSH: Duration = Duration::from_secs(2);

/// Time during which `/ready` reports why the worker failed, and streams receive the error, before the end begins.
const FAILURE_NOTICE: Duration = Duration::from_secs(2);

/// Why the worker could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nobody can listen there.
    #[error(
        "cannot listen at {address}: {source}; is the port taken (--port), is the address this machine's (--host)?"
    )]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The file for the port cannot be written.
    #[error("cannot write the port to {}: {source}", path.display())]
    PortFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It can never work again: [`Lifecycle::fail`].
    #[error("{0}")]
    Failed(String),
    /// SIGTERM and SIGINT cannot be heard.
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
}

/// Serves until SIGTERM, SIGINT, [`Lifecycle::drain`] or [`Lifecycle::fail`]; prints the address it listens at.
///
/// Then readiness is off, POST gets 503, and what runs goes on until it is done or the time to drain is over;
/// what runs still is cut with an error. A second signal cuts at once.
///
/// # Errors
/// Before it serves: the address, the file for the port, the signals. At the end: the reason of [`Lifecycle::fail`].
pub async fn serve(mut app: App, arguments: &ServerArguments) -> Result<(), ServeError> {
    let address = SocketAddr::new(arguments.host, arguments.port);
    let bind = |source| ServeError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    let signals = signals(app.lifecycle.clone()).map_err(ServeError::Signals)?;
    if let Some(path) = &arguments.port_file {
        write_port(path, address.port())
            .map_err(|source| ServeError::PortFile { path: path.clone(), source })?;
    }
    if !address.ip().is_loopback() && arguments.api_token.is_none() {
        tracing::warn!(%address, "anyone who can reach this address can use the worker: set --api-token");
    }
    // Nobody may be reading; that is no reason to end.
    let _ = writeln!(io::stdout(), "{} listens at http://{address}", arguments.worker_id);
    tracing::info!(%address, worker_id = arguments.worker_id, "listening");
    if let Some(bound) = app.bound.take() {
        bound(address);
    }
    let signals = tokio::spawn(signals);
    let lifecycle = app.lifecycle.clone();
    run(listener, app, arguments).await;
    signals.abort();
    tracing::info!("ended");
    match lifecycle.failure() {
        Some(reason) => Err(ServeError::Failed(reason)),
        None => Ok(()),
    }
}

async fn run(mut listener: TcpListener, mut app: App, arguments: &ServerArguments) {
    let router = app.router(arguments);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(arguments.header_timeout())
        .max_header_size(arguments.header_limit);
    let mut connections = JoinSet::new();
    let graceful = GracefulShutdown::new();
    let drain = app.drain.take();
    let end = end(&app.lifecycle, drain, arguments.drain());
    tokio::pin!(end);
    loop {
        let (stream, peer) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut end => break,
        };
        while connections.try_join_next().is_some() {}
        // Tokens are small and each is awaited.
        let _ = stream.set_nodelay(true);
        let router = router.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            router.clone().oneshot(request)
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "a connection broke");
            }
        });
    }
    drop(listener);
    // Idle connections close at once; the others when their last byte, perhaps of an error, is out.
    if tokio::time::timeout(FLUSH, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections that did not take their last bytes are dropped");
    }
}

/// Waits for the begin of the end, then for what runs, at most until the deadline.
async fn end(lifecycle: &Lifecycle, drain: Option<Box<dyn FnOnce() + Send>>, time: Duration) {
    tokio::select! {
        () = lifecycle.draining() => {}
        () = lifecycle.failed() => {
            tokio::time::sleep(FAILURE_NOTICE).await;
            lifecycle.drain();
        }
    }
    tracing::info!(seconds = time.as_secs(), "draining");
    if let Some(drain) = drain {
        drain();
    }
    tokio::select! {
        () = lifecycle.idle() => return,
        () = lifecycle.cut_off() => {}
        () = tokio::time::sleep(time) => {}
    }
    tracing::warn!("running requests are cut");
    lifecycle.cut();
}

/// Begins to listen to SIGTERM and SIGINT; the future acts on them.
fn signals(lifecycle: Lifecycle) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    #[cfg(unix)]
    let mut next = {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        async move || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    };
    #[cfg(not(unix))]
    let mut next = async || drop(tokio::signal::ctrl_c().await);
    Ok(async move {
        next().await;
        lifecycle.drain();
        next().await;
        lifecycle.cut();
    })
}

/// Writes beside and renames, so that nobody reads half a number.
fn write_port(path: &Path, port: u16) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, format!("{port}\n"))?;
    std::fs::rename(&beside, path)
}
