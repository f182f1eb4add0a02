//! Tokenization of single texts and pairs of texts for embeddings and scores, with truncation.
use anyhow::{Context, Error, Result, ensure};
use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};
use tokenizers::{Encoding, PostProcessor};

use super::TextCodec;

impl TextCodec {
    /// Tokenizes a text with the tokens that the model expects around it, and keeps its first tokens so that the whole
    /// has at most `limit`.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails, or if `limit` is not more than the number of added tokens.
    pub fn encode_truncated(&self, text: &str, limit: usize) -> Result<Vec<u32>> {
        Ok(self.encode_segments(text, None, Some(limit))?.get_ids().to_vec())
    }

    /// Tokenizes a pair of texts for a cross-encoder. Also returns the index of the first token of the second segment,
    /// which is the number of tokens if the tokenizer does not distinguish segments. With a `limit`, truncates the longer
    /// text, or both to the same length.
    ///
    /// # Errors
    /// See [`TextCodec::encode_truncated`].
    pub fn encode_pair(&self, first: &str, second: &str, limit: Option<usize>) -> Result<(Vec<u32>, usize)> {
        let encoding = self.encode_segments(first, Some(second), limit)?;
        let segments = encoding.get_type_ids();
        let at = segments.iter().position(|segment| *segment == 1).unwrap_or(segments.len());
        Ok((encoding.get_ids().to_vec(), at))
    }

    fn encode_segments(&self, first: &str, second: Option<&str>, limit: Option<usize>) -> Result<Encoding> {
        let tokenizer = self.tokenizer();
        let Some(limit) = limit else {
            let encoded = match second {
                Some(second) => tokenizer.encode_fast((first, second), true),
                None => tokenizer.encode_fast(first, true),
            };
            return encoded.map_err(Error::msg).context("the tokenizer rejected the text");
        };
        let post_processor = tokenizer.get_post_processor();
        let added = post_processor.map_or(0, |post| post.added_tokens(second.is_some()));
        ensure!(limit > added, "{limit} tokens are not enough: the tokenizer adds {added} to a text");
        let encode = |text: &str| {
            let encoded = tokenizer.encode_fast(text, false).map_err(Error::msg);
            encoded.context("the tokenizer rejected the text")
        };
        let (first, mut second) = (encode(first)?, second.map(encode).transpose()?);
        if let Some(second) = &mut second {
            second.set_type_ids(vec![1; second.len()]);
        }
        let params = TruncationParams {
            max_length: limit - added,
            strategy: TruncationStrategy::LongestFirst,
            ..TruncationParams::default()
        };
        let (first, second) = truncate_encodings(first, second, &params).map_err(Error::msg)?;
        tokenizer.post_process(first, second, true).map_err(Error::msg)
    }
}
