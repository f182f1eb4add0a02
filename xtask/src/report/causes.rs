//! Why PyTorch is ahead: a file of patterns and causes, written by hand.
use anyhow::{Context, Result};

/// Which words name the cases, and why they are slow; the first that fits counts.
pub struct Causes(Vec<(Vec<String>, String)>);

impl Causes {
    /// One line per cause, `"words" = "cause"`: all words must be in the case's name, its dtype or its shape, whole.
    ///
    /// # Errors
    /// Names the line that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let cause = |line: &str| {
            let (words, cause) = line.split_once(" = ").with_context(|| format!("no cause: {line}"))?;
            let unquoted = |part: &str| part.trim().trim_matches('"').to_string();
            Ok((unquoted(words).split_whitespace().map(str::to_string).collect(), unquoted(cause)))
        };
        Ok(Self(lines.map(cause).collect::<Result<_>>()?))
    }

    /// The cause of a case's time, by its label.
    pub fn of(&self, label: &str) -> Option<&str> {
        let has = |word: &String| label.split_whitespace().any(|part| part == word);
        let fitting = self.0.iter().find(|(words, _)| words.iter().all(has));
        fitting.map(|(_, cause)| cause.as_str())
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
        assert!(Causes::parse("add: slow").is_err());
    }
}
