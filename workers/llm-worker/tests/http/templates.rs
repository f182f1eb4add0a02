//! Chat templates and names of the model.
use std::path::Path;

use candle_core::Device;
use clap::Parser;
use llm_engine::model::{LoadOptions, load};
use llm_worker::arguments::Arguments;
use llm_worker::identity;
use serde_json::{Value, json};

use crate::answers::merged;
use crate::fixture::{Ask, Worker, worker_with, worker_with_template};
use crate::tiny_llama;

/// A template whose length depends on its variables.
const TEMPLATE: &str = "{% for message in messages %}{% if message.role == 'system' %}\
    {{ raise_exception('no system role') }}{% endif %}{{ message.content }}{% endfor %}\
    {{ '!' * 20 if enable_thinking is defined and not enable_thinking }}\
    {{ '#' * 30 if reasoning_effort == 'high' }}{% for document in documents or [] %}{{ document.text }}{% endfor %}";

fn chat(more: Value) -> Value {
    merged(json!({"messages": [{"role": "user", "content": "xyz"}], "max_tokens": 1}), more)
}

async fn prompt_tokens(worker: &Worker, more: Value) -> u64 {
    let answer = worker.post("/v1/chat/completions", &chat(more)).await.json();
    answer["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn requests_set_variables_of_the_template() {
    let worker = worker_with_template(TEMPLATE, &[]);
    for (more, tokens) in [
        (json!({}), 3),
        (json!({"chat_template_kwargs": {}, "documents": []}), 3),
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), 3),
        (json!({"chat_template_kwargs": {"enable_thinking": false}}), 23),
        (json!({"reasoning_effort": "none"}), 23),
        (json!({"reasoning_effort": "high"}), 33),
        (json!({"documents": [{"text": "12345"}]}), 8),
    ] {
        assert_eq!(prompt_tokens(&worker, more.clone()).await, tokens, "{more}");
    }
    for (more, param) in [
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"chat_template_kwargs": 1}), "chat_template_kwargs"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
    ] {
        let answer = worker.post("/v1/chat/completions", &chat(more)).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], param);
    }
}

#[tokio::test]
async fn a_rejected_system_message_is_merged_into_the_first_turn() {
    let worker = worker_with_template(TEMPLATE, &[]);
    let user = json!({"role": "user", "content": "xyz"});
    let messages = json!([{"role": "system", "content": "abcd"}, user]);
    // The texts are separated by an empty line.
    assert_eq!(prompt_tokens(&worker, json!({"messages": messages})).await, 4 + 2 + 3);
    assert_eq!(
        prompt_tokens(&worker, json!({"messages": [{"role": "developer", "content": "abcd"}]})).await,
        4
    );
}

/// The beginning of an answer stands where the template writes messages, which may differ from the end of other prompts.
#[tokio::test]
async fn all_apis_continue_the_last_message_alike() {
    let turn = "<|im_start|>{{ message.role }}\n{{ content }}<|im_end|>\n";
    let think = "<think>\n\n</think>\n\n";
    let trimming = "{% set content = message.content | trim %}";
    let keeping = "{% set content = message.content %}";
    let rewriting = "{% set content = message.content.split('</think>')[-1] %}";
    for (content, text, open, expected) in [
        ("Once upon ", keeping, "", "Once upon "),
        ("Once upon ", trimming, "", "Once upon"),
        ("Once upon ", keeping, think, "Once upon "),
        // Texts that the rest of the template also contains.
        ("end", trimming, "<think>\n", "end"),
        (">", keeping, "", ">"),
        ("<think>why</think>Once", rewriting, think, "Once"),
    ] {
        let last = format!("{{% if loop.last and message.role == 'assistant' %}}{open}{{% endif %}}");
        let turn = turn.replace("{{ content }}", &format!("{last}{{{{ content }}}}"));
        let template = format!(
            "{{% for message in messages %}}{text}{turn}{{% endfor %}}\
             {{% if add_generation_prompt %}}<|im_start|>assistant\n<think>\n{{% endif %}}"
        );
        let worker = worker_with_template(&template, &[]);
        let messages =
            json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": content}]);
        let body = json!({"messages": messages, "continue_final_message": true});
        let answer = worker.post("/apply-template", &body).await.json();
        let prompt = format!("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n{open}{expected}");
        assert_eq!(answer["prompt"], prompt);
        let tokens = worker.served.engine.text().encode(&prompt, false).unwrap();
        let counted = worker.post("/v1/messages/count_tokens", &json!({"messages": messages})).await.json();
        assert_eq!(counted["input_tokens"], tokens.len(), "{prompt}");
        let expected = json!({"prompt": tokens, "max_tokens": 9, "temperature": 0, "ignore_eos": true});
        let expected = worker.post("/v1/completions", &expected).await.json()["choices"][0]["text"].clone();
        let options = json!({"messages": messages, "max_tokens": 9, "temperature": 0, "ignore_eos": true});
        let message = worker.post("/v1/messages", &options).await.json();
        assert_eq!(message["content"][0]["text"], expected, "{message}");
        let chat = merged(options, json!({"continue_final_message": true}));
        let chat = worker.post("/v1/chat/completions", &chat).await.json();
        assert_eq!(chat["choices"][0]["message"]["content"], expected, "{chat}");
    }
    // Nothing can be continued.
    let worker = worker_with_template("{% for message in messages %}{{ message.role }}{% endfor %}", &[]);
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let body = json!({"messages": messages, "continue_final_message": true, "max_tokens": 1});
    assert_eq!(worker.post("/v1/chat/completions", &body).await.error().2.as_deref(), Some("messages"));
    let body = json!({"messages": messages, "max_tokens": 1});
    assert_eq!(worker.post("/v1/messages", &body).await.json()["error"]["param"], "messages");
    let blank = json!({"messages": [messages[0], {"role": "assistant", "content": " "}]});
    let without = json!({"messages": [messages[0]]});
    let blank = worker.post("/v1/messages/count_tokens", &blank).await.json();
    assert_eq!(blank, worker.post("/v1/messages/count_tokens", &without).await.json());
}

