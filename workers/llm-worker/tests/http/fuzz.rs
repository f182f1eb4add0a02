//! Fuzzing of request bodies: no response is 5xx, and all errors have the same format.
use llm_engine::sampling::settings::{Kind, SETTINGS};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, json_request, worker};
use crate::shared::fuzz::{self, Seed, changed, edited};
use crate::tiny_llama::CONTEXT;

/// Default number of bodies; overridden by CANDLE_FUZZ_CASES.
const CASES: u32 = 3000;

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
            "cache_prompt": false, "timings_per_token": true, "repeat_last_n": 3, "n_probs": 1}),
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

#[test]
fn no_body_causes_a_5xx() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let worker = runtime.block_on(async { worker() });
    let seeds = seeds();
    fuzz::run(fuzz::cases(CASES), &seeds, value(), |path, seed, changes| {
        let body = changed(seed, changes, &seeds).to_string().into_bytes();
        let answer = runtime.block_on(worker.read(json_request(path, edited(body, changes))));
        fuzz::check(path, &answer)?;
        prop_assert!(!answer.text.contains("the engine stopped unexpectedly"), "{}", answer.text);
        Ok(())
    });
    runtime.block_on(worker.idle());
    assert_eq!(worker.served.engine.status().failed, None);
}
