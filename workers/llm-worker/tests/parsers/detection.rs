//! Formats that chat templates select.
use llm_worker::api::parsers::{Formats, ParserOptions};

use crate::checked::tools;

#[test]
fn templates_select_formats() {
    for (template, tool, reasoning) in [
        ("{{ message.content }}", "generic", None),
        ("<|im_start|> <tool_call>\\n{\"name\": <function-name>", "hermes", None),
        ("<tool_call> {%- if '</think>' in content %}<think>", "hermes", Some("think")),
        ("<tool_call>\\n<function=example>\\n<parameter=x>", "qwen3_coder", None),
        ("[TOOL_CALLS] [THINK]", "mistral", Some("mistral")),
        ("Environment: ipython <|python_tag|>", "llama3_json", None),
        ("{\"name\": function name, \"parameters\": dictionary", "llama3_json", None),
        ("<｜tool▁calls▁begin｜> </think>", "deepseek", Some("think")),
        ("<start_of_turn>model", "gemma", None),
        ("<|turn>model <|tool_call>call: <|channel>thought", "gemma4", Some("gemma4")),
        ("<minimax:tool_call> <invoke name=\"x\"> <think>", "minimax", Some("think")),
        ("<beginning_of_sentence> <tool_calls>", "minimax", None),
        ("｜DSML｜ <think>", "deepseek_v32", Some("think")),
        ("<tool_call>{function-name}\\n<arg_key> <think>", "glm4", Some("think")),
        ("<|tool_calls_section_begin|> </think>", "kimi_k2", Some("think")),
        ("<|start|>assistant<|channel|>final", "harmony", Some("harmony")),
        ("<function=name>{} <|python_tag|>", "functionary", None),
        ("<|START_ACTION|><|START_THINKING|>", "cohere", Some("cohere")),
    ] {
        let formats = Formats::detect(|sign| template.contains(sign));
        assert_eq!(formats.tool.map(|format| format.name), Some(tool), "{template}");
        assert_eq!(formats.reasoning.map(|format| format.name), reasoning, "{template}");
    }
}

#[test]
fn names_are_unique_and_found() {
    let names: Vec<&str> = Formats::tool_names().collect();
    for (index, name) in names.iter().enumerate() {
        assert!(!names[..index].contains(name), "{name}");
        assert_eq!(Formats::tool_named(name).unwrap().name, *name);
    }
    assert!(Formats::reasoning_names().all(|name| Formats::reasoning_named(name).is_some()));
    assert!(Formats::tool_named("none").is_none() && Formats::reasoning_named("auto").is_none());
}

/// Special tokens of calls have no text in chats without tools, and JSON of a grammar has no marks.
#[test]
fn marks_depend_on_the_request() {
    let formats =
        Formats { tool: Formats::tool_named("mistral"), reasoning: Formats::reasoning_named("mistral") };
    let plain = ParserOptions::default();
    let with_tools = ParserOptions { tools: tools(), ..ParserOptions::default() };
    let json = ParserOptions { is_json: true, ..with_tools.clone() };
    let constrained = ParserOptions { is_constrained: true, ..with_tools.clone() };
    assert_eq!(formats.marks(&plain), ["[THINK]", "[/THINK]"]);
    assert_eq!(formats.marks(&with_tools), ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]);
    assert_eq!(formats.marks(&constrained), ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]);
    assert!(formats.marks(&json).is_empty());
    assert!(formats.parser(json, "[THINK]").is_some());
    let none = Formats::default();
    assert!(none.parser(with_tools, "").is_none() && none.marks(&plain).is_empty());
    let harmony = Formats::detect(|sign| sign == "<|channel|>");
    assert!(harmony.marks(&plain).contains(&"<|message|>"));
}
