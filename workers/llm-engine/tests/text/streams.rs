//! Streamed text, compared with the decoded whole.
use std::sync::Arc;

use llm_engine::text::{TextCodec, TextStream};
use proptest::prelude::*;
use tokenizers::AddedToken;

use crate::tokenizers_built::{ADDED, END, bytes, pieces, text};

/// Returns the complete output of a stream without stop strings, checked piece by piece.
fn streamed(text: &Arc<TextCodec>, tokens: &[u32]) -> String {
    let mut stream = TextStream::new(text.clone(), vec![String::new()]);
    let mut given = String::new();
    for (index, token) in tokens.iter().enumerate() {
        let piece = stream.push(*token).unwrap();
        assert!(!piece.stopped);
        given.push_str(&piece.text);
        // Only an incomplete character may be held back, which decodes as a replacement character so far.
        let so_far = text.decode_after(&tokens[..=index]).unwrap();
        let held =
            so_far.strip_prefix(&given).unwrap_or_else(|| panic!("{given:?} is no start of {so_far:?}"));
        assert!(matches!(held, "" | "\u{FFFD}"), "{held:?} is held back of {so_far:?}");
    }
    given + &stream.finish()
}

/// Returns the text before the stop string that is completed first.
fn cut<'a>(text: &'a str, stops: &[String]) -> Option<&'a str> {
    let ends = (1..=text.len()).filter(|end| text.is_char_boundary(*end));
    let mut starts = ends.filter_map(|end| {
        let matching = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
        matching.map(|stop| end - stop.len()).min()
    });
    starts.next().map(|start| &text[..start])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streamed_text_equals_decoded_text(
        numbers in prop::collection::vec(any::<u32>(), 0..60),
        runs in prop::collection::vec((0usize..4, "\\PC{0,6}"), 0..6),
    ) {
        for tokenizer in [bytes(), pieces()] {
            let count = tokenizer.get_vocab_size(true) as u32;
            let text = text(tokenizer);
            // Random tokens, mostly invalid UTF-8, between unused ids.
            let mut tokens: Vec<u32> = Vec::new();
            let mut numbers = numbers.iter();
            for (broken, run) in &runs {
                tokens.extend(numbers.by_ref().take(*broken).map(|number| number % count));
                tokens.extend(text.encode(run, false).unwrap());
            }
            tokens.extend(numbers.map(|number| number % count));
            prop_assert_eq!(streamed(&text, &tokens), text.decode_after(&tokens).unwrap());
        }
    }

    #[test]
    fn encoded_texts_decode_to_themselves(written in "\\PC{0,20}") {
        for tokenizer in [bytes(), pieces()] {
            let tokens = tokenizer.encode(written.as_str(), false).unwrap().get_ids().to_vec();
            let expected = tokenizer.decode(&tokens, true).unwrap();
            let text = text(tokenizer);
            prop_assert_eq!(&text.encode(&written, false).unwrap(), &tokens);
            prop_assert_eq!(&text.decode(&tokens).unwrap(), &expected);
            prop_assert_eq!(&expected, &written);
        }
    }

    #[test]
    fn stop_strings_are_found_like_in_the_whole_text(
        letters in prop::collection::vec(0usize..6, 0..40),
        stops in prop::collection::vec("[hel\u{20AC}]{0,4}", 0..4),
    ) {
        let text = text(bytes());
        let of = |bytes: &[u8]| token_of(&text, bytes);
        let euro = "\u{20AC}".as_bytes();
        let mut tokens = Vec::new();
        for letter in letters {
            match letter {
                // The stop string is split over two tokens.
                5 => tokens.extend([of(&euro[..2]), of(&euro[2..])]),
                letter => tokens.push(of(["h", "l", "he", "ll", "\u{20AC}"][letter].as_bytes())),
            }
        }
        let whole = text.decode_after(&tokens).unwrap();
        let mut stream = TextStream::new(text, stops.clone());
        let mut given = String::new();
        let mut stopped = false;
        for token in tokens {
            let piece = stream.push(token).unwrap();
            given.push_str(&piece.text);
            stopped = piece.stopped;
            if stopped {
                break;
            }
            prop_assert!(whole.starts_with(&given));
        }
        given.push_str(&stream.finish());
        match cut(&whole, &stops) {
            Some(wanted) => {
                prop_assert_eq!(given, wanted);
            }
            None => {
                prop_assert!(!stopped);
                prop_assert_eq!(given, whole);
            }
        }
    }
}

