//! HTTP server with graceful shutdown.

use crate::admission::PROBES;
use crate::connections::{Admission, Connections, OpenRequests};
use crate::guarded::guard;
use crate::writes::WriteTimeout;
use crate::{ApiError, App, Lifecycle, ServerArguments};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

/// Time allowed for sending the remaining bytes after the shutdown deadline.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Retry interval sent to clients while too many connections are open.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Time for which `/ready` reports the cause of a failure, and streams receive the error, before shutdown starts.
const FAILURE_NOTICE: Duration = Duration::from_secs(2);

/// Errors of [`serve`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; check that the port is free (--port) and the address is local (--host)"
    )]
    Bind {
        /// Requested address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The port file cannot be written.
    #[error("cannot write the port to {}: {source}", path.display())]
    PortFile {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The worker failed permanently ([`Lifecycle::fail`]).
    #[error("{0}")]
    Failed(String),
    /// The handlers for SIGTERM and SIGINT cannot be installed.
    #[error("cannot install signal handlers: {0}")]
    Signals(io::Error),
}

/// Serves until SIGTERM, SIGINT, [`Lifecycle::drain`] or [`Lifecycle::fail`], and prints the address to stdout.
///
/// After SIGTERM or SIGINT the worker is not ready, but accepts requests for the grace time
/// ([`ServerArguments::drain_grace`]). During shutdown the worker is not ready, POST requests receive 503, and
/// running requests may finish within the drain time. Requests that are still running then end with an error. A
/// second signal aborts them immediately.
///
/// # Errors
/// The address, port file or signal handlers cannot be set up, or [`Lifecycle::fail`] was called.
pub async fn serve(mut app: App, arguments: &ServerArguments) -> Result<(), ServeError> {
    let address = SocketAddr::new(arguments.host, arguments.port);
    let bind = |source| ServeError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    let signals = signals(app.lifecycle.clone(), arguments.drain_grace()).map_err(ServeError::Signals)?;
    if let Some(path) = &arguments.port_file {
        write_port(path, address.port())
            .map_err(|source| ServeError::PortFile { path: path.clone(), source })?;
    }
    if !address.ip().is_loopback() && arguments.api_token.is_empty() {
        tracing::warn!(%address, "the worker is reachable from other machines without authentication; set --api-token");
    }
    // Standard output may be closed, which is not an error.
    let _ = writeln!(io::stdout(), "{} listens at http://{address}", arguments.worker_id);
    tracing::info!(%address, worker_id = arguments.worker_id, "listening");
    if let Some(bound) = app.bound.take() {
        bound(address);
    }
    let signals = tokio::spawn(signals);
    let lifecycle = app.lifecycle.clone();
    run(listener, app, arguments).await;
    signals.abort();
    tracing::info!("stopped");
    match lifecycle.failure() {
        Some(reason) => Err(ServeError::Failed(reason)),
        None => Ok(()),
    }
}

async fn run(listener: TcpListener, mut app: App, arguments: &ServerArguments) {
    let router = app.router(arguments);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(arguments.header_timeout())
        .max_header_size(arguments.header_limit);
    let mut connections = Connections::new(arguments.max_connections);
    let graceful = GracefulShutdown::new();
    let drain = app.drain.take();
    let shutdown = wait_for_shutdown(&app.lifecycle, drain, arguments.drain());
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tokio::select! {
                    () = connections.recover(&error) => continue,
                    () = &mut shutdown => break,
                }
            }
        };
        let admission = connections.admit();
        if admission == Admission::Refused {
            tracing::debug!(%peer, "too many connections (--max-connections)");
            continue;
        }
        // Tokens are small and must not be delayed.
        let _ = stream.set_nodelay(true);
        let router = router.clone();
        let requests = OpenRequests::default();
        let counted = requests.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            let (open, response) = (counted.open(), respond(router.clone(), request, admission));
            async move { Ok::<_, Infallible>(guard(response.await, open)) }
        });
        // The system discards the bytes that the client did not read.
        let discard = |stream: &TcpStream| drop(stream.set_zero_linger());
        let stream = WriteTimeout::new(stream, arguments.write_timeout(), discard);
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        connections.spawn(requests, async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection failed");
            }
        });
    }
    drop(listener);
    // Idle connections close immediately; the others after their last byte, which may belong to an error event.
    if tokio::time::timeout(FLUSH_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("closing connections whose clients did not read the remaining bytes");
    }
}

/// Responds to a request on a connection that was admitted like this.
async fn respond(router: Router, request: hyper::Request<Body>, admission: Admission) -> Response {
    if admission == Admission::Full {
        return router.oneshot(request).await.into_response();
    }
    let mut response = match PROBES.contains(&request.uri().path()) {
        true => router.oneshot(request).await.into_response(),
        false => {
            let message = "too many connections are open (--max-connections); try again later";
            ApiError::unavailable(message, RETRY_DELAY).with_code("too_many_connections").into_response()
        }
    };
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Waits for the start of shutdown and then for running work, at most until the deadline.
async fn wait_for_shutdown(lifecycle: &Lifecycle, drain: Option<Box<dyn FnOnce() + Send>>, time: Duration) {
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
        () = lifecycle.aborted() => {}
        () = tokio::time::sleep(time) => {}
    }
    tracing::warn!("shutdown deadline reached: aborting running requests");
    lifecycle.abort();
}

/// Installs handlers for SIGTERM and SIGINT. The returned future processes the signals: the first one starts shutdown
/// after `grace`, and the second one aborts running requests.
fn signals(lifecycle: Lifecycle, grace: Duration) -> io::Result<impl Future<Output = ()> + Send + 'static> {
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
        if !grace.is_zero() {
            lifecycle.terminate();
            tracing::info!(seconds = grace.as_secs(), "shutting down soon; requests are still accepted");
            tokio::select! {
                () = next() => return lifecycle.abort(),
                () = tokio::time::sleep(grace) => {}
            }
        }
        lifecycle.drain();
        next().await;
        lifecycle.abort();
    })
}

/// Writes the port atomically, through a temporary file that is renamed.
fn write_port(path: &Path, port: u16) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".part");
    std::fs::write(&temporary, format!("{port}\n"))?;
    std::fs::rename(&temporary, path)
}
