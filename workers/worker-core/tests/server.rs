//! A worker on a real socket, with clients that are slow, disconnect, or send too much.

mod support;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::{get, post};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use support::{Client, start, stop_clock};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt};
use worker_core::jobs::{Job, Jobs, OnDisconnect, Options as JobOptions};
use worker_core::sse::{Options, response};
use worker_core::{ApiError, App, Lifecycle, Metrics, serve};

type Events = mpsc::UnboundedSender<Result<u32, ApiError>>;

/// Creates a route that streams events, and a receiver that yields the event sender of each request.
fn streaming(lifecycle: &Lifecycle) -> (Router, mpsc::UnboundedReceiver<Events>) {
    let (new_senders, senders) = mpsc::unbounded_channel();
    let lifecycle = lifecycle.clone();
    let stream = move || async move {
        let (sender, events) = mpsc::unbounded_channel();
        new_senders.send(sender).unwrap();
        response(UnboundedReceiverStream::new(events), &lifecycle, Options::default())
    };
    (Router::new().route("/stream", post(stream)), senders)
}

async fn start_streaming(more: &[&str]) -> (support::Running, mpsc::UnboundedReceiver<Events>) {
    let mut senders = None;
    let worker = start(
        |lifecycle| {
            let (router, received) = streaming(lifecycle);
            senders = Some(received);
            router
        },
        more,
    )
    .await;
    (worker, senders.unwrap())
}

#[tokio::test]
async fn clients_with_incomplete_heads_do_not_block_others() {
    let worker = start(|_| Router::new(), &["--header-timeout=3600"]).await;
    let mut slow = Vec::new();
    for i in 0..100 {
        let mut client = Client::connect(worker.address).await;
        client.send(["", "GET", "GET / HTTP/1.1\r\nHost: localhost\r\nX: "][i % 3]).await;
        slow.push(client);
    }
    let answer = Client::ask(worker.address, "GET", "/health", "").await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Advance the clock only after the other client has been served.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3601)).await;
    for client in slow {
        assert!(!client.rest().await.contains("200 OK"));
    }
}