#[test]
fn a_model_without_a_template_gets_chatml() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama::write(folder.path(), false);
    let text = || {
        let limits = LoadOptions { cache_bytes: Some(1 << 20), ..LoadOptions::default() };
        load(folder.path(), &Device::Cpu, limits, &mut |_| ()).unwrap().text
    };
    let with = |flags: &[&str]| {
        let arguments = Arguments::try_parse_from(["worker", "--model", "m"].iter().chain(flags)).unwrap();
        identity::with_template(&arguments, text())
    };
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chatml = with(&[]).unwrap();
    let written = chatml.chat(&messages, None).unwrap();
    assert!(written.ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), "{written}");
    let end = chatml.encode("<|im_end|>", false).unwrap();
    assert!(chatml.is_end(end[0]), "the template's end of a turn ends texts");
    let zephyr = with(&["--chat-template", "zephyr"]).unwrap();
    assert!(zephyr.chat(&messages, None).unwrap().contains("<|user|>\nHi"));
    let error = format!("{:#}", with(&["--chat-template", "unknown"]).err().unwrap());
    assert!(error.contains("--chat-template") && error.contains("chatml"), "{error}");
    let file = folder.path().join("own.jinja");
    std::fs::write(&file, "{{ messages[0].content }}{% if").unwrap();
    assert!(with(&["--chat-template", file.to_str().unwrap()]).is_err());
}

#[tokio::test]
async fn the_model_has_the_names_of_the_command_line() {
    let worker = worker_with(true, Default::default(), &["--served-model-name", "gpt-x,gpt-y"]);
    let models = worker.get("/v1/models").await.json();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(ids, ["gpt-x", "gpt-y"]);
    for (name, status) in [("gpt-x", 200), ("gpt-y", 200), ("org/tiny", 404)] {
        let answer = worker.post("/v1/chat/completions", &chat(json!({"model": name}))).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.text);
        assert!(status != 200 || answer.json()["model"] == "gpt-x");
    }
    assert_eq!(worker.get("/v1/models/gpt-y").await.json()["id"], "gpt-y");
    let worker = worker_with(true, Default::default(), &["--any-model-name"]);
    assert_eq!(worker.post("/v1/chat/completions", &chat(json!({"model": "anything"}))).await.status, 200);
}

#[test]
fn names_come_from_the_flag_the_files_or_the_hub() {
    let names = |line: &str, path: &str| {
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        identity::names(&arguments, "own".into(), Path::new(path))
    };
    let folder = names("worker --model /m/folder", "/m/folder");
    assert_eq!(folder.as_str(), "own");
    assert!(folder.check(Some("folder")).is_ok() && folder.check(Some("other")).is_err());
    assert_eq!(names("worker --model org/name", "/cache/x").as_str(), "org/name");
    let several = names("worker --model org/name --served-model-name a b", "/cache/x");
    assert_eq!(several.as_str(), "a");
    assert!(several.check(Some("b")).is_ok() && several.check(Some("org/name")).is_err());
    assert!(names("worker --model org/name --any-model-name", "/cache/x").check(Some("z")).is_ok());
    assert!(Arguments::try_parse_from(["worker", "--model", "m", "--served-model-name", ""]).is_err());
}
