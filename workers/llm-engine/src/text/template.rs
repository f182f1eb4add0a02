//! Chats as the model was trained on them.
use anyhow::{Result, bail};
use serde_json::Value;

/// A model's chat template: Jinja that comes with it.
#[derive(Clone, Debug)]
pub struct ChatTemplate {}

impl ChatTemplate {
    /// `default` is used, and `tool_use`, if any, where there are tools. `bos` and `eos` are what the tokens at the
    /// start and the end of a text are called.
    ///
    /// # Errors
    /// Where a template is no Jinja.
    pub fn new(default: &str, tool_use: Option<&str>, bos: &str, eos: &str) -> Result<Self> {
        let _ = (default, tool_use, bos, eos);
        Ok(Self {})
    }

    /// The prompt that asks for the answer to `messages`.
    ///
    /// # Errors
    /// Where the template refuses them.
    pub fn render(&self, messages: &Value, tools: Option<&Value>) -> Result<String> {
        bail!("cannot render {messages} and {tools:?} yet")
    }
}
