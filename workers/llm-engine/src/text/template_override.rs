//! Chat templates that replace the model's.
use anyhow::{Context, Result, ensure};

use super::template::builtin;
use super::{ChatTemplate, TextCodec};

/// Known end-of-turn tokens.
const TURN_END_TOKENS: [&str; 6] =
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|eom_id|>"];

/// Returns the known end-of-turn tokens that a template writes.
pub(super) fn turn_ends(template: &str) -> impl Iterator<Item = &'static str> {
    TURN_END_TOKENS.into_iter().filter(move |end| template.contains(end))
}

impl TextCodec {
    /// Replaces the chat template by a built-in one or by the content of a file. The end-of-turn token that the template
    /// writes ends texts, if the vocabulary has it.
    ///
    /// # Errors
    /// Returns an error if there is neither such a template nor such a file, or if the file is not valid Jinja.
    pub fn with_template(mut self, name_or_file: &str) -> Result<TextCodec> {
        let text = match builtin::named(name_or_file) {
            Some(template) if self.begins_with_bos()? => format!("{{{{ bos_token }}}}{template}"),
            Some(template) => template.to_owned(),
            None => read(name_or_file)?,
        };
        let [bos, eos] = &self.special_texts;
        self.template = Some(ChatTemplate::new(&text, None, bos, eos)?);
        self.add_ends(turn_ends(&text));
        Ok(self)
    }

    /// Returns true if the model expects the BOS token before a text.
    fn begins_with_bos(&self) -> Result<bool> {
        let bos = self.token_id(&self.special_texts[0]);
        Ok(bos.is_some() && self.encode("", true)?.first().copied() == bos)
    }
}

fn read(path: &str) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| {
        let names: Vec<_> = builtin::names().collect();
        format!(
            "{path:?} is neither a built-in chat template ({}) nor a file that can be read",
            names.join(", ")
        )
    })?;
    ensure!(!text.trim().is_empty(), "the chat template {path} is empty");
    Ok(text)
}
