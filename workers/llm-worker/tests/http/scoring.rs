//! Log probabilities of prompts, and the fields of vLLM and llama.cpp that select prompts and texts.
use llm_engine::engine::Options;
use llm_engine::request::{Event, Request, Sampling};
use serde_json::{Value, json};

use crate::answers::{chat, completion, joined, merged};
use crate::fixture::{Ask, Worker, worker, worker_with};
use crate::tiny_llama::{CONTEXT, vocabulary};

/// Generates tokens greedily by the engine. Returns each with its log probability.
fn generate(worker: &Worker, prompt: Vec<u32>, count: usize) -> Vec<(u32, f64)> {
    let request = Request {
        prompt,
        max_tokens: Some(count),
        ignore_eos: true,
        logprobs: Some(0),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ..Request::default()
    };
    let mut stream = worker.served.engine.submit(request).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_next() {
        if let Event::Token { token, logprob, .. } = event {
            tokens.push((token, logprob.unwrap().into()));
        }
    }
    tokens
}

fn numbers(list: &Value) -> Vec<Option<f64>> {
    list.as_array().unwrap().iter().map(Value::as_f64).collect()
}

fn scoring(prompt: Value, more: Value) -> Value {
    merged(
        merged(completion(json!({"echo": true, "max_tokens": 0, "logprobs": 1})), json!({"prompt": prompt})),
        more,
    )
}

