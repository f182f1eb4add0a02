//! Tokenizers from GGUF metadata and folders.
use std::collections::HashMap;
use std::fs;

use candle_core::quantized::gguf_file::{Content, Value, VersionedMagic};
use llm_engine::text::TextCodec;
use serde_json::json;

use crate::tokenizers_built::{END, bytes, tiny_llama};

const SAMPLE: &str = "Once upon a time there was 1234 'Tis said,\n\n  \u{E9}t\u{E9} \u{1F600} don't";

fn content(entries: Vec<(&str, Value)>) -> Content {
    let metadata: HashMap<String, Value> =
        entries.into_iter().map(|(key, value)| (format!("tokenizer.{key}"), value)).collect();
    Content { magic: VersionedMagic::GgufV3, metadata, tensor_infos: HashMap::new(), tensor_data_offset: 0 }
}

fn texts(items: &[&str]) -> Value {
    Value::Array(items.iter().map(|item| Value::String((*item).into())).collect())
}

fn name(text: &str) -> Value {
    Value::String(text.into())
}

fn types(items: &[i32]) -> Value {
    Value::Array(items.iter().map(|item| Value::I32(*item)).collect())
}

/// Metadata of a byte-level tokenizer with merges, and with special, user-defined and unused tokens.
fn merges(pre: &str) -> Content {
    let tokens = ["a", "b", "1", "ab", "aab", "11", "<s>", "</s>", "<tool>", "unused", "\u{120}"];
    content(vec![
        ("ggml.model", name("gpt2")),
        ("ggml.pre", name(pre)),
        ("ggml.tokens", texts(&tokens)),
        ("ggml.token_type", types(&[1, 1, 1, 1, 1, 1, 3, 3, 4, 5, 1])),
        ("ggml.merges", texts(&["a b", "1 1"])),
        ("ggml.bos_token_id", Value::U32(6)),
        ("ggml.eos_token_id", Value::U32(7)),
        ("ggml.eot_token_id", Value::U32(8)),
        ("chat_template", name("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")),
        ("chat_template.tool_use", name("{{ tools | length }}")),
    ])
}

#[test]
fn folder_and_gguf_tokenizers_agree() {
    let folder = TextCodec::from_folder(&tiny_llama()).unwrap();
    let mut file = fs::File::open(tiny_llama().join("tiny-llama.q8_0.gguf")).unwrap();
    let gguf = TextCodec::from_gguf(&Content::read(&mut file).unwrap()).unwrap();
    assert_eq!(folder.vocabulary(), gguf.vocabulary());
    for special in [true, false] {
        let tokens = folder.encode(SAMPLE, special).unwrap();
        assert_eq!(gguf.encode(SAMPLE, special).unwrap(), tokens);
        assert_eq!(tokens[0] == 1, special);
    }
    for text in [&folder, &gguf] {
        assert!(text.is_end(2) && !text.is_end(1));
    }
    assert!(!gguf.has_template());
    let refused = gguf.chat(&json!([{"role": "user", "content": "hi"}]), None).unwrap_err();
    assert!(refused.to_string().contains("no chat template"));
}

#[test]
fn pre_tokenizers_are_selected_by_name() {
    // The name selects whether digits are split, whether whole tokens skip merges, and whether texts start
    // with BOS.
    for (pre, tokens) in [
        ("llama-bpe", &[6, 4, 5][..]),
        ("tekken", &[6, 4, 2, 2]),
        ("gpt-4o", &[0, 3, 5]),
        ("qwen2", &[0, 3, 2, 2]),
        ("gpt-2", &[0, 3, 5]),
        ("smollm", &[0, 3, 2, 2]),
    ] {
        let text = TextCodec::from_gguf(&merges(pre)).unwrap();
        assert_eq!(text.encode("aab11", true).unwrap(), tokens, "{pre}");
        assert_eq!(text.decode(tokens).unwrap(), "aab11");
    }
    let text = TextCodec::from_gguf(&merges("gpt-2")).unwrap();
    assert_eq!(text.encode("a<tool>b</s>", false).unwrap(), [0, 8, 1, 7]);
    assert_eq!(text.decode(&[0, 8, 1, 7]).unwrap(), "a<tool>b");
    assert!(text.is_end(7) && text.is_end(8) && !text.is_end(6));
    let messages = json!([{"role": "user", "content": "ab"}]);
    assert_eq!(text.chat(&messages, None).unwrap(), "<s>ab</s>");
    assert_eq!(text.chat(&messages, Some(&json!([1, 2]))).unwrap(), "2");
}

