//! Streaming parsers of generated text: reasoning, content and tool calls.
//!
//! A [`Parser`] receives the text of an answer in pieces and returns [`Delta`]s in the order of generation. The result
//! does not depend on how the text is split. What is not a complete, known call is content.
//!
//! | file | subject |
//! |---|---|
//! | `delta` | the parser's output, and the tools that may be called |
//! | `tool_formats`, `reasoning_formats` | the formats of model families by name, and their detection |
//! | `choice` | the formats of a served model, and the parser of a request |
//! | `parser` | content, reasoning, and the beginnings of calls |
//! | `harmony` | channels of gpt-oss |
//! | `call` | one call or a list of calls |
//! | `header` | the name of a call before its arguments |
//! | `object` | calls that are JSON objects |
//! | `tags`, `parameters` | arguments in XML tags, typed by the tool's JSON schema |
//! | `python` | arguments as in Python, and those of Gemma 4 |
//! | `nesting` | the end of a nested value |
//! | `marks` | search for marks in text that is not complete |
//! | `output` | collection of deltas |
mod call;
mod choice;
mod delta;
mod harmony;
mod header;
mod marks;
mod nesting;
mod object;
mod output;
mod parameters;
mod parser;
mod python;
mod reasoning_formats;
mod tags;
mod tool_formats;

pub use choice::{Formats, ParserOptions};
pub use delta::{Delta, Tool};
pub use parser::Parser;
pub use reasoning_formats::ReasoningFormat;
pub use tool_formats::ToolFormat;
