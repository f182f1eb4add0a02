//! A worker on a socket, and a raw TCP client.

use axum::Router;
use clap::Parser;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use worker_core::server::ServeError;
use worker_core::{App, Lifecycle, Metrics, ServerArguments, serve};

#[derive(Parser)]
struct TestArguments {
    #[command(flatten)]
    server: ServerArguments,
}

/// Returns the arguments of a worker on a free port of the loopback interface.
pub fn arguments(more: &[&str]) -> ServerArguments {
    let fixed = ["worker", "--host=127.0.0.1", "--port=0", "--worker-id=test"];
    TestArguments::parse_from(fixed.iter().chain(more)).server
}

/// A running worker.
#[allow(dead_code, reason = "not every test uses every item")]
pub struct Running {
    pub address: SocketAddr,
    pub lifecycle: Lifecycle,
    pub metrics: Metrics,
    pub task: JoinHandle<Result<(), ServeError>>,
}

/// Starts a worker, marks it as ready, and waits until it is listening.
#[allow(dead_code, reason = "not every test uses every item")]
pub async fn start(router: impl FnOnce(&Lifecycle) -> Router, more: &[&str]) -> Running {
    let (lifecycle, metrics, arguments) = (Lifecycle::new(), Metrics::new(), arguments(more));
    let (bound, address) = oneshot::channel();
    let app = App::new(router(&lifecycle), lifecycle.clone(), metrics.clone());
    let app = app.on_bound(move |address| bound.send(address).unwrap());
    lifecycle.ready();
    let task = tokio::spawn(async move { serve(app, &arguments).await });
    Running { address: address.await.unwrap(), lifecycle, metrics, task }
}

/// Stops tokio's clock until the result is dropped. Time then passes only through `tokio::time::advance`.
#[allow(dead_code, reason = "not every test uses every item")]
pub fn stop_clock() -> Sender<()> {
    tokio::time::pause();
    // While a blocking task is running, tokio does not auto-advance a paused clock.
    let (running, ended) = channel::<()>();
    tokio::task::spawn_blocking(move || ended.recv());
    running
}

/// A client connection and the received text that has not been consumed.
#[allow(dead_code, reason = "not every test uses every item")]
pub struct Client(pub TcpStream, pub String);

#[allow(dead_code, reason = "not every test uses every item")]
impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        Client(TcpStream::connect(address).await.unwrap(), String::new())
    }

    /// Sends a request with `Connection: close`.
    pub async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Client {
        let mut client = Client::connect(address).await;
        client.send(&format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")).await;
        client
            .send(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
            .await;
        client
    }

    pub async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until `end` and returns the text up to it, which is removed from the buffer.
    pub async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.1.find(end) {
                let rest = self.1.split_off(at + end.len());
                return std::mem::replace(&mut self.1, rest);
            }
            let mut bytes = [0; 4096];
            let count = self.0.read(&mut bytes).await.unwrap();
            assert!(count > 0, "ended before {end:?}: {}", self.1);
            self.1.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
    }

    /// Reads until the worker closes the connection.
    pub async fn rest(mut self) -> String {
        let mut bytes = Vec::new();
        // The connection is reset if the worker closes it before reading everything.
        let _ = self.0.read_to_end(&mut bytes).await;
        self.1 + &String::from_utf8(bytes).unwrap()
    }
}
