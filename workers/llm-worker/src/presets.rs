//! Settings of single models: a file of `--models-preset`, in the format of llama.cpp's presets.
//!
//! Sections have the names of models. Their keys are flags without dashes:
//!
//! ```ini
//! [chat]
//! model = org/name
//! speculative-config = {"method": "ngram"}
//! ```
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches};

use crate::arguments::Arguments;

/// Settings of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// Name of the model.
    pub name: String,
    /// Keys and values, in the order of the file.
    pub settings: Vec<(String, String)>,
}

/// Key with the model's location.
const MODEL: &str = "model";
/// Key of files for llama.cpp, before the first section.
const VERSION: &str = "version";

/// Reads a file.
///
/// # Errors
/// Returns an error that names the line if the file is not a list of sections with different names.
pub fn read(path: &Path) -> Result<Vec<Preset>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut presets: Vec<Preset> = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        let at = || format!("{}, line {}", path.display(), index + 1);
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let is_new = presets.iter().all(|preset| preset.name != name);
            ensure!(is_new, "{}: the section [{name}] is there already; join both", at());
            presets.push(Preset { name: name.to_owned(), settings: Vec::new() });
            continue;
        }
        let setting = line.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        match (setting, presets.last_mut()) {
            (Some((VERSION, _)), None) => {}
            (Some((key, value)), Some(preset)) => preset.settings.push((key.to_owned(), value.to_owned())),
            (Some(_), None) => bail!("{}: {line:?} is in no section; write [MODEL] above it", at()),
            (None, _) => bail!("{}: {line:?} must be [MODEL] or KEY = VALUE", at()),
        }
    }
    Ok(presets)
}

/// Defines the settings that a section may contain.
macro_rules! settings {
    ($($field:ident)*) => {
        const SETTINGS: &[&str] = &[$(stringify!($field)),*];

        /// Copies the settings of `own` for which `is_set` returns true.
        fn merge(all: &mut Arguments, own: Arguments, is_set: impl Fn(&str) -> bool) {
            $(if is_set(stringify!($field)) {
                all.$field = own.$field;
            })*
        }
    };
}

settings! {
    model_ref chat_template served_model_name dtype cache_dtype context cache_memory max_running max_waiting step_tokens
    prompt_step_tokens ignore_generation_config tool_parser reasoning_parser image_tokens mmproj images_per_request
    image_hosts no_prefix_cache kv_events kv_events_replay kv_events_topic enable_prompt_tokens_details no_graphs
    speculative_config lora_modules max_lora_rank max_loras idle_unload
}

impl Preset {
    /// Returns the location of the model, if the section contains it.
    pub fn model(&self) -> Option<&str> {
        self.settings.iter().find(|(key, _)| key == MODEL).map(|(_, value)| value.as_str())
    }

    /// Replaces flags by the settings of this section.
    ///
    /// # Errors
    /// Returns an error for keys that are not settings of a model, and for invalid values.
    pub fn apply(&self, arguments: &mut Arguments) -> Result<()> {
        // Environment variables are those of all models.
        let command = Arguments::command().mut_args(|arg| arg.env(None::<&'static str>));
        let mut line = vec!["llm-worker".to_owned(), format!("--{MODEL}=")];
        for (key, value) in self.settings.iter().filter(|(key, _)| key != MODEL) {
            let is_named = |arg: &&Arg| {
                let aliases = arg.get_visible_aliases().unwrap_or_default();
                arg.get_long() == Some(key) || aliases.contains(&key.as_str())
            };
            let arg = command.get_arguments().find(is_named);
            let arg = arg.filter(|arg| SETTINGS.contains(&arg.get_id().as_str())).with_context(|| {
                let known = SETTINGS.join(", ").replace('_', "-");
                format!("{key:?} is not a setting of a model; use {known}, or a flag for all models")
            })?;
            line.push(match (arg.get_action(), value.as_str()) {
                (ArgAction::SetTrue, "true" | "on" | "1") => format!("--{key}"),
                (ArgAction::SetTrue, _) => {
                    bail!("{key} = {value} is not possible; use true, or remove the line")
                }
                _ => format!("--{key}={value}"),
            });
        }
        let matches = command.try_get_matches_from(line)?;
        let own = Arguments::from_arg_matches(&matches)?;
        merge(arguments, own, |id| matches.value_source(id) == Some(ValueSource::CommandLine));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn read_text(text: &str) -> Result<Vec<Preset>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn sections_are_read_in_the_format_of_llama_cpp() {
        let text = "version = 1\n\n; a comment\n[a]\nmodel=/a.gguf\n# none\ncontext = 4096\n[b:Q4]\n\
                    speculative-config = {\"method\": \"ngram\"}\n";
        let presets = read_text(text).unwrap();
        assert_eq!((presets[0].name.as_str(), presets[0].model()), ("a", Some("/a.gguf")));
        assert_eq!(presets[0].settings[1], ("context".to_owned(), "4096".to_owned()));
        assert_eq!((presets[1].name.as_str(), presets[1].model()), ("b:Q4", None));
        for (text, words) in [
            ("context = 1", "line 1: \"context = 1\" is in no section"),
            ("[a]\ncontext", "line 2: \"context\" must be [MODEL] or KEY = VALUE"),
            ("[a]\n[b]\n[a]", "line 3: the section [a] is there already"),
        ] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn settings_replace_flags() {
        let line = "worker --models a=/a --max-running 5 --dtype f16 --no-graphs --image-tokens 9";
        let worker = Arguments::try_parse_from(line.split(' ')).unwrap();
        let apply = |settings: &[(&str, &str)]| {
            let settings =
                settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let mut arguments = worker.clone();
            Preset { name: "a".to_owned(), settings }.apply(&mut arguments).map(|()| arguments)
        };
        let own = apply(&[
            ("model", "/a"),
            ("context", "99"),
            ("max-running", "3"),
            ("served-model-name", "x,y"),
            ("no-prefix-cache", "true"),
            ("kv-cache-dtype", "int8"),
        ]);
        let own = own.unwrap();
        assert_eq!((own.context, own.max_running, own.image_tokens), (Some(99), 3, 9));
        assert_eq!(
            (own.served_model_name, own.no_prefix_cache, own.no_graphs),
            (vec!["x".into(), "y".into()], true, true)
        );
        assert!(own.cache_dtype.0.is_some() && own.dtype.is_some() && own.model.is_none());
        for (key, value, words) in [
            ("contxt", "9", "\"contxt\" is not a setting of a model; use model-ref, "),
            ("port", "9", "is not a setting of a model"),
            ("context", "0", "must be at least 1"),
            ("no-graphs", "no", "use true, or remove the line"),
            ("kv-events-replay", "tcp://*:1", "required"),
        ] {
            let error = format!("{:#}", apply(&[(key, value)]).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
