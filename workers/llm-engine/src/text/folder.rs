//! Loading of tokenizer and chat template from the JSON files of a model's folder.
use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result};
use serde_json::Value;
use tokenizers::Tokenizer;

use super::{ChatTemplate, TextCodec};
use crate::model::files::python_json;

impl TextCodec {
    /// Loads tokenizer.json and, where present, tokenizer_config.json, chat_template.jinja,
    /// chat_template.json, additional_chat_templates/tool_use.jinja, generation_config.json and config.json.
    ///
    /// # Errors
    /// Returns an error if tokenizer.json is missing or any file is invalid.
    pub fn from_folder(folder: &Path) -> Result<TextCodec> {
        let path = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&path).map_err(Error::msg);
        let tokenizer = tokenizer.with_context(|| format!("cannot read the tokenizer {}", path.display()))?;
        let config = json(folder, "tokenizer_config.json")?;
        let bos = token_text(&config["bos_token"]).unwrap_or_default();
        let eos = token_text(&config["eos_token"]).unwrap_or_default();
        let mut ends = Vec::new();
        for file in ["generation_config.json", "config.json"] {
            let config = json(folder, file)?;
            // Multimodal models keep it in the configuration of the text model.
            for ids in [&config["eos_token_id"], &config["text_config"]["eos_token_id"]] {
                let ids = ids.as_array().map_or(std::slice::from_ref(ids), Vec::as_slice);
                ends.extend(ids.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()));
            }
        }
        ends.extend(tokenizer.token_to_id(eos));
        let known = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        ends.retain(|end| *end <= known);
        let template = template(folder, &config, bos, eos)?;
        let mut codec = TextCodec::new(tokenizer, ends, template)?;
        codec.special_texts = [bos, eos].map(str::to_owned);
        Ok(codec)
    }
}

fn template(folder: &Path, config: &Value, bos: &str, eos: &str) -> Result<Option<ChatTemplate>> {
    let file = json(folder, "chat_template.json")?;
    let in_config =
        if config["chat_template"].is_null() { &file["chat_template"] } else { &config["chat_template"] };
    let named = |name: &str| -> Option<String> {
        let in_config = in_config.as_array()?.iter().find(|template| template["name"] == name)?;
        in_config["template"].as_str().map(str::to_owned)
    };
    let default = match read(folder, "chat_template.jinja")? {
        Some(text) => Some(text),
        None => in_config.as_str().map(str::to_owned).or_else(|| named("default")),
    };
    let tool_use = match read(folder, "additional_chat_templates/tool_use.jinja")? {
        Some(text) => Some(text),
        None => named("tool_use"),
    };
    default.map(|default| ChatTemplate::new(&default, tool_use.as_deref(), bos, eos)).transpose()
}

/// Returns the text of a token in a configuration, which is a string or an object with `content`.
fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}

/// Reads a JSON file. Returns null if it does not exist.
fn json(folder: &Path, name: &str) -> Result<Value> {
    let Some(text) = read(folder, name)? else { return Ok(Value::Null) };
    python_json::parse(&text).with_context(|| format!("{} is not JSON", folder.join(name).display()))
}

fn read(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}
