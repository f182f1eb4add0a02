//! Text as its tokens come.
use std::sync::Arc;

use anyhow::Result;

use super::Text;

/// What a token adds to a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// What is certain by it.
    pub text: String,
    /// A stop string came; the text ends before it, and nothing comes any more.
    pub stopped: bool,
}

/// The text that goes on behind a prompt, as its tokens come: [`Text::decode_after`] of them, cut into pieces that are
/// whole characters, up to the first stop string.
pub struct TextStream {
    text: Arc<Text>,
    /// Bytes of a character that is not whole yet.
    bytes: Vec<u8>,
    stops: Stops,
}

impl TextStream {
    /// At the start, to end before any of `stop`; those that are empty never match.
    pub fn new(text: Arc<Text>, stop: Vec<String>) -> Self {
        let stops = stop.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { text, bytes: Vec::new(), stops: Stops { stops, held: String::new(), stopped: false } }
    }

    /// What `token` adds: nothing while a character or a stop string may go on, nor if it is special or no token.
    ///
    /// # Errors
    /// Never so far.
    pub fn push(&mut self, token: u32) -> Result<Piece> {
        self.bytes.extend_from_slice(self.text.shown(token));
        let mut text = String::new();
        let mut rest = 0;
        for chunk in self.bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            rest += chunk.valid().len();
            let end = rest + chunk.invalid().len();
            // The same bytes are no character and may be one once more come only at the very end.
            if end == self.bytes.len() && may_go_on(chunk.invalid()) {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            rest = end;
        }
        self.bytes.drain(..rest);
        Ok(self.stops.push(&text))
    }

    /// What was held back, when no more comes: also a character that was never whole.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned();
        let mut piece = self.stops.push(&text).text;
        piece.push_str(&std::mem::take(&mut self.stops.held));
        piece
    }
}

/// Whether `bytes`, no character by themselves, may be the start of one.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Lets text through up to the first of some strings, however it is cut.
struct Stops {
    stops: Vec<String>,
    /// May be the start of one of them.
    held: String,
    stopped: bool,
}

impl Stops {
    fn push(&mut self, text: &str) -> Piece {
        if self.stopped {
            return Piece { text: String::new(), stopped: true };
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        // Of several the one that is whole first, so that it makes no difference how the text was cut.
        if let Some((_, start)) = found.min() {
            self.held.truncate(start);
            self.stopped = true;
            return Piece { text: std::mem::take(&mut self.held), stopped: true };
        }
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let mut tails = self.held.char_indices().map(|(start, _)| start).filter(|start| *start >= from);
        let keep = tails.find(|start| self.stops.iter().any(|stop| stop.starts_with(&self.held[*start..])));
        let rest = self.held.split_off(keep.unwrap_or(self.held.len()));
        Piece { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }
}
