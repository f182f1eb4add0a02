//! SIGTERM to the test process itself. No other test may run in this process.

#![cfg(unix)]

mod support;

use axum::Router;
use std::process::Command;
use support::{Client, start};

#[tokio::test]
async fn sigterm_drains_and_a_second_one_aborts() {
    let terminate = || {
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    };
    let worker = start(|_| Router::new(), &["--drain-seconds=3600"]).await;
    let work = worker.lifecycle.start_work();
    terminate();
    worker.lifecycle.draining().await;
    let ready = Client::ask(worker.address, "GET", "/ready", "").await.rest().await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    worker.lifecycle.on_abort(move || drop(work));
    terminate();
    worker.lifecycle.aborted().await;
    worker.task.await.unwrap().unwrap();
}
