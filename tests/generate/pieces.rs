//! Tokenizers in GGUF files: of SentencePiece by its definition, of bytes as the tokenizer.json that has the same.
use std::collections::HashMap;
use std::io::Cursor;

use anyhow::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{self, Content, Value};
use proptest::prelude::*;
use tokenizers::Tokenizer;

use crate::model_files::ModelFiles;
use crate::sentence_piece::tokenizer;
use crate::text::TextStream;
use crate::tiny_models::{self, family, write_gguf};
use crate::vocabulary::Vocabulary;

/// Of the vocabulary: the pieces with their scores, after `<unk>`, `<s>`, `</s>`, `<mask>` and 256 bytes.
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

fn content(space_prefix: bool) -> Result<Content> {
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
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata.each_ref().map(|(key, value)| (*key, value)), &[])?;
    file.set_position(0);
    Ok(Content::read(&mut file)?)
}

/// The pieces of a text by definition: of all neighbours that make a piece, those with the highest score are joined,
/// the first of them, until none is left; what is no piece is written in bytes.
fn by_definition(text: &str, space_prefix: bool) -> Vec<u32> {
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

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    Ok(tokenizer.encode(text, true).map_err(Error::msg)?.get_ids().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pieces_are_joined_as_the_scores_say(text in "[abc é語]{1,16}", space_prefix in any::<bool>()) {
        let tokenizer = tokenizer(&content(space_prefix).expect("a file")).expect("a tokenizer");
        let tokens = encode(&tokenizer, &text).expect("tokens");
        prop_assert_eq!(&tokens, &by_definition(&text, space_prefix), "{:?}", tokens);
        prop_assert_eq!(tokenizer.decode(&tokens, true).expect("text"), text.as_str());
        // As it comes, too: also a first space.
        let (prompt, rest) = tokens.split_at(tokens.len().min(2));
        let mut stream = TextStream::after(&tokenizer, prompt);
        let mut pieces = tokenizer.decode(prompt, true).expect("text");
        let whole = !pieces.contains('\u{FFFD}');
        for token in rest {
            pieces += &stream.push(*token).expect("text");
        }
        pieces += &stream.finish().expect("text");
        // A prompt ends with a whole character.
        prop_assert!(!whole || pieces == text, "{pieces:?}");
    }
}

#[test]
fn special_tokens_are_found_in_the_text() -> Result<()> {
    let tokenizer = tokenizer(&content(false)?)?;
    let [a, ab] = [1, 4].map(|piece| FIRST_PIECE + piece);
    assert_eq!(encode(&tokenizer, "<s>a<mask>ab</s>")?, [1, 1, a, 3, ab, 2]);
    // Of these only what the user defined is text.
    assert_eq!(tokenizer.decode(&[1, a, 3, ab, 2], true).map_err(Error::msg)?, "a<mask>ab");
    Ok(())
}

#[test]
fn arrays_of_different_lengths_are_an_error() -> Result<()> {
    let mut content = content(true)?;
    content.metadata.insert("tokenizer.ggml.scores".into(), Value::Array(vec![Value::F32(0.0)]));
    let error = tokenizer(&content).expect_err("refused").to_string();
    assert!(error.contains("272 tokens, 1 scores"), "{error}");
    content.metadata.insert("tokenizer.ggml.scores".into(), Value::U32(7));
    let error = tokenizer(&content).expect_err("refused").to_string();
    assert!(error.contains("tokenizer.ggml.scores"), "{error}");
    Ok(())
}

#[test]
fn tokens_of_bytes_are_those_of_tokenizer_json() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = write_gguf(folder.path(), family("Qwen2"), 11, GgmlDType::F32, &[])?;
    let of_gguf = Vocabulary::of(&ModelFiles::open(&path)?, None)?.tokenizer;
    let of_json = tiny_models::tokenizer()?;
    for text in ["the cat", "with  the é語 🙂", "\n\ta"] {
        let tokens = encode(&of_gguf, text)?;
        assert_eq!(tokens, encode(&of_json, text)?, "{text:?}");
        assert_eq!(of_gguf.decode(&tokens, true).map_err(Error::msg)?, text);
    }
    Ok(())
}