#[tokio::test]
async fn oversized_heads_are_431() {
    let worker = start(|_| Router::new(), &["--header-limit=2048"]).await;
    let ask = async |length: usize| {
        let mut client = Client::connect(worker.address).await;
        let head = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: ";
        client.send(&format!("{head}{}\r\n\r\n", "a".repeat(length - head.len() - 4))).await;
        client.rest().await
    };
    assert!(ask(2000).await.starts_with("HTTP/1.1 200"));
    assert!(ask(4096).await.starts_with("HTTP/1.1 431"));

    let mut many = Client::connect(worker.address).await;
    many.send(&format!("GET /health HTTP/1.1\r\n{}\r\n", "A:b\r\n".repeat(101))).await;
    assert!(many.rest().await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn the_header_limit_does_not_apply_to_the_body() {
    let router = Router::new().route("/", post(async |body: String| body.len().to_string()));
    let worker = start(|_| router, &["--header-limit=1024"]).await;
    let answer = Client::ask(worker.address, "POST", "/", &"a".repeat(1 << 20)).await.rest().await;
    assert!(answer.ends_with("1048576"), "{answer}");
}

/// Without the header, a client may send its next request on a connection that the server closes.
#[tokio::test]
async fn responses_before_the_body_is_read_announce_that_the_connection_closes() {
    let router = Router::new().route("/", post(async |body: String| body.len().to_string()));
    let worker = start(|_| router, &["--api-token=secret", "--body-limit=1024"]).await;
    let ask = async |path: &str, token: &str, length: usize| {
        let mut client = Client::connect(worker.address).await;
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n");
        // The limit of a body is noticed while it is read.
        client.send(&format!("{head}Content-Length: {length}\r\n\r\n{}", "a".repeat(2000))).await;
        client.until("\r\n\r\n").await
    };
    for (path, token, length, status) in
        [("/", "wrong", 500_000, 401), ("/none", "secret", 500_000, 404), ("/", "secret", 500_000, 413)]
    {
        let head = ask(path, token, length).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert!(head.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{head}");
    }
    let mut client = Client::connect(worker.address).await;
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n";
    client.send(&format!("{head}Content-Length: 3\r\n\r\nabc")).await;
    let head = client.until("\r\n\r\n").await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200") && !head.contains("connection: close"), "{head}");
}

#[tokio::test]
async fn malformed_requests_are_400() {
    let worker = start(|_| Router::new(), &[]).await;
    for malformed in
        ["hello\r\n\r\n", "\0\0\0\0\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\u{1} HTTP/1.1\r\n\r\n"]
    {
        let mut client = Client::connect(worker.address).await;
        client.send(malformed).await;
        assert!(client.rest().await.starts_with("HTTP/1.1 400"), "{malformed:?}");
    }
}

#[tokio::test]
async fn disconnection_ends_a_stream() {
    let (worker, mut senders) = start_streaming(&[]).await;
    let mut client = Client::ask(worker.address, "POST", "/stream", "").await;
    let events = senders.recv().await.unwrap();
    events.send(Ok(7)).unwrap();
    let head = client.until("data: 7\n\n").await;
    assert!(head.contains("content-type: text/event-stream") && head.contains("x-accel-buffering: no"));
    assert_eq!(worker.metrics.streams_open(), 1);
    drop(client);
    events.closed().await;
    worker.lifecycle.idle().await;
    assert_eq!(worker.metrics.streams_open(), 0);
}

#[tokio::test]
async fn disconnection_drops_the_handler() {
    let (started_sender, started) = oneshot::channel();
    let (held, dropped) = oneshot::channel::<()>();
    let once = Arc::new(Mutex::new(Some((started_sender, held))));
    let wait = move || async move {
        let (started_sender, _held) = once.lock().take().unwrap();
        started_sender.send(()).unwrap();
        std::future::pending::<()>().await
    };
    let worker = start(|_| Router::new().route("/", get(wait)), &[]).await;
    let client = Client::ask(worker.address, "GET", "/", "").await;
    started.await.unwrap();
    drop(client);
    assert!(dropped.await.is_err(), "the handler is dropped");
    worker.lifecycle.idle().await;
    assert!(worker.metrics.text().unwrap().contains("status=\"499\"} 1"));
}

#[tokio::test]
async fn shutdown_waits_for_streams() {
    let (worker, mut senders) = start_streaming(&[]).await;
    // An idle kept-alive connection does not delay shutdown.
    let mut idle = Client::connect(worker.address).await;
    idle.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    idle.until("}").await;

    let mut client = Client::ask(worker.address, "POST", "/stream", "").await;
    let events = senders.recv().await.unwrap();
    events.send(Ok(1)).unwrap();
    client.until("data: 1\n\n").await;
    // Stop the clock, so that the flush timeout does not expire.
    let _clock = stop_clock();
    worker.lifecycle.drain();
    let ready = Client::ask(worker.address, "GET", "/ready", "").await.rest().await;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("draining"), "{ready}");
    let other = Client::ask(worker.address, "POST", "/stream", "").await.rest().await;
    assert!(other.starts_with("HTTP/1.1 503") && other.contains("retry-after: 10"), "{other}");
    assert!(other.contains("\"code\":\"not_ready\""), "{other}");
    events.send(Ok(2)).unwrap();
    client.until("data: 2\n\n").await;
    assert!(!worker.task.is_finished());
    drop(events);
    assert!(client.rest().await.contains("data: [DONE]"));
    worker.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn running_work_is_aborted_at_the_deadline() {
    let mut senders = None;
    let mut job = None;
    let worker = start(
        |lifecycle| {
            let (router, received) = streaming(lifecycle);
            senders = Some(received);
            let jobs =
                Jobs::<u32>::new(JobOptions::new("w", |error| error.status().as_u16().into()), lifecycle);
            job = Some(jobs.create(OnDisconnect::Continue));
            router
                .route("/wait", get(async || std::future::pending::<()>().await))
                .nest("/jobs", jobs.routes())
        },
        &["--drain-seconds=3600", "--request-timeout=0"],
    )
    .await;
    let job = job.unwrap();
    let mut client = Client::ask(worker.address, "POST", "/stream", "").await;
    let events = senders.unwrap().recv().await.unwrap();
    events.send(Ok(1)).unwrap();
    client.until("data: 1\n\n").await;
    let mut job_client = Client::ask(worker.address, "GET", &format!("/jobs/{}/stream", job.id()), "").await;
    job.push(&1);
    job_client.until("data: 1\n").await;
    let mut waiting = Client::connect(worker.address).await;
    waiting.send("GET /wait HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    // Two streams, one job and one pending request.
    while worker.lifecycle.active_work() < 4 {
        tokio::task::yield_now().await;
    }
    let _clock = stop_clock();
    worker.lifecycle.drain();
    while !job.is_cancelled() {
        tokio::time::advance(Duration::from_secs(3600)).await;
    }
    let rest = client.rest().await;
    assert!(rest.contains("\"code\":\"worker_ended\"") && rest.contains("data: [DONE]"), "{rest}");
    let rest = job_client.rest().await;
    assert!(rest.contains("data: 503") && rest.contains("data: [DONE]"), "{rest}");
    assert!(job.is_cancelled());
    assert!(events.is_closed());
    assert!(waiting.rest().await.starts_with("HTTP/1.1 503"));
    worker.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stalled_reader_blocks_neither_jobs_nor_readers_nor_shutdown() {
    let mut made: Option<(Jobs<String>, Job<String>)> = None;
    let worker = start(
        |lifecycle| {
            let jobs = Jobs::new(JobOptions::new("w", |error| error.to_string()), lifecycle);
            made = Some((jobs.clone(), jobs.create(OnDisconnect::Continue)));
            jobs.routes()
        },
        &["--drain-seconds=0"],
    )
    .await;
    let (_jobs, job) = made.unwrap();
    let path = format!("/{}/stream", job.id());
    let mut idle = Client::ask(worker.address, "GET", &path, "").await;
    idle.until("\r\n\r\n").await;
    let event = "a".repeat(8 << 10);
    for _ in 0..1500 {
        assert!(job.push(&event));
    }
    job.end();
    let all = Client::ask(worker.address, "GET", &path, "").await.rest().await;
    assert_eq!(all.matches("data: \"aaa").count(), 1500);
    worker.lifecycle.drain();
    worker.task.await.unwrap().unwrap();
}

/// The clock is paused once the head has arrived, so that it advances only while all tasks wait.
#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected() {
    let (held, dropped) = oneshot::channel::<()>();
    let held = Arc::new(Mutex::new(Some(held)));
    let endless = move || async move {
        let held = held.lock().take();
        let chunk = move || {
            let _ = &held;
            Ok::<_, std::convert::Infallible>(vec![b'a'; 1 << 16])
        };
        Body::from_stream(tokio_stream::iter(std::iter::repeat_with(chunk)))
    };
    let worker = start(|_| Router::new().route("/", get(endless)), &["--write-timeout=20"]).await;
    let mut client = Client::ask(worker.address, "GET", "/", "").await;
    client.until("\r\n\r\n").await;
    tokio::time::pause();
    let waited = tokio::time::timeout(Duration::from_secs(3600), dropped).await;
    assert!(waited.is_ok_and(|dropped| dropped.is_err()), "the response is dropped");
    worker.lifecycle.idle().await;
}

#[tokio::test]
async fn idle_connections_above_the_limit_are_closed() {
    let worker = start(|_| Router::new(), &["--max-connections=3", "--header-timeout=86400"]).await;
    let mut idle = Vec::new();
    for _ in 0..10 {
        idle.push(Client::connect(worker.address).await);
    }
    let answer = Client::ask(worker.address, "GET", "/doctor", "").await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    for client in idle.drain(..7) {
        assert_eq!(client.rest().await, "");
    }
}

#[tokio::test]
async fn above_the_connection_limit_only_monitoring_is_served() {
    let (worker, mut senders) = start_streaming(&["--max-connections=2"]).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let client = Client::ask(worker.address, "POST", "/stream", "").await;
        open.push((senders.recv().await.unwrap(), client));
    }
    let mut health = Client::connect(worker.address).await;
    health.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let health = health.rest().await.to_ascii_lowercase();
    assert!(health.starts_with("http/1.1 200") && health.contains("connection: close"), "{health}");
    let refused = Client::ask(worker.address, "POST", "/stream", "").await.rest().await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too_many_connections"), "{refused}");
    let (events, client) = open.remove(0);
    drop(events);
    client.rest().await;
    let _next = Client::ask(worker.address, "POST", "/stream", "").await;
    senders.recv().await.unwrap();
}

#[tokio::test]
async fn the_stream_limit_applies_per_client_and_is_released() {
    let (worker, mut senders) = start_streaming(&["--streams-per-client=2"]).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let client = Client::ask(worker.address, "POST", "/stream", "").await;
        open.push((senders.recv().await.unwrap(), client));
    }
    let refused = Client::ask(worker.address, "POST", "/stream", "").await.rest().await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: 1"), "{refused}");
    assert!(refused.contains("rate_limit_error"), "{refused}");
    let health = Client::ask(worker.address, "GET", "/health", "").await.rest().await;
    assert!(health.starts_with("HTTP/1.1 200"), "probes are not limited");
    let (events, client) = open.remove(0);
    drop(events);
    client.rest().await;
    let _next = Client::ask(worker.address, "POST", "/stream", "").await;
    senders.recv().await.unwrap();
}

#[tokio::test]
async fn an_incomplete_body_is_408() {
    let router = Router::new().route("/", post(async |body: String| body));
    let worker = start(|_| router, &["--request-timeout=1"]).await;
    let mut client = Client::connect(worker.address).await;
    client
        .send("POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 10\r\n\r\nabc")
        .await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"code\":\"timeout\""), "{answer}");
}

