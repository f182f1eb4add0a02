//! Pictures in conversations: a tiny Qwen2.5-VL whose vocabulary is extended to that of the tests' tokenizer.
use std::collections::HashMap;
use std::io::{Cursor, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::slice;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use candle_core::{DType, Device, Tensor};
use image::{ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::answers::merged;
use crate::fixture::{Answer, Ask, MODEL, Worker, worker, worker_of_folder};
use crate::tiny_llama::{SPECIAL, tokenizer};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const MARK: &str = "<|image_pad|>";
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}\
    {{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}[<|image_pad|>]\
    {% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn checkpoint() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm-engine/tests/model/data/qwen2.5-vl")
}

/// Writes the model's files.
fn write(folder: &Path) {
    let from = checkpoint();
    let mut special = SPECIAL.to_vec();
    special.push(MARK);
    let tokenizer = tokenizer(&special);
    let mark = tokenizer["added_tokens"][special.len() - 1]["id"].as_u64().unwrap();
    let read = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(from.join(name)).unwrap()).unwrap()
    };
    let file = |name: &str, value: &Value| std::fs::write(folder.join(name), value.to_string()).unwrap();
    let mut config = read("config.json");
    config["image_token_id"] = json!(mark);
    config["text_config"]["max_position_embeddings"] = json!(512);
    file("config.json", &config);
    file("preprocessor_config.json", &read("preprocessor_config.json"));
    file("tokenizer.json", &tokenizer);
    file(
        "tokenizer_config.json",
        &json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}),
    );
    let weights = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    let mut weights: HashMap<String, Tensor> =
        weights.into_iter().map(|(name, tensor)| (name, tensor.to_dtype(DType::F32).unwrap())).collect();
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let values =
            (0..(mark as usize + 1) * 32).map(|place| ((place * 7919 % 997) as f32 / 997.0 - 0.5) * 0.8);
        let table = Tensor::from_iter(values, &Device::Cpu).unwrap().reshape(((), 32)).unwrap();
        weights.insert(name.to_owned(), table);
    }
    candle_core::safetensors::save(&weights, folder.join("model.safetensors")).unwrap();
}

fn seeing(more: &[&str]) -> Worker {
    let folder = TempDir::new().unwrap();
    write(folder.path());
    worker_of_folder(folder, more)
}

fn picture(seed: u32) -> RgbImage {
    RgbImage::from_fn(
        37,
        21,
        |x, y| Rgb([x * 5 + seed * 90, y * 11, seed * (x + y)].map(|value| value as u8)),
    )
}

fn encoded(picture: &RgbImage, format: ImageFormat) -> Vec<u8> {
    let mut file = Vec::new();
    picture.write_to(&mut Cursor::new(&mut file), format).unwrap();
    file
}

fn data_url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(file))
}

fn png_url(seed: u32) -> String {
    data_url(&encoded(&picture(seed), ImageFormat::Png))
}

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url, "detail": "high"}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn chat(parts: &[Value]) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": parts}], "max_tokens": 6, "temperature": 0,
        "ignore_eos": true, "logprobs": true})
}

/// Returns the log probabilities of an answer.
fn logprobs(answer: &Answer) -> Vec<f64> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    let tokens = body["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    tokens.iter().map(|token| token["logprob"].as_f64().unwrap()).collect()
}

#[tokio::test]
async fn answers_depend_on_pictures_and_prefixes_are_shared() {
    let worker = seeing(&["--enable-prompt-tokens-details"]);
    let question = "What is the colour of the thing at the top of it?";
    let ask = |url: &str| chat(&[text("Look at this picture: "), image(url), text(question)]);
    let first = worker.post(CHAT, &ask(&png_url(1))).await;
    let usage = first.json()["usage"].clone();
    let webp = worker.post(CHAT, &ask(&data_url(&encoded(&picture(1), ImageFormat::WebP)))).await;
    let other = worker.post(CHAT, &ask(&png_url(2))).await;
    let again = worker.post(CHAT, &ask(&png_url(1))).await;
    let cached = |answer: &Answer| {
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    // The picture begins in the second block, and has 15 tokens. The rest of the prompt is longer than a block.
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&first), 0);
    assert!(cached(&webp) > prompt - 17 && cached(&again) > prompt - 17, "{} of {prompt}", cached(&webp));
    assert_eq!(cached(&other), 16);
    let [first, webp, other, again] = [&first, &webp, &other, &again].map(logprobs);
    assert!(
        first.iter().zip(&webp).zip(&again).all(|((a, b), c)| (a - b).abs() < 1e-3 && (a - c).abs() < 1e-3)
    );
    assert!(first.iter().zip(&other).any(|(a, b)| (a - b).abs() > 1e-3), "{first:?} {other:?}");
    // Text alone has 15 tokens less, without the brackets around the picture.
    let alone = chat(&[text("Look at this picture: "), text("[]"), text(question)]);
    let alone = worker.post(CHAT, &alone).await.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    // The parts of a text become lines.
    assert!((prompt - 15).abs_diff(alone) <= 2, "{prompt} {alone}");
    let card = worker.get("/v1/models").await.json();
    assert_eq!(card["data"][0]["architecture"]["input_modalities"], json!(["text", "image"]));
    assert_eq!(worker.get("/props").await.json()["modalities"]["vision"], true);
    worker.idle().await;
}

