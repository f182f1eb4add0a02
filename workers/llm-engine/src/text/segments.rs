//! Tokenization of single texts and pairs of texts for embeddings and scores, with truncation.
use anyhow::{Context, Error, Result, ensure};
use serde_json::json;
use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};
use tokenizers::{Encoding, PostProcessor};

use super::{Conversation, TextCodec};

/// Roles of messages in chat templates of rerankers, as these templates compare them.
const DOCUMENT_ROLES: [&str; 2] = ["\"document\"", "'document'"];
/// Placeholders of the texts in the prompt of a GGUF file.
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

impl TextCodec {
    /// Tokenizes a text with the tokens that the model expects around it. Truncates the text at its end so that the
    /// result has at most `limit` tokens.
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
        self.encode_instructed_pair(None, first, second, limit)
    }

    /// Like [`TextCodec::encode_pair`], with an instruction for rerankers that are prompted. In their prompts, only
    /// the second text is truncated.
    ///
    /// # Errors
    /// See [`TextCodec::encode_truncated`]; also returns an error if the limit leaves no space for the second text.
    pub fn encode_instructed_pair(
        &self,
        instruction: Option<&str>,
        first: &str,
        second: &str,
        limit: Option<usize>,
    ) -> Result<(Vec<u32>, usize)> {
        if self.is_prompted() {
            let tokens = self.encode_prompted(instruction, first, second, limit)?;
            let count = tokens.len();
            return Ok((tokens, count));
        }
        let encoding = self.encode_segments(first, Some(second), limit)?;
        let segments = encoding.get_type_ids();
        let second_start = segments.iter().position(|segment| *segment == 1).unwrap_or(segments.len());
        Ok((encoding.get_ids().to_vec(), second_start))
    }

    /// Returns true if pairs of texts are part of a prompt.
    fn is_prompted(&self) -> bool {
        self.pair_prompt.is_some() || self.has_pair_template()
    }

    /// Returns true if the prompts of pairs may contain an instruction.
    pub fn has_pair_template(&self) -> bool {
        let template = self.template.as_ref().filter(|_| self.pair_prompt.is_none());
        template.is_some_and(|template| DOCUMENT_ROLES.iter().any(|role| template.contains(role)))
    }

    fn encode_prompted(
        &self,
        instruction: Option<&str>,
        first: &str,
        second: &str,
        limit: Option<usize>,
    ) -> Result<Vec<u32>> {
        let encode = |second: &str| self.encode(&self.pair_text(instruction, first, second)?, false);
        let mut tokens = encode(second)?;
        let Some(limit) = limit.filter(|limit| tokens.len() > *limit) else { return Ok(tokens) };
        let mut kept = self.encode(second, false)?;
        // A cut may change the number of tokens, because the rest is tokenized again.
        while tokens.len() > limit {
            let excess = tokens.len() - limit;
            ensure!(
                kept.len() > excess,
                "{limit} tokens are not enough: the prompt without the second text has {}",
                tokens.len().saturating_sub(kept.len())
            );
            kept.truncate(kept.len() - excess);
            tokens = encode(self.decode(&kept)?.trim_end_matches('\u{FFFD}'))?;
        }
        Ok(tokens)
    }

    /// Returns the prompt for a pair of texts.
    fn pair_text(&self, instruction: Option<&str>, first: &str, second: &str) -> Result<String> {
        if let Some(prompt) = &self.pair_prompt {
            let parts: Vec<String> = prompt.split(DOCUMENT).map(|part| part.replace(QUERY, first)).collect();
            return Ok(parts.join(second));
        }
        let template = self.template.as_ref().context("internal error: no template for pairs")?;
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let system = instruction.map(|instruction| message("system", instruction));
        let texts = [message("query", first), message("document", second)];
        let messages: Vec<_> = system.into_iter().chain(texts).collect();
        template.render(&Conversation { messages: &messages, tools: &[], variables: None })
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