#[tokio::test]
async fn scores_of_prompts_are_those_of_generated_tokens() {
    let worker = worker();
    let start = worker.served.engine.text().encode("Once upon", true).unwrap();
    let (given, prompt) = (start.len(), start.clone());
    let (worker, written) = tokio::task::spawn_blocking(move || {
        let written = generate(&worker, prompt, 40);
        (worker, written)
    })
    .await
    .unwrap();
    let prompt: Vec<u32> = start.into_iter().chain(written.iter().map(|(token, _)| *token)).collect();
    let answer = worker.post("/v1/completions", &scoring(json!(prompt), json!({}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(
        (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
        (&json!(prompt.len()), &json!(0))
    );
    assert_eq!(choice["text"].as_str().unwrap(), worker.served.engine.text().decode(&prompt).unwrap());
    let scores = numbers(&choice["logprobs"]["token_logprobs"]);
    assert_eq!((scores.len(), scores[0]), (prompt.len(), None));
    assert_eq!(choice["logprobs"]["top_logprobs"][0], Value::Null);
    for (place, (_, expected)) in written.iter().enumerate() {
        let score = scores[given + place].unwrap();
        assert!((score - expected).abs() < 1e-4, "token {place}: {score}, not {expected}");
        // lm-eval considers a text greedy if each token has the largest value at its position.
        let top = choice["logprobs"]["top_logprobs"][given + place].as_object().unwrap();
        let largest = top.values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert!((largest - score).abs() < 1e-5, "{top:?}");
    }
}

#[tokio::test]
async fn prompts_are_echoed() {
    let worker = worker();
    let body = completion(json!({"ignore_eos": true}));
    let plain = worker.post("/v1/completions", &body).await.json()["choices"][0].clone();
    let echo = async |more: Value| {
        let body = merged(merged(body.clone(), json!({"echo": true})), more);
        let answer = worker.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["choices"].clone()
    };
    let prompt = body["prompt"].as_str().unwrap();
    let whole = format!("{prompt}{}", plain["text"].as_str().unwrap());
    let simple = echo(json!({})).await;
    assert_eq!((&simple[0]["text"], &simple[0]["logprobs"]), (&json!(whole), &Value::Null));
    let logged = echo(json!({"logprobs": 2})).await[0].clone();
    assert_eq!(logged["text"], whole);
    let lists = logged["logprobs"].clone();
    let count = lists["tokens"].as_array().unwrap().len();
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[list].as_array().unwrap().len(), count, "{list}");
    }
    // 15 tokens of prompt and 12 of text. Offsets point to the tokens.
    assert_eq!(count, 15 + 12);
    let characters: Vec<char> = whole.chars().collect();
    for place in 0..15 {
        let (token, offset) =
            (lists["tokens"][place].as_str().unwrap(), lists["text_offset"][place].as_u64().unwrap());
        let found: String = characters[offset as usize..].iter().take(token.chars().count()).collect();
        assert_eq!(found, token);
        let top = &lists["top_logprobs"][place];
        assert!(place == 0 || (2..=3).contains(&top.as_object().unwrap().len()), "{top}");
    }
    // Whole and streamed responses are the same, for several prompts and texts.
    for more in [
        json!({"logprobs": 2}),
        json!({"prompt": ["a", "the end of it"], "n": 2, "logprobs": 0, "seed": 1, "temperature": 1}),
        json!({"prompt": [[97], [98, 99]], "max_tokens": 0, "logprobs": 1}),
        json!({"prompt": "x", "max_tokens": 0}),
        json!({"prompt": "xyz", "n": 2, "max_tokens": 3, "seed": 3}),
    ] {
        let expected = echo(more.clone()).await;
        let body = merged(merged(body.clone(), json!({"echo": true, "stream": true})), more);
        let chunks = worker.post("/v1/completions", &body).await.chunks();
        let texts = joined(&chunks, |choice| &choice["text"]);
        for (index, (text, reason)) in texts.iter().enumerate() {
            let choice = &expected[index];
            assert_eq!((&json!(text), reason), (&choice["text"], &choice["finish_reason"]), "{body}");
            if body["logprobs"].is_null() {
                continue;
            }
            let streamed = |list: &str| -> Vec<Value> {
                let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
                let own = choices.filter(|choice| choice["index"] == index);
                own.flat_map(|choice| choice["logprobs"][list].as_array().unwrap().clone()).collect()
            };
            assert_eq!(json!(streamed("tokens")), choice["logprobs"]["tokens"]);
            assert_eq!(json!(streamed("text_offset")), choice["logprobs"]["text_offset"]);
            let pairs = streamed("token_logprobs");
            for (one, other) in
                numbers(&json!(pairs)).into_iter().zip(numbers(&choice["logprobs"]["token_logprobs"]))
            {
                assert!(one.zip(other).is_none_or(|(one, other)| (one - other).abs() < 1e-4));
                assert_eq!(one.is_none(), other.is_none());
            }
        }
    }
    let one = echo(json!({"prompt": "a", "max_tokens": 0, "logprobs": 1})).await[0]["logprobs"].clone();
    assert_eq!(
        one,
        json!({"tokens": ["a"], "token_logprobs": [null], "top_logprobs": [null], "text_offset": [0]})
    );
}

#[tokio::test]
async fn prompt_logprobs_have_vllms_format() {
    let worker = worker();
    let echo = worker
        .post("/v1/completions", &scoring(json!("Once upon a time"), json!({"logprobs": 3})))
        .await
        .json();
    let scores = numbers(&echo["choices"][0]["logprobs"]["token_logprobs"]);
    let body = completion(json!({"prompt_logprobs": 3, "max_tokens": 2}));
    let answer = worker.post("/v1/completions", &body).await.json();
    let tokens = worker.served.engine.text().encode("Once upon a time", true).unwrap();
    let check = |list: &Value, tokens: &[u32]| {
        let list = list.as_array().unwrap();
        assert_eq!((list.len(), &list[0]), (tokens.len(), &Value::Null));
        for (place, candidates) in list.iter().enumerate().skip(1) {
            let own = &candidates[tokens[place].to_string()];
            assert_eq!(own["decoded_token"], worker.served.engine.text().token_text(tokens[place]));
            let mut ranks: Vec<u64> = candidates
                .as_object()
                .unwrap()
                .values()
                .filter_map(|candidate| candidate["rank"].as_u64())
                .collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [1, 2, 3]);
            assert!(own["rank"].is_null() == (candidates.as_object().unwrap().len() == 4), "{candidates}");
        }
        list.clone()
    };
    let list = check(&answer["choices"][0]["prompt_logprobs"], &tokens);
    for place in 1..tokens.len() {
        let own = list[place][tokens[place].to_string()]["logprob"].as_f64().unwrap();
        assert!((own - scores[place].unwrap()).abs() < 1e-4);
    }
    let plain = worker.post("/v1/completions", &completion(json!({"max_tokens": 2}))).await.json();
    assert_eq!(plain["choices"][0].get("prompt_logprobs"), None);
    assert_eq!(plain["choices"][0]["text"], answer["choices"][0]["text"]);
    let answer =
        worker.post("/v1/chat/completions", &chat(json!({"prompt_logprobs": 3, "n": 2}))).await.json();
    let conversation =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    let text = worker.served.engine.text().chat(&conversation, None).unwrap();
    check(&answer["prompt_logprobs"], &worker.served.engine.text().encode(&text, false).unwrap());
}

#[tokio::test]
async fn the_most_likely_texts_are_returned() {
    let worker = worker();
    let all = json!({"seed": 3, "temperature": 1.5, "ignore_eos": true, "prompt": ["a", "the end"]});
    let body = merged(completion(json!({"n": 5, "logprobs": 0})), all.clone());
    let answer = worker.post("/v1/completions", &body).await.json();
    let mut expected = Vec::new();
    for choices in answer["choices"].as_array().unwrap().chunks(5) {
        let mean = |choice: &Value| -> f64 {
            numbers(&choice["logprobs"]["token_logprobs"]).into_iter().flatten().sum::<f64>() / 12.0
        };
        let mut choices = choices.to_vec();
        choices.sort_by(|one, other| mean(other).total_cmp(&mean(one)));
        expected.extend(choices.iter().take(2).map(|choice| choice["text"].clone()));
    }
    let body = merged(completion(json!({"n": 2, "best_of": 5})), all);
    let best = worker.post("/v1/completions", &body).await.json();
    let texts: Vec<Value> =
        best["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    assert_eq!(texts, expected);
    assert!(
        best["choices"]
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
            .all(|(place, choice)| choice["index"] == place)
    );
    assert_eq!(best["choices"][0]["logprobs"], Value::Null);
    assert_eq!(best["usage"]["completion_tokens"], 2 * 5 * 12);
}

#[tokio::test]
async fn prompts_are_truncated_to_their_end() {
    let worker = worker();
    let ask = async |path: &str, body: Value| {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    };
    let tokens = worker.served.engine.text().encode("Once upon a time", true).unwrap();
    let expected =
        ask("/v1/completions", completion(json!({"prompt": tokens[tokens.len() - 4..], "echo": true}))).await;
    let cut = ask("/v1/completions", completion(json!({"truncate_prompt_tokens": 4, "echo": true}))).await;
    assert_eq!((&cut["choices"], &cut["usage"]["prompt_tokens"]), (&expected["choices"], &json!(4)));
    let long = json!({"prompt": "x ".repeat(CONTEXT), "truncate_prompt_tokens": -1, "max_tokens": 1});
    assert_eq!(ask("/v1/completions", completion(long)).await["usage"]["prompt_tokens"], CONTEXT - 1);
    let cut = ask("/v1/chat/completions", chat(json!({"truncate_prompt_tokens": 7}))).await;
    assert_eq!(cut["usage"]["prompt_tokens"], 7);
}

#[tokio::test]
async fn stop_strings_and_special_tokens_are_included_on_request() {
    let worker = worker();
    let ask = async |more: Value| {
        let body = merged(completion(json!({"max_tokens": 30, "ignore_eos": true})), more);
        worker.post("/v1/completions", &body).await.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let free = ask(json!({})).await;
    let stop: String = free.chars().skip(4).take(2).collect();
    let before = &free[..free.find(&stop).unwrap()];
    assert_eq!(ask(json!({"stop": stop})).await, before);
    let included = ask(json!({"stop": stop, "include_stop_str_in_output": true})).await;
    assert_eq!(included, format!("{before}{stop}"));
    // `<|im_start|>` is the last token but one.
    let special = json!({"logit_bias": {(vocabulary() - 2).to_string(): 100}, "max_tokens": 2});
    assert_eq!(ask(special.clone()).await, "");
    let shown = ask(merged(special, json!({"skip_special_tokens": false}))).await;
    assert_eq!(shown, "<|im_start|><|im_start|>");
}

#[tokio::test]
async fn names_of_llama_cpp_are_accepted() {
    let worker = worker_with(true, Options::default(), &["--enable-prompt-tokens-details"]);
    let ask = async |path: &str, body: Value| {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    };
    let same = json!({"max_tokens": null, "n_predict": 12, "ignore_eos": true, "n_probs": 2});
    let expected = ask("/completions", completion(json!({"ignore_eos": true, "logprobs": 2}))).await;
    let answer = ask("/completions", completion(same)).await;
    assert_eq!(answer["choices"][0]["text"], expected["choices"][0]["text"]);
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], expected["choices"][0]["logprobs"]["tokens"]);
    let answer = ask("/v1/chat/completions", chat(json!({"n_probs": 3, "ignore_eos": true}))).await;
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(
        ask("/v1/completions", completion(json!({"max_tokens": null, "n_predict": 0}))).await["usage"]["completion_tokens"],
        0
    );
    // Penalties consider the last tokens only.
    let penalized = async |more: Value| {
        let own = json!({"repeat_penalty": 100, "max_tokens": 30, "ignore_eos": true, "presence_penalty": 2});
        ask("/v1/completions", merged(completion(own), more)).await["choices"][0]["text"].clone()
    };
    let free = ask("/v1/completions", completion(json!({"max_tokens": 30, "ignore_eos": true}))).await;
    let all = penalized(json!({})).await;
    assert_eq!(penalized(json!({"repeat_last_n": -1})).await, all);
    assert_eq!(penalized(json!({"repeat_last_n": 1000})).await, all);
    assert_eq!(penalized(json!({"repeat_last_n": 0})).await, free["choices"][0]["text"]);
    assert_ne!(penalized(json!({"repeat_last_n": 1})).await, all);
    // The prefix cache is not used on request.
    let long = json!({"prompt": "a prompt that is long enough to be kept in the cache for another request"});
    let cached = async |more: Value| {
        let answer = ask("/v1/completions", merged(completion(long.clone()), more)).await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(json!({})).await, 0);
    assert_eq!(cached(json!({"cache_prompt": false})).await, 0);
    assert!(cached(json!({"cache_prompt": true})).await >= 16);
}

#[tokio::test]
async fn times_are_returned_on_request() {
    let worker = worker();
    let body = completion(json!({"ignore_eos": true}));
    assert_eq!(worker.post("/v1/completions", &body).await.json().get("timings"), None);
    let body = merged(body, json!({"timings_per_token": true}));
    let check = |timings: &Value, tokens: usize| {
        let count = timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap();
        assert_eq!((count, &timings["predicted_n"]), (15, &json!(tokens)), "{timings}");
        for name in [
            "prompt_ms",
            "prompt_per_token_ms",
            "prompt_per_second",
            "predicted_ms",
            "predicted_per_token_ms",
            "predicted_per_second",
        ] {
            assert!(timings[name].as_f64().is_some_and(|value| value >= 0.0), "{timings}");
        }
    };
    check(&worker.post("/v1/completions", &body).await.json()["timings"], 12);
    let chunks = worker.post("/v1/completions", &merged(body, json!({"stream": true}))).await.chunks();
    assert!(chunks.len() > 1);
    chunks.iter().for_each(|chunk| assert!(chunk["timings"].is_object(), "{chunk}"));
    check(&chunks.last().unwrap()["timings"], 12);
    let answer = worker.post("/v1/chat/completions", &chat(json!({"timings_per_token": true}))).await.json();
    assert!(answer["timings"]["prompt_n"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn answers_continue_the_last_message() {
    let worker = worker();
    let history =
        [json!({"role": "user", "content": "Hello"}), json!({"role": "assistant", "content": "Once upon "})];
    let ask = async |more: Value| {
        let body = merged(chat(json!({"messages": history, "ignore_eos": true})), more);
        let answer = worker.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        (answer["choices"][0]["message"]["content"].clone(), answer["usage"]["prompt_tokens"].clone())
    };
    for (fields, prompt) in [
        (
            json!({"continue_final_message": true}),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nOnce upon ",
        ),
        (
            json!({"continue_final_message": true, "add_generation_prompt": false}),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nOnce upon ",
        ),
        (
            json!({"add_generation_prompt": false}),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nOnce upon <|im_end|>\n",
        ),
        (
            json!({}),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nOnce upon <|im_end|>\n<|im_start|>assistant\n",
        ),
    ] {
        let tokens = worker.served.engine.text().encode(prompt, false).unwrap();
        let body = completion(json!({"prompt": tokens, "ignore_eos": true}));
        let expected = worker.post("/v1/completions", &body).await.json();
        let (text, count) = ask(fields.clone()).await;
        assert_eq!((&text, &count), (&expected["choices"][0]["text"], &json!(tokens.len())), "{fields}");
    }
    let empty =
        chat(json!({"messages": [{"role": "assistant", "content": " "}], "continue_final_message": true}));
    assert_eq!(worker.post("/v1/chat/completions", &empty).await.error().2.as_deref(), Some("messages"));
}
