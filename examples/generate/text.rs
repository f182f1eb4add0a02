//! From tokens to text as it comes: whole characters, up to a text that ends it.
use anyhow::{Error, Result};
use tokenizers::Tokenizer;

/// What a decoder writes for bytes that are no character, or not one yet.
const INCOMPLETE: char = '\u{FFFD}';

/// The text of tokens that come one by one.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    /// Decoding starts here: some tokens' text depends on those before, like a first space that is left out.
    from: usize,
    /// The text of the tokens before is given out.
    given: usize,
}

impl<'a> TextStream<'a> {
    /// Text that goes on after the tokens of a prompt.
    pub fn after(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        Self { tokenizer, tokens: prompt.to_vec(), from: 0, given: prompt.len() }
    }

    /// What `token` adds to the text. Nothing, if it ends within a character.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let text = self.pending()?;
        if text.is_empty() || text.ends_with(INCOMPLETE) {
            return Ok(String::new());
        }
        self.from = self.given;
        self.given = self.tokens.len();
        Ok(text)
    }

    /// What is left at the end: a character that was never completed.
    pub fn finish(&mut self) -> Result<String> {
        let text = self.pending()?;
        self.given = self.tokens.len();
        Ok(text)
    }

    fn pending(&self) -> Result<String> {
        let decode =
            |end: usize| self.tokenizer.decode(&self.tokens[self.from..end], true).map_err(Error::msg);
        let (before, all) = (decode(self.given)?, decode(self.tokens.len())?);
        Ok(all.get(before.len()..).unwrap_or_default().to_owned())
    }
}

/// Lets text through up to the first of some texts to end before, however it is cut into pieces.
pub struct StopStrings<'a> {
    stops: &'a [String],
    /// May be the start of one of them.
    held: String,
}

impl<'a> StopStrings<'a> {
    /// `stops` that are empty never match.
    pub fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new() }
    }

    /// What can be given out now that `text` came, and whether the end was found.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let stops = self.stops.iter().filter(|stop| !stop.is_empty());
        let found = stops.clone().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        // Of several the one that is complete first, so that it makes no difference how the text was cut.
        if let Some((_, start)) = found.min() {
            self.held.truncate(start);
            return (std::mem::take(&mut self.held), true);
        }
        let starts = self.held.char_indices().map(|(start, _)| start);
        let starts = starts.filter(|start| stops.clone().any(|stop| stop.starts_with(&self.held[*start..])));
        let keep = starts.min().unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
