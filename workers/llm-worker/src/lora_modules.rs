//! Value of `--lora-modules`: adapters that are loaded at start, in the formats of vLLM.
use serde::Deserialize;

/// An adapter to load.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraModule {
    /// Name in the API.
    pub name: String,
    /// Folder of its files.
    pub path: String,
    /// Name of the model that it changes; by default the first name of the served one.
    pub base_model_name: Option<String>,
}

/// One argument: an adapter or a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum LoraModules {
    /// `NAME=PATH`, or a JSON object.
    One(LoraModule),
    /// A JSON list.
    List(Vec<LoraModule>),
}

impl LoraModules {
    /// Returns the adapters.
    pub fn modules(&self) -> &[LoraModule] {
        match self {
            Self::One(module) => std::slice::from_ref(module),
            Self::List(modules) => modules,
        }
    }
}

/// Parses an argument.
///
/// # Errors
/// Returns an error for other forms, unknown fields, and empty names or paths.
pub fn parse(text: &str) -> Result<LoraModules, String> {
    let json = |error: serde_json::Error| {
        format!(
            "must be NAME=PATH, or a JSON object such as {{\"name\": \"sql\", \"path\": \"/adapters/sql\"}}: {error}"
        )
    };
    let modules = match (text.trim_start().chars().next(), text.split_once('=')) {
        (Some('{'), _) => LoraModules::One(serde_json::from_str(text).map_err(json)?),
        (Some('['), _) => LoraModules::List(serde_json::from_str(text).map_err(json)?),
        (_, Some((name, path))) => LoraModules::One(LoraModule {
            name: name.to_owned(),
            path: path.to_owned(),
            base_model_name: None,
        }),
        (_, None) => return Err(format!("is {text:?}, but must be NAME=PATH or a JSON object")),
    };
    match modules.modules().iter().find(|module| module.name.is_empty() || module.path.is_empty()) {
        Some(module) => {
            Err(format!("has an adapter named {:?} at {:?}; neither may be empty", module.name, module.path))
        }
        None => Ok(modules),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_several_forms() {
        let module = |base: Option<&str>| LoraModule {
            name: "sql".into(),
            path: "/a=b/sql".into(),
            base_model_name: base.map(str::to_owned),
        };
        for (text, expected) in [
            ("sql=/a=b/sql", vec![module(None)]),
            (r#"{"name": "sql", "path": "/a=b/sql"}"#, vec![module(None)]),
            (
                r#" {"name": "sql", "path": "/a=b/sql", "base_model_name": "tiny"}"#,
                vec![module(Some("tiny"))],
            ),
            (r#"[{"name": "sql", "path": "/a=b/sql"}]"#, vec![module(None)]),
            ("[]", vec![]),
        ] {
            assert_eq!(parse(text).unwrap().modules(), expected, "{text}");
        }
        for (text, words) in [
            ("/adapters/sql", "must be NAME=PATH"),
            ("=/adapters/sql", "neither may be empty"),
            ("sql=", "neither may be empty"),
            (r#"{"name": "sql"}"#, "missing field `path`"),
            (r#"{"name": "sql", "path": "/a", "rank": 8}"#, "unknown field `rank`"),
            (r#"[{"name": "", "path": "/a"}]"#, "neither may be empty"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
