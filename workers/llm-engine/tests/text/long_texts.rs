//! Long texts: tokenized in pieces, and refused before all of it is tokenized.
use llm_engine::text::TextCodec;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokenizers::Tokenizer;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::normalizers::Strip;
use tokenizers::processors::template::TemplateProcessing;

use super::tokenizers_built::{bytes, pieces, text, tiny_llama};

/// Returns text of `length` bytes or a little more, with words, runs of spaces, numbers, other scripts and added tokens.
fn varied(seed: u64, length: usize) -> String {
    let words = [
        "hello",
        "he",
        "name",
        "true",
        " ",
        "  ",
        "\n",
        " \n ",
        "\u{20AC}",
        "\u{6F22}\u{5B57}",
        "12345",
        "a1",
        "don't",
        "<call>",
        " <|end|> ",
        "{\"name\": true}",
        "e\u{301}",
        "ll llo",
        ".",
        "X",
    ];
    let mut random = StdRng::seed_from_u64(seed);
    let mut text = String::new();
    while text.len() < length {
        text.push_str(words.choose(&mut random).unwrap());
        if random.random_bool(0.6) {
            text.push(' ');
        }
    }
    text
}

fn with_bos(mut tokenizer: Tokenizer) -> Tokenizer {
    let end = tokenizer.token_to_id("<|end|>").unwrap();
    let template = TemplateProcessing::builder()
        .try_single("<|end|> $0 <|end|>")
        .unwrap()
        .special_tokens(vec![("<|end|>", end)])
        .build()
        .unwrap();
    tokenizer.with_post_processor(Some(template));
    tokenizer
}

#[test]
fn pieces_have_the_tokens_of_the_whole_text() {
    let folder = Tokenizer::from_file(tiny_llama().join("tokenizer.json")).unwrap();
    for (name, tokenizer) in [("bytes", bytes()), ("pieces", pieces()), ("tiny llama", folder)] {
        let tokenizer = if name == "tiny llama" { tokenizer } else { with_bos(tokenizer) };
        let codec = TextCodec::new(tokenizer.clone(), vec![], None).unwrap();
        for seed in 0..2 {
            let long = varied(seed, 80_000);
            let special = seed == 0;
            let whole = tokenizer.encode_fast(long.as_str(), special).unwrap();
            assert!(codec.encode(&long, special).unwrap() == whole.get_ids(), "{name}, seed {seed}");
        }
        // There is no place for a cut.
        let unbroken = "ll".repeat(70_000);
        let whole = tokenizer.encode_fast(unbroken.as_str(), true).unwrap();
        assert!(codec.encode(&unbroken, true).unwrap() == whole.get_ids(), "{name}");
    }
}

#[test]
fn texts_above_the_limit_are_refused() {
    for tokenizer in [bytes(), pieces()] {
        let codec = text(tokenizer);
        let longest = (0..codec.vocabulary() as u32).map(|token| codec.token_bytes(token).unwrap().len());
        let longest = longest.max().unwrap();
        assert_eq!(codec.max_bytes(1_000_000), longest * 1_000_000);
        assert_eq!(codec.max_bytes(1), 64 << 10, "short texts are always tokenized");
        let words = "he ".repeat(30_000);
        let count = codec.encode(&words, false).unwrap().len();
        assert_eq!(codec.encode_within(&words, false, count).unwrap().unwrap().len(), count);
        for limit in [1, 1000, count - 1] {
            assert!(codec.encode_within(&words, false, limit).unwrap().is_none(), "{limit}");
        }
        let unbroken = "e".repeat(140_000);
        assert!(codec.encode_within(&unbroken, false, 50_000).unwrap().is_none());
        let count = codec.encode(&unbroken, false).unwrap().len();
        assert_eq!(codec.encode_within(&unbroken, false, count).unwrap().unwrap().len(), count);
        assert_eq!(
            codec.encode_within("he he", false, 1).unwrap().map(|tokens| tokens.len() > 1),
            Some(true)
        );
    }
}

/// A token may stand for a text of any length, or the text may lose spaces.
#[test]
fn tokenizers_that_drop_text_are_not_limited_by_length() {
    let unknown = [("?".to_owned(), 0)].into_iter().collect();
    let words = Tokenizer::new(WordLevel::builder().vocab(unknown).unk_token("?".into()).build().unwrap());
    let mut strips = bytes();
    strips.with_normalizer(Some(Strip::new(true, true))).unwrap();
    for tokenizer in [words, strips] {
        let codec = TextCodec::new(tokenizer, vec![], None).unwrap();
        assert_eq!(codec.max_bytes(1), usize::MAX);
    }
}
