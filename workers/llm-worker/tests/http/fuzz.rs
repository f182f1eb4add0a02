//! Fuzzing of requests: no response is 5xx, all errors have the same format, and nothing grows.
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use llm_engine::sampling::settings::{Kind, SETTINGS};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fixture::{Answer, Ask, MODEL, Worker, json_request, worker};
use crate::shared::allocations::allocated;
use crate::shared::fuzz::{self, Change, Seed, addressed, changed, edited};
use crate::tiny_llama::CONTEXT;

/// Default number of bodies; overridden by CANDLE_FUZZ_CASES.
const CASES: u32 = 3000;
/// Fields without which a text fills the context. They are absent only if that is the only change, to save time.
const LIMITS: [&str; 4] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"];
/// Maximum time of a response, only to end a hang: a body may ask for 128 texts that fill the context.
const DEADLINE: Duration = Duration::from_secs(1800);
/// Number of compiled grammars that the engine keeps.
const KEPT_GRAMMARS: usize = 16;
/// Number of clients that send bodies at once.
const CLIENTS: u32 = 4;
/// Maximum growth of allocated memory in bytes, after a quarter of the bodies.
const MAX_GROWTH: usize = 32 << 20;
/// Maximum growth of the numbers of threads and of open files.
const SPARE: usize = 4;

/// Returns a body with every sampler setting.
fn with_settings() -> Value {
    let mut body = json!({"model": MODEL, "prompt": "hi", "max_tokens": 3, "n": 2, "seed": 1,
        "logit_bias": {"5": 1.5}, "logprobs": 1, "stop": "x", "ignore_eos": true});
    for setting in SETTINGS {
        body[setting.name] = match &setting.kind {
            Kind::Number { range, .. } => json!((range.start() + range.end()) / 2.0),
            Kind::Count { .. } => json!(5),
        };
    }
    body
}

fn seeds() -> Vec<Seed> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", 1]}}, "required": ["a"]});
    vec![
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": [{"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 3, "stream": true,
            "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2, "stop": ["a", "b"]}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "x", "tool_call_id": "1"}], "max_completion_tokens": 3, "tool_choice": "auto",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        ),
        ("/v1/completions", with_settings()),
        (
            "/v1/completions",
            json!({"prompt": ["hi", "there"], "echo": true, "max_tokens": 0, "logprobs": 1, "prompt_logprobs": 2, "best_of": 2,
            "truncate_prompt_tokens": 4, "skip_special_tokens": false, "include_stop_str_in_output": true,
            "cache_prompt": false, "timings_per_token": true, "repeat_last_n": 3, "n_probs": 1,
            "speculative.n_max": 2}),
        ),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 3, "guided_regex": "a+(b|c)"})),
        ("/v1/completions", json!({"prompt": "a", "n_predict": 3, "grammar": "root ::= \"a\" root | [b-d]"})),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 3, "structured_outputs": {"grammar": "start: /a+/ \"b\""}}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "assistant", "content": "hi"}], "max_tokens": 3, "continue_final_message": true,
            "add_generation_prompt": false, "response_format": {"type": "structural_tag", "triggers": ["<f"],
            "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}]}}),
        ),
        ("/v1/completions", json!({"prompt": [[1, 2], [3]], "max_tokens": 2, "stream": true, "echo": false})),
        (
            "/v1/responses",
            json!({"model": MODEL, "instructions": "x", "max_output_tokens": 3, "stream": true, "store": false,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "x"}],
            "tools": [{"type": "function", "name": "f", "parameters": schema}], "tool_choice": "auto"}),
        ),
        (
            "/v1/responses",
            json!({"input": "hi", "max_output_tokens": 3, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}, "reasoning": {"effort": "low"}}),
        ),
        (
            "/v1/messages",
            json!({"model": MODEL, "system": [{"type": "text", "text": "x"}], "max_tokens": 3, "stream": true,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": ""},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}],
            "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "auto"}}),
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}],
            "stop_sequences": ["a"], "top_k": 5, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"messages": [{"role": "user", "content": "hi"}], "system": "x"}),
        ),
        (
            "/v1/load_lora_adapter",
            json!({"lora_name": "sql", "lora_path": "/adapters/sql", "load_inplace": false}),
        ),
        ("/v1/unload_lora_adapter", json!({"lora_name": "sql", "lora_int_id": 1})),
        ("/tokenize", json!({"content": "hi", "add_special": true, "with_pieces": true})),
        ("/tokenize", json!({"messages": [{"role": "user", "content": "hi"}], "return_token_strs": true})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
        ("/apply-template", json!({"messages": [{"role": "user", "content": "hi"}]})),
        ("/v1/embeddings", json!({"model": MODEL, "input": ["a", "b"], "encoding_format": "base64"})),
        (
            "/v1/embeddings",
            json!({"input": "a", "dimensions": 5, "truncate_prompt_tokens": -1, "normalize": false}),
        ),
        (
            "/v1/rerank",
            json!({"model": MODEL, "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": false,
            "truncate_prompt_tokens": 3}),
        ),
        ("/v1/score", json!({"text_1": "a", "text_2": ["b", "c"], "truncate_prompt_tokens": -1})),
        (
            "/v1/jobs",
            json!({"hive_id": "h", "model": MODEL, "prompt": "hi", "max_tokens": 2, "temperature": 0.5,
            "top_p": 0.5, "top_k": 3, "device": 0, "worker_id": "worker-1", "stream": true}),
        ),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let words = ["text", "json_object", "required", "none", "assistant", "</s>", "<|im_start|>"];
    let mut more = vec![
        json!(300),
        json!({"type": "object"}),
        json!({"$ref": "#"}),
        json!({"anyOf": []}),
        json!({"pattern": "("}),
        json!("a ".repeat(CONTEXT)),
    ];
    for setting in SETTINGS {
        if let Kind::Number { range, .. } = &setting.kind {
            more.extend([range.start(), range.end(), &(range.end() + 0.1)].map(|bound| json!(bound)));
        }
    }
    fuzz::value(more, &words)
}

