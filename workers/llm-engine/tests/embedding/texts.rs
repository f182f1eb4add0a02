//! Tokenization of texts and pairs, with truncation.
use llm_engine::model::load_text;
use llm_engine::text::TextCodec;
use serde_json::Value;

use super::models::{data, list};

#[test]
fn truncated_texts_keep_special_tokens() {
    let text = load_text(&data("bert")).unwrap();
    let whole = text.encode("The dog sleeps on the mat.", true).unwrap();
    assert_eq!(text.encode_truncated("The dog sleeps on the mat.", whole.len()).unwrap(), whole);
    let cut = text.encode_truncated("The dog sleeps on the mat.", 5).unwrap();
    assert_eq!((cut.len(), &cut[..4], cut[4]), (5, &whole[..4], whole[whole.len() - 1]));
    assert_eq!(text.encode_truncated("", 3).unwrap(), [whole[0], whole[whole.len() - 1]]);
    for limit in [0, 1, 2] {
        assert!(text.encode_truncated("a", limit).is_err(), "{limit}");
    }
}

#[test]
fn pairs_have_two_segments() {
    let text = load_text(&data("bert-reranker")).unwrap();
    let (tokens, second) = text.encode_pair("the cat", "the dog", None).unwrap();
    let (first, other) = (text.encode("the cat", true).unwrap(), text.encode("the dog", true).unwrap());
    assert_eq!((&tokens[..second], &tokens[second..]), (&first[..], &other[1..]));
    assert_eq!(text.encode_pair("the cat", "the dog", Some(tokens.len())).unwrap(), (tokens, second));
    let (tokens, second) = text.encode_pair("the cat", &"the dog ".repeat(50), Some(20)).unwrap();
    assert_eq!((tokens.len(), second), (20, first.len()));
    // The tokenizer of XLM-R does not distinguish segments.
    let text = load_text(&data("xlm-roberta-reranker")).unwrap();
    let (tokens, second) = text.encode_pair("the cat", "the dog", None).unwrap();
    assert_eq!(second, tokens.len());
}

/// Words, continuations, accents, signs and unknown characters.
#[test]
fn a_gguf_file_has_the_same_tokenizer() {
    for name in ["bert", "modernbert"] {
        let folder = load_text(&data(name)).unwrap();
        same_tokens(&folder, &load_text(&data(&format!("{name}.gguf"))).unwrap());
    }
}

fn same_tokens(folder: &TextCodec, file: &TextCodec) {
    for text in
        ["", "a", "woodchucks, aren't CHEAP", "na\u{ef}ve \u{6771}\u{4eac} \u{1f600}", "[SEP] x [CLS]"]
    {
        assert_eq!(file.encode(text, true).unwrap(), folder.encode(text, true).unwrap(), "{text}");
        let pair = |codec: &TextCodec| codec.encode_pair(text, "the dog", None).unwrap();
        assert_eq!(pair(file), pair(folder), "{text}");
    }
}

/// Normalization, white space, unknown characters and pairs.
#[test]
fn unigrams_of_a_gguf_file_equal_those_of_sentencepiece() {
    let file = load_text(&data("xlm-roberta-reranker.gguf")).unwrap();
    let expected = std::fs::read_to_string(data("xlm-roberta-reranker.gguf.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for (text, tokens) in list::<String>(&expected["texts"]).iter().zip(list::<Vec<u32>>(&expected["tokens"]))
    {
        assert_eq!(file.encode(text, false).unwrap(), tokens, "{text:?}");
        assert_eq!(file.encode(text, true).unwrap(), [vec![0], tokens.clone(), vec![2]].concat(), "{text:?}");
        let pair = [vec![0], tokens.clone(), vec![2, 2], tokens, vec![2]].concat();
        assert_eq!(file.encode_pair(text, text, None).unwrap(), (pair.clone(), pair.len()), "{text:?}");
    }
}

/// The document is cut, and the prompt around it is kept.
#[test]
fn prompts_for_pairs_keep_their_ends() {
    let text = load_text(&data("qwen3-reranker.gguf")).unwrap();
    let long = "The dog sleeps on the caf\u{e9}'s mat. ".repeat(40);
    let (empty, _) = text.encode_pair("the cat", "", None).unwrap();
    let (whole, _) = text.encode_pair("the cat", &long, None).unwrap();
    assert!(whole.len() > 400);
    for limit in [empty.len() + 1, 80, 100, 101, whole.len() - 1] {
        let (tokens, _) = text.encode_pair("the cat", &long, Some(limit)).unwrap();
        assert!(tokens.len() <= limit && tokens.len() + 8 > limit, "{limit}: {}", tokens.len());
        assert_eq!(tokens[tokens.len() - 5..], empty[empty.len() - 5..]);
        assert_eq!(tokens[..8], empty[..8]);
    }
    assert_eq!(text.encode_pair("the cat", &long, Some(whole.len())).unwrap().0, whole);
    assert!(text.encode_pair("the cat", &long, Some(empty.len() / 2)).is_err());
    // Places in the query are not replaced.
    let (tokens, _) = text.encode_pair("{document}", "{query}", None).unwrap();
    let decoded = text.decode(&tokens).unwrap();
    assert!(decoded.contains("<Query>: {document}") && decoded.contains("<Document>: {query}"), "{decoded}");
}
