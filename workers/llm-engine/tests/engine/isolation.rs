//! Isolation of clients: cached prefixes of others, and readers that fall behind.
use llm_engine::engine::Options;
use llm_engine::request::{Event, Request};

use super::mock::{Mock, read, request, start};

const PROMPT: usize = 100;

fn prompt() -> Vec<u32> {
    (0..PROMPT as u32).map(|i| i % 50 + 1).collect()
}

#[test]
fn prefixes_are_shared_only_with_the_same_salt() {
    let engine = start(Mock::new(100, 1000), Options::default());
    let cached = |salt| {
        let request = Request { cache_salt: salt, ..request(prompt(), 1) };
        read(engine.submit(request).unwrap()).usage().cached_tokens
    };
    assert_eq!([cached(1), cached(2), cached(0)], [0, 0, 0]);
    assert_eq!([cached(1), cached(2), cached(0)], [96, 96, 96]);
    engine.stop();
}

/// Otherwise a client could guess the text of another one token by token.
#[test]
fn other_clients_share_only_whole_blocks() {
    let engine = start(Mock::new(100, 1000), Options::default());
    let cached = |client, length: usize| {
        let mut prompt = prompt();
        prompt.truncate(length);
        // The token behind the common part differs.
        prompt.push(63);
        let request = Request { client, ..request(prompt, 1) };
        read(engine.submit(request).unwrap()).usage().cached_tokens
    };
    assert_eq!(cached(1, PROMPT), 0);
    // The second, fourth and sixth block are common up to their last tokens.
    for length in [30, 62, 94] {
        assert_eq!(cached(2, length), length / 16 * 16, "another client");
        assert_eq!(cached(1, length), length, "the client itself");
    }
    engine.stop();
}

#[test]
fn a_stream_that_is_not_read_ends_with_an_error_and_blocks_no_others() {
    let engine = start(Mock::new(100, 1000), Options { max_unread: 8, ..Options::default() });
    let endless = Request { max_tokens: None, ignore_eos: true, ..request(vec![3; 5], 1) };
    let mut unread = engine.submit(endless).unwrap();
    let other = Request { ignore_eos: true, ..request(vec![4; 5], 500) };
    let mut tokens = 0;
    let mut other = engine.submit(other).unwrap();
    while let Some(event) = other.blocking_next() {
        match event {
            Event::Token { .. } => tokens += 1,
            Event::Error { code, .. } => {
                // This reader may also be slower than the engine.
                assert_eq!(code, "client_too_slow");
                tokens = 500;
            }
            _ => {}
        }
    }
    assert_eq!(tokens, 500);
    let mut events = Vec::new();
    while let Some(event) = unread.blocking_next() {
        events.push(event);
    }
    assert_eq!(events.len(), 8 + 1);
    let Some(Event::Error { code: "client_too_slow", message }) = events.last() else {
        panic!("{:?}", events.last());
    };
    assert!(message.contains("8 events unread"), "{message}");
    assert_eq!((engine.status().running, engine.status().blocks_used), (0, 0));
    engine.stop();
}