#[tokio::test]
async fn the_port_file_is_written_and_bind_errors_name_the_address() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("port");
    let worker = start(|_| Router::new(), &["--port-file", file.to_str().unwrap()]).await;
    let port = worker.address.port();
    assert_eq!(std::fs::read_to_string(file).unwrap(), format!("{port}\n"));

    let app = || App::new(Router::new(), Lifecycle::new(), Metrics::new());
    let mut arguments = support::arguments(&[]);
    arguments.port = port;
    let error = serve(app(), &arguments).await.unwrap_err().to_string();
    assert!(error.contains(&worker.address.to_string()) && error.contains("--port"), "{error}");

    let arguments = support::arguments(&["--port-file=/nowhere/at/all"]);
    let error = serve(app(), &arguments).await.unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
}

#[tokio::test]
async fn the_drain_hook_is_called_before_waiting() {
    let lifecycle = Lifecycle::new();
    let work = lifecycle.start_work();
    let (called, call) = oneshot::channel();
    let app =
        App::new(Router::new(), lifecycle.clone(), Metrics::new()).on_drain(move || called.send(()).unwrap());
    let arguments = support::arguments(&[]);
    let task = tokio::spawn(async move { serve(app, &arguments).await });
    lifecycle.drain();
    call.await.unwrap();
    assert!(!task.is_finished());
    drop(work);
    task.await.unwrap().unwrap();
}

