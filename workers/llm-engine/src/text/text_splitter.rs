//! Splits long texts where no token can cross, so that tokenizing takes memory for one piece at a time.
//!
//! A text is split before a space between two ASCII letters, if no token of the vocabulary contains the first letter
//! followed by a space. Merges then never cross the split, and the pieces have the tokens of the whole text.
use tokenizers::Tokenizer;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::token_bytes::TokenBytes;

/// SentencePiece's substitute for a space.
const SPACE: &str = "\u{2581}";
/// Minimum length of a piece in bytes. A tokenizer takes about 200 bytes of memory for each byte of text.
const PIECE_BYTES: usize = 32 << 10;
/// Minimum of the length in bytes above which a text is rejected without being tokenized.
const MIN_BYTES: usize = 64 << 10;

/// Limits the length of texts, and splits long ones.
#[derive(Debug)]
pub(super) struct TextSplitter {
    splits: Option<Splits>,
    /// Length of the longest token in bytes; `None` if a token may represent a text of any length.
    longest_token: Option<usize>,
}

#[derive(Debug)]
struct Splits {
    /// For each ASCII letter, true if a text may be split after it.
    after: [bool; 128],
    /// For each ASCII letter, true if a text may be split before the space that precedes it.
    before: [bool; 128],
    /// If true, the tokenizer itself puts a space before a text, which replaces the space at a split.
    drops_space: bool,
}

impl TextSplitter {
    pub(super) fn of(tokenizer: &Tokenizer, tokens: &TokenBytes) -> Self {
        let bytes = || (0u32..).map_while(|token| tokens.bytes(token));
        let is_local = tokenizer.get_normalizer().is_none_or(is_local_normalizer);
        let keeps_text = match tokenizer.get_model() {
            ModelWrapper::BPE(bpe) => bpe.byte_fallback || !bpe.fuse_unk,
            ModelWrapper::Unigram(unigram) => unigram.byte_fallback(),
            ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
        };
        let is_subword = matches!(tokenizer.get_model(), ModelWrapper::BPE(_) | ModelWrapper::Unigram(_));
        let splits_locally = tokenizer.get_pre_tokenizer().is_none_or(is_local_pre_tokenizer);
        let splits = (is_local && is_subword && splits_locally).then(|| Splits::of(tokenizer, bytes()));
        let longest_token = (is_local && keeps_text).then(|| bytes().map(<[u8]>::len).max().unwrap_or(0));
        Self { splits: splits.flatten(), longest_token }
    }

    /// Returns the length in bytes above which a text has more than `tokens` tokens, whatever it contains.
    pub(super) fn max_bytes(&self, tokens: usize) -> usize {
        let longest = self.longest_token.unwrap_or(usize::MAX);
        tokens.saturating_mul(longest).max(MIN_BYTES)
    }

    /// Splits a text into pieces that can be tokenized separately. A piece is long only if it has no split point.
    pub(super) fn pieces<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = Some(text);
        std::iter::from_fn(move || {
            let text = rest?;
            let (piece, more) = match self.splits.as_ref().and_then(|splits| splits.next(text)) {
                Some((end, start)) => (&text[..end], Some(&text[start..])),
                None => (text, None),
            };
            rest = more;
            Some(piece)
        })
    }

    /// Splits a piece anywhere, to estimate its number of tokens. Returns `None` if the piece is short.
    pub(super) fn samples<'a>(&self, piece: &'a str) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
        let mut rest = piece;
        (piece.len() > 4 * PIECE_BYTES).then(move || {
            std::iter::from_fn(move || {
                let end = (PIECE_BYTES..rest.len()).find(|&end| rest.is_char_boundary(end));
                let (sample, more) = rest.split_at(end.unwrap_or(rest.len()));
                rest = more;
                (!sample.is_empty()).then_some(sample)
            })
        })
    }
}

impl Splits {
    fn of<'a>(tokenizer: &Tokenizer, tokens: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let letters = std::array::from_fn(|byte| (byte as u8).is_ascii_alphabetic());
        let drops_space = tokenizer.get_normalizer().is_some_and(prepends_space);
        let mut splits = Self { after: letters, before: letters, drops_space };
        for token in tokens {
            for pair in token.windows(2).filter(|pair| pair[1] == b' ' && pair[0].is_ascii()) {
                splits.after[usize::from(pair[0])] = false;
            }
        }
        // Added tokens are matched before the text is normalized and may take spaces around them.
        for added in tokenizer.get_added_tokens_decoder().values() {
            let content = added.content.as_bytes();
            if let Some(&first) = content.first().filter(|first| first.is_ascii()) {
                splits.before[usize::from(first)] = false;
            }
            if let Some(&last) = content.last().filter(|last| last.is_ascii()) {
                splits.after[usize::from(last)] = false;
            }
        }
        splits.are_valid(tokenizer).then_some(splits)
    }

    /// Returns true if the pieces of an example have the tokens of the whole text.
    fn are_valid(&self, tokenizer: &Tokenizer) -> bool {
        let encode = |text: &str| Some(tokenizer.encode_fast(text, false).ok()?.get_ids().to_vec());
        let first = |table: &[bool; 128]| Some(char::from(table.iter().position(|&allowed| allowed)? as u8));
        let is_valid = || {
            let (left, right) = (first(&self.after)?, first(&self.before)?);
            let (left, right) = (format!("{right} {left}{left}"), format!(" {right}{left} {right}"));
            let rest = if self.drops_space { right.trim_start() } else { &right };
            Some(encode(&format!("{left}{right}"))? == [encode(&left)?, encode(rest)?].concat())
        };
        is_valid().unwrap_or(false)
    }

    /// Returns the end of the first piece and the start of the rest.
    fn next(&self, text: &str) -> Option<(usize, usize)> {
        let bytes = text.as_bytes().get(PIECE_BYTES..)?;
        let allowed = |table: &[bool; 128], byte: u8| table.get(usize::from(byte)).copied().unwrap_or(false);
        let offset = bytes.windows(3).position(|window| {
            window[1] == b' ' && allowed(&self.after, window[0]) && allowed(&self.before, window[2])
        })?;
        let space = PIECE_BYTES + offset + 1;
        Some((space, space + usize::from(self.drops_space)))
    }
}

/// Returns true if the result of a normalizer at one position does not depend on distant parts of the text.
fn is_local_normalizer(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::Sequence(parts) => parts.as_ref().iter().all(is_local_normalizer),
        NormalizerWrapper::Prepend(prepend) => prepend.prepend == SPACE,
        NormalizerWrapper::NFC(_)
        | NormalizerWrapper::NFD(_)
        | NormalizerWrapper::NFKC(_)
        | NormalizerWrapper::NFKD(_)
        | NormalizerWrapper::Replace(_) => true,
        _ => false,
    }
}

fn prepends_space(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::Sequence(parts) => parts.as_ref().iter().any(prepends_space),
        NormalizerWrapper::Prepend(_) => true,
        _ => false,
    }
}

/// Returns true if a pre-tokenizer splits pieces like the whole text, or differs only where that is harmless.
fn is_local_pre_tokenizer(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(parts) => parts.as_ref().iter().all(is_local_pre_tokenizer),
        // Metaspace inserts no space before a piece that starts with one.
        PreTokenizerWrapper::ByteLevel(_)
        | PreTokenizerWrapper::Split(_)
        | PreTokenizerWrapper::Metaspace(_)
        | PreTokenizerWrapper::Digits(_)
        | PreTokenizerWrapper::Punctuation(_) => true,
        _ => false,
    }
}
