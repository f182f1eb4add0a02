//! Chat templates.
//!
//! | file | subject |
//! |---|---|
//! | `builtin` | templates for models without one |
//! | `support` | what a template supports, and messages adapted to it |
//! | `renderer` | rendering of one template |
//! | `environment` | functions, filters, tests and methods |
//! | `source` | changes to the source of templates |
//! | `values`, `python`, `json` | values as Python prints them, and as JSON |
pub mod builtin;
mod environment;
mod json;
mod python;
mod renderer;
mod source;
mod support;
mod values;

use anyhow::Result;
use serde_json::{Map, Value};

pub use renderer::Conversation;
use renderer::Renderer;
use support::Support;

/// A model's Jinja chat template, rendered as Transformers does.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    tool_use_source: Option<String>,
    special_texts: [String; 2],
    default: (Renderer, Support),
    tool_use: Option<(Renderer, Support)>,
}

impl ChatTemplate {
    /// Compiles a template. `tool_use` replaces `default` if there are tools. `bos` and `eos` are the texts
    /// of the BOS and EOS tokens.
    ///
    /// # Errors
    /// Returns an error if a template is not valid Jinja.
    pub fn new(default: &str, tool_use: Option<&str>, bos: &str, eos: &str) -> Result<Self> {
        Self::new_at_time(default, tool_use, [bos, eos], None)
    }

    /// Like [`Self::new`], with the Unix time in seconds that `strftime_now` formats, for prompts that do not change from day
    /// to day.
    ///
    /// # Errors
    /// Returns an error if a template is not valid Jinja.
    pub fn new_at_time(
        default: &str,
        tool_use: Option<&str>,
        [bos, eos]: [&str; 2],
        now: Option<i64>,
    ) -> Result<Self> {
        let compile = |text: &str, with_tools: bool| -> Result<(Renderer, Support)> {
            let renderer = Renderer::new(text, bos, eos, now)?;
            let support = Support::of(&renderer, with_tools);
            Ok((renderer, support))
        };
        Ok(Self {
            source: default.into(),
            tool_use_source: tool_use.map(str::to_owned),
            special_texts: [bos, eos].map(str::to_owned),
            default: compile(default, false)?,
            tool_use: tool_use.map(|text| compile(text, true)).transpose()?,
        })
    }

    /// Returns the template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns true if the template, or the one for tools, contains `text`.
    pub fn contains(&self, text: &str) -> bool {
        [Some(&self.source), self.tool_use_source.as_ref()]
            .into_iter()
            .flatten()
            .any(|source| source.contains(text))
    }

    /// Returns the texts of the BOS and EOS tokens.
    pub fn special_texts(&self) -> [&str; 2] {
        [&self.special_texts[0], &self.special_texts[1]]
    }

    /// Renders the inputs exactly as given, as `apply_chat_template` does.
    ///
    /// # Errors
    /// Returns an error if the template raises an exception.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        self.select(!conversation.tools.is_empty()).0.render(conversation)
    }

    /// Renders the prompt for the model's answer to `messages`, adapted to what the template supports:
    ///
    /// - Content that is a list of text parts is joined by newlines, or becomes a list if the template requires one. Lists with
    ///   pictures, parts of the type `image`, stay lists.
    /// - Arguments of tool calls become objects, or JSON text if the template requires it.
    /// - System messages that the template rejects or drops are merged into the next user message.
    ///
    /// `variables` are further variables, such as `enable_thinking`.
    ///
    /// # Errors
    /// Returns an error if `messages` is not an array of objects, a part is not text, or the template raises
    /// an exception.
    pub fn prompt(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        variables: Option<&Map<String, Value>>,
    ) -> Result<String> {
        let given = support::normalized(messages)?;
        let tools = tools.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let (renderer, support) = self.select(!tools.is_empty());
        let render = |messages: &[Value]| renderer.render(&Conversation { messages, tools, variables });
        let rejection = match render(&support.adapt(given.clone())) {
            Ok(prompt) => return Ok(prompt),
            Err(rejection) => rejection,
        };
        support.adapt_with_leading_system(&given).and_then(|messages| render(&messages).ok()).ok_or(rejection)
    }

    fn select(&self, tools: bool) -> &(Renderer, Support) {
        self.tool_use.as_ref().filter(|_| tools).unwrap_or(&self.default)
    }
}