#[tokio::test]
async fn all_apis_take_pictures() {
    let worker = seeing(&[]);
    let url = png_url(1);
    let answer = worker.post(CHAT, &chat(&[image(&url), text("Why?"), image(&png_url(2))])).await.json();
    let expected = answer["choices"][0]["message"]["content"].clone();
    let parts = json!([{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": "Why?"},
        {"type": "input_image", "image_url": png_url(2)}]);
    let body = json!({"input": [{"role": "user", "content": parts}], "max_output_tokens": 6, "temperature": 0,
        "ignore_eos": true});
    let response = worker.post(RESPONSES, &body).await.json();
    assert_eq!(response["output"][0]["content"][0]["text"], expected, "{response}");
    assert_eq!(response["usage"]["input_tokens"], answer["usage"]["prompt_tokens"]);
    let source = |seed| {
        json!({"type": "base64", "media_type": "image/png",
        "data": BASE64_STANDARD.encode(encoded(&picture(seed), ImageFormat::Png))})
    };
    let blocks = json!([{"type": "image", "source": source(1)}, {"type": "text", "text": "Why?"},
        {"type": "image", "source": source(2)}]);
    let body = json!({"messages": [{"role": "user", "content": blocks}], "max_tokens": 6, "temperature": 0,
        "ignore_eos": true});
    let message = worker.post(MESSAGES, &body).await.json();
    assert_eq!(message["content"][0]["text"], expected, "{message}");
    let counted = worker.post("/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted["input_tokens"], answer["usage"]["prompt_tokens"]);
    worker.idle().await;
}

#[tokio::test]
async fn invalid_pictures_are_rejected() {
    let worker = seeing(&["--images-per-request", "2", "--image-hosts", "example.net:8080"]);
    let png = |width, height| encoded(&RgbImage::new(width, height), ImageFormat::Png);
    let good = png(30, 30);
    // A header of a picture that would need gigabytes.
    let mut bomb = good.clone();
    bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let url = "image_url.url";
    let cases = [
        (vec![image(&data_url(&png(1, 100_000)))], url, "8192 per side"),
        (vec![image(&data_url(&png(2, 401)))], url, "at most 200 times"),
        (vec![image(&data_url(&bomb))], url, "cannot decode"),
        (vec![image(&data_url(&good[..good.len() / 2]))], url, "cannot decode"),
        (vec![image(&data_url(b"GIF89a"))], url, "expected PNG, JPEG or WebP"),
        (vec![image(&data_url(&[0x89; 40]))], url, "expected PNG, JPEG or WebP"),
        (vec![image("data:image/png;base64,")], url, "is empty"),
        (vec![image("data:image/png;base64,?")], url, "neither base64"),
        (vec![image("data:image/png,abc")], url, "not a base64 data URL"),
        (vec![image("https://example.org/x.png")], url, "--image-hosts example.org"),
        (vec![image("https://example.net/x.png")], url, "--image-hosts example.net"),
        (vec![image("http://[::1]/x.png")], url, "--image-hosts [::1]"),
        (vec![image("https://user@example.org/x.png")], url, "not allowed"),
        (vec![json!({"type": "image_url"})], url, "is missing"),
        (vec![json!({"type": "image_url", "image_url": {"url": 3}})], url, "is missing or not a string"),
        (vec![json!({"type": "input_audio"})], "type", "must be text or image_url"),
    ];
    for (parts, field, why) in cases {
        let answer = worker.post(CHAT, &chat(&parts)).await;
        let (status, _, param) = answer.error();
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!((status, param), (400, Some(format!("messages[0].content[0].{field}"))), "{message}");
        assert!(message.contains(why), "{message}");
    }
    let good = image(&data_url(&good));
    let context = json!([image(&png_url(1)), text(&"x ".repeat(600))]);
    for (body, param, why) in [
        (chat(&vec![good.clone(); 3]), "messages", "3 pictures, but at most 2"),
        (
            chat(&[good.clone(), text(&format!("a {MARK} b"))]),
            "messages",
            "in the prompt is 2, but that of pictures is 1",
        ),
        (
            merged(chat(slice::from_ref(&good)), json!({"truncate_prompt_tokens": 9})),
            "truncate_prompt_tokens",
            "pictures",
        ),
        (
            merged(chat(slice::from_ref(&good)), json!({"prompt_logprobs": 1})),
            "pictures",
            "log probabilities",
        ),
        (chat(context.as_array().unwrap()), "messages", "limit"),
    ] {
        let answer = worker.post(CHAT, &body).await;
        let (status, _, own) = answer.error();
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!((status, own.as_deref()), (400, Some(param)), "{message}");
        assert!(message.contains(why), "{message}");
    }
    for (path, body, param) in [
        (
            RESPONSES,
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}),
            "input[0].content[0].file_id",
        ),
        (
            RESPONSES,
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": png_url(1)},
                {"type": "input_audio"}]}]}),
            "input[0].content[1].type",
        ),
        (
            RESPONSES,
            json!({"input": [{"role": "system", "content": [{"type": "input_image", "image_url": png_url(1)}]}]}),
            "`input[0].content[0].type` is \"input_image\" in a message of system",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "system", "content": [image(&png_url(1))]}]}),
            "`messages[0].content[0].type` is \"image_url\" in a message of system",
        ),
        (
            MESSAGES,
            json!({"max_tokens": 1, "messages": [{"role": "assistant", "content": [{"type": "image"}]}]}),
            "pictures are allowed only in messages of the user",
        ),
        (
            MESSAGES,
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}),
            "messages[0].content[0].source.type",
        ),
        (
            MESSAGES,
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image",
                "source": {"type": "base64", "data": "?"}}]}]}),
            "messages[0].content[0].source.data",
        ),
    ] {
        let answer = worker.post(path, &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(param), "{message}");
    }
    // Text that only names the placeholder is text.
    let answer = worker.post(CHAT, &chat(&[text(MARK)])).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    worker.idle().await;
}

