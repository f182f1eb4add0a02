//! Tokenization, rendering of conversations, and properties of the worker.
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, worker, worker_with};
use crate::tiny_llama::{CONTEXT, TEMPLATE, vocabulary};

#[tokio::test]
async fn texts_are_tokenized_and_back() {
    let worker = worker();
    let text = "the king and the queen \u{1F451}";
    let tokens = worker.post("/tokenize", &json!({"content": text})).await.json();
    let expected = worker.served.engine.text().encode(text, false).unwrap();
    assert_eq!(tokens["tokens"], json!(expected));
    assert_eq!((&tokens["count"], &tokens["max_model_len"]), (&json!(expected.len()), &json!(CONTEXT)));
    for body in [
        json!({"model": MODEL, "prompt": text, "add_special_tokens": false}),
        json!({"content": text, "add_special": false, "parse_special": true}),
    ] {
        assert_eq!(worker.post("/tokenize", &body).await.json()["tokens"], tokens["tokens"]);
    }
    let back = worker.post("/detokenize", &json!({"tokens": expected})).await.json();
    assert_eq!((&back["content"], &back["prompt"]), (&json!(text), &json!(text)));
    let pieces =
        worker.post("/tokenize", &json!({"content": "the \u{1F451}", "with_pieces": true})).await.json();
    assert_eq!(pieces["tokens"][0]["piece"], "the");
    assert_eq!(pieces["tokens"].as_array().unwrap().last().unwrap()["piece"], json!([0x91]));
    let strings =
        worker.post("/tokenize", &json!({"prompt": "the king", "return_token_strs": true})).await.json();
    assert_eq!(strings["token_strs"][0], "the");
}

#[tokio::test]
async fn conversations_are_rendered() {
    let worker = worker();
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "model": MODEL, "max_tokens": 5});
    let prompt = worker.post("/apply-template", &chat).await.json()["prompt"].clone();
    assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    let tokens = worker.post("/tokenize", &json!({"messages": chat["messages"]})).await.json();
    let same = worker.post("/tokenize", &json!({"content": prompt})).await.json();
    assert_eq!(tokens["tokens"], same["tokens"]);
    let back = worker.post("/detokenize", &json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(back["content"], prompt, "special tokens are part of the text");
    let usage = worker.post("/v1/chat/completions", &chat).await.json()["usage"]["prompt_tokens"].clone();
    assert_eq!(tokens["count"], usage);
}

#[tokio::test]
async fn bad_values_are_named() {
    let worker = worker();
    for (path, body, code, param) in [
        ("/tokenize", json!({}), "invalid_request", None),
        ("/tokenize", json!({"content": "x", "prompt": "x"}), "invalid_request", None),
        ("/tokenize", json!({"content": 7}), "invalid_value", Some("content")),
        (
            "/tokenize",
            json!({"content": "x", "parse_special": false}),
            "unsupported_parameter",
            Some("parse_special"),
        ),
        ("/tokenize", json!({"messages": []}), "invalid_value", Some("messages")),
        ("/detokenize", json!({}), "invalid_value", Some("tokens")),
        ("/detokenize", json!({"tokens": [vocabulary()]}), "invalid_value", Some("tokens")),
        (
            "/apply-template",
            json!({"messages": [{"role": "user", "content": "raise"}]}),
            "invalid_value",
            Some("messages"),
        ),
    ] {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.error(), (400, code.to_owned(), param.map(str::to_owned)), "{path} {body}");
    }
}

#[tokio::test]
async fn properties_describe_the_worker() {
    let worker = worker();
    let props = worker.get("/props").await.json();
    assert_eq!((&props["model_path"], &props["total_slots"]), (&json!(MODEL), &json!(64)));
    assert_eq!(props["cache_dtype"], json!("f32"));
    assert_eq!(props["chat_template"], TEMPLATE);
    assert_eq!((&props["bos_token"], &props["modalities"]["vision"]), (&json!("<s>"), &json!(false)));
    let settings = &props["default_generation_settings"];
    assert_eq!((&settings["n_ctx"], &settings["params"]["temperature"]), (&json!(CONTEXT), &json!(1.0)));
    assert_eq!(worker_with(false, Default::default(), &[]).get("/props").await.json()["chat_template"], "");
    let card: Value = worker.get("/v1/models").await.json()["data"][0].clone();
    assert_eq!(card["meta"], json!({"n_ctx": CONTEXT, "n_ctx_train": CONTEXT, "n_vocab": vocabulary()}));
    assert_eq!(card["architecture"]["input_modalities"], json!(["text"]));
}
