//! Incremental detokenization with stop strings.
use std::sync::Arc;

use anyhow::Result;

use super::TextCodec;

/// Text that one token adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextChunk {
    /// Text that is complete.
    pub text: String,
    /// True once a stop string was found; the text ends before it.
    pub stopped: bool,
}

/// Incremental form of [`TextCodec::decode_after`]: returns whole characters, up to the first stop string.
pub struct TextStream {
    text: Arc<TextCodec>,
    /// Bytes of an incomplete character.
    bytes: Vec<u8>,
    stops: StopFinder,
    /// Number of next tokens in whose text stop strings are not searched.
    unsearched: usize,
    /// Special tokens that add text.
    shown: Vec<u32>,
    /// If true, all special tokens add their text.
    has_special: bool,
}

impl TextStream {
    /// Creates a stream that ends before any string of `stop`. Empty strings are ignored.
    pub fn new(text: Arc<TextCodec>, stop: Vec<String>) -> Self {
        let stops = stop.into_iter().filter(|stop| !stop.is_empty()).collect();
        let stops = StopFinder { stops, held: String::new(), found: None, is_included: false };
        Self { text, bytes: Vec::new(), stops, unsearched: 0, shown: Vec::new(), has_special: false }
    }

    /// Searches stop strings only in the text from token number `token` on, counted from 1.
    pub fn searching_from(self, token: usize) -> Self {
        Self { unsearched: token.saturating_sub(1), ..self }
    }

    /// Adds the text of these special tokens.
    pub fn showing(self, shown: Vec<u32>) -> Self {
        Self { shown, ..self }
    }

    /// If `is_included`, the text ends after the stop string instead of before it.
    pub fn including_stop(mut self, is_included: bool) -> Self {
        self.stops.is_included = is_included;
        self
    }

    /// If `has_special`, all special tokens add their text.
    pub fn with_special_tokens(self, has_special: bool) -> Self {
        Self { has_special, ..self }
    }

    /// Returns true if the text may end at a stop string.
    pub fn has_stops(&self) -> bool {
        !self.stops.stops.is_empty()
    }

    /// Returns the text that `token` completes. It is empty while a character or a stop string may be
    /// incomplete, for unknown tokens, and for special tokens unless they add their text.
    pub fn push(&mut self, token: u32) -> Result<TextChunk> {
        let bytes = match self.has_special || self.shown.contains(&token) {
            true => self.text.token_bytes(token).unwrap_or_default(),
            false => self.text.visible_bytes(token),
        };
        self.bytes.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = 0;
        for chunk in self.bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            rest += chunk.valid().len();
            let end = rest + chunk.invalid().len();
            // Invalid bytes can only be an incomplete character at the very end.
            if end == self.bytes.len() && may_be_incomplete(chunk.invalid()) {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            rest = end;
        }
        self.bytes.drain(..rest);
        if self.unsearched > 0 {
            self.unsearched -= 1;
            return Ok(TextChunk { text, stopped: false });
        }
        Ok(self.stops.push(&text))
    }

    /// Returns the stop string that ended the text, if one did.
    pub fn found_stop(&self) -> Option<&str> {
        self.stops.found.as_deref()
    }

    /// Returns the text held back so far, including an incomplete character.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned();
        let mut chunk = self.stops.push(&text).text;
        chunk.push_str(&std::mem::take(&mut self.stops.held));
        chunk
    }
}

/// Returns true if `bytes`, which are not a whole character, may be the start of one.
fn may_be_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Searches a stream of text for the first stop string, independently of how the text is split.
struct StopFinder {
    stops: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
    /// Stop string that ended the text.
    found: Option<String>,
    /// If true, the text ends after the stop string.
    is_included: bool,
}

impl StopFinder {
    fn push(&mut self, text: &str) -> TextChunk {
        if self.found.is_some() {
            return TextChunk { text: String::new(), stopped: true };
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, stop))
        });
        // The match that ends first wins, so that the result does not depend on how the text is split.
        if let Some((end, start, stop)) = found.min() {
            self.found = Some(stop.clone());
            self.held.truncate(if self.is_included { end } else { start });
            return TextChunk { text: std::mem::take(&mut self.held), stopped: true };
        }
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let mut tails = self.held.char_indices().map(|(start, _)| start).filter(|start| *start >= from);
        let keep = tails.find(|start| self.stops.iter().any(|stop| stop.starts_with(&self.held[*start..])));
        let rest = self.held.split_off(keep.unwrap_or(self.held.len()));
        TextChunk { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }
}
