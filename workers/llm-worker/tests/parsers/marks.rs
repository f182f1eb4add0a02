//! Calls in JSON with and without marks.
use crate::checked::{Setup, call, check, check_all, content, cut};

const ADD: &str = r#"{"a": 1, "b": 2}"#;

#[test]
fn hermes_and_qwen() {
    let one = r#"<tool_call>
{"name": "add", "arguments": {"a": 1, "b": 2}}
</tool_call>"#;
    let two = format!("{one}\n<tool_call>\n{{\"name\": \"now\", \"arguments\": {{}}}}\n</tool_call>\n");
    let after = format!("Let me see.\n\n{one}");
    let around = format!("Before {one} after");
    check_all(
        Setup::of("hermes", "none"),
        &[
            ("plain text \n", &[content("plain text \n")]),
            ("1 < 2 and <tool", &[content("1 < 2 and <tool")]),
            (one, &[call("add", ADD)]),
            (&two, &[call("add", ADD), call("now", "{}")]),
            (&after, &[content("Let me see."), call("add", ADD)]),
            (&around, &[content("Before"), call("add", ADD), content("after")]),
            // Without a mark at the start, and in a fence.
            (r#"{"name": "add", "arguments": {"a": 1, "b": 2}}"#, &[call("add", ADD)]),
            (" \n[{\"name\": \"now\"}]", &[call("now", "{}")]),
            (
                "See:\n```json\n{\"name\": \"now\"}\n```\nDone.",
                &[content("See:"), call("now", "{}"), content("Done.")],
            ),
            // Malformed and unknown calls are content; a real one behind them is found.
            ("<tool_call>no json</tool_call>", &[content("<tool_call>no json</tool_call>")]),
            (
                "<tool_call>\n{\"name\": \"sub\"}</tool_call>",
                &[content("<tool_call>\n{\"name\": \"sub\"}</tool_call>")],
            ),
            ("<tool_call> <tool_call>{\"name\": \"now\"}</tool_call>", &[call("now", "{}")]),
            (
                "Use <tool_call> tags: <tool_call>{\"name\": \"now\"}</tool_call>",
                &[content("Use <tool_call> tags:"), call("now", "{}")],
            ),
            ("<tool_call>{\"name\": \"ad", &[content("<tool_call>{\"name\": \"ad")]),
            // The missing brace does not consume the end mark.
            (
                "<tool_call>{\"name\": \"now\", \"arguments\": {}</tool_call> x",
                &[call("now", "{}"), content("x")],
            ),
            // The limit of tokens cuts the arguments.
            (
                "<tool_call>{\"name\": \"say\", \"arguments\": {\"text\": \"a }",
                &[cut("say", "{\"text\": \"a }")],
            ),
            ("\n <tool_call>", &[content("\n <tool_call>")]),
        ],
    );
}

#[test]
fn forms_of_objects() {
    check_all(
        Setup::of("json", "none"),
        &[
            (r#"{"arguments": {"a": 1}, "name": "add"}"#, &[call("add", r#"{"a": 1}"#)]),
            (
                r#"{"type":"function","function":{"name":"add","arguments":"{\"a\":1}"}}"#,
                &[call("add", r#"{"a":1}"#)],
            ),
            (
                r#"{"type": "function", "function": {"name": "add", "arguments": {"a":{"x":[1,{}]}}}, "id": "1"} "#,
                &[call("add", r#"{"a":{"x":[1,{}]}}"#)],
            ),
            (
                r#"{"id": "x", "name": "say", "parameters": {"text": "}\"]\\"}}"#,
                &[call("say", r#"{"text": "}\"]\\"}"#)],
            ),
            (r#"{"name": "now", "arguments": null}"#, &[call("now", "{}")]),
            (r#"{"name": "now", "arguments": ""}"#, &[call("now", "{}")]),
            (r#"{"name":"now"}{"name":"now"}"#, &[call("now", "{}"), call("now", "{}")]),
            (r#"{"name": "add", "argum"#, &[content(r#"{"name": "add", "argum"#)]),
            (r#"{"name": "add", "age": 3}"#, &[content(r#"{"name": "add", "age": 3}"#)]),
            (r#"{"name": "add", "arguments": 3}"#, &[content(r#"{"name": "add", "arguments": 3}"#)]),
            (r#"{"name": 1}"#, &[content(r#"{"name": 1}"#)]),
            (r#"{"type": "object", "name": "add"}"#, &[content(r#"{"type": "object", "name": "add"}"#)]),
            (r#"{"a": 1}"#, &[content(r#"{"a": 1}"#)]),
            ("{}", &[content("{}")]),
            ("{'name': 'add'}", &[content("{'name': 'add'}")]),
            ("[1] is a reference", &[content("[1] is a reference")]),
            ("[]", &[content("[]")]),
            ("text {\"name\": \"now\"}", &[content("text {\"name\": \"now\"}")]),
            ("\u{20AC}\u{1F600} {", &[content("\u{20AC}\u{1F600} {")]),
        ],
    );
}

#[test]
fn llama() {
    check_all(
        Setup::of("llama3_json", "none"),
        &[
            (r#"{"name": "add", "parameters": {"a": 1, "b": 2}}"#, &[call("add", ADD)]),
            (r#"<|python_tag|>{"type": "function", "name": "now", "parameters": {}}"#, &[call("now", "{}")]),
            (
                r#"{"name": "now", "parameters": {}}; {"name": "add", "parameters": {"a": 1, "b": 2}}"#,
                &[call("now", "{}"), call("add", ADD)],
            ),
            (r#"I call it: {"name": "now", "parameters": {}}"#, &[content("I call it:"), call("now", "{}")]),
            (r#"<|python_tag|>say.call(text="x")"#, &[call("say", r#"{"text": "x"}"#)]),
            ("<|python_tag|>print(1 + 1)", &[content("<|python_tag|>print(1 + 1)")]),
            ("<function=add>{\"a\": 1, \"b\": 2}</function>", &[call("add", ADD)]),
            ("a {b} {\"c\"", &[content("a {b} {\"c\"")]),
            ("{\"name\": \"now\"}; done", &[call("now", "{}"), content("; done")]),
        ],
    );
}

#[test]
fn functools_granite_cohere_and_nemotron() {
    let list = r#"[{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}]"#;
    let both = [call("add", ADD), call("now", "{}")];
    for (format, open, close) in [
        ("functools", "functools", ""),
        ("functools", " functools", ""),
        ("functools", "<|tool_call|>", "<|/tool_call|>"),
        ("granite", "<|tool_call|>", ""),
        ("nemotron", "<TOOLCALL>", "</TOOLCALL>\n"),
        ("nemotron", "<tool_calls>", "</tool_calls>"),
        ("mistral", "[TOOL_CALLS]", ""),
        ("mistral", "[TOOL_CALLS] ", ""),
        ("generic", "[TOOL_CALLS]", ""),
    ] {
        check(Setup::of(format, "none"), &format!("{open}{list}{close}"), &both);
    }
    check(Setup::of("functools", "none"), "import functools as f", &[content("import functools as f")]);
    let cohere = r#"[
    {"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 1, "b": 2}}
]"#;
    check_all(
        Setup::of("cohere", "cohere"),
        &[
            (&format!("<|START_ACTION|>{cohere}<|END_ACTION|>"), &[call("add", ADD)]),
            (&format!("Action:\n```json\n{cohere}\n```"), &[call("add", ADD)]),
            ("<|START_RESPONSE|>Hi <|END_RESPONSE|>", &[content("Hi ")]),
        ],
    );
}

/// The second element of a list is not a call: what follows the first call is content.
#[test]
fn lists_with_other_elements() {
    let text = r#"[{"name": "now"}, {"x": 1}]"#;
    check(Setup::of("json", "none"), text, &[call("now", "{}"), content(r#", {"x": 1}]"#)]);
}

#[test]
fn only_the_first_call_is_returned() {
    let text = "a<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let setup = Setup { single: true, ..Setup::of("hermes", "none") };
    check(setup, text, &[content("a"), call("now", "{}")]);
}
