//! Text held to JSON.
use anyhow::{Result, bail};

/// Where a text is in a grammar.
pub struct Grammar {}

impl Grammar {
    /// Bits of the tokens that may come, 32 a word, the lowest bit first; end tokens exactly where the text may end.
    ///
    /// # Errors
    /// Where the grammar is too large to go on.
    pub fn allowed(&mut self) -> Result<&[u32]> {
        bail!("no grammar yet")
    }

    /// Goes on behind `token`.
    ///
    /// # Errors
    /// Where it was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        bail!("no grammar for {token} yet")
    }

    /// Whether nothing but the end may come, or it has come.
    pub fn finished(&self) -> bool {
        false
    }
}