/// The clock is paused, so that the failure notice period passes immediately.
#[tokio::test(start_paused = true)]
async fn serve_returns_the_reason_of_a_failure() {
    for drain_first in [false, true] {
        let lifecycle = Lifecycle::new();
        lifecycle.ready();
        let app = App::new(Router::new(), lifecycle.clone(), Metrics::new());
        let arguments = support::arguments(&[]);
        let work = lifecycle.start_work();
        let task = tokio::spawn(async move { serve(app, &arguments).await });
        if drain_first {
            lifecycle.drain();
        }
        lifecycle.fail("the device failed");
        lifecycle.fail("it failed again");
        lifecycle.draining().await;
        assert!(!task.is_finished(), "streams end first");
        drop(work);
        assert_eq!(task.await.unwrap().unwrap_err().to_string(), "the device failed");
    }
}

#[tokio::test]
async fn idle_streams_receive_comments() {
    let (lifecycle, options) =
        (Lifecycle::new(), Options { keep_alive: Duration::from_millis(1), ..Options::default() });
    let silent = tokio_stream::pending::<Result<u32, ApiError>>();
    let (first, _) = first_frame(response(silent, &lifecycle, options)).await;
    assert_eq!(first, ": keep-alive\n\n");
}

async fn first_frame(response: Response) -> (String, impl Stream) {
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.unwrap().unwrap();
    (String::from_utf8(first.to_vec()).unwrap(), body)
}

#[tokio::test]
async fn an_error_is_the_last_event_of_a_stream() {
    let lifecycle = Lifecycle::new();
    let events = tokio_stream::iter([Ok(1), Err(ApiError::internal("failed")), Ok(2)]);
    let options = Options { name: Some(|_: &u32| Some("number")), ..Options::default() };
    let body = response(events, &lifecycle, options).into_body();
    let text = String::from_utf8(axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap();
    let error = ApiError::internal("failed").body();
    let expected = format!("event: number\ndata: 1\n\nevent: error\ndata: {error}\n\ndata: [DONE]\n\n");
    assert_eq!(text, expected);
}
