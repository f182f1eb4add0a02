//! Settings of single models: a file of `--models-preset`, in the format of llama.cpp's presets.
//!
//! Sections have the names of models. Their keys are flags without dashes:
//!
//! ```ini
//! [chat]
//! model = org/name
//! speculative-config = {"method": "ngram"}
//! ```
use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches};
use llm_engine::engine::DraftSource;

use crate::arguments::Arguments;
use crate::lora_modules::{LoraModule, LoraModules};
use crate::models::{ModelLocation, models_in};

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
            ensure!(!name.is_empty(), "{}: the section has no name; write [MODEL]", at());
            let is_new = presets.iter().all(|preset| preset.name != name);
            ensure!(is_new, "{}: the section [{name}] is there already; join both", at());
            presets.push(Preset { name: name.to_owned(), settings: Vec::new() });
            continue;
        }
        let setting = line.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        match (setting, presets.last_mut()) {
            (Some((VERSION, _)), None) => {}
            (Some((key, value)), Some(preset)) => {
                let is_repeated = preset.settings.iter().any(|(other, _)| other == key);
                ensure!(!is_repeated, "{}: [{}] sets {key} twice; remove one line", at(), preset.name);
                ensure!(!value.is_empty(), "{}: {key} has no value; remove the line", at());
                preset.settings.push((key.to_owned(), value.to_owned()));
            }
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
    model_ref chat_template served_model_name dtype cache_dtype context cache_memory decoded_memory max_running max_waiting step_tokens
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

impl Arguments {
    /// Returns the arguments of each of the models that are loaded on demand, with its names and adapters.
    ///
    /// # Errors
    /// Returns an error if the folder of `--models-dir` or the file of `--models-preset` cannot be read, if there is no model,
    /// and for flags that only one model can have.
    pub fn models_on_demand(&self) -> Result<Vec<Self>> {
        self.check_several()?;
        let mut models = self.models.clone();
        if let Some(folder) = &self.models_dir {
            models.extend(models_in(folder)?);
        }
        let file = self.models_preset.as_deref();
        let presets = file.map(read).transpose()?.unwrap_or_default();
        let added = presets.iter().filter_map(|preset| Some((&preset.name, preset.model()?)));
        models
            .extend(added.map(|(name, model)| ModelLocation { name: name.clone(), model: model.to_owned() }));
        ModelLocation::check_all(&models)?;
        let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        for Preset { name, .. } in &presets {
            let known = names.join(", ");
            ensure!(
                names.contains(&name.as_str()),
                "--models-preset has a section [{name}], but there are only the models {known}; add a line model = MODEL"
            );
        }
        let preset = |name: &str| presets.iter().find(|preset| preset.name == name);
        let models = models.iter().map(|model| {
            let own = self.for_model(model, preset(&model.name));
            own.with_context(|| format!("settings of the model {:?}", model.name))
        });
        let models = models.collect::<Result<Vec<_>>>()?;
        self.check_adapters(&models)?;
        Ok(models)
    }

    /// Checks that no flag applies to one model only.
    fn check_several(&self) -> Result<()> {
        let drafts = self.speculation().is_some_and(|config| !matches!(config.source, DraftSource::Ngram(_)));
        let refused = [
            (
                drafts,
                "--speculative-config with a draft model or MTP",
                "not all models have the same draft model or a head",
            ),
            (self.chat_template.is_some(), "--chat-template", "a template fits one model"),
            (
                self.mmproj.is_some(),
                "--mmproj",
                "an encoder fits one model, and is found in the folder of its file",
            ),
            (self.model_ref.is_some(), "--model-ref", "a revision belongs to one repository"),
            (!self.served_model_name.is_empty(), "--served-model-name", "each model needs other names"),
            (
                self.kv_events.is_some(),
                "--kv-events",
                "events do not name the model, so each needs an endpoint",
            ),
        ];
        if let Some((_, flag, why)) = refused.iter().find(|(is_set, ..)| *is_set) {
            bail!(
                "{flag} cannot be used for several models, because {why}; set it in the model's section of --models-preset"
            );
        }
        ensure!(
            !self.any_model_name,
            "--any-model-name cannot be used with several models, because requests choose one by its name; use \
             served-model-name in --models-preset"
        );
        Ok(())
    }

    /// Checks that each adapter of `--lora-modules` belongs to one of the models, and that all names differ.
    fn check_adapters(&self, models: &[Self]) -> Result<()> {
        let names = || models.iter().flat_map(|model| &model.served_model_name);
        for module in self.adapters() {
            let known = || names().map(String::as_str).collect::<Vec<_>>().join(", ");
            let is_known = |base: &String| names().any(|name| name == base);
            ensure!(
                module.base_model_name.as_ref().is_some_and(is_known),
                "the adapter {:?} of --lora-modules has the base model {:?}; \"base_model_name\" must be one of {}",
                module.name,
                module.base_model_name.as_deref().unwrap_or_default(),
                known()
            );
        }
        let adapters = models.iter().flat_map(Self::adapters).map(|module| &module.name);
        let mut all = HashSet::new();
        for name in names().chain(adapters) {
            ensure!(all.insert(name), "two models or adapters are named {name:?}; rename one");
        }
        Ok(())
    }

    /// Returns the arguments of a worker that serves only `location`, with its own settings.
    fn for_model(&self, location: &ModelLocation, preset: Option<&Preset>) -> Result<Self> {
        let ModelLocation { name, model } = location.clone();
        let (models, models_dir, models_preset) = (Vec::new(), None, None);
        let (all, lora_modules) = (self.clone(), Vec::new());
        let mut own = Self { model: Some(model), models, models_dir, models_preset, lora_modules, ..all };
        preset.map_or(Ok(()), |preset| preset.apply(&mut own))?;
        if own.served_model_name.is_empty() {
            own.served_model_name.push(name.clone());
        }
        for LoraModule { name: adapter, base_model_name, .. } in own.adapters() {
            let names = own.served_model_name.join(", ");
            ensure!(
                base_model_name.as_ref().is_none_or(|base| own.served_model_name.contains(base)),
                "the adapter {adapter:?} of lora-modules in [{name}] has the base model {:?}, but the section is that of \
                 {names}; remove \"base_model_name\", or move the adapter to the section of its model",
                base_model_name.as_deref().unwrap_or_default()
            );
        }
        let is_own = |module: &&LoraModule| {
            let base = module.base_model_name.as_ref();
            base.is_some_and(|base| own.served_model_name.contains(base))
        };
        let shared: Vec<_> = self.adapters().filter(is_own).cloned().collect();
        own.lora_modules.push(LoraModules::List(shared));
        Ok(own)
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
            ("[]", "line 1: the section has no name"),
            ("[a]\nmodel =", "line 2: model has no value"),
            ("[a]\nmodel = x\nmodel = y", "line 3: [a] sets model twice"),
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
            ("decoded-memory", "0"),
            ("max-running", "3"),
            ("served-model-name", "x,y"),
            ("no-prefix-cache", "true"),
            ("kv-cache-dtype", "int8"),
        ]);
        let own = own.unwrap();
        assert_eq!((own.context, own.decoded_memory), (Some(99), Some(0)));
        assert_eq!((own.max_running, own.image_tokens), (3, 9));
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
