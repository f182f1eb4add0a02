//! Text as it comes: whole characters, and texts to stop at wherever the pieces are cut.
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Error, Result};
use clap::Parser;
use proptest::prelude::*;

use crate::generated;
use crate::generation::End;
use crate::options::Options;
use crate::run::run;
use crate::text::{StopStrings, TextStream};
use crate::tiny_models::{BOS, family, tokenizer, write_safetensors};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pieces_are_whole_characters_and_together_the_text(prompt in "[a-zé語 ]{0,6}", text in "[^\\p{C}\u{FFFD}]{0,24}") {
        let tokenizer = tokenizer().expect("a tokenizer");
        let tokens = |text: &str| tokenizer.encode(text, false).expect("tokens").get_ids().to_vec();
        // A special token, which is no text, in the middle.
        let mut after = tokens(&text);
        after.insert(after.len() / 2, BOS);
        let mut stream = TextStream::after(&tokenizer, &tokens(&prompt));
        let mut pieces: Vec<String> = Vec::new();
        for token in &after {
            pieces.push(stream.push(*token).expect("text"));
        }
        prop_assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
        pieces.push(stream.finish().expect("text"));
        let all = tokenizer.decode(&[tokens(&prompt), after].concat(), true).expect("text");
        prop_assert_eq!(prompt + &pieces.concat(), all);
    }

    #[test]
    fn a_stop_is_found_wherever_the_text_is_cut(
        text in "[abé]{0,20}",
        stops in prop::collection::vec("[abé]{1,4}", 0..3),
        cuts in prop::collection::vec(1usize..5, 0..20),
    ) {
        // By definition: the text comes by characters, and ends as soon as a stop is complete.
        let ends = text.char_indices().map(|(start, character)| start + character.len_utf8());
        let complete = ends.filter_map(|end| {
            let found = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            found.map(|stop| end - stop.len()).min()
        });
        let start = complete.into_iter().next();
        let expected = (start.map_or(text.as_str(), |start| &text[..start]).to_owned(), start.is_some());

        let mut filter = StopStrings::new(&stops);
        let (mut got, mut stopped) = (String::new(), false);
        let mut characters = text.chars();
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (given, stop) = filter.push(&characters.by_ref().take(cut).collect::<String>());
            got += &given;
            stopped = stop;
            if stop {
                break;
            }
            // Nothing is held back without need.
            let held = &text[got.len()..text.len() - characters.as_str().len()];
            prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)), "{held:?}");
        }
        if !stopped {
            got += &filter.finish();
        }
        prop_assert_eq!((got, stopped), expected);
    }
}

#[test]
fn a_character_of_several_tokens_comes_with_its_last() -> Result<()> {
    let tokenizer = tokenizer()?;
    let tokens = tokenizer.encode("é語", false).map_err(Error::msg)?.get_ids().to_vec();
    let mut stream = TextStream::after(&tokenizer, &[]);
    let pieces: Result<Vec<String>> = tokens[..4].iter().map(|token| stream.push(*token)).collect();
    assert_eq!(pieces?, ["", "é", "", ""]);
    // A character that is never completed is not lost.
    assert_eq!(stream.finish()?, "\u{FFFD}");
    assert_eq!(stream.finish()?, "");
    Ok(())
}

#[test]
fn a_stop_ends_the_text_of_a_model_before_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 8, 1)?;
    let args = ["--prompt", "the cat", "--tokens", "24", "--device", "cpu", "--seed", "2"];
    let (_, whole) = generated(folder.path(), &args)?;
    let characters: Vec<char> = whole.chars().collect();
    assert!(characters.len() > 12, "{whole:?}");
    // Two characters, which come with two tokens.
    let stop: String = characters[6..8].iter().collect();
    let (run, text) =
        generated(folder.path(), &[&args[..], &["--stop", &stop, "--stop", "not in it"]].concat())?;
    assert_eq!(run.generated.end, End::StopString);
    assert_eq!(text, whole[..whole.find(&stop).expect("it is there")]);
    Ok(())
}

#[test]
fn an_interrupted_run_ends_with_its_text_and_figures() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 8, 1)?;
    let path = folder.path().to_string_lossy();
    let options =
        Options::try_parse_from(["generate", &path, "--prompt", "the", "--device", "cpu", "--tokens", "60"])?;
    let interrupted = AtomicBool::new(false);
    let mut text = String::new();
    let run = run(&options, &interrupted, &mut |part| {
        text.push_str(part);
        interrupted.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    assert_eq!(run.generated.end, End::Interrupted);
    assert!(run.generated.tokens.len() < 60 && !text.is_empty());
    let figures = run.to_string();
    assert!(figures.contains("interrupted") && figures.contains("per second"), "{figures}");
    Ok(())
}
