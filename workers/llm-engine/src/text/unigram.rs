//! Unigram tokenizers of XLM-R from GGUF metadata.
use anyhow::{Context, Error, Result, ensure};
use tokenizers::Tokenizer;
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::Precompiled;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::template::TemplateProcessing;

use super::gguf_metadata::Metadata;

/// Metadata key of SentencePiece's compiled character map.
const CHARACTER_MAP: &str = "precompiled_charsmap";

/// Builds the tokenizer.
///
/// # Errors
/// Returns an error if a key is missing, or if white space is not treated as in XLM-R.
pub(super) fn tokenizer(metadata: &Metadata, tokens: &[String]) -> Result<Tokenizer> {
    for key in ["add_space_prefix", "remove_extra_whitespaces"] {
        ensure!(metadata.flag(key) != Some(false), "tokenizer.ggml.{key} is false, which is not supported");
    }
    let scores = metadata.scores("scores")?;
    ensure!(tokens.len() == scores.len(), "{} tokens and {} scores do not match", tokens.len(), scores.len());
    let token = |key: &str| {
        let id = metadata.token(key).with_context(|| format!("the metadata tokenizer.ggml.{key} is missing"));
        id.and_then(|id| {
            Ok((tokens.get(id as usize).with_context(|| format!("there is no token {id}"))?, id))
        })
    };
    let ((first, first_id), (last, last_id)) = (token("bos_token_id")?, token("eos_token_id")?);
    let (_, unknown) = token("unknown_token_id")?;
    let vocabulary = tokens.iter().cloned().zip(scores.into_iter().map(f64::from)).collect();
    let model = Unigram::from(vocabulary, Some(unknown as usize), false);
    let mut tokenizer = Tokenizer::new(model.map_err(|error| Error::msg(error.to_string()))?);
    if metadata.get(CHARACTER_MAP).is_some() {
        let bytes: Vec<u8> = metadata.numbers(CHARACTER_MAP)?.into_iter().map(|byte| byte as u8).collect();
        let map = Precompiled::from(&bytes);
        let map = map.map_err(|error| Error::msg(format!("tokenizer.ggml.{CHARACTER_MAP}: {error}")))?;
        tokenizer.with_normalizer(Some(map)).map_err(Error::msg)?;
    }
    let words = || Metaspace::new('\u{2581}', PrependScheme::Always, true);
    let steps = vec![WhitespaceSplit.into(), words().into()];
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(steps)));
    tokenizer.with_decoder(Some(words()));
    let mut builder = TemplateProcessing::builder();
    builder.try_single(format!("{first} $A {last}")).map_err(Error::msg)?;
    builder.try_pair(format!("{first} $A {last} {last} $B {last}")).map_err(Error::msg)?;
    builder.special_tokens(vec![(first.clone(), first_id), (last.clone(), last_id)]);
    tokenizer.with_post_processor(Some(builder.build()?));
    Ok(tokenizer)
}
