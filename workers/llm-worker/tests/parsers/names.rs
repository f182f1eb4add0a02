//! Calls whose name precedes JSON arguments.
use crate::checked::{Setup, call, check_all, content, reasoning};

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
        &[
            (text, &[content("Well."), call("add", ADD), call("now", "{}")]),
            // Without the marks around all calls.
            (
                "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
                &[call("now", "{}")],
            ),
        ],
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

#[test]
fn gemma4() {
    let add = "<|tool_call>call:add{a:1,b:2}<tool_call|>";
    let say = "<|tool_call>call:say{text:<|\"|>it's \"x\", } {\n<|\"|>}<tool_call|>";
    let set = "<|tool_call>call:set{any:[1,<|\"|>]<|\"|>,{}],flag:true,item:{k:null,<|\"|>l m<|\"|>:-2.5},name:none}<tool_call|>";
    check_all(
        Setup::of("gemma4", "gemma4"),
        &[
            (add, &[call("add", ADD)]),
            (
                &format!("<|channel>thought\nI call {add}.\n<channel|>Well.{add}{say}"),
                &[
                    reasoning(&format!("I call {add}.")),
                    content("Well."),
                    call("add", ADD),
                    call("say", r#"{"text": "it's \"x\", } {\n"}"#),
                ],
            ),
            (
                set,
                &[call(
                    "set",
                    r#"{"any": [1, "]", {}], "flag": true, "item": {"k": null, "l m": -2.5}, "name": "none"}"#,
                )],
            ),
            // Quotes that the model left out, and those of JSON.
            ("<|tool_call>call:say{text:a (b)}<tool_call|>", &[call("say", r#"{"text": "a (b)"}"#)]),
            ("<|tool_call>call:now{}<tool_call|>\n", &[call("now", "{}")]),
            ("<|tool_call>call:say{\"text\": \"x\"}<tool_call|>", &[call("say", r#"{"text": "x"}"#)]),
            ("<|channel>thought\n<channel|>Hi", &[content("Hi")]),
            ("<|channel>Hm<channel|>Hi", &[reasoning("Hm"), content("Hi")]),
            ("<|tool_call>call:sub{}<tool_call|>", &[content("<|tool_call>call:sub{}<tool_call|>")]),
            ("<|tool_call>call:add{a:1", &[content("<|tool_call>call:add{a:1")]),
        ],
    );
}
