//! Failing steps, full queues, draining and stopping.
use std::time::Duration;

use llm_engine::engine::{Options, Stream};
use llm_engine::request::{Event, Request, RequestError, StopReason};

use super::mock::{Fault, Mock, greedy, read, request, start};

fn endless(token: u32) -> Request {
    Request { max_tokens: None, ignore_eos: true, ..request(vec![token; 20], 1) }
}

#[test]
fn a_lost_device_sends_every_stream_one_error() {
    for (fault, expected) in [(Fault::DeviceLost, "device_lost"), (Fault::Panic, "engine_failed")] {
        for step in [0, 5] {
            let (mock, permits) = Mock::new(100, 1000).failing(step, fault).gated();
            let engine = start(mock, Options { max_running: 4, ..Options::default() });
            // Four requests run; the others wait.
            let streams: Vec<_> = (1..20).map(|token| engine.submit(endless(token)).unwrap()).collect();
            let embedding = engine.embed(vec![vec![1, 2]]).unwrap();
            drop(permits);
            for (number, stream) in streams.into_iter().enumerate() {
                let output = read(stream);
                let (code, message) = output.end.unwrap_err();
                assert_eq!(code, expected);
                assert!(message.contains("mock"), "{message}");
                assert!(output.tokens.len() <= if number < 4 { step } else { 0 });
            }
            // The job either finished before or failed with the rest, but it was answered.
            match embedding.blocking_recv().unwrap() {
                Ok(vectors) => assert_eq!(vectors, [[1.0, 2.0]]),
                Err(why) => assert!(why.contains("mock"), "{why}"),
            }
            let status = engine.status();
            assert!(status.failed.unwrap().contains("mock"));
            assert_eq!((status.running, status.waiting, status.blocks_used), (0, 0, 0));
            assert!(matches!(engine.submit(request(vec![1], 1)), Err(RequestError::Closed { .. })));
            assert!(matches!(engine.embed(vec![vec![1]]), Err(RequestError::Closed { .. })));
            engine.stop();
        }
    }
}

#[test]
fn out_of_memory_fails_only_the_affected_requests() {
    // Prompts share a prefix, so that blocks are copied before the failing step.
    for step in [0, 1, 5] {
        let (mock, permits) = Mock::new(100, 1000).failing(step, Fault::OutOfMemory).gated();
        let engine = start(mock, Options { max_running: 4, ..Options::default() });
        let prompt = |token: u32| [vec![9; 30], vec![token; 5]].concat();
        let submit = |token| engine.submit(request(prompt(token), 20)).unwrap();
        let streams: Vec<_> = (1..20).map(|token| (token, submit(token))).collect();
        drop(permits);
        let mut failed = 0;
        for (token, stream) in streams {
            let output = read(stream);
            match output.end {
                Ok(_) => assert_eq!(output.tokens, greedy(&prompt(token), 20, false).0),
                Err((code, message)) => {
                    assert!(
                        code == "out_of_memory" && message.contains("out of memory"),
                        "{code}: {message}"
                    );
                    failed += 1;
                }
            }
        }
        assert!((1..=4).contains(&failed), "{failed} failed");
        let output = read(submit(30));
        assert_eq!(output.tokens, greedy(&prompt(30), 20, false).0);
        assert_eq!((engine.status().failed, engine.status().blocks_used), (None, 0));
        engine.stop();
    }
}

#[test]
fn a_large_prompt_step_without_memory_is_repeated_with_fewer_rows() {
    let mock = Mock::new(100, 1000).failing(0, Fault::OutOfMemory);
    let calls = mock.calls.clone();
    let options = Options { step_tokens: 16, prompt_step_tokens: 64, ..Options::default() };
    let (mock, permits) = mock.gated();
    let engine = start(mock, options);
    let prompt = |token: u32| vec![token; 60];
    let submit = |token| engine.submit(request(prompt(token), 10)).unwrap();
    let streams = [1, 2].map(|token| (token, submit(token)));
    drop(permits);
    let check = |token, stream| {
        let output = read(stream);
        assert_eq!(output.tokens, greedy(&prompt(token), 10, false).0);
        assert_eq!(output.usage().prompt_tokens, 60);
    };
    streams.into_iter().for_each(|(token, stream)| check(token, stream));
    // Later prompts are not computed in larger steps either.
    check(3, submit(3));
    let rows: Vec<usize> = calls.steps.lock().unwrap().iter().map(|(_, rows)| *rows).collect();
    assert!(rows[0] > 16 && rows[1..].iter().all(|rows| *rows <= 16), "{rows:?}");
    assert_eq!((engine.status().failed, engine.status().blocks_used), (None, 0));
    engine.stop();
}

#[test]
fn repeated_step_failures_stop_the_engine() {
    let engine = start(Mock::new(100, 1000).failing(0, Fault::EveryStep), Options::default());
    let codes: Vec<_> = (1..=4)
        .map(|token| match engine.submit(request(vec![token; 20], 5)) {
            Ok(stream) => read(stream).end.unwrap_err().0,
            Err(refused) => panic!("{refused}"),
        })
        .collect();
    assert_eq!(codes, ["step_failed", "step_failed", "step_failed", "device_lost"]);
    assert!(engine.status().failed.is_some());
    engine.stop();
}

