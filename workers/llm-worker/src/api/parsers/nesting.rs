//! The end of a nested value of JSON or Python.

/// Text before and after each string of Gemma 4, which has no escapes.
pub(super) const RAW_QUOTE: &str = "<|\"|>";

/// Nesting at a position of a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nesting {
    depth: usize,
    /// Sign that ends the current string.
    quote: Option<u8>,
    escaped: bool,
    /// Number of bytes of [`RAW_QUOTE`] before the position. `None` if strings are quoted as in JSON or Python.
    raw_quote: Option<usize>,
    is_raw: bool,
}

impl Nesting {
    /// Starts within `depth` open brackets.
    pub(super) fn within(depth: usize) -> Self {
        Self { depth, ..Self::default() }
    }

    /// Starts within an open bracket of a value whose strings are between [`RAW_QUOTE`]s.
    pub(super) fn raw() -> Self {
        Self { raw_quote: Some(0), ..Self::within(1) }
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
        if let Some(matched) = &mut self.raw_quote {
            let quote = RAW_QUOTE.as_bytes();
            *matched = if byte == quote[*matched] { *matched + 1 } else { usize::from(byte == quote[0]) };
            if *matched == quote.len() {
                *matched = 0;
                self.is_raw = !self.is_raw;
            }
        }
        match byte {
            _ if self.is_raw => {}
            b'"' | b'\'' if self.raw_quote.is_none() => self.quote = Some(byte),
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
