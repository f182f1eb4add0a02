//! Reads the hand-written file of reasons why PyTorch is faster in some cases.
use anyhow::{Context, Result};
use toml::Table;

/// Patterns of case labels and the causes of their times, in the file's order; the first match counts.
pub struct Causes(Table);

impl Causes {
    /// Parses lines `"words" = "cause"`. A case matches if its name, dtype and shape include all the words.
    ///
    /// # Errors
    /// If the text is not TOML, or a cause is not a string.
    pub fn parse(text: &str) -> Result<Self> {
        let causes: Table = text.parse()?;
        for (words, cause) in &causes {
            cause.as_str().with_context(|| format!("the cause of {words:?} is not a string"))?;
        }
        Ok(Self(causes))
    }

    /// Returns the cause for a case's label.
    pub fn of(&self, label: &str) -> Option<&str> {
        let has = |word: &str| label.split_whitespace().any(|part| part == word);
        self.0.iter().find(|(words, _)| words.split_whitespace().all(has))?.1.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_with_all_words_in_the_label_is_returned() {
        let causes = Causes::parse(
            "# why\n\"softmax_last 1x32000\" = \"one wave\"\n\"softmax_last\" = \"many\"\n\n\"exp f16\" = \"scalar\"",
        )
        .unwrap();
        assert_eq!(causes.of("softmax_last f16 1x32000"), Some("one wave"));
        assert_eq!(causes.of("softmax_last f16 11x32000"), Some("many"));
        assert_eq!(causes.of("exp f16 64M"), Some("scalar"));
        assert_eq!(causes.of("exp bf16 64M"), None);
        assert!(Causes::parse("add: slow").is_err() && Causes::parse("add = 1").is_err());
    }
}