#[test]
fn a_request_without_a_valid_token_fails_alone() {
    const BREAKS: u32 = 50;
    let engine = start(Mock::new(100, 1000).broken_by(BREAKS), Options::default());
    let prompt = |token: u32| if token.is_multiple_of(3) { vec![token, BREAKS] } else { vec![token; 20] };
    let submit = |token| engine.submit(request(prompt(token), 10)).unwrap();
    let streams: Vec<_> = (1..20).map(submit).collect();
    for (token, stream) in (1..20).zip(streams) {
        let (tokens, _) = greedy(&prompt(token), 10, false);
        let output = read(stream);
        if token.is_multiple_of(3) || tokens[..tokens.len() - 1].contains(&BREAKS) {
            assert_eq!(output.end.unwrap_err().0, "sampling");
        } else {
            assert_eq!(output.tokens, tokens);
        }
    }
    // The engine continues even if the only running request fails.
    assert_eq!(read(engine.submit(request(vec![BREAKS], 1)).unwrap()).end.unwrap_err().0, "sampling");
    assert_eq!(read(engine.submit(request(vec![1; 20], 10)).unwrap()).tokens, greedy(&[1; 20], 10, false).0);
    assert_eq!((engine.status().failed, engine.status().blocks_used), (None, 0));
    engine.stop();
}

#[test]
fn a_full_queue_rejects_requests() {
    let (mock, permits) = Mock::new(100, 1000).gated();
    let engine = start(mock, Options { max_running: 2, max_waiting: 3, ..Options::default() });
    let mut streams: Vec<_> = (1..6).map(|token| engine.submit(endless(token)).unwrap()).collect();
    // The first step is blocked or has not started, so up to two requests may count as running.
    assert!(matches!(engine.submit(endless(6)), Err(RequestError::QueueFull { waiting: 3..=5 })));
    assert!(matches!(engine.embed(vec![vec![1]]), Err(RequestError::QueueFull { .. })));
    let last = streams.pop().unwrap();
    last.cancel();
    drop(permits);
    assert_eq!(read(last).reason(), StopReason::Cancelled);
    streams.push(engine.submit(endless(6)).unwrap());
    engine.stop();
    assert!(
        streams
            .into_iter()
            .map(read)
            .all(|output| output.reason() == StopReason::Cancelled || output.tokens.len() == 980)
    );
}

#[test]
fn draining_rejects_requests_and_finishes_running_ones() {
    let (mock, permits) = Mock::new(100, 1000).gated();
    let engine = start(mock, Options { max_running: 2, ..Options::default() });
    let streams: Vec<_> =
        (1..6).map(|token| (token, engine.submit(request(vec![token; 20], 30)).unwrap())).collect();
    engine.drain();
    assert!(matches!(engine.submit(request(vec![1], 1)), Err(RequestError::Closed { .. })));
    drop(permits);
    for (token, stream) in streams {
        assert_eq!(read(stream).tokens, greedy(&[token; 20], 30, false).0);
    }
    assert_eq!(engine.status().failed, None);
    engine.stop();
}

#[test]
fn stopping_ends_all_streams() {
    let (mock, permits) = Mock::new(100, 1000).gated();
    let engine = start(mock, Options { max_running: 2, ..Options::default() });
    let mut streams: Vec<_> = (1..6).map(|token| engine.submit(endless(token)).unwrap()).collect();
    assert_eq!(streams[0].blocking_next(), Some(Event::Started));
    let embedding = engine.embed(vec![vec![1]; 100]).unwrap();
    // The thread is in its first step, or about to start it, and ends after it.
    let other = engine.clone();
    let stopping = std::thread::spawn(move || other.stop());
    drop(permits);
    stopping.join().unwrap();
    engine.stop();
    // The job was either stopped or already finished.
    assert!(
        embedding
            .blocking_recv()
            .unwrap()
            .map_or_else(|why| why.contains("stopped"), |done| done.len() == 100)
    );
    for (number, mut stream) in streams.into_iter().enumerate() {
        let events: Vec<_> = std::iter::from_fn(|| stream.blocking_next()).collect();
        let Some((Event::End { reason, .. }, before)) = events.split_last() else { panic!("{events:?}") };
        assert!(*reason == StopReason::Cancelled || before.len() >= 980, "{reason:?}");
        assert!(number < 2 || before.len() <= 981);
    }
    assert!(matches!(engine.submit(request(vec![1], 1)), Err(RequestError::Closed { .. })));
    assert!(matches!(engine.embed(vec![vec![1]]), Err(RequestError::Closed { .. })));
}

#[test]
fn stopping_with_a_timeout_abandons_a_hanging_step() {
    let (mock, permits) = Mock::new(100, 1000).gated();
    let engine = start(mock, Options::default());
    let mut stream = engine.submit(endless(1)).unwrap();
    assert_eq!(stream.blocking_next(), Some(Event::Started));
    // The first step waits for a permit, which never comes.
    assert!(!engine.stop_within(Duration::from_millis(20)));
    drop(permits);
    assert!(engine.stop_within(Duration::from_secs(60)));
    assert!(engine.stop_within(Duration::ZERO));
    engine.stop();
    assert!(read_to_end(stream));
}

/// Reads a stream to its end, and returns true if its last event is `End`.
fn read_to_end(mut stream: Stream) -> bool {
    let mut last = None;
    while let Some(event) = stream.blocking_next() {
        last = Some(event);
    }
    matches!(last, Some(Event::End { .. }))
}

#[test]
fn streams_continue_without_handles() {
    let engine = start(Mock::new(100, 1000), Options::default());
    let stream = engine.submit(request(vec![8; 20], 100)).unwrap();
    drop(engine);
    assert_eq!(read(stream).tokens, greedy(&[8; 20], 100, false).0);
}
