//! SIGTERM to the test process itself. No other test may run in this process.

#![cfg(unix)]

mod support;

use axum::Router;
use axum::routing::post;
use std::process::Command;
use std::time::Duration;
use support::{Client, start, stop_clock};
use worker_core::lifecycle::State;

#[tokio::test]
async fn sigterm_drains_and_a_second_one_aborts() {
    let terminate = || {
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    };
    for grace in [0, 3600] {
        let router = |_: &_| Router::new().route("/work", post(async || "done"));
        let worker = start(router, &["--drain-seconds=3600", &format!("--drain-grace={grace}")]).await;
        let work = worker.lifecycle.start_work();
        terminate();
        if grace > 0 {
            worker.lifecycle.watch().wait_for(|state| *state == State::Terminating).await.unwrap();
            let ready = Client::ask(worker.address, "GET", "/ready", "").await.rest().await;
            assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("terminating"), "{ready}");
            let answer = Client::ask(worker.address, "POST", "/work", "").await.rest().await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            let _clock = stop_clock();
            // Timers are rounded up to milliseconds.
            tokio::time::advance(Duration::from_secs(grace + 1)).await;
            worker.lifecycle.draining().await;
        }
        worker.lifecycle.draining().await;
        let refused = Client::ask(worker.address, "POST", "/work", "").await.rest().await;
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        let ready = Client::ask(worker.address, "GET", "/ready", "").await.rest().await;
        assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
        worker.lifecycle.on_abort(move || drop(work));
        terminate();
        worker.lifecycle.aborted().await;
        worker.task.await.unwrap().unwrap();
    }
}
