//! Models that a worker loads when they are first requested.

use anyhow::{Result, bail, ensure};

/// A model that is loaded on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLocation {
    /// Name in the API.
    pub name: String,
    /// Path, or name on the Hugging Face Hub.
    pub model: String,
}

impl ModelLocation {
    /// Parses `NAME=MODEL`.
    ///
    /// # Errors
    /// Returns an error for other forms and empty parts.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, model)) if !name.is_empty() && !model.is_empty() => {
                Ok(Self { name: name.to_owned(), model: model.to_owned() })
            }
            _ => Err(format!("is {text:?}, but must be NAME=MODEL, such as chat=org/name")),
        }
    }

    /// Checks that there are models, and that all have different names.
    ///
    /// # Errors
    /// Returns an error that names two models with one name.
    pub fn check_all(models: &[Self]) -> Result<()> {
        ensure!(!models.is_empty(), "there is no model to serve; name at least one");
        for (index, model) in models.iter().enumerate() {
            if let Some(earlier) = models[..index].iter().find(|earlier| earlier.name == model.name) {
                bail!(
                    "two models are named {:?}: {} and {}; rename one, or name them with --models",
                    model.name,
                    earlier.model,
                    model.model
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_models_are_separated_by_the_first_equals_sign() {
        let parsed = ModelLocation::parse("chat=/models/a=b").unwrap();
        assert_eq!(parsed, ModelLocation { name: "chat".into(), model: "/models/a=b".into() });
        for text in ["chat", "=x", "chat=", ""] {
            assert!(ModelLocation::parse(text).unwrap_err().contains("must be NAME=MODEL"), "{text}");
        }
    }
}
