//! Reasoning of all formats.
use crate::checked::{Setup, call, check, check_all, content, reasoning};

#[test]
fn think_tags() {
    let tool = "<tool_call>{\"name\": \"now\"}</tool_call>";
    check_all(
        Setup::of("hermes", "think"),
        &[
            (
                "<think>\nI'm\nthinking\n</think>\n\nHello \n",
                &[reasoning("I'm\nthinking"), content("Hello \n")],
            ),
            ("<think>\n\n</think>\n\nHello", &[content("Hello")]),
            ("<think>never closed \n", &[reasoning("never closed")]),
            (" no reasoning", &[content(" no reasoning")]),
            ("The tag <think> opens </think>", &[content("The tag <think> opens </think>")]),
            // A mentioned call does not hide the real one.
            (
                &format!("<think>I write <tool_call> or {tool}.</think>{tool}"),
                &[
                    reasoning("I write <tool_call> or <tool_call>{\"name\": \"now\"}</tool_call>."),
                    call("now", "{}"),
                ],
            ),
            ("<think>a</think>\n<think>b</think>c", &[reasoning("a\nb"), content("c")]),
            ("<think>a</thi", &[reasoning("a</thi")]),
            ("", &[]),
        ],
    );
    let inside = Setup { prompt: "<|im_start|>assistant\n<think>\n", ..Setup::of("hermes", "think") };
    check_all(
        inside,
        &[
            ("I'm\nthinking</think>Hello", &[reasoning("I'm\nthinking"), content("Hello")]),
            ("</think>\n\nHello", &[content("Hello")]),
            ("\n<think>\nwhy</think>Hello", &[reasoning("why"), content("Hello")]),
            (&format!("x {tool}</think>\n{tool}"), &[reasoning(&format!("x {tool}")), call("now", "{}")]),
        ],
    );
    let outside = Setup { prompt: "<think>\n\n</think>\n\n", ..Setup::of("none", "think") };
    check(outside, "Hello", &[content("Hello")]);
}

#[test]
fn other_marks() {
    let rest = [reasoning("why"), content("Hi")];
    for (format, text) in [
        ("mistral", "[THINK]why[/THINK]Hi"),
        ("seed", "<seed:think>why</seed:think>Hi"),
        ("cohere", "<|START_THINKING|>why<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>"),
        ("granite", "Here is my thought process: why\n\nHere is my response:\nHi"),
        ("granite", "<think>why</think><response>Hi</response>"),
    ] {
        check(Setup::of("none", format), text, &rest);
    }
    let text = "[THINK]Let me [TOOL_CALLS]now[ARGS]{} and more[/THINK][TOOL_CALLS]now[ARGS]{}";
    let expected = [reasoning("Let me [TOOL_CALLS]now[ARGS]{} and more"), call("now", "{}")];
    check(Setup::of("mistral", "mistral"), text, &expected);
}

#[test]
fn harmony_analysis() {
    let analysis = "<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant";
    let setup = Setup::of("harmony", "harmony");
    let both = [reasoning("I'm\nthinking"), content("Hi")];
    check(setup, &format!("{analysis}<|channel|>final<|message|>Hi"), &both);
    check(Setup::of("none", "harmony"), &format!("{analysis}<|channel|>final<|message|>Hi<|return|>"), &both);
    let called = format!("{analysis}<|channel|>commentary to=functions.now <|constrain|>json<|message|>{{}}");
    check(setup, &called, &[reasoning("I'm\nthinking"), call("now", "{}")]);
    let again =
        format!("{analysis}{analysis}<|channel|>commentary to=assistant<|channel|>final<|message|>Hi");
    check(setup, &again, &[reasoning("I'm\nthinking\nI'm\nthinking"), content("Hi")]);
}
