//! Why PyTorch is ahead: a file of patterns and causes, written by hand.
use anyhow::{Context, Result};
use toml::Table;

/// Words that name cases, and why these are slow, in the file's order; the first that fits counts.
pub struct Causes(Table);

impl Causes {
    /// Parses lines `"words" = "cause"`: all words must be in the case's name, its dtype or its shape, whole.
    ///
    /// # Errors
    /// If the text is no TOML, or a cause is no text.
    pub fn parse(text: &str) -> Result<Self> {
        let causes: Table = text.parse()?;
        for (words, cause) in &causes {
            cause.as_str().with_context(|| format!("the cause of {words:?} is no text"))?;
        }
        Ok(Self(causes))
    }

    /// The cause of a case's time, by its label.
    pub fn of(&self, label: &str) -> Option<&str> {
        let has = |word: &str| label.split_whitespace().any(|part| part == word);
        self.0.iter().find(|(words, _)| words.split_whitespace().all(has))?.1.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_whose_words_are_all_there_counts() {
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
