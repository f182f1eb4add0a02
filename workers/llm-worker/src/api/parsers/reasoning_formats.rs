//! Formats of reasoning by model family.
//!
//! | name | defined by |
//! |---|---|
//! | `harmony` | OpenAI's guide "OpenAI harmony response format" |
//! | `cohere` | the chat template of CohereLabs/command-a-reasoning-08-2025 |
//! | `gemma4` | the chat template of google/gemma-4-31B-it |
//! | `mistral` | mistral-common's instruct tokenizer v13 |
//! | `seed` | the chat template of ByteDance-Seed/Seed-OSS-36B-Instruct |
//! | `granite` | the chat template of ibm-granite/granite-3.3-8b-instruct |
//! | `think` | the chat templates of deepseek-ai/DeepSeek-R1, Qwen/Qwen3-8B, zai-org/GLM-4.5, MiniMaxAI/MiniMax-M2, moonshotai/Kimi-K2-Thinking and others |

/// Format in which a model family writes its reasoning.
#[derive(Debug)]
pub struct ReasoningFormat {
    /// Name for the flag `--reasoning-parser`.
    pub name: &'static str,
    /// The format is chosen if the chat template contains one of these texts.
    pub(super) signs: &'static [&'static str],
    /// Marks before reasoning.
    pub(super) openers: &'static [&'static str],
    /// Marks after reasoning.
    pub(super) closers: &'static [&'static str],
    /// Marks around the answer, which are no content.
    pub(super) dropped: &'static [&'static str],
}

/// All formats. The first with a sign in the template is chosen.
pub(super) static REASONING_FORMATS: &[ReasoningFormat] = &[
    ReasoningFormat {
        name: super::tool_formats::HARMONY,
        signs: &["<|channel|>"],
        openers: &[],
        closers: &[],
        dropped: &[],
    },
    ReasoningFormat {
        name: "cohere",
        signs: &["<|START_THINKING|>"],
        openers: &["<|START_THINKING|>"],
        closers: &["<|END_THINKING|>"],
        dropped: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
    },
    ReasoningFormat {
        name: "gemma4",
        signs: &["<|channel>"],
        openers: &["<|channel>thought\n", "<|channel>"],
        closers: &["<channel|>"],
        dropped: &[],
    },
    ReasoningFormat {
        name: "mistral",
        signs: &["[THINK]"],
        openers: &["[THINK]"],
        closers: &["[/THINK]"],
        dropped: &[],
    },
    ReasoningFormat {
        name: "seed",
        signs: &["<seed:think>"],
        openers: &["<seed:think>"],
        closers: &["</seed:think>"],
        dropped: &[],
    },
    ReasoningFormat {
        name: "granite",
        signs: &["Here is my thought process", "<response></response>"],
        openers: &["Here is my thought process:", "Here's my thought process:", "<think>"],
        closers: &["Here is my response:", "Here's my response:", "</think>"],
        dropped: &["<response>", "</response>"],
    },
    ReasoningFormat {
        name: "think",
        signs: &["<think>", "</think>"],
        openers: &["<think>"],
        closers: &["</think>"],
        dropped: &[],
    },
];
