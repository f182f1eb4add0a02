//! WordPiece tokenizers of BERT from GGUF metadata.
use anyhow::{Context, Error, Result};
use tokenizers::Tokenizer;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::template::TemplateProcessing;

use super::gguf_metadata::Metadata;

/// Prefix of tokens in the file that begin a word.
const WORD_START: &str = "\u{2581}";
/// Prefix of tokens in the tokenizer that continue a word.
const CONTINUATION: &str = "##";

/// Builds the tokenizer. Control tokens have the flag `is_control`.
///
/// # Errors
/// Returns an error if the file names no tokens that begin and end a text.
pub(super) fn tokenizer(metadata: &Metadata, tokens: &[String], is_control: &[bool]) -> Result<Tokenizer> {
    let piece = |(token, is_control): (&String, &bool)| match (token.strip_prefix(WORD_START), is_control) {
        (_, true) => token.clone(),
        (Some(word), false) => word.to_owned(),
        (None, false) => format!("{CONTINUATION}{token}"),
    };
    let pieces: Vec<String> = tokens.iter().zip(is_control).map(piece).collect();
    let special = |keys: &[&str]| -> Result<(String, u32)> {
        let id = keys.iter().find_map(|key| metadata.token(key));
        let id = id.with_context(|| format!("the metadata tokenizer.ggml.{} is missing", keys[0]))?;
        let piece = pieces.get(id as usize).with_context(|| format!("there is no token {id}"))?;
        Ok((piece.clone(), id))
    };
    let first = special(&["cls_token_id", "bos_token_id"])?;
    // llama.cpp's name of the key lacks a letter.
    let last = special(&["seperator_token_id", "separator_token_id", "eos_token_id"])?;
    let unknown = special(&["unknown_token_id"])?;
    // Files do not state whether texts are converted to lowercase.
    let is_lowercase =
        pieces.iter().zip(is_control).all(|(piece, control)| *control || !piece.contains(char::is_uppercase));

    let vocabulary = (0u32..).zip(&pieces).map(|(id, piece)| (piece.clone(), id));
    let model = WordPiece::builder()
        .vocab(vocabulary.collect::<Vocab>())
        .unk_token(unknown.0)
        .continuing_subword_prefix(CONTINUATION.into())
        .build()
        .map_err(Error::msg)?;
    let mut tokenizer = Tokenizer::new(model);
    let normalizer = BertNormalizer::new(true, true, None, is_lowercase);
    tokenizer.with_normalizer(Some(normalizer)).map_err(Error::msg)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer.with_decoder(Some(WordPieceDecoder::new(CONTINUATION.into(), true)));
    let (one, two) = (&first.0, &last.0);
    let mut builder = TemplateProcessing::builder();
    builder.try_single(format!("{one} $A {two}")).map_err(Error::msg)?;
    builder.try_pair(format!("{one} $A {two} $B:1 {two}:1")).map_err(Error::msg)?;
    builder.special_tokens(vec![first.clone(), last.clone()]);
    tokenizer.with_post_processor(Some(builder.build()?));
    Ok(tokenizer)
}
