//! Models that are divided into several GGUF files.
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::Content;

const ENDING: &str = ".gguf";

/// Name of a GGUF file that contains a part of a model, as llama.cpp writes it: `model-00002-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufPart<'a> {
    /// Text before the numbers.
    pub stem: &'a str,
    /// Number of the part, from 1.
    pub number: u32,
    /// Number of parts.
    pub count: u32,
}

impl<'a> GgufPart<'a> {
    /// Parses a file's name. Returns `None` for a file that contains a whole model.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(ENDING)?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let parse = |text: &str| (text.len() == 5).then(|| text.parse().ok())?;
        let (number, count) = (parse(number)?, parse(count)?);
        (1..=count).contains(&number).then_some(Self { stem, number, count })
    }

    /// Returns the names of all parts.
    pub fn all(self) -> impl Iterator<Item = GgufPart<'a>> {
        (1..=self.count).map(move |number| GgufPart { number, ..self })
    }
}

impl fmt::Display for GgufPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:05}-of-{:05}{ENDING}", self.stem, self.number, self.count)
    }
}

/// Returns the name of a GGUF file without its ending, and without the number if it contains a part of a model. Returns `None`
/// for other files.
pub fn stem(name: &str) -> Option<&str> {
    GgufPart::parse(name).map_or_else(|| name.strip_suffix(ENDING), |part| Some(part.stem))
}

/// Returns the number of files that a model is divided into, according to the metadata of its first file.
///
/// # Errors
/// Returns an error if the file at `path` is not the first, or its name does not end with these numbers.
pub(super) fn count(content: &Content, path: &Path) -> Result<u32> {
    let (number, count) = (declared(content, "split.no")?, declared(content, "split.count")?);
    let (number, count) = (number.unwrap_or(0), count.unwrap_or(1));
    if count <= 1 {
        return Ok(1);
    }
    ensure!(
        number == 0,
        "it is part {} of {count}; give the first file of the model",
        number.saturating_add(1)
    );
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ensure!(
        GgufPart::parse(&name).is_some_and(|part| (part.number, part.count) == (1, count)),
        "it is the first of {count} files, so its name must end with -00001-of-{count:05}.gguf"
    );
    Ok(count)
}

/// Checks that a file is part `number` of `count`, from 0.
///
/// # Errors
/// Returns an error if it belongs to another model or place.
pub(super) fn check(content: &Content, number: u32, count: u32) -> Result<()> {
    let declares = [declared(content, "split.no")?, declared(content, "split.count")?];
    ensure!(
        declares == [Some(number), Some(count)],
        "it is not part {} of {count}, as its name says; download it again",
        number + 1
    );
    Ok(())
}

/// Returns a number of the metadata, which writers store as different types of integers.
fn declared(content: &Content, key: &str) -> Result<Option<u32>> {
    let number = content.metadata.get(key).map(|value| value.to_u64()).transpose();
    let number = number.with_context(|| format!("{key} is not a whole number"))?;
    number.map(|number| u32::try_from(number).with_context(|| format!("{key} is {number}"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_parsed_and_written() {
        let part = GgufPart::parse("a-of-b-00002-of-00003.gguf").unwrap();
        assert_eq!(part, GgufPart { stem: "a-of-b", number: 2, count: 3 });
        let names: Vec<_> = part.all().map(|part| part.to_string()).collect();
        assert_eq!(names[0], "a-of-b-00001-of-00003.gguf");
        assert_eq!(names.len(), 3);
        for whole in [
            "a.gguf",
            "a-of-b.gguf",
            "a-00001-of-b.gguf",
            "00001-of-00002.gguf",
            "a-1-of-2.gguf",
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-00001-of-00002",
            "",
        ] {
            assert_eq!(GgufPart::parse(whole), None, "{whole}");
        }
        assert_eq!(stem("a-00001-of-00002.gguf"), Some("a"));
        assert_eq!(stem("a.gguf"), Some("a"));
        assert_eq!(stem("a.safetensors"), None);
    }
}
