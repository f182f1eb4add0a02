//! Formats of tool calls by model family.
//!
//! | name | defined by |
//! |---|---|
//! | `harmony` | OpenAI's guide "OpenAI harmony response format", and its renderer openai-harmony |
//! | `kimi_k2` | the chat template and `docs/tool_call_guidance.md` of moonshotai/Kimi-K2-Instruct |
//! | `gemma4` | the chat template of google/gemma-4-31B-it |
//! | `minimax` | the chat template of MiniMaxAI/MiniMax-M2 (tags), and `docs/function_call_guide.md` of MiniMax-M1-80k (`<tool_calls>` with a JSON object per line) |
//! | `deepseek_v32` | `encoding_dsv32.py` of deepseek-ai/DeepSeek-V3.2; DeepSeek-V4 writes `tool_calls` for `function_calls` |
//! | `deepseek` | the chat templates of deepseek-ai/DeepSeek-V3-0324 and DeepSeek-R1 (`function`, name and fence), and of DeepSeek-V3.1 (name and JSON) |
//! | `glm4` | the chat templates of zai-org/GLM-4.5 and GLM-4.6 (a line per tag), and of GLM-4.7 (without line breaks) |
//! | `qwen3_coder` | the chat templates of Qwen/Qwen3-Coder-30B-A3B-Instruct and ByteDance-Seed/Seed-OSS-36B-Instruct |
//! | `mistral` | mistral-common's instruct tokenizers, from v1 (a list) to v13 (`name[ARGS]`) |
//! | `cohere` | the tool-use templates of CohereLabs/c4ai-command-r-plus and c4ai-command-r7b-12-2024 |
//! | `nemotron` | the chat templates of nvidia/Llama-3_3-Nemotron-Super-49B-v1_5 and ServiceNow-AI/Apriel-1.5-15b-Thinker |
//! | `lfm2` | the chat template of LiquidAI/LFM2-1.2B |
//! | `granite` | the chat templates of ibm-granite/granite-3.3-8b-instruct and granite-4.0 |
//! | `functools` | the chat templates of microsoft/Phi-4-mini-instruct and fireworks-ai/llama-3-firefunction-v2 |
//! | `functionary` | the chat template of meetkai/functionary-small-v3.1 |
//! | `hermes` | the chat templates of NousResearch/Hermes-2-Pro-Llama-3-8B and Qwen/Qwen2.5-7B-Instruct |
//! | `pythonic` | Meta's prompt format pages of Llama 3.2 and Llama 4 |
//! | `llama3_json` | Meta's prompt format page of Llama 3.1 |
//! | `gemma` | Google's page "Function calling with Gemma" (Gemma 3) |
//! | `json`, `generic` | no model: a JSON object, and the common marks of the others |

use super::nesting::RAW_QUOTE;

/// A JSON object as a mark.
pub(super) const OBJECT: &str = "{";
/// A list as a mark.
pub(super) const LIST: &str = "[";
/// Mark that the name of a function and `>` follow.
pub(super) const FUNCTION_TAG: &str = "<function=";
/// Mark that the quoted name of a function and `>` follow.
pub(super) const INVOKE_TAG: &str = "<invoke name=";
/// [`INVOKE_TAG`] of DeepSeek-V3.2.
pub(super) const DSML_TAG: &str = "<｜DSML｜invoke name=";

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
        name: "gemma4",
        signs: &["<|tool_call>"],
        openers: &["<|tool_call>"],
        closers: &["<tool_call|>"],
        separators: &[RAW_QUOTE],
        bare: Bare::Nowhere,
    },
    ToolFormat {
        name: "minimax",
        // The second one is written by MiniMax-M1.
        signs: &["<minimax:tool_call>", "<beginning_of_sentence>"],
        openers: &["<minimax:tool_call>", INVOKE_TAG, "<tool_calls>"],
        closers: &["</minimax:tool_call>", "</tool_calls>"],
        bare: Bare::Nowhere,
        ..PLAIN
    },
    ToolFormat {
        name: "deepseek_v32",
        signs: &["｜DSML｜"],
        openers: &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", DSML_TAG],
        closers: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
        // A special token that is a part of each mark.
        separators: &["｜DSML｜"],
        bare: Bare::Nowhere,
    },
    ToolFormat {
        name: "deepseek",
        signs: &["<｜tool▁calls▁begin｜>"],
        // Distilled models write the marks with other characters, or leave them out.
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
        name: "glm4",
        signs: &["<arg_key>"],
        openers: &["<tool_call>"],
        closers: &["</tool_call>"],
        separators: &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        bare: Bare::Nowhere,
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