#[test]
fn sentencepiece_merges_by_score() {
    let tokens =
        ["<unk>", "<s>", "</s>", "<0x21>", "\u{2581}", "a", "b", "c", "ab", "bc", "\u{2581}a", "<tool>"];
    // "bc" is merged before "ab", whatever their order in the list.
    let scores = [0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, 0.0];
    let scores = Value::Array(scores.iter().map(|score| Value::F32(*score)).collect());
    let mut entries = vec![
        ("ggml.model", name("llama")),
        ("ggml.tokens", texts(&tokens)),
        ("ggml.scores", scores),
        ("ggml.token_type", types(&[2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 4])),
        ("ggml.bos_token_id", Value::U32(1)),
        ("ggml.eos_token_id", Value::U32(2)),
    ];
    let text = TextCodec::from_gguf(&content(entries.clone())).unwrap();
    assert_eq!(text.encode("abc", true).unwrap(), [1, 10, 9]);
    assert_eq!(text.encode("ab!", false).unwrap(), [4, 8, 3]);
    assert_eq!(text.decode(&[1, 10, 9, 3, 11]).unwrap(), "abc!<tool>");
    assert_eq!(text.decode_after(&[10, 9]).unwrap(), " abc");
    entries.push(("ggml.add_space_prefix", Value::Bool(false)));
    entries.push(("ggml.add_bos_token", Value::Bool(false)));
    let text = TextCodec::from_gguf(&content(entries)).unwrap();
    assert_eq!(text.encode("abc", true).unwrap(), [5, 9]);
    assert_eq!(text.decode(&[10, 9]).unwrap(), " abc");
}

/// Splits according to tiktoken's pattern of o200k_base: before capitals after lowercase letters,
/// contractions with their word, three digits, and slashes with the punctuation before them.
#[test]
fn the_gpt4o_pattern_splits_like_tiktoken() {
    // Only text within one split can be merged.
    let joined = |text: &str| {
        let pairs: Vec<String> =
            text.chars().zip(text.chars().skip(1)).map(|(a, b)| format!("{a} {b}")).collect();
        let mut tokens: Vec<String> = text.chars().map(String::from).collect();
        tokens.sort();
        tokens.dedup();
        tokens.extend(pairs.iter().map(|pair| pair.replace(' ', "")));
        let count = tokens.len();
        let content = content(vec![
            ("ggml.model", name("gpt2")),
            ("ggml.pre", name("gpt-4o")),
            ("ggml.tokens", texts(&tokens.iter().map(String::as_str).collect::<Vec<_>>())),
            ("ggml.token_type", types(&vec![1; count])),
            ("ggml.merges", texts(&pairs.iter().map(String::as_str).collect::<Vec<_>>())),
        ]);
        TextCodec::from_gguf(&content).unwrap().encode(text, false).unwrap().len() == 1
    };
    for (text, one) in [
        ("Ab", true),
        ("AB", true),
        ("aB", false),
        ("a'", false),
        ("12", true),
        ("1a", false),
        (".a", true),
        ("./", true),
        ("a.", false),
    ] {
        assert_eq!(joined(text), one, "{text}");
    }
    let pieces = |text: &str| {
        let tokens = ["'", "s", "a", "1", "'s", "a's", "11", "111", "1111"];
        let content = content(vec![
            ("ggml.model", name("gpt2")),
            ("ggml.pre", name("gpt-4o")),
            ("ggml.tokens", texts(&tokens)),
            ("ggml.token_type", types(&[1; 9])),
            ("ggml.merges", texts(&["' s", "a 's", "1 1", "11 1", "111 1"])),
        ]);
        TextCodec::from_gguf(&content).unwrap().encode(text, false).unwrap()
    };
    assert_eq!(pieces("a's"), [5]);
    assert_eq!(pieces("1111"), [7, 3]);
}