/// The pictures have no pixels, but 35 of their size exceed the limit.
#[tokio::test]
async fn long_prompts_are_rejected_before_pixels_are_decoded() {
    let worker = seeing(&["--images-per-request", "35"]);
    let file = encoded(&picture(1), ImageFormat::Png);
    let cut = image(&data_url(&file[..60]));
    let answer = worker.post(CHAT, &chat(&vec![cut; 35])).await;
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(answer.status == 400 && message.contains("`messages` has more than 512 tokens"), "{message}");
    worker.idle().await;
}

#[tokio::test]
async fn models_of_text_name_the_type() {
    let worker = worker();
    let answer = worker.post(CHAT, &chat(&[image(&png_url(1))])).await;
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("this model accepts only text"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_are_fetched_from_named_hosts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let file = encoded(&picture(1), ImageFormat::Png);
    let answers = std::thread::spawn(move || {
        for status in ["200 OK", "404 Not Found", "302 Found"] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            let length = file.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: {length}\r\n\r\n"
            )
            .unwrap();
            stream.write_all(&file).unwrap();
        }
    });
    let worker = seeing(&["--image-hosts", "other.example,127.0.0.1"]);
    let url = format!("http://127.0.0.1:{port}/a.png");
    let fetched = worker.post(CHAT, &chat(&[image(&url)])).await;
    let sent = worker.post(CHAT, &chat(&[image(&png_url(1))])).await;
    assert_eq!(logprobs(&fetched).len(), logprobs(&sent).len());
    assert_eq!(fetched.json()["choices"][0]["message"], sent.json()["choices"][0]["message"]);
    for status in ["404", "302"] {
        let answer = worker.post(CHAT, &chat(&[image(&url)])).await;
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && message.contains(status), "{message}");
    }
    answers.join().unwrap();
}
