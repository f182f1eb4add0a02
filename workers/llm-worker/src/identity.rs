//! Names and chat template of the served model, as the command line chooses them.
use std::path::Path;

use anyhow::{Context, Result};
use llm_engine::text::{TextCodec, builtin_templates};
use worker_core::ModelName;

use crate::arguments::Arguments;

/// Returns the model's names. `own` is the name in its files, and `path` is their location.
pub fn names(arguments: &Arguments, own: String, path: &Path) -> ModelName {
    let model = arguments.model.clone().unwrap_or_default();
    let name = match arguments.served_model_name.split_first() {
        Some((first, others)) => ModelName::several(first, others.to_vec()),
        None => {
            let is_path = path.as_os_str() == model.as_str();
            let mut aliases = vec![model.clone()];
            aliases.extend(path.file_name().map(|file| file.to_string_lossy().into_owned()));
            ModelName::new(if is_path { own } else { model }, aliases)
        }
    };
    name.accepting_any(arguments.any_model_name)
}

/// Applies `--chat-template`. A model without a template gets ChatML.
///
/// # Errors
/// Returns an error if the template does not exist or is not valid Jinja.
pub fn with_template(arguments: &Arguments, text: TextCodec) -> Result<TextCodec> {
    match arguments.chat_template.as_deref() {
        Some(template) => text.with_template(template).context("--chat-template"),
        None if text.has_template() => Ok(text),
        None => {
            tracing::warn!(
                template = builtin_templates::CHATML,
                "the model has no chat template; select one with --chat-template"
            );
            text.with_template(builtin_templates::CHATML)
        }
    }
}
