use super::*;
use axum::body::to_bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_stream::StreamExt;

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Event {
    Token { i: usize },
    Error { code: &'static str },
}

fn error(error: &ApiError) -> Event {
    Event::Error { code: error.code() }
}

fn name(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Token { .. } => "token",
        Event::Error { .. } => "error",
    })
}

fn jobs(change: impl FnOnce(&mut Options<Event>)) -> (Jobs<Event>, Lifecycle) {
    let mut options = Options::new("w", error);
    change(&mut options);
    let lifecycle = Lifecycle::new();
    lifecycle.ready();
    (Jobs::new(options, &lifecycle), lifecycle)
}

fn reader(jobs: &Jobs<Event>, id: &str) -> Reader {
    Reader::new(jobs.0.find(id).unwrap(), 0)
}

async fn rest(reader: Reader) -> Vec<String> {
    reader.map(|frame| frame.data.to_string()).collect().await
}

fn tokens(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|i| format!(r#"{{"type":"token","i":{i}}}"#)).collect()
}

async fn text(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn a_late_reader_receives_all_events() {
    let (jobs, _) = jobs(|_| {});
    let job = jobs.create(OnDisconnect::Continue);
    let id = job.id();
    let early = tokio::spawn(rest(reader(&jobs, &id)));
    for i in 0..100 {
        assert!(job.push(&Event::Token { i }));
        if i == 50 {
            tokio::task::yield_now().await;
        }
    }
    let midway = tokio::spawn(rest(reader(&jobs, &id)));
    tokio::task::yield_now().await;
    assert_eq!(jobs.running(), 1);
    job.end();
    assert_eq!(jobs.running(), 0);
    for read in [early.await.unwrap(), midway.await.unwrap(), rest(reader(&jobs, &id)).await] {
        assert_eq!(read, tokens(0..100));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_readers_receive_all_events() {
    let (jobs, _) = jobs(|_| {});
    let job = jobs.create(OnDisconnect::Continue);
    let readers: Vec<_> = (0..8).map(|_| tokio::spawn(rest(reader(&jobs, &job.id())))).collect();
    let writer = tokio::task::spawn_blocking(move || {
        (0..5000).for_each(|i| assert!(job.push(&Event::Token { i })));
        job.end();
    });
    writer.await.unwrap();
    for reader in readers {
        assert_eq!(reader.await.unwrap(), tokens(0..5000));
    }
}

#[tokio::test]
async fn events_have_names_ids_and_an_end_marker() {
    let (jobs, _) = jobs(|options| options.name = Some(name));
    let job = jobs.create(OnDisconnect::Continue);
    let id = job.id();
    job.push(&Event::Token { i: 7 });
    job.fail(&ApiError::conflict("no"));
    let all = text(jobs.stream(&id, &HeaderMap::new()).unwrap()).await;
    let expected = "event: token\ndata: {\"type\":\"token\",\"i\":7}\nid: 0\n\n\
        event: error\ndata: {\"type\":\"error\",\"code\":\"conflict\"}\nid: 1\n\ndata: [DONE]\n\n";
    assert_eq!(all, expected);

    for (last, data) in [("0", 1), ("1", 0), ("99", 0), ("18446744073709551615", 0), ("x", 2)] {
        let headers = [("last-event-id".parse().unwrap(), last.parse().unwrap())].into_iter().collect();
        let read = text(jobs.stream(&id, &headers).unwrap()).await;
        assert_eq!(read.matches("data: {").count(), data, "after {last}");
        assert!(read.ends_with("data: [DONE]\n\n"));
    }
}

#[tokio::test]
async fn the_end_marker_can_be_disabled() {
    let (jobs, _) = jobs(|options| options.done = false);
    let job = jobs.create(OnDisconnect::Continue);
    let id = job.id();
    job.end();
    assert_eq!(text(jobs.stream(&id, &HeaderMap::new()).unwrap()).await, "");
}

#[tokio::test]
async fn a_cancelled_job_can_still_append_events() {
    let (jobs, _) = jobs(|_| {});
    let job = jobs.create(OnDisconnect::Continue);
    let (id, count) = (job.id(), Arc::new(AtomicUsize::new(0)));
    let hook = {
        let count = count.clone();
        move || {
            let _ = count.fetch_add(1, Ordering::Relaxed);
        }
    };
    job.on_cancel(hook.clone());
    assert!(!job.is_cancelled());
    assert!(jobs.cancel(&id).unwrap());
    assert!(jobs.cancel(&id).unwrap(), "it has not ended yet");
    tokio::spawn(job.cancelled()).await.unwrap();
    assert!(job.is_cancelled());
    assert_eq!(count.load(Ordering::Relaxed), 1);
    job.on_cancel(hook);
    assert_eq!(count.load(Ordering::Relaxed), 2, "a late hook is called immediately");
    assert!(job.push(&Event::Token { i: 0 }));
    job.end();
    assert!(!jobs.cancel(&id).unwrap());
    assert_eq!(rest(reader(&jobs, &id)).await, tokens(0..1));
}

#[tokio::test(start_paused = true)]
async fn jobs_without_readers_are_cancelled_after_the_timeout() {
    let (jobs, _) = jobs(|_| {});
    let after = |seconds| tokio::time::advance(Duration::from_secs(seconds));
    let timeout = OnDisconnect::CancelAfter(Duration::from_secs(60));
    let [unread, read, polled, dropped] = [(); 4].map(|()| jobs.create(timeout));
    let free = jobs.create(OnDisconnect::Continue);
    let _reader = reader(&jobs, &read.id());
    after(59).await;
    for job in [&dropped, &free] {
        drop(reader(&jobs, &job.id()));
    }
    assert!(!unread.is_cancelled());
    assert!(jobs.state(&polled.id()).is_ok());
    after(2).await;
    unread.cancelled().await;
    assert!(!dropped.is_cancelled() && !polled.is_cancelled());
    after(60).await;
    dropped.cancelled().await;
    polled.cancelled().await;
    after(3600).await;
    assert!(!read.is_cancelled() && !free.is_cancelled());
}

#[tokio::test]
async fn the_state_has_the_last_event() {
    let (jobs, _) = jobs(|options| options.name = Some(name));
    let job = jobs.create(OnDisconnect::Continue);
    let id = job.id();
    let state = async || -> Value { serde_json::from_str(&text(jobs.state(&id).unwrap()).await).unwrap() };
    let silent = json!({"job_id": id, "status": "running", "event": null, "data": null});
    assert_eq!(state().await, silent);
    job.push(&Event::Token { i: 3 });
    let mut expected =
        json!({"job_id": id, "status": "running", "event": "token", "data": {"type": "token", "i": 3}});
    assert_eq!(state().await, expected);
    job.end();
    expected["status"] = "ended".into();
    assert_eq!(state().await, expected);
    assert_eq!(jobs.state("x").unwrap_err().code(), "job_not_found");
}

#[tokio::test]
async fn disconnection_after_the_end_does_not_cancel() {
    let (jobs, _) = jobs(|_| {});
    let job = jobs.create(OnDisconnect::CancelAfter(Duration::ZERO));
    let (reader, called) = (reader(&jobs, &job.id()), Arc::new(AtomicUsize::new(0)));
    let hook = called.clone();
    job.on_cancel(move || {
        let _ = hook.fetch_add(1, Ordering::Relaxed);
    });
    job.end();
    drop(reader);
    tokio::task::yield_now().await;
    assert_eq!(called.load(Ordering::Relaxed), 0);
    assert_eq!(Arc::strong_count(&called), 1, "the hook is dropped with the job");
}

#[tokio::test]
async fn a_dropped_job_fails() {
    let (jobs, _) = jobs(|_| {});
    let job = jobs.create(OnDisconnect::Continue);
    let id = job.id();
    drop(job);
    assert_eq!(rest(reader(&jobs, &id)).await, [r#"{"type":"error","code":"internal_error"}"#]);
    assert_eq!(jobs.running(), 0);
}

#[tokio::test]
async fn held_values_are_dropped_at_the_end() {
    let (jobs, lifecycle) = jobs(|_| {});
    let held = Arc::new(());
    let job = || {
        let job = jobs.create(OnDisconnect::Continue);
        job.hold(held.clone());
        job
    };
    let (ended, dropped, aborted) = (job(), job(), job());
    assert_eq!(Arc::strong_count(&held), 4);
    ended.end();
    assert_eq!(Arc::strong_count(&held), 3);
    drop(dropped);
    assert_eq!(Arc::strong_count(&held), 2);
    lifecycle.abort();
    assert_eq!(Arc::strong_count(&held), 1);
    aborted.hold(held.clone());
    assert_eq!(Arc::strong_count(&held), 1, "it has ended");
}

#[tokio::test]
async fn a_full_log_fails_the_job() {
    let size = Frame::new(&Event::Token { i: 0 }, None).unwrap().size();
    let (jobs, _) = jobs(|options| options.max_log_bytes = 3 * size);
    let job = jobs.create(OnDisconnect::Continue);
    let id = job.id();
    for i in 0..3 {
        assert!(job.push(&Event::Token { i }));
    }
    assert!(!job.is_cancelled());
    assert!(!job.push(&Event::Token { i: 3 }));
    assert!(job.is_cancelled());
    assert!(!job.push(&Event::Token { i: 4 }));
    job.end();
    let read = rest(reader(&jobs, &id)).await;
    assert_eq!(read[..3], tokens(0..3));
    assert_eq!(read[3..], [r#"{"type":"error","code":"log_full"}"#]);
}

#[tokio::test(start_paused = true)]
async fn finished_jobs_are_evicted_after_the_retention_time() {
    let (jobs, _) = jobs(|options| options.retention = Duration::from_secs(60));
    let (running, ended) = (jobs.create(OnDisconnect::Continue), jobs.create(OnDisconnect::Continue));
    let id = ended.id();
    ended.end();
    tokio::time::advance(Duration::from_secs(59)).await;
    assert!(jobs.cancel(&id).is_ok());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(jobs.cancel(&id).unwrap_err().code(), "job_not_found");
    assert!(jobs.cancel(&running.id()).is_ok());
}

#[tokio::test]
async fn finished_jobs_are_evicted_above_count_and_size_limits() {
    let size = Frame::new(&Event::Token { i: 0 }, None).unwrap().size();
    for (count, bytes) in [(3, usize::MAX), (usize::MAX, 3 * size)] {
        let (jobs, _) = jobs(|options| (options.max_ended, options.max_ended_bytes) = (count, bytes));
        let running = jobs.create(OnDisconnect::Continue);
        let ids: Vec<_> = (0..10)
            .map(|_| {
                let job = jobs.create(OnDisconnect::Continue);
                assert!(job.push(&Event::Token { i: 0 }));
                let id = job.id();
                job.end();
                id
            })
            .collect();
        let known: Vec<_> = ids.iter().map(|id| jobs.cancel(id).is_ok()).collect();
        assert_eq!(known, [[false; 7].as_slice(), &[true; 3]].concat());
        assert!(jobs.cancel(&running.id()).unwrap());
        assert_eq!(jobs.0.table.lock().all().len(), 4);
    }
}

#[tokio::test]
async fn a_reader_of_an_evicted_job_can_finish() {
    let (jobs, _) = jobs(|options| options.max_ended = 0);
    let job = jobs.create(OnDisconnect::Continue);
    let (id, reader) = (job.id(), reader(&jobs, &job.id()));
    job.push(&Event::Token { i: 0 });
    job.end();
    assert!(jobs.cancel(&id).is_err());
    assert_eq!(rest(reader).await, tokens(0..1));
}

#[tokio::test]
async fn abort_of_the_worker_closes_jobs() {
    let (jobs, lifecycle) = jobs(|_| {});
    let (one, two) = (jobs.create(OnDisconnect::Continue), jobs.create(OnDisconnect::Continue));
    let ids = [one.id(), two.id()];
    let idle = {
        let lifecycle = lifecycle.clone();
        tokio::spawn(async move { lifecycle.idle().await })
    };
    one.end();
    tokio::task::yield_now().await;
    assert!(!idle.is_finished());
    lifecycle.abort();
    idle.await.unwrap();
    assert!(two.is_cancelled() && !two.push(&Event::Token { i: 0 }));
    assert_eq!(rest(reader(&jobs, &ids[0])).await, [""; 0]);
    assert_eq!(rest(reader(&jobs, &ids[1])).await, [r#"{"type":"error","code":"worker_ended"}"#]);
    let late = jobs.create(OnDisconnect::Continue);
    assert!(late.is_cancelled() && !late.push(&Event::Token { i: 0 }));
}

#[tokio::test]
async fn unknown_ids_are_404() {
    let (jobs, _) = jobs(|_| {});
    for id in ["", "x", "00000000-0000-0000-0000-000000000000", &"a".repeat(10_000)] {
        assert_eq!(jobs.cancel(id).unwrap_err().status(), 404);
        assert_eq!(jobs.stream(id, &HeaderMap::new()).unwrap_err().status(), 404);
    }
}

#[tokio::test]
async fn an_event_that_cannot_be_serialized_fails_the_job() {
    let lifecycle = Lifecycle::new();
    // JSON objects require string keys, so this cannot be serialized.
    type Broken = std::collections::BTreeMap<Vec<u8>, u8>;
    let jobs: Jobs<Broken> = Jobs::new(Options::new("w", |_| Broken::new()), &lifecycle);
    let job = jobs.create(OnDisconnect::Continue);
    let id = job.id();
    assert!(!job.push(&Broken::from([(vec![1], 1)])));
    job.end();
    assert_eq!(rest(Reader::new(jobs.0.find(&id).unwrap(), 0)).await, ["{}"]);
}
