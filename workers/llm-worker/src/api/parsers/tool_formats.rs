//! Formats of tool calls by model family.

/// A JSON object as a mark.
pub(super) const OBJECT: &str = "{";
/// A list as a mark.
pub(super) const LIST: &str = "[";
/// Mark that the name of a function and `>` follow.
pub(super) const FUNCTION_TAG: &str = "<function=";

/// Places where a call may begin without a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    /// None.
    Nowhere,
    /// At the start of the answer.
    AtStart,
    /// Anywhere in the answer.
    Anywhere,
}

/// Format in which a model family writes tool calls.
#[derive(Debug)]
pub struct ToolFormat {
    /// Name for the flag `--tool-parser`.
    pub name: &'static str,
    /// The format is chosen if the chat template contains one of these texts.
    pub(super) signs: &'static [&'static str],
    /// Marks before a call, before a list of calls, or before another mark.
    pub(super) openers: &'static [&'static str],
    /// Marks that may follow a call.
    pub(super) closers: &'static [&'static str],
    /// Further special tokens within calls.
    pub(super) separators: &'static [&'static str],
    /// Places where a call may begin without a mark.
    pub(super) bare: Bare,
}

const PLAIN: ToolFormat =
    ToolFormat { name: "", signs: &[], openers: &[], closers: &[], separators: &[], bare: Bare::AtStart };

/// Name of the format of gpt-oss, which has its own parser.
pub(super) const HARMONY: &str = "harmony";

/// A call in JSON without marks, as grammars write it.
pub(super) static JSON: ToolFormat = ToolFormat { name: "json", ..PLAIN };

/// All formats. The first with a sign in the template is chosen; the last one is for templates without signs.
pub(super) static TOOL_FORMATS: &[ToolFormat] = &[
    ToolFormat { name: HARMONY, signs: &["<|channel|>"], bare: Bare::Nowhere, ..PLAIN },
    ToolFormat {
        name: "kimi_k2",
        signs: &["<|tool_calls_section_begin|>"],
        openers: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
        closers: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
        separators: &["<|tool_call_argument_begin|>"],
        bare: Bare::Nowhere,
    },
    ToolFormat {
        name: "deepseek",
        signs: &["<｜tool▁calls▁begin｜>"],
        // Distilled models write the marks with other signs, or leave them out.
        openers: &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool_calls_begin｜>",
            "<｜tool calls begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool_call_begin｜>",
            "<｜tool call begin｜>",
            "function<｜tool▁sep｜>",
            "```json",
        ],
        closers: &[
            "```",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool_call_end｜>",
            "<｜tool_calls_end｜>",
        ],
        separators: &["<｜tool▁sep｜>"],
        bare: Bare::Anywhere,
    },
    ToolFormat {
        name: "qwen3_coder",
        signs: &["<parameter="],
        openers: &["<tool_call>", "<seed:tool_call>", FUNCTION_TAG],
        closers: &["</function>", "</tool_call>", "</seed:tool_call>"],
        ..PLAIN
    },
    ToolFormat {
        name: "mistral",
        signs: &["[TOOL_CALLS]"],
        openers: &["[TOOL_CALLS]"],
        separators: &["[ARGS]", "[CALL_ID]"],
        ..PLAIN
    },
    ToolFormat {
        name: "cohere",
        signs: &["<|START_ACTION|>", "Action:\\n```json"],
        openers: &["<|START_ACTION|>", "Action:", "```json"],
        closers: &["```", "<|END_ACTION|>"],
        ..PLAIN
    },
    ToolFormat {
        name: "nemotron",
        signs: &["<TOOLCALL>", "<tool_calls>"],
        openers: &["<TOOLCALL>", "<tool_calls>"],
        closers: &["</TOOLCALL>", "</tool_calls>"],
        ..PLAIN
    },
    ToolFormat {
        name: "lfm2",
        signs: &["<|tool_call_start|>", "<|tool_list_start|>"],
        openers: &["<|tool_call_start|>"],
        closers: &["<|tool_call_end|>"],
        ..PLAIN
    },
    ToolFormat {
        name: "granite",
        signs: &["<|tool_call|>"],
        openers: &["<|tool_call|>", "<tool_call>"],
        closers: &["<|/tool_call|>", "</tool_call>"],
        ..PLAIN
    },
    ToolFormat {
        name: "functools",
        signs: &["functools[", "<|tool|>"],
        openers: &["functools", "<|tool_call|>"],
        closers: &["<|/tool_call|>"],
        ..PLAIN
    },
    ToolFormat {
        name: "functionary",
        signs: &[FUNCTION_TAG],
        openers: &[FUNCTION_TAG, "<|python_tag|>"],
        closers: &["</function>"],
        ..PLAIN
    },
    ToolFormat {
        name: "hermes",
        signs: &["<tool_call>"],
        openers: &["<tool_call>", "```json", FUNCTION_TAG],
        closers: &["```", "</function>", "</tool_call>"],
        ..PLAIN
    },
    ToolFormat {
        name: "pythonic",
        signs: &["[func_name1(", "<|python_start|>"],
        openers: &["<|python_start|>", "<|python_tag|>"],
        closers: &["<|python_end|>"],
        bare: Bare::Anywhere,
        ..PLAIN
    },
    ToolFormat {
        name: "llama3_json",
        signs: &["<|python_tag|>", "{\"name\": function name, \"parameters\":"],
        openers: &["<|python_tag|>", "```json", FUNCTION_TAG],
        closers: &["```", "</function>"],
        bare: Bare::Anywhere,
        ..PLAIN
    },
    ToolFormat {
        name: "gemma",
        signs: &["<start_of_turn>"],
        openers: &["```tool_code", "```tool_call", "```json"],
        closers: &["```"],
        bare: Bare::Anywhere,
        ..PLAIN
    },
    ToolFormat { name: "json", ..PLAIN },
    ToolFormat {
        name: "generic",
        openers: &[
            "<tool_call>",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "<|tool_call|>",
            FUNCTION_TAG,
            "functools",
            "```tool_code",
            "```tool_call",
            "```json",
        ],
        closers: &["```", "</function>", "</tool_call>", "<|/tool_call|>"],
        separators: &["[ARGS]", "[CALL_ID]"],
        bare: Bare::Anywhere,
        ..PLAIN
    },
];