/// Files of Gemma and Phi-3 do not declare their end-of-turn token; only the template contains it.
#[test]
fn end_of_turn_tokens_are_found_in_the_template() {
    let tokens = ["a", "<s>", "</s>", "<end_of_turn>", "<|end|>", "<|im_end|>"];
    let with = |template: &str, more: Vec<(&str, Value)>| {
        let mut entries = vec![
            ("ggml.model", name("gpt2")),
            ("ggml.tokens", texts(&tokens)),
            ("ggml.token_type", types(&[1, 3, 3, 3, 4, 4])),
            ("ggml.merges", texts(&[])),
            ("ggml.bos_token_id", Value::U32(1)),
            ("ggml.eos_token_id", Value::U32(2)),
            ("chat_template", name(template)),
        ];
        entries.extend(more);
        TextCodec::from_gguf(&content(entries)).unwrap()
    };
    let ends =
        |text: &TextCodec| (0..tokens.len() as u32).filter(|token| text.is_end(*token)).collect::<Vec<_>>();
    assert_eq!(ends(&with("", vec![])), [2]);
    assert_eq!(ends(&with("<start_of_turn>{{ 'x<end_of_turn>' }}", vec![])), [2, 3]);
    // The end-of-turn token is hidden, although the file declares it as user-defined.
    let phi = with("{{ '<|end|>' }}<|eot_id|>", vec![]);
    assert_eq!((ends(&phi), phi.decode(&[0, 4, 5]).unwrap()), (vec![2, 4], "a<|im_end|>".into()));
    assert_eq!(phi.encode("a<|end|>", false).unwrap(), [0, 4]);
    // In gpt-oss it ends a message.
    assert_eq!(ends(&with("<|channel|>final<|message|>{{ x }}<|end|>", vec![])), [2]);
    let several = Value::Array(vec![Value::U32(3), Value::U32(5)]);
    assert_eq!(ends(&with("", vec![("ggml.eos_token_ids", several)])), [2, 3, 5]);
}

#[test]
fn invalid_metadata_is_rejected() {
    let load_error = |content: &Content| format!("{:#}", TextCodec::from_gguf(content).err().unwrap());
    let without = |key: &str| {
        let mut content = merges("gpt-2");
        content.metadata.remove(&format!("tokenizer.ggml.{key}")).unwrap();
        load_error(&content)
    };
    assert!(without("tokens").contains("tokenizer.ggml.tokens"));
    assert!(without("merges").contains("tokenizer.ggml.merges"));
    assert!(without("model").contains("supported are llama, gpt2, gemma4, bert and t5"));
    let unknown = load_error(&merges("klingon"));
    assert!(unknown.contains("klingon") && unknown.contains("folder of safetensors"), "{unknown}");
    let with = |key: &str, value: Value| {
        let mut content = merges("gpt-2");
        content.metadata.insert(format!("tokenizer.ggml.{key}"), value);
        load_error(&content)
    };
    assert!(with("token_type", types(&[1])).contains("11 tokens and 1 types"));
    assert!(with("merges", texts(&["ab"])).contains("not a pair"));
    assert!(with("eos_token_id", Value::U32(50)).contains("token 50"));
    assert!(with("tokens", Value::U8(1)).contains("tokenizer.ggml.tokens"));
}

/// All optional files of a model's folder.
#[test]
fn folders_define_end_tokens_and_templates() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    assert!(format!("{:#}", TextCodec::from_folder(folder.path()).err().unwrap()).contains("tokenizer.json"));
    bytes().save(folder.path().join("tokenizer.json"), false).unwrap();
    let plain = TextCodec::from_folder(folder.path()).unwrap();
    assert!(!plain.has_template() && (0..plain.vocabulary() as u32).all(|token| !plain.is_end(token)));

    write("config.json", json!({"eos_token_id": 5, "text_config": {"eos_token_id": [6]}}).to_string());
    write("generation_config.json", json!({"eos_token_id": [7, 8]}).to_string());
    let named = json!([
        {"name": "default", "template": "default {{ eos_token }}"},
        {"name": "tool_use", "template": "tools {{ tools[0] }}"},
    ]);
    let config = json!({"bos_token": null, "eos_token": {"content": END}, "chat_template": named});
    write("tokenizer_config.json", config.to_string());
    let text = TextCodec::from_folder(folder.path()).unwrap();
    let end = text.encode(END, false).unwrap()[0];
    let ends: Vec<u32> = (0..text.vocabulary() as u32).filter(|token| text.is_end(*token)).collect();
    assert_eq!(ends, [5, 6, 7, 8, end]);
    let messages = json!([]);
    assert_eq!(text.chat(&messages, None).unwrap(), format!("default {END}"));
    assert_eq!(text.chat(&messages, Some(&json!(["a"]))).unwrap(), "tools a");
    // Separate template files take precedence over the configuration.
    write("chat_template.jinja", "own".into());
    write("additional_chat_templates/tool_use.jinja", "own tools".into());
    let text = TextCodec::from_folder(folder.path()).unwrap();
    assert_eq!(text.chat(&messages, None).unwrap(), "own");
    assert_eq!(text.chat(&messages, Some(&json!(["a"]))).unwrap(), "own tools");

    write("config.json", "{".into());
    assert!(
        format!("{:#}", TextCodec::from_folder(folder.path()).err().unwrap())
            .contains("config.json is not JSON")
    );
}
