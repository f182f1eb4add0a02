//! Host memory of prompts that are far too long, in a process of its own. Prints what it measures:
//! `cargo test --test long_prompts -- --nocapture`.
use std::fs;
use std::time::Instant;

use fixture::{MODEL, Worker, json_request, worker_with};
use llm_engine::text::TextCodec;
use serde_json::{Value, json};
use shared::allocations;
use tokenizers::{AddedToken, Tokenizer};
use worker_core::device::resident_bytes;

#[path = "../http/fixture.rs"]
#[allow(dead_code, unused_imports, reason = "shared with other tests")]
mod fixture;
#[path = "../../../worker-core/tests/shared/mod.rs"]
mod shared;
#[path = "../http/tiny_llama.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod tiny_llama;

/// Size of a prompt, and number of prompts at once.
const PROMPT_BYTES: usize = 7_600_000;
const PROMPTS: usize = 4;
/// Maximum of memory above that of an idle worker.
const MAX_BYTES: usize = 300_000_000;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Sends the bodies at once, and checks that each is refused. Returns the peak of allocated bytes above those before.
async fn peak(worker: &Worker, name: &str, path: &str, body: impl Fn(String) -> Value, text: &str) -> usize {
    let prompt = text.repeat(PROMPT_BYTES / text.len());
    let bodies: Vec<_> = (0..PROMPTS).map(|_| body(prompt.clone()).to_string().into_bytes()).collect();
    drop(prompt);
    let bodies_bytes: usize = bodies.iter().map(Vec::len).sum();
    let (begin, resident) = (Instant::now(), resident_bytes());
    // Resets the peak of resident memory.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let idle = allocations::reset_peak();
    let answers = bodies.into_iter().map(|body| {
        let (router, request) = (worker.router.clone(), json_request(path, body));
        tokio::spawn(async move {
            shared::Answer::of(tower::ServiceExt::oneshot(router, request).await.unwrap()).await
        })
    });
    for answer in answers.collect::<Vec<_>>() {
        let answer = answer.await.unwrap();
        assert_eq!(
            (answer.error().0, answer.error().1.as_str()),
            (400, "context_length_exceeded"),
            "{}",
            answer.text
        );
    }
    let seconds = begin.elapsed().as_secs_f64();
    let above = allocations::peak() - idle;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    let most: u64 = most.unwrap_or(0) << 10;
    println!(
        "{name}: peak +{} MB allocated, +{} MB resident, +{} MB resident afterwards, refused in {seconds:.2} s",
        above / 1_000_000,
        most.saturating_sub(resident) / 1_000_000,
        (resident_bytes() as i64 - resident as i64) / 1_000_000,
    );
    // The bodies are allocated before.
    above + bodies_bytes
}

/// Tokenizes texts at once for a context that they might fit into by their length.
fn peak_of_pieces(text: &str) -> usize {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), false);
    let mut tokenizer = Tokenizer::from_file(folder.path().join("tokenizer.json")).unwrap();
    tokenizer.add_special_tokens([AddedToken::from("-".repeat(1000), true)]).unwrap();
    let codec = TextCodec::new(tokenizer, Vec::new(), None).unwrap();
    let (prompt, limit) = (text.repeat(PROMPT_BYTES / text.len()), 10_000);
    assert!(prompt.len() < codec.max_bytes(limit));
    let idle = allocations::reset_peak();
    std::thread::scope(|scope| {
        for _ in 0..PROMPTS {
            scope.spawn(|| assert_eq!(codec.encode_within(&prompt, true, limit).unwrap(), None));
        }
    });
    allocations::peak() - idle
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_above_the_context_take_little_memory() {
    let worker = worker_with(true, Default::default(), &["--body-limit", "8388608"]);
    let completion = |text: String| json!({"model": MODEL, "prompt": text});
    let chat = |text: String| json!({"model": MODEL, "messages": [{"role": "user", "content": text}]});
    for text in ["many words ", "\u{6F22}\u{5B57}"] {
        for bytes in [
            peak(&worker, "completions", "/v1/completions", completion, text).await,
            peak(&worker, "chats", "/v1/chat/completions", chat, text).await,
        ] {
            assert!(bytes < MAX_BYTES, "{bytes} bytes");
        }
        let bytes = peak_of_pieces(text);
        println!("{PROMPTS} tokenizations at once: peak +{} MB allocated", bytes / 1_000_000);
        assert!(bytes < MAX_BYTES, "{bytes} bytes");
    }
}
