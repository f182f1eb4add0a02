//! Chat templates: Jinja that comes with the model and writes turns as it was trained on them.
use std::fs;

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::Content;
use minijinja::{Environment, ErrorKind, context};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::model_files::ModelFiles;
use crate::vocabulary::gguf_token;

/// A model's template and the tokens that it may write.
pub struct Template {
    text: String,
    bos: String,
    eos: String,
}

impl Template {
    /// # Errors
    /// If the model has none.
    pub fn of(files: &ModelFiles, tokenizer: &Tokenizer) -> Result<Self> {
        let found = match files {
            ModelFiles::Gguf { content, .. } => Self::of_gguf(content, tokenizer)?,
            ModelFiles::Safetensors { .. } => Self::of_folder(files)?,
        };
        found.with_context(|| {
            format!("{} has no chat template: without --chat it continues the prompt", files.path().display())
        })
    }

    fn of_gguf(content: &Content, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let Some(text) = content.metadata.get("tokenizer.chat_template") else { return Ok(None) };
        let token =
            |key| gguf_token(content, key).and_then(|id| tokenizer.id_to_token(id)).unwrap_or_default();
        let text = text.to_string().context("the metadata tokenizer.chat_template")?.clone();
        Ok(Some(Self { text, bos: token("bos_token_id"), eos: token("eos_token_id") }))
    }

    fn of_folder(files: &ModelFiles) -> Result<Option<Self>> {
        let config = files.json_beside("tokenizer_config.json")?.unwrap_or_default();
        let file = files.folder().join("chat_template.jinja");
        let text = match &config["chat_template"] {
            _ if file.exists() => {
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?
            }
            Value::String(text) => text.clone(),
            // Several, by name.
            Value::Array(templates) => {
                let default = templates.iter().find(|template| template["name"] == "default");
                match default.and_then(|template| template["template"].as_str()) {
                    Some(text) => text.into(),
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        let token = |key: &str| {
            let token = &config[key];
            token.as_str().or(token["content"].as_str()).unwrap_or_default().to_owned()
        };
        Ok(Some(Self { text, bos: token("bos_token"), eos: token("eos_token") }))
    }

    /// The prompt that asks for the answer to `user`.
    pub fn render(&self, system: Option<&str>, user: &str) -> Result<String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        let turn = |role, content| context! { role, content };
        let messages: Vec<_> =
            system.map(|system| turn("system", system)).into_iter().chain([turn("user", user)]).collect();
        let values = context! {
            messages,
            add_generation_prompt => true,
            bos_token => self.bos,
            eos_token => self.eos,
        };
        environment.render_str(&self.text, values).context("the model's chat template")
    }
}
