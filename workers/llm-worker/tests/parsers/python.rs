//! Calls as in Python.
use crate::checked::{Setup, call, check_all, content};

#[test]
fn lists_of_calls() {
    check_all(
        Setup::of("pythonic", "none"),
        &[
            (r#"[add(a=1, b=2)]"#, &[call("add", r#"{"a": 1, "b": 2}"#)]),
            (
                "[say(text='it\\'s \"x\", )'), now(), add_all(values=[1, 2.50, -3e2,], )]",
                &[
                    call("say", r#"{"text": "it's \"x\", )"}"#),
                    call("now", "{}"),
                    call("add_all", r#"{"values": [1, 2.50, -3e2]}"#),
                ],
            ),
            (
                r#"<|python_start|>[set(flag=True, item={"k": (1, None), 'd': {}}, name="\u20ac\n", any=false)]<|python_end|>"#,
                &[call(
                    "set",
                    r#"{"flag": true, "item": {"k": [1, null], "d": {}}, "name": "€\n", "any": false}"#,
                )],
            ),
            ("I do:\n[now()]\nDone.", &[content("I do:"), call("now", "{}"), content("Done.")]),
            ("[say(\"hello\")]", &[call("say", r#"{"text": "hello"}"#)]),
            // Other lists, unknown functions and expressions are content.
            ("[1, 2] [x](y) [now] [sub(a=1)]", &[content("[1, 2] [x](y) [now] [sub(a=1)]")]),
            ("[add(a=1+1)]", &[content("[add(a=1+1)]")]),
            ("[add(1, 2)]", &[content("[add(1, 2)]")]),
            ("[add(a=foo())]", &[content("[add(a=foo())]")]),
            ("[add(a=1", &[content("[add(a=1")]),
        ],
    );
    check_all(
        Setup::of("lfm2", "none"),
        &[("<|tool_call_start|>[now()]<|tool_call_end|>Done", &[call("now", "{}"), content("Done")])],
    );
}

#[test]
fn tool_code() {
    check_all(
        Setup::of("gemma", "none"),
        &[
            ("```tool_code\nadd(a=1, b=2)\n```", &[call("add", r#"{"a": 1, "b": 2}"#)]),
            ("Ok.\n```tool_code\nprint(default_api.now())\n```", &[content("Ok."), call("now", "{}")]),
            ("```tool_code\nnow()\nadd(a=1)\n```", &[call("now", "{}"), content("add(a=1)\n```")]),
            ("```json\n{\"name\": \"now\", \"parameters\": {}}\n```", &[call("now", "{}")]),
            ("```json\n{\"a\": 1}\n```", &[content("```json\n{\"a\": 1}\n```")]),
            ("```python\nnow()\n```", &[content("```python\nnow()\n```")]),
        ],
    );
}