#[test]
fn characters_are_sent_when_complete() {
    let text = text(bytes());
    let tokens: Vec<u32> = "\u{1F600}".bytes().map(|byte| token_of(&text, &[byte])).collect();
    let mut stream = TextStream::new(text.clone(), Vec::new());
    let given: Vec<String> = tokens.iter().map(|token| stream.push(*token).unwrap().text).collect();
    assert_eq!(given, ["", "", "", "\u{1F600}"]);
    // An invalid byte is replaced immediately; an incomplete character only when another byte follows.
    let h = token_of(&text, b"h");
    assert_eq!(stream.push(token_of(&text, &[0xFF])).unwrap().text, "\u{FFFD}");
    assert_eq!(stream.push(tokens[0]).unwrap().text, "");
    assert_eq!(stream.push(h).unwrap().text, "\u{FFFD}h");
    assert_eq!(stream.push(tokens[0]).unwrap().text, "");
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.finish(), "");
}

fn token_of(text: &TextCodec, bytes: &[u8]) -> u32 {
    (0..text.vocabulary() as u32).find(|token| text.token_bytes(*token) == Some(bytes)).unwrap()
}

#[test]
fn nothing_follows_a_stop_string() {
    let text = text(bytes());
    let tokens = text.encode("hello", false).unwrap();
    let mut stream = TextStream::new(text.clone(), vec!["llo".into()]);
    let pieces: Vec<_> = tokens.iter().chain(&tokens).map(|token| stream.push(*token).unwrap()).collect();
    assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), "he");
    assert!(pieces[tokens.len() - 1..].iter().all(|piece| piece.stopped));
    assert_eq!(stream.finish(), "");
}

#[test]
fn a_first_space_is_kept_in_continued_text() {
    let text = text(pieces());
    let tokens = text.encode("hello", false).unwrap();
    assert_eq!(text.decode(&tokens).unwrap(), "hello");
    assert_eq!(streamed(&text, &tokens), " hello");
    let two = text.encode("  hello", false).unwrap();
    assert_eq!(text.decode(&two).unwrap(), "  hello");
}

#[test]
fn special_tokens_have_names_but_no_text() {
    for tokenizer in [bytes(), pieces()] {
        let text = text(tokenizer);
        let tokens = text.encode(&format!("{ADDED}{END}"), false).unwrap();
        let [.., shown, end] = tokens[..] else { panic!("{tokens:?}") };
        assert_eq!(text.decode_after(&[shown, end]).unwrap(), ADDED);
        assert_eq!(text.token_text(end), END);
        assert!(text.is_end(end) && !text.is_end(shown));
        let beyond = text.vocabulary() as u32;
        assert_eq!(text.decode_after(&[shown, beyond]).unwrap(), ADDED);
        assert_eq!(streamed(&text, &[beyond, shown, end, u32::MAX]), ADDED);
        assert_eq!(text.token_bytes(beyond), None);
        assert_eq!(text.token_text(beyond), "");
    }
    assert!(TextCodec::new(bytes(), vec![100_000], None).is_err());
}

#[test]
fn shown_special_tokens_have_text() {
    for tokenizer in [bytes(), pieces()] {
        let text = text(tokenizer);
        let end = text.special_token(END).unwrap();
        assert_eq!((text.special_token(ADDED), text.special_token("absent")), (None, None));
        let h = text.encode("h", false).unwrap();
        let mut stream = TextStream::new(text.clone(), vec!["|>h".into()]).showing(vec![end]);
        assert_eq!(stream.push(end).unwrap().text, "<|end");
        // Stop strings may contain them.
        assert!(
            h.iter().any(|token| stream.push(*token).unwrap().stopped)
                || text.decode_after(&h).unwrap() != "h"
        );
    }
}

/// Gemma's runs of spaces are such tokens.
#[test]
fn added_tokens_are_decoded_like_others() {
    let added = ["\u{2581}\u{2581}\u{2581}", "\u{120}\u{120}", "   ", "\n\n", "<0x41>", "<a b>"];
    for mut tokenizer in [bytes(), pieces()] {
        tokenizer.add_tokens(added.map(|token| AddedToken::from(token, false).normalized(false))).unwrap();
        let before = tokenizer.token_to_id("h").unwrap();
        let numbers = added.map(|token| tokenizer.token_to_id(token).unwrap());
        let expected = numbers.map(|token| tokenizer.decode(&[before, token, before], true).unwrap());
        let text = text(tokenizer);
        for (token, expected) in numbers.into_iter().zip(&expected) {
            assert_eq!(&text.decode(&[before, token, before]).unwrap(), expected);
            assert_eq!(&streamed(&text, &[before, token, before]), expected);
        }
    }
    let mut gemma = pieces();
    gemma.add_tokens([AddedToken::from("\u{2581}\u{2581}\u{2581}", false).normalized(false)]).unwrap();
    let run = gemma.token_to_id("\u{2581}\u{2581}\u{2581}").unwrap();
    assert_eq!(text(gemma).token_text(run), "   ");
}
