//! Routes and middleware, tested without a socket.

mod support;

use axum::body::{Body as Bytes, to_bytes};
use axum::extract::{Path, Query};
use axum::http::{Request, Response, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use support::arguments;
use tower::ServiceExt;
use worker_core::body::required;
use worker_core::jobs::{Jobs, OnDisconnect, Options};
use worker_core::{ApiError, App, Body, Client, Lifecycle, Metrics};

worker_core::fields! {
    struct LengthRequest => { text: String, }
}

async fn length(Body(request): Body<LengthRequest>) -> Result<Json<usize>, ApiError> {
    match required(request.text, "text")?.len() {
        0 => Err(ApiError::field("text", "is empty")),
        length => Ok(Json(length)),
    }
}

async fn panics() -> &'static str {
    panic!("formatted {}", "message")
}

fn app(lifecycle: &Lifecycle) -> App {
    let inner = Router::new().route("/one", get(async || "one").post(async || "posted"));
    let router = Router::new()
        .route("/", get(async || "page"))
        .route("/length", post(length))
        .route("/panic", get(panics))
        .route("/wait", get(async || std::future::pending::<()>().await))
        .route("/number/{n}", get(async |Path(n): Path<u8>| n.to_string()))
        .route("/query", get(async |Query(query): Query<HashMap<String, u8>>| query.len().to_string()))
        .nest("/inner", inner);
    App::new(router, lifecycle.clone(), Metrics::new()).doctor(|| "healthy".to_owned()).public_path("/")
}

fn ready() -> Lifecycle {
    let lifecycle = Lifecycle::new();
    lifecycle.ready();
    lifecycle
}

fn worker(more: &[&str]) -> Router {
    app(&ready()).router(&arguments(more))
}

fn ask(method: &str, path: &str) -> Request<Bytes> {
    Request::builder().method(method).uri(path).body(Bytes::empty()).unwrap()
}

fn json(path: &str, body: impl Into<Bytes>) -> Request<Bytes> {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(body.into()).unwrap()
}

fn with(mut request: Request<Bytes>, header: &'static str, value: &str) -> Request<Bytes> {
    request.headers_mut().insert(header, value.parse().unwrap());
    request
}

