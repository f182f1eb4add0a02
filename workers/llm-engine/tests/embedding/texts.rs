//! Tokenization of texts and pairs, with truncation.
use llm_engine::model::load_text;

use super::models::data;

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
    let (folder, file) = (load_text(&data("bert")).unwrap(), load_text(&data("bert.gguf")).unwrap());
    for text in
        ["", "a", "woodchucks, aren't CHEAP", "na\u{ef}ve \u{6771}\u{4eac} \u{1f600}", "[SEP] x [CLS]"]
    {
        assert_eq!(file.encode(text, true).unwrap(), folder.encode(text, true).unwrap(), "{text}");
        let pair = |codec: &llm_engine::text::TextCodec| codec.encode_pair(text, "the dog", None).unwrap();
        assert_eq!(pair(&file), pair(&folder), "{text}");
    }
}
