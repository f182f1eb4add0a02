//! Small tokenizers of both kinds that language models use.
use std::path::PathBuf;
use std::sync::Arc;

use llm_engine::text::TextCodec;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// The end-of-text token of both.
pub const END: &str = "<|end|>";
/// An added token that is not special, so it is part of the decoded text.
pub const ADDED: &str = "<call>";

/// Returns the folder of the trained example model.
pub fn tiny_llama() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tiny_llama/model"))
}

/// Returns GPT-2's character for a byte; printable bytes represent themselves.
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| (33..=126).contains(&byte) || (161..=172).contains(&byte) || byte >= 174;
    if printable(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|before| !printable(*before)).count() as u32;
    char::from_u32(256 + place).unwrap()
}

fn with_added(mut tokenizer: Tokenizer) -> Tokenizer {
    tokenizer.add_special_tokens([AddedToken::from(END, true)]).unwrap();
    tokenizer.add_tokens([AddedToken::from(ADDED, false)]).unwrap();
    tokenizer
}

fn model(pieces: Vec<String>, merges: &[(&str, &str)], fallback: bool) -> BPE {
    let vocabulary: Vocab = (0u32..).zip(pieces).map(|(id, piece)| (piece, id)).collect();
    let merges = merges.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect();
    BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(fallback).build().unwrap()
}

/// Returns a byte-level tokenizer with some merges, including JSON tokens and partial characters.
pub fn bytes() -> Tokenizer {
    let space = byte_character(b' ').to_string();
    let [first, second, third] = "\u{20AC}".as_bytes() else {
        panic!("the sign of the euro has three bytes")
    };
    let [first, second, third] = [first, second, third].map(|byte| byte_character(*byte).to_string());
    let half = format!("{first}{second}");
    let whole = format!("{half}{third}");
    let spaced = format!("{space}h");
    let mut pieces: Vec<String> = (0..=255).map(|byte| byte_character(byte).to_string()).collect();
    let merged = ["he", "ll", "{\"", "\":", "\",", "\"}", "tr", "ue", "true", "na", "me", "name"];
    pieces.extend(merged.map(str::to_owned));
    pieces.extend([half.clone(), whole, spaced]);
    let merges = [
        ("h", "e"),
        ("l", "l"),
        ("{", "\""),
        ("\"", ":"),
        ("\"", ","),
        ("\"", "}"),
        ("t", "r"),
        ("u", "e"),
        ("tr", "ue"),
        ("n", "a"),
        ("m", "e"),
        ("na", "me"),
        (&first, &second),
        (&half, &third),
        (&space, "h"),
    ];
    let mut tokenizer = Tokenizer::new(model(pieces, &merges, false));
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    with_added(tokenizer)
}

/// Returns a SentencePiece tokenizer with byte fallback.
pub fn pieces() -> Tokenizer {
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let words = [
        "\u{2581}",
        "a",
        "b",
        "e",
        "h",
        "l",
        "o",
        "\u{2581}h",
        "\u{2581}he",
        "ll",
        "llo",
        "\u{E9}",
        "\u{2581}\u{2581}",
    ];
    let pieces = bytes.chain(words.map(str::to_owned)).collect();
    let space = "\u{2581}";
    let merges = [(space, "h"), ("\u{2581}h", "e"), ("l", "l"), ("ll", "o"), (space, space)];
    let mut tokenizer = Tokenizer::new(model(pieces, &merges, true));
    let normalizers = vec![Prepend::new(space.into()).into(), Replace::new(" ", space).unwrap().into()];
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).unwrap();
    tokenizer.with_decoder(Some(Sequence::new(vec![
        Replace::new(space, " ").unwrap().into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
        Strip::new(' ', 1, 0).into(),
    ])));
    with_added(tokenizer)
}

pub fn text(tokenizer: Tokenizer) -> Arc<TextCodec> {
    let end = tokenizer.token_to_id(END).unwrap();
    Arc::new(TextCodec::new(tokenizer, vec![end], None).unwrap())
}