async fn text(response: Response<Bytes>) -> (u16, String) {
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Sends a request that must be rejected and returns status and code of the error, after checking its format.
async fn rejection(router: &Router, request: Request<Bytes>) -> (u16, String) {
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    let (status, text) = text(response).await;
    let body: Value = serde_json::from_str(&text).unwrap();
    let error = body["error"].as_object().unwrap();
    let mut keys: Vec<_> = error.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["code", "message", "param", "type"]);
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{text}");
    (status, error["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn all_errors_have_the_same_format() {
    let router = worker(&["--body-limit=64"]);
    let table = [
        (ask("GET", "/nowhere"), 404, "unknown_url"),
        (ask("POST", "/inner/two"), 404, "unknown_url"),
        (ask("DELETE", "/length"), 405, "method_not_allowed"),
        (ask("BREW", "/inner/one"), 405, "method_not_allowed"),
        (ask("POST", "/health"), 405, "method_not_allowed"),
        (ask("GET", "/number/300"), 400, "invalid_request"),
        (ask("GET", "/number/%ff"), 400, "invalid_request"),
        (ask("GET", "/query?a=x"), 400, "invalid_request"),
        (ask("GET", "/panic"), 500, "internal_error"),
        (ask("POST", "/length"), 415, "unsupported_media_type"),
        (
            with(json("/length", r#"{"text": "a"}"#), "content-type", "text/plain"),
            415,
            "unsupported_media_type",
        ),
        (json("/length", ""), 400, "invalid_json"),
        (json("/length", "\u{0}"), 400, "invalid_json"),
        (json("/length", vec![0xff]), 400, "invalid_utf8"),
        (json("/length", r#"{"text": 1}"#), 400, "invalid_value"),
        (json("/length", r#"{"text": ""}"#), 400, "invalid_value"),
        (json("/length", r#"{"text": "a", "more": 1}"#), 400, "invalid_value"),
        (json("/length", format!(r#"{{"text": "{}"}}"#, "a".repeat(64))), 413, "too_large"),
    ];
    for (request, status, code) in table {
        let name = format!("{} {}", request.method(), request.uri());
        assert_eq!(rejection(&router, request).await, (status, code.to_owned()), "{name}");
    }
    let answer = router.oneshot(json("/length", r#"{"text": "abc"}"#)).await.unwrap();
    assert_eq!(text(answer).await, (200, "3".into()));
}

#[tokio::test]
async fn a_wrong_method_returns_the_allowed_methods() {
    let router = worker(&[]);
    for (path, allow) in [("/length", "POST"), ("/inner/one", "GET,HEAD,POST"), ("/health", "GET,HEAD")] {
        let response = router.clone().oneshot(ask("PUT", path)).await.unwrap();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response.headers()["allow"], allow, "{path}");
    }
}

#[tokio::test]
async fn all_paths_except_public_ones_require_the_token() {
    let router = worker(&["--api-token=secret"]);
    for path in ["/health", "/ready", "/"] {
        let response = router.clone().oneshot(ask("GET", path)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
    }
    for path in ["/metrics", "/doctor", "/inner/one", "/nowhere", "/panic", "/health/x", "//"] {
        let request = || ask("GET", path);
        assert_eq!(rejection(&router, request()).await, (401, "invalid_api_key".into()), "{path}");
        for wrong in ["secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "Basic secret"] {
            let request = with(request(), "authorization", wrong);
            assert_eq!(rejection(&router, request).await.0, 401, "{path} {wrong}");
        }
        let right = with(request(), "authorization", "bearer secret");
        let response = router.clone().oneshot(right).await.unwrap();
        assert_ne!(response.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let response = router.oneshot(ask("GET", "/inner/one")).await.unwrap();
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
}

#[tokio::test]
async fn health_readiness_and_work_follow_the_lifecycle() {
    type Change = fn(&Lifecycle);
    let table: [(Change, &str, bool, Option<&str>); 5] = [
        (|lifecycle| lifecycle.loading(0.25, "weights"), "loading", false, Some("loading, 25%: weights")),
        (|lifecycle| lifecycle.ready(), "ready", true, None),
        (|lifecycle| lifecycle.mark_failed("the device failed"), "failed", false, Some("the device failed")),
        (|lifecycle| lifecycle.loading(0.0, "again"), "loading", false, Some("loading, 0%: again")),
        (|lifecycle| lifecycle.drain(), "draining", false, Some("the worker is shutting down")),
    ];
    let lifecycle = Lifecycle::new();
    let router = app(&lifecycle).router(&arguments(&[]));
    for (change, state, is_ready, why) in table {
        change(&lifecycle);
        let (status, body) = text(router.clone().oneshot(ask("GET", "/health")).await.unwrap()).await;
        let health: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &health["lifecycle"]["state"]), (200, &state.into()));

        let response = router.clone().oneshot(ask("GET", "/ready")).await.unwrap();
        assert_eq!(response.headers().contains_key("retry-after"), !is_ready, "{state}");
        let (status, body) = text(response).await;
        let ready: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, if is_ready { 200 } else { 503 });
        assert_eq!((&ready["ready"], &ready["why"]), (&is_ready.into(), &why.into()), "{state}");

        let response = router.clone().oneshot(json("/length", r#"{"text": "abc"}"#)).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{state}");
        assert_eq!(response.headers().contains_key("retry-after"), !is_ready, "{state}");
        let response = router.clone().oneshot(ask("GET", "/inner/one")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "GET requests are still accepted: {state}");
    }
    assert_eq!(lifecycle.active_work(), 0);
}

#[tokio::test]
async fn ready_reports_the_loading_progress() {
    let lifecycle = Lifecycle::new();
    lifecycle.loading(0.5, "warming up");
    let router = app(&lifecycle).router(&arguments(&[]));
    let (_, body) = text(router.oneshot(ask("GET", "/ready")).await.unwrap()).await;
    let ready: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        ready["lifecycle"],
        serde_json::json!({"state": "loading", "progress": 0.5, "what": "warming up"})
    );
}

#[tokio::test]
async fn the_doctor_returns_text() {
    let router = worker(&[]);
    assert_eq!(text(router.oneshot(ask("GET", "/doctor")).await.unwrap()).await, (200, "healthy".into()));
    let failing = App::new(Router::new(), ready(), Metrics::new()).doctor(|| panic!("a bug"));
    assert_eq!(rejection(&failing.router(&arguments(&[])), ask("GET", "/doctor")).await.0, 500);
}

#[tokio::test(start_paused = true)]
async fn a_slow_response_is_408() {
    let router = worker(&["--request-timeout=600"]);
    let start = tokio::time::Instant::now();
    assert_eq!(rejection(&router, ask("GET", "/wait")).await, (408, "timeout".into()));
    assert_eq!(start.elapsed().as_secs(), 600);
}

#[tokio::test(start_paused = true)]
async fn the_request_timeout_does_not_apply_to_started_streams() {
    let lifecycle = ready();
    let jobs = Jobs::<u8>::new(Options::new("w", |_| 0), &lifecycle);
    let job = jobs.create(OnDisconnect::CancelAfter(Duration::from_secs(60)));
    let router =
        App::new(jobs.routes(), lifecycle, Metrics::new()).router(&arguments(&["--request-timeout=1"]));
    let path = format!("/{}/stream", job.id());
    let response = router.clone().oneshot(ask("GET", &path)).await.unwrap();
    tokio::time::advance(Duration::from_secs(3600)).await;
    job.push(&7);
    job.end();
    let (status, body) = text(response).await;
    assert_eq!((status, body.contains("data: 7"), body.contains("[DONE]")), (200, true, true), "{body}");
    let (_, body) =
        text(router.clone().oneshot(ask("DELETE", path.trim_end_matches("/stream"))).await.unwrap()).await;
    assert!(body.contains("\"ended\""), "{body}");
    let (_, body) =
        text(router.clone().oneshot(ask("GET", path.trim_end_matches("/stream"))).await.unwrap()).await;
    assert!(body.contains(r#""status":"ended","event":null,"data":7"#), "{body}");
    assert_eq!(rejection(&router, ask("GET", "/x/stream")).await, (404, "job_not_found".into()));
    assert_eq!(rejection(&router, ask("DELETE", "/%ff")).await.0, 400);
}

#[tokio::test]
async fn delete_cancels_a_job() {
    let lifecycle = ready();
    let jobs = Jobs::<u8>::new(Options::new("w", |_| 0), &lifecycle);
    let job = jobs.create(OnDisconnect::Continue);
    let router = App::new(Router::new().nest("/v1/jobs", jobs.routes()), lifecycle, Metrics::new());
    let router = router.router(&arguments(&[]));
    let path = format!("/v1/jobs/{}", job.id());
    let (status, body) = text(router.oneshot(ask("DELETE", &path)).await.unwrap()).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, body), (200, serde_json::json!({"job_id": job.id(), "status": "cancelled"})));
    assert!(job.is_cancelled());
}

#[tokio::test]
async fn cors_is_disabled_by_default() {
    let preflight = || {
        let request = with(ask("OPTIONS", "/length"), "origin", "http://a.test");
        let request = with(request, "access-control-request-headers", "authorization,content-type");
        with(request, "access-control-request-method", "POST")
    };
    let allowed = async |more: &[&str]| {
        let response = worker(more).oneshot(preflight()).await.unwrap();
        response.headers().get("access-control-allow-origin").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(allowed(&[]).await, None);
    assert_eq!(allowed(&["--cors-origin=http://b.test"]).await, None);
    assert_eq!(
        allowed(&["--cors-origin=http://b.test,http://a.test"]).await.as_deref(),
        Some("http://a.test")
    );
    assert_eq!(allowed(&["--cors-origin=*"]).await.as_deref(), Some("*"));

    let router = worker(&["--cors-origin=http://a.test", "--api-token=secret"]);
    let response = router.clone().oneshot(preflight()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "preflight requests have no token");
    let refused = with(json("/length", "{}"), "origin", "http://a.test");
    let response = router.oneshot(refused).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(
        response.headers()["access-control-allow-origin"],
        "http://a.test",
        "pages can read the error"
    );
}

/// OpenAI's client for JavaScript sends headers of its own.
#[tokio::test]
async fn preflight_requests_are_allowed_the_headers_that_they_ask_for() {
    let router = worker(&["--cors-origin=http://a.test"]);
    let headers = "authorization,content-type,x-stainless-os,x-stainless-retry-count";
    let request = with(ask("OPTIONS", "/length"), "origin", "http://a.test");
    let request = with(request, "access-control-request-headers", headers);
    let response = router.oneshot(with(request, "access-control-request-method", "POST")).await.unwrap();
    assert_eq!(response.headers()["access-control-allow-headers"], headers);
}

#[tokio::test]
async fn the_token_may_be_sent_as_x_api_key() {
    let router = worker(&["--api-token=secret"]);
    for (key, status) in [("secret", 200), ("wrong", 401)] {
        let request = with(json("/length", r#"{"text": "abc"}"#), "x-api-key", key);
        assert_eq!(router.clone().oneshot(request).await.unwrap().status().as_u16(), status, "{key}");
    }
}

#[tokio::test]
async fn each_of_several_tokens_is_accepted_and_has_its_own_cache() {
    let salt = async |client: Client| client.cache_salt(None).to_string();
    let salts = async |tokens: &str| {
        let app = App::new(Router::new().route("/salt", get(salt)), ready(), Metrics::new());
        let router = app.router(&arguments(&[tokens]));
        let mut salts = Vec::new();
        for token in ["one", "two", "one", "three"] {
            let response =
                router.clone().oneshot(with(ask("GET", "/salt"), "x-api-key", token)).await.unwrap();
            salts.push((response.status().as_u16(), text(response).await.1));
        }
        salts
    };
    let several = salts("--api-token=one,two").await;
    assert_eq!(several.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 200, 200, 401]);
    assert_ne!(several[0], several[1]);
    assert_eq!(several[0], several[2]);
    assert_ne!(several[0].1, "0");
    assert_eq!(salts("--api-token=one").await[0].1, "0");
}

/// Sends a GET request with these headers and returns the status.
async fn status_with(router: &Router, headers: &[(&'static str, &str)]) -> u16 {
    let request =
        headers.iter().fold(ask("GET", "/inner/one"), |request, (name, value)| with(request, name, value));
    router.clone().oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_worker_without_token_on_loopback_rejects_foreign_hosts() {
    let router = worker(&["--allowed-host=chat.test"]);
    for (host, status) in [
        ("localhost", 200),
        ("LOCALHOST:81", 200),
        ("localhost.:81", 200),
        ("127.0.0.1:81", 200),
        ("[::1]:81", 200),
        ("chat.test", 200),
        ("evil.test:81", 403),
        ("localhost.evil.test", 403),
        ("localhost@evil.test", 403),
        ("192.0.2.1", 403),
        ("", 403),
        ("a b", 403),
    ] {
        assert_eq!(status_with(&router, &[("host", host)]).await, status, "{host}");
    }
    assert_eq!(status_with(&router, &[]).await, 200, "browsers always send the header");
    assert_eq!(status_with(&router, &[("host", "localhost"), ("host", "evil.test")]).await, 403);
    let rebound = with(ask("GET", "/inner/one"), "host", "evil.test");
    assert_eq!(rejection(&router, rebound).await, (403, "forbidden_host".into()));
    let absolute = ask("GET", "http://evil.test/inner/one");
    assert_eq!(rejection(&router, absolute).await, (403, "forbidden_host".into()));
    let health = with(ask("GET", "/health"), "host", "evil.test");
    assert_eq!(router.oneshot(health).await.unwrap().status(), StatusCode::OK);
    let foreign = [("host", "evil.test"), ("x-api-key", "secret")];
    for flag in ["--api-token=secret", "--allowed-host=*"] {
        assert_eq!(status_with(&worker(&[flag]), &foreign).await, 200, "{flag}");
    }
}

#[tokio::test]
async fn a_worker_without_token_on_loopback_rejects_pages_of_other_origins() {
    let router = worker(&["--cors-origin=http://app.test"]);
    for (origin, status) in [
        ("http://localhost:81", 200),
        ("https://localhost:81", 200),
        ("http://app.test", 200),
        ("http://localhost", 403),
        ("http://localhost:82", 403),
        ("http://evil.test", 403),
        ("null", 403),
    ] {
        assert_eq!(
            status_with(&router, &[("host", "localhost:81"), ("origin", origin)]).await,
            status,
            "{origin}"
        );
    }
    let form = with(ask("POST", "/inner/one"), "content-type", "multipart/form-data; boundary=x");
    let form = with(with(form, "host", "localhost:81"), "origin", "http://evil.test");
    assert_eq!(rejection(&router, form).await, (403, "forbidden_origin".into()));
    let any = worker(&["--cors-origin=*"]);
    assert_eq!(status_with(&any, &[("host", "localhost"), ("origin", "http://evil.test")]).await, 200);
}

#[tokio::test]
async fn metrics_count_requests_by_route_and_status() {
    let app = app(&ready());
    let router = app.router(&arguments(&[]));
    let requests = [
        ask("GET", "/number/1"),
        ask("GET", "/number/2"),
        ask("GET", "/number/x"),
        ask("BREW", "/nowhere/at/all"),
        ask("GET", "/inner/one"),
    ];
    for request in requests {
        text(router.clone().oneshot(request).await.unwrap()).await;
    }
    let response = router.oneshot(ask("GET", "/metrics")).await.unwrap();
    let kind = response.headers()["content-type"].to_str().unwrap();
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let (_, body) = text(response).await;
    for line in [
        r#"http_requests_total{method="GET",route="/number/{n}",status="200"} 2"#,
        r#"http_requests_total{method="GET",route="/number/{n}",status="400"} 1"#,
        r#"http_requests_total{method="other",route="none",status="404"} 1"#,
        r#"http_requests_total{method="GET",route="/inner/one",status="200"} 1"#,
        r#"http_request_duration_seconds_count{method="GET",route="/number/{n}"} 3"#,
        "http_streams_open 0",
        "# EOF",
    ] {
        assert!(body.lines().any(|found| found == line), "{line} is not in\n{body}");
    }
}

#[test]
fn workers_can_register_metrics() {
    let (metrics, gauge) =
        (Metrics::new(), worker_core::metrics::prometheus_client::metrics::gauge::Gauge::<i64>::default());
    metrics.register(|registry| registry.register("queue", "Waiting", gauge.clone()));
    gauge.set(5);
    assert!(metrics.text().unwrap().contains("\nqueue 5\n"));
}

/// Texts and requests are counted separately. A job at the limit can still be read and cancelled.
#[tokio::test]
async fn a_job_holds_its_slot_until_it_ends() {
    let lifecycle = ready();
    let jobs = Jobs::<u8>::new(Options::new("w", |_| 0), &lifecycle);
    let made = Arc::new(Mutex::new(Vec::new()));
    let create = {
        let (jobs, made) = (jobs.clone(), made.clone());
        move |client: Client| async move {
            let job = jobs.create(OnDisconnect::Continue);
            job.hold(client.acquire(1, "n")?);
            let id = job.id();
            made.lock().push(job);
            Ok::<_, ApiError>(id)
        }
    };
    let texts = async |client: Client, Path(n): Path<usize>| -> Result<(), ApiError> {
        client.acquire(n, "n").map(drop)
    };
    let router = Router::new().route("/jobs", post(create)).route("/texts/{n}", get(texts));
    let router = router.nest("/jobs", jobs.routes());
    let app = App::new(router, lifecycle, Metrics::new());
    let router = app.router(&arguments(&["--streams-per-client=2"]));
    let status =
        async |request: Request<Bytes>| router.clone().oneshot(request).await.unwrap().status().as_u16();
    assert_eq!(status(ask("GET", "/texts/2")).await, 200);
    assert_eq!(status(ask("GET", "/texts/3")).await, 400);
    for expected in [200, 200, 429] {
        assert_eq!(status(json("/jobs", "")).await, expected);
    }
    assert_eq!(status(ask("GET", "/texts/1")).await, 429);
    let job = made.lock().pop().unwrap();
    let path = format!("/jobs/{}", job.id());
    assert_eq!(status(ask("GET", &format!("{path}/stream"))).await, 200);
    assert_eq!(status(ask("DELETE", &path)).await, 200);
    job.end();
    assert_eq!(status(ask("GET", "/texts/1")).await, 200);
    assert_eq!(status(json("/jobs", "")).await, 200);
}