/// A worker, and the runtime of its requests.
struct Fuzzed {
    runtime: Runtime,
    worker: Worker,
    seeds: Vec<Seed>,
}

impl Fuzzed {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let worker = runtime.block_on(async { worker() });
        Self { runtime, worker, seeds: seeds() }
    }

    /// Sends one body and returns its response.
    fn send(&self, path: &'static str, seed: &Value, changes: &[Change]) -> Result<Answer, TestCaseError> {
        let mut body = changed(seed, changes, &self.seeds);
        for limit in LIMITS.iter().filter(|limit| changes.len() > 1 && seed.get(**limit).is_some()) {
            if body[*limit].is_null() {
                body[*limit] = seed[*limit].clone();
            }
        }
        let body = body.to_string().into_bytes();
        let request = addressed(json_request(path, edited(body, changes)), changes);
        let answer = async { tokio::time::timeout(DEADLINE, self.worker.read(request)).await };
        let Ok(answer) = self.runtime.block_on(answer) else {
            return Err(TestCaseError::fail(format!("{path}: no response within {DEADLINE:?}")));
        };
        fuzz::check(path, &answer)?;
        prop_assert!(!answer.text.contains("the engine stopped unexpectedly"), "{}", answer.text);
        Ok(answer)
    }

    /// Waits until nothing runs, and returns what the process uses.
    fn usage(&self) -> Usage {
        // Small grammars replace the kept ones, which take up to some MiB each.
        for length in 1..=KEPT_GRAMMARS {
            let regex = format!("a{{{length}}}");
            let body = json!({"prompt": "a", "max_tokens": 1, "guided_regex": regex});
            let answer = self.runtime.block_on(self.worker.post("/v1/completions", &body));
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
        self.runtime.block_on(self.worker.idle());
        assert_eq!(self.worker.served.engine.status().failed, None);
        let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        Usage { bytes: allocated(), threads: count("/proc/self/task"), files: count("/proc/self/fd") }
    }
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    /// Allocated memory. Resident memory also depends on how the allocator arranges it.
    bytes: usize,
    threads: usize,
    files: usize,
}

#[test]
fn no_body_causes_a_5xx() {
    let fuzzed = Fuzzed::new();
    fuzz::run(fuzz::cases(CASES), fuzz::seed(), &fuzzed.seeds, value(), |path, seed, changes| {
        fuzzed.send(path, seed, changes).map(|_| ())
    });
    fuzzed.usage();
}

#[test]
#[ignore = "takes minutes, and needs a process of its own; run it with `cargo xtask fuzz-requests`"]
fn many_bodies_cause_no_growth() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Relaxed);
        print(info);
    }));
    let (fuzzed, begin, accepted) = (Fuzzed::new(), Instant::now(), AtomicU32::new(0));
    let send = |cases: u32, client: u64| {
        let seed = fuzz::seed().unwrap_or_default().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ client;
        fuzz::run(cases, Some(seed), &fuzzed.seeds, value(), |path, seed, changes| {
            let answer = fuzzed.send(path, seed, changes)?;
            // A panic beside the response's own task does not reach the response.
            prop_assert_eq!(PANICS.load(Relaxed), 0, "a thread panicked");
            // llguidance catches its own panics and reports them as errors.
            prop_assert!(!answer.text.contains("panic: "), "{path}: {}", answer.text);
            accepted.fetch_add(u32::from(answer.status.is_success()), Relaxed);
            Ok(())
        });
    };
    // Returns what the process uses when all clients have sent their share.
    let round = |cases: u32, number: u64| {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let send = &send;
                scope.spawn(move || send(cases / CLIENTS, number << 32 | u64::from(client)));
            }
        });
        fuzzed.usage()
    };
    let cases = fuzz::cases(CASES);
    // In the first round caches fill: of compiled schemas, of ended jobs, of the allocator.
    let warm = round(cases / 4, 0);
    let end = round(cases - cases / 4, 1);
    println!(
        "bodies: ok count={cases} accepted={accepted:?} seconds={} {warm:?} {end:?}",
        begin.elapsed().as_secs()
    );
    assert!(end.bytes <= warm.bytes + MAX_GROWTH, "allocated memory has grown");
    assert!(
        end.threads <= warm.threads + SPARE && end.files <= warm.files + SPARE,
        "threads or files have grown"
    );
    assert!(accepted.into_inner() >= cases / 20, "too few valid bodies");
}
