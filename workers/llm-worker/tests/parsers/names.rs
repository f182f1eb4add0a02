//! Calls whose name precedes JSON arguments.
use crate::checked::{Setup, call, check_all, content};

const ADD: &str = r#"{"a": 1, "b": 2}"#;

#[test]
fn mistral() {
    check_all(
        Setup::of("mistral", "mistral"),
        &[
            (r#"[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}"#, &[call("add", ADD)]),
            (r#"[TOOL_CALLS]add{"a": 1, "b": 2}"#, &[call("add", ADD)]),
            (r#"[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{"a": 1, "b": 2}"#, &[call("add", ADD)]),
            (
                r#"Sure.[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]add_all[ARGS]{"values": [1]}"#,
                &[content("Sure."), call("now", "{}"), call("add_all", r#"{"values": [1]}"#)],
            ),
            (
                r#"[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": 2}, "id": "123456789"}]"#,
                &[call("add", ADD)],
            ),
            ("[TOOL_CALLS]sub[ARGS]{}", &[content("[TOOL_CALLS]sub[ARGS]{}")]),
            ("[TOOL_CALLS]add_al[ARGS]{}", &[content("[TOOL_CALLS]add_al[ARGS]{}")]),
            ("[TOOL_CALLS]add", &[content("[TOOL_CALLS]add")]),
            ("[TOOL", &[content("[TOOL")]),
            ("[1] [TOOL_CALLS]now[ARGS]{}", &[content("[1]"), call("now", "{}")]),
        ],
    );
}

#[test]
fn deepseek() {
    let v3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1, \"b\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let v31 = "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1, \"b\": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check_all(
        Setup::of("deepseek", "none"),
        &[
            (v3, &[call("add", ADD), call("now", "{}")]),
            (v31, &[content("Yes."), call("add", ADD), call("now", "{}")]),
            // Forms of distilled models.
            ("function<｜tool▁sep｜>now\n```json\n{}\n```", &[call("now", "{}")]),
            (
                "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>now\n```json\n{}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                &[call("now", "{}")],
            ),
            (
                "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool_call_end｜><｜tool_calls_end｜>",
                &[call("now", "{}")],
            ),
            (
                "I will:\n```json\n{\"name\": \"now\", \"arguments\": {}}\n```",
                &[content("I will:"), call("now", "{}")],
            ),
            ("As {\"name\": \"now\", \"arguments\": {}}", &[content("As"), call("now", "{}")]),
        ],
    );
}

#[test]
fn kimi() {
    let text = "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{\"a\": 1, \"b\": 2}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    check_all(
        Setup::of("kimi_k2", "think"),
        &[(text, &[content("Well."), call("add", ADD), call("now", "{}")])],
    );
}

#[test]
fn harmony() {
    check_all(
        Setup::of("harmony", "harmony"),
        &[
            ("<|channel|>final<|message|>Hello!\nYou", &[content("Hello!\nYou")]),
            ("<|channel|>commentary<|message|>Hi<|end|>", &[content("Hi")]),
            ("<|channel|>analysis to=functions.now<|message|>{}", &[call("now", "{}")]),
            (" to=functions.now<|channel|>analysis<|message|>{}<|call|>", &[call("now", "{}")]),
            (
                " to=functions.add<|channel|>commentary <|constrain|>json<|message|>{\"a\": 1, \"b\": 2}",
                &[call("add", ADD)],
            ),
            (
                "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1, \"b\": 2}<|call|>",
                &[content("I look."), call("add", ADD)],
            ),
            ("no channel", &[content("no channel")]),
            ("<|channel|>final", &[]),
            ("<|channel|>commentary to=python<|message|>1", &[content("1")]),
        ],
    );
}
