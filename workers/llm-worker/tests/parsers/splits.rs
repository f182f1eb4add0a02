//! Random texts of marks and fragments: the result does not depend on how they are split, nothing is lost of texts
//! without calls, and deltas arrive early.
use llm_worker::api::parsers::{Delta, Formats};
use proptest::prelude::*;

use crate::checked::{Setup, joined};

const FRAGMENTS: [&str; 59] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<function=",
    "add",
    ">",
    "</function>",
    "<parameter=",
    "a",
    "</parameter>",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\"name\"",
    ": ",
    ", ",
    "\"add\"",
    "\"arguments\"",
    "(",
    ")",
    "=",
    "1",
    "\\",
    "\n",
    " ",
    "<think>",
    "</think>",
    "```json",
    "```",
    "functools",
    "{\"name\": \"now\"",
    "[{\"name\": \"add\"",
    "now()",
    "add(a=1)",
    ";",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "{\"name\": \"now\", \"arguments\": {",
    "<|channel|>final<|message|>",
    "€",
    "add\n<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<invoke name=\"add\">",
    "<parameter name=\"a\">",
    "</invoke>",
    "<minimax:tool_call>",
    "<｜DSML｜invoke name=\"say\">",
    "<｜DSML｜parameter name=\"text\" string=\"true\">",
    "</｜DSML｜parameter>",
    "<|tool_call>call:add{",
    "<|\"|>",
    "a:",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn results_do_not_depend_on_pieces(
        fragments in prop::collection::vec(0..FRAGMENTS.len(), 0..24),
        cuts in prop::collection::vec(1usize..7, 40),
    ) {
        let text: String = fragments.iter().map(|index| FRAGMENTS[*index]).collect();
        let signs: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        let (mut at, mut cuts) = (0, cuts.iter().cycle());
        while at < signs.len() {
            let end = (at + cuts.next().unwrap()).min(signs.len());
            pieces.push(signs[at..end].iter().collect::<String>());
            at = end;
        }
        for tool in Formats::tool_names() {
            let setup = Setup::of(tool, if tool == "harmony" { "harmony" } else { "think" });
            let whole = joined(setup.deltas([text.as_str()]));
            prop_assert_eq!(&joined(setup.deltas(pieces.iter().map(String::as_str))), &whole, "{} of {:?}", tool, text);
        }
    }

    #[test]
    fn texts_without_calls_are_kept(text in "[a-z{}\\[\\]<>`\" \n]{0,60}") {
        for tool in Formats::tool_names().filter(|name| *name != "harmony") {
            let deltas = Setup::of(tool, "none").deltas([text.as_str()]);
            let kept: String = deltas.iter().map(|delta| match delta {
                Delta::Content(text) => text.as_str(),
                other => panic!("{other:?}"),
            }).collect();
            prop_assert_eq!(&kept, &text);
        }
    }
}

/// Content, reasoning and arguments arrive with the text, not at its end.
#[test]
fn deltas_arrive_early() {
    let text = "<think>one two</think>three four <tool_call>{\"name\": \"say\", \"arguments\": {\"text\": \"five six\"}}</tool_call>";
    let pieces: Vec<&str> = text.split_inclusive(' ').collect();
    let deltas = Setup::of("hermes", "think").deltas(pieces);
    let texts: Vec<&str> = deltas
        .iter()
        .map(|delta| match delta {
            Delta::Reasoning(text) | Delta::Content(text) | Delta::Arguments { text, .. } => text.as_str(),
            Delta::CallBegin { name, .. } => name,
            Delta::CallEnd { .. } => "end",
        })
        .collect();
    let expected = ["one", " two", "three", " four", "say", "{\"text\": ", "\"five ", "six\"}", "end"];
    assert_eq!(texts, expected);
}
