//! The end of a nested value of JSON or Python.

/// Nesting at a position of a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nesting {
    depth: usize,
    /// Sign that ends the current string.
    quote: Option<u8>,
    escaped: bool,
}

impl Nesting {
    /// Starts within `depth` open brackets.
    pub(super) fn within(depth: usize) -> Self {
        Self { depth, ..Self::default() }
    }

    /// Returns the number of open brackets.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns true within a string.
    pub(super) fn is_string(&self) -> bool {
        self.quote.is_some()
    }

    /// Advances by a byte. Returns true if it closes the outermost bracket.
    pub(super) fn advance(&mut self, byte: u8) -> bool {
        if let Some(quote) = self.quote {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                byte if byte == quote => self.quote = None,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' | b'\'' => self.quote = Some(byte),
            b'{' | b'[' | b'(' => self.depth += 1,
            b'}' | b']' | b')' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}
