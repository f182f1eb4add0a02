//! SIGTERM to the real process; alone in its file because of that.

#![cfg(unix)]

mod support;

use axum::Router;
use std::process::Command;
use support::{Client, start};

#[tokio::test]
async fn sigterm_drains_and_a_second_one_cuts() {
    let terminate = || {
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    };
    let worker = start(|_| Router::new(), &["--drain-seconds=3600"]).await;
    let work = worker.lifecycle.work();
    terminate();
    worker.lifecycle.draining().await;
    let ready = Client::ask(worker.address, "GET", "/ready", "").await.rest().await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    worker.lifecycle.at_cut(move || drop(work));
    terminate();
    worker.lifecycle.cut_off().await;
    worker.task.await.unwrap().unwrap();
}
