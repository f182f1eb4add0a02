//! Rendering of one Jinja template.
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result, anyhow};
use minijinja::Environment;
use minijinja::value::Value as Jinja;
use serde_json::{Map, Value};

use super::environment::environment;
use super::source;
use super::values::from_json;

const NAME: &str = "chat";

/// Inputs of a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// Objects with `role` and `content`, as in OpenAI's API.
    pub messages: &'a [Value],
    /// Tools that the model may call; an empty slice means none.
    pub tools: &'a [Value],
    /// Further variables.
    pub variables: Option<&'a Map<String, Value>>,
}

/// A compiled template.
#[derive(Clone, Debug)]
pub(super) struct Renderer {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl Renderer {
    /// Compiles a template. `now` replaces the current time, in Unix seconds.
    pub(super) fn new(text: &str, bos: &str, eos: &str, now: Option<i64>) -> Result<Self> {
        let mut environment = environment(now);
        let added = environment.add_template_owned(NAME, source::adapted(text));
        added.context("the chat template is not valid Jinja")?;
        Ok(Self { environment, bos: bos.into(), eos: eos.into() })
    }

    /// Renders the inputs as they are. As in Transformers, empty tools and documents are passed as none.
    pub(super) fn render(&self, conversation: &Conversation) -> Result<String> {
        let mut values: BTreeMap<&str, Jinja> = BTreeMap::new();
        values.insert("documents", Jinja::from(()));
        values.insert("add_generation_prompt", Jinja::from(true));
        for (name, value) in conversation.variables.into_iter().flatten() {
            values.insert(name, from_json(value));
        }
        let messages: Vec<Jinja> = conversation.messages.iter().map(from_json).collect();
        values.insert("messages", Jinja::from(messages));
        let tools: Vec<Jinja> = conversation.tools.iter().map(from_json).collect();
        values.insert("tools", if tools.is_empty() { Jinja::from(()) } else { Jinja::from(tools) });
        values.insert("bos_token", Jinja::from(self.bos.as_str()));
        values.insert("eos_token", Jinja::from(self.eos.as_str()));
        let template = self.environment.get_template(NAME)?;
        // Minijinja panics in rare cases, such as an empty list in reverse order.
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render(values)));
        let rendered = rendered.map_err(|_| anyhow!("the template engine panicked; see the log"))?;
        rendered.context("the chat template rejected the messages")
    }
}
