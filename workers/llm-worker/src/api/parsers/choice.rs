//! Formats of a served model, and the parser of a request.
use std::sync::Arc;

use super::delta::Tool;
use super::harmony;
use super::parser::Parser;
use super::reasoning_formats::{REASONING_FORMATS, ReasoningFormat};
use super::tool_formats::{HARMONY, JSON, TOOL_FORMATS, ToolFormat};

/// Formats in which a model writes tool calls and reasoning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Formats {
    /// Format of tool calls; `None` leaves calls in the content.
    pub tool: Option<&'static ToolFormat>,
    /// Format of the reasoning; `None` leaves it in the content.
    pub reasoning: Option<&'static ReasoningFormat>,
}

/// Properties of a request that its parser depends on.
#[derive(Clone, Debug, Default)]
pub struct ParserOptions {
    /// Tools that may be called.
    pub tools: Vec<Tool>,
    /// If true, calls after the first are dropped.
    pub single: bool,
    /// True if a grammar constrains the text, so that it has no reasoning.
    pub is_constrained: bool,
    /// True if a grammar constrains the text to JSON, so that it has no marks.
    pub is_json: bool,
}

impl Formats {
    /// Detects the formats from a chat template; `contains` returns whether the template contains a text.
    pub fn detect(contains: impl Fn(&str) -> bool) -> Self {
        let has = |signs: &[&str]| signs.iter().any(|sign| contains(sign));
        let tool = TOOL_FORMATS.iter().find(|format| has(format.signs)).or(TOOL_FORMATS.last());
        Self { tool, reasoning: REASONING_FORMATS.iter().find(|format| has(format.signs)) }
    }

    /// Returns the format of tool calls with this name.
    pub fn tool_named(name: &str) -> Option<&'static ToolFormat> {
        TOOL_FORMATS.iter().find(|format| format.name == name)
    }

    /// Returns the format of reasoning with this name.
    pub fn reasoning_named(name: &str) -> Option<&'static ReasoningFormat> {
        REASONING_FORMATS.iter().find(|format| format.name == name)
    }

    /// Returns the names of all formats of tool calls.
    pub fn tool_names() -> impl Iterator<Item = &'static str> {
        TOOL_FORMATS.iter().map(|format| format.name)
    }

    /// Returns the names of all formats of reasoning.
    pub fn reasoning_names() -> impl Iterator<Item = &'static str> {
        REASONING_FORMATS.iter().map(|format| format.name)
    }

    /// Returns the formats of one request.
    fn of(self, options: &ParserOptions) -> Self {
        if options.is_json {
            return Self { tool: Some(&JSON).filter(|_| !options.tools.is_empty()), reasoning: None };
        }
        Self {
            tool: self.tool.filter(|_| !options.tools.is_empty()),
            reasoning: self.reasoning.filter(|_| !options.is_constrained),
        }
    }

    /// Returns the parser of an answer to `prompt`, or `None` if all text is content.
    pub fn parser(self, options: ParserOptions, prompt: &str) -> Option<Parser> {
        let formats = self.of(&options);
        if formats.tool.is_none() && formats.reasoning.is_none() {
            return None;
        }
        let prompt = prompt.trim_end();
        let is_open = |format: &ReasoningFormat| format.openers.iter().any(|mark| prompt.ends_with(mark));
        let is_reasoning = formats.reasoning.is_some_and(is_open);
        let tools: Arc<[Tool]> = options.tools.into();
        Some(Parser::new((formats.tool, formats.reasoning), tools, options.single, is_reasoning))
    }

    /// Returns the special tokens whose text the parser of a request needs.
    pub fn marks(self, options: &ParserOptions) -> Vec<&'static str> {
        let formats = self.of(options);
        let tool = formats.tool.map(|format| [format.openers, format.closers, format.separators]);
        let reasoning = formats.reasoning.map(|format| [format.openers, format.closers, format.dropped]);
        let mut marks: Vec<_> = tool.into_iter().chain(reasoning).flatten().flatten().copied().collect();
        let names = [formats.tool.map(|format| format.name), formats.reasoning.map(|format| format.name)];
        if names.contains(&Some(HARMONY)) {
            marks.extend(harmony::marks());
        }
        marks
    }
}
