//! Tests tokenizers in GGUF files: SentencePiece against its definition, byte-level BPE against the same
//! tokenizer.json.
use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, Value, VersionedMagic};
use llm_engine::model::load_text;
use llm_engine::text::{TextCodec, TextStream};
use proptest::prelude::*;

use crate::oracle::family;
use crate::tiny_models::{tokenizer, write_gguf};

/// Pieces of the vocabulary with their scores, after `<unk>`, `<s>`, `</s>`, `<mask>` and 256 bytes.
const PIECES: [(&str, f32); 12] = [
    ("\u{2581}", -9.0),
    ("a", -5.0),
    ("b", -6.0),
    ("c", -7.0),
    ("ab", -1.0),
    ("bc", -0.5),
    ("abc", -2.0),
    ("\u{2581}a", -1.5),
    ("\u{2581}ab", -3.0),
    ("cc", -4.0),
    ("\u{e9}", -8.0),
    ("\u{e9}a", -2.5),
];
const SPECIALS: [(&str, i32); 4] = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<mask>", 4)];
const FIRST_PIECE: u32 = 4 + 256;

fn content(space_prefix: bool) -> Content {
    let mut tokens: Vec<(String, f32, i32)> =
        SPECIALS.iter().map(|(token, kind)| ((*token).to_owned(), 0.0, *kind)).collect();
    tokens.extend((0..=255).map(|byte: u8| (format!("<0x{byte:02X}>"), 0.0, 6)));
    tokens.extend(PIECES.iter().map(|(token, score)| ((*token).to_owned(), *score, 1)));
    let array = |item: fn(&(String, f32, i32)) -> Value| Value::Array(tokens.iter().map(item).collect());
    let metadata = [
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", array(|token| Value::String(token.0.clone()))),
        ("tokenizer.ggml.scores", array(|token| Value::F32(token.1))),
        ("tokenizer.ggml.token_type", array(|token| Value::I32(token.2))),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(space_prefix)),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    Content { magic: VersionedMagic::GgufV3, metadata, tensor_infos: HashMap::new(), tensor_data_offset: 0 }
}

/// Tokenizes by definition: repeatedly joins the first pair of neighbours whose piece has the highest score;
/// parts that are not pieces are encoded as bytes.
fn reference_tokens(text: &str, space_prefix: bool) -> Vec<u32> {
    let scores: HashMap<&str, f32> = PIECES.into_iter().collect();
    let text = format!("{}{text}", if space_prefix { " " } else { "" }).replace(' ', "\u{2581}");
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let joined = |i: usize| format!("{}{}", parts[i], parts[i + 1]);
        let pairs = (0..parts.len().saturating_sub(1)).filter_map(|i| Some((i, *scores.get(&*joined(i))?)));
        let best = pairs.reduce(|best, next| if next.1 > best.1 { next } else { best });
        let Some((i, _)) = best else { break };
        parts[i] = joined(i);
        parts.remove(i + 1);
    }
    let id = |part: &str| PIECES.iter().position(|(piece, _)| *piece == part).map(|i| FIRST_PIECE + i as u32);
    let tokens = parts.iter().flat_map(|part| match id(part) {
        Some(id) => vec![id],
        None => part.bytes().map(|byte| 4 + u32::from(byte)).collect(),
    });
    [1].into_iter().chain(tokens).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn sentencepiece_tokens_match_the_definition(written in "[abc é語]{1,16}", space_prefix in any::<bool>()) {
        let text = Arc::new(TextCodec::from_gguf(&content(space_prefix)).expect("a tokenizer"));
        let tokens = text.encode(&written, true).expect("tokens");
        prop_assert_eq!(&tokens, &reference_tokens(&written, space_prefix), "{:?}", tokens);
        prop_assert_eq!(text.decode(&tokens).expect("text"), written.as_str());
        // Streaming gives the same text, including a leading space.
        let (prompt, rest) = tokens.split_at(tokens.len().min(2));
        let mut stream = TextStream::new(text.clone(), Vec::new());
        let mut pieces = text.decode(prompt).expect("text");
        let whole = !pieces.contains('\u{FFFD}');
        for token in rest {
            pieces += &stream.push(*token).expect("text").text;
        }
        pieces += &stream.finish();
        // Compared only if the prompt ends with a complete character.
        prop_assert!(!whole || pieces == written, "{pieces:?}");
    }
}

#[test]
fn special_tokens_in_the_text_are_recognized() -> Result<()> {
    let text = TextCodec::from_gguf(&content(false))?;
    let [a, ab] = [1, 4].map(|piece| FIRST_PIECE + piece);
    assert_eq!(text.encode("<s>a<mask>ab</s>", true)?, [1, 1, a, 3, ab, 2]);
    // Only user-defined special tokens are part of the decoded text.
    assert_eq!(text.decode(&[1, a, 3, ab, 2])?, "a<mask>ab");
    Ok(())
}

#[test]
fn arrays_of_different_lengths_are_an_error() {
    let mut content = content(true);
    for (scores, part) in [
        (Value::Array(vec![Value::F32(0.0)]), "272 tokens and 1 scores"),
        (Value::U32(7), "tokenizer.ggml.scores"),
    ] {
        content.metadata.insert("tokenizer.ggml.scores".into(), scores);
        let error = TextCodec::from_gguf(&content).err().expect("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn byte_level_tokens_match_tokenizer_json() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let of_gguf = load_text(&write_gguf(folder.path(), family("Qwen2"), 11, GgmlDType::F32, &[])?)?;
    let of_json = tokenizer()?;
    for text in ["the cat", "with  the é語 🙂", "\n\ta"] {
        let tokens = of_gguf.encode(text, true)?;
        assert_eq!(tokens, of_json.encode(text, true).map_err(Error::msg)?.get_ids(), "{text:?}");
        assert_eq!(of_gguf.decode(&tokens)?, text);
    }
    Ok(())
}
