//! Bytes of each token.
use std::collections::HashMap;
use std::ops::Range;

use tokenizers::Tokenizer;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

/// SentencePiece's substitute for a space.
const SPACE: &str = "\u{2581}";

/// Encoding of bytes in the text of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteEncoding {
    /// Byte-level: each character represents a byte, as in GPT-2.
    Bytes,
    /// SentencePiece: plain text, except for [`SPACE`] and bytes written as `<0x41>`.
    SentencePiece,
    /// Words that are separated by spaces.
    Words,
}

/// Bytes of all tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// Byte range of each token; empty for unused ids.
    ranges: Vec<Range<u32>>,
    special: Vec<bool>,
    /// If true, decoding drops a space at the start of a text, which the tokenizer inserted.
    drops_first_space: bool,
}

impl TokenBytes {
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let (encoding, drops_first_space) = encoding(tokenizer.get_decoder());
        let vocabulary = tokenizer.get_vocab(true);
        let added = tokenizer.get_added_tokens_decoder();
        let width = vocabulary.values().max().map_or(0, |last| *last as usize + 1);
        let byte_of: HashMap<char, u8> = byte_characters().collect();
        let mut texts: Vec<Option<&str>> = vec![None; width];
        for (text, id) in &vocabulary {
            texts[*id as usize] = Some(text);
        }
        let mut tokens =
            Self { bytes: Vec::new(), ranges: Vec::new(), special: vec![false; width], drops_first_space };
        for (id, text) in (0u32..).zip(texts) {
            let start = tokens.bytes.len() as u32;
            let added = added.get(&id);
            if let Some(special) = added.filter(|added| added.special) {
                tokens.special[id as usize] = true;
                tokens.bytes.extend_from_slice(special.content.as_bytes());
            } else if let Some(text) = added.map(|added| added.content.as_str()).or(text) {
                tokens.extend(text, encoding, &byte_of);
            }
            tokens.ranges.push(start..tokens.bytes.len() as u32);
        }
        tokens
    }

    fn extend(&mut self, text: &str, encoding: ByteEncoding, byte_of: &HashMap<char, u8>) {
        match encoding {
            ByteEncoding::Bytes => {
                let bytes: Option<Vec<u8>> = text.chars().map(|c| byte_of.get(&c).copied()).collect();
                self.bytes.extend(bytes.unwrap_or_else(|| text.into()));
            }
            ByteEncoding::SentencePiece => match parse_byte(text) {
                Some(byte) => self.bytes.push(byte),
                None => self.bytes.extend(text.replace(SPACE, " ").into_bytes()),
            },
            ByteEncoding::Words => {
                self.bytes.push(b' ');
                self.bytes.extend_from_slice(text.as_bytes());
            }
        }
    }

    /// Returns the number of token ids, including unused ones.
    pub(super) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the bytes of a token, including special tokens; `None` if there is no such token.
    pub(super) fn bytes(&self, token: u32) -> Option<&[u8]> {
        let range = self.ranges.get(token as usize)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }

    /// Returns the bytes that a token adds to a text: none for special and unknown tokens.
    pub(super) fn visible_bytes(&self, token: u32) -> &[u8] {
        if self.is_special(token) { &[] } else { self.bytes(token).unwrap_or_default() }
    }

    pub(super) fn is_special(&self, token: u32) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }

    pub(super) fn drops_first_space(&self) -> bool {
        self.drops_first_space
    }
}

fn encoding(decoder: Option<&DecoderWrapper>) -> (ByteEncoding, bool) {
    match decoder {
        None => (ByteEncoding::Words, true),
        Some(DecoderWrapper::ByteLevel(_)) => (ByteEncoding::Bytes, false),
        Some(DecoderWrapper::Metaspace(space)) => {
            (ByteEncoding::SentencePiece, space.get_prepend_scheme() != PrependScheme::Never)
        }
        Some(DecoderWrapper::Strip(strip)) => {
            (ByteEncoding::SentencePiece, strip.content == ' ' && strip.start > 0)
        }
        Some(DecoderWrapper::Sequence(sequence)) => {
            let parts = sequence.get_decoders().iter().map(|decoder| encoding(Some(decoder)));
            let all = (ByteEncoding::SentencePiece, false);
            parts.fold(all, |(encoding, drops), (part, drop)| {
                (if part == ByteEncoding::Bytes { part } else { encoding }, drops || drop)
            })
        }
        Some(_) => (ByteEncoding::SentencePiece, false),
    }
}

/// Parses a byte written as `<0x41>`.
fn parse_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns GPT-2's characters for bytes: printable bytes represent themselves, the others start at U+0100.
fn byte_characters() -> impl Iterator<Item = (char, u8)> {
    let printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0u8..=255).filter(move |byte| !printable(byte));
    let others = (256u32..).zip(others).filter_map(|(code, byte)| Some((char::from_u32(code)?, byte)));
    (0u8..=255).filter(printable).map(|byte| (char::from(byte), byte)).chain(others)
}
