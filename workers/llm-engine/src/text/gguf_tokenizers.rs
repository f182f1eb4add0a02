//! Tokenizers from GGUF metadata: `llama` (SentencePiece scores), `gpt2` and `gemma4` (byte-pair encoding), `bert`
//! (WordPiece), and `t5` (unigrams).
use std::cmp::Reverse;

use anyhow::{Context, Error, Result, bail, ensure};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::gguf_metadata::Metadata;
use super::pre_tokenizers::PreTokenizer;
use super::{unigram, wordpiece};

/// SentencePiece's substitute for a space.
const SPACE: &str = "\u{2581}";
/// Values of `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Remedy for unsupported tokenizers.
const REMEDY: &str = "use the model's folder of safetensors instead, which has a tokenizer.json";

/// Builds the tokenizer. Tokens in `special` are treated as control tokens, whatever their declared type.
///
/// # Errors
/// Returns an error if a key is missing or has an unsupported value.
pub(super) fn tokenizer(metadata: &Metadata, special: &[&str]) -> Result<Tokenizer> {
    let tokens = metadata.texts("tokens")?;
    let mut types = metadata.numbers("token_type")?;
    ensure!(tokens.len() == types.len(), "{} tokens and {} types do not match", tokens.len(), types.len());
    for (token, kind) in tokens.iter().zip(&mut types) {
        if special.contains(&token.as_str()) {
            *kind = CONTROL;
        }
    }
    let (mut tokenizer, bos) = match metadata.name("model") {
        Some("llama") => (sentence_piece(metadata, &tokens, &types)?, true),
        Some("gpt2") => {
            let name = metadata.name("pre").unwrap_or("default");
            let pre = PreTokenizer::named(name);
            let pre = pre.with_context(|| format!("the pre-tokenizer {name:?} is not known: {REMEDY}"))?;
            (byte_pairs(metadata, &tokens, &types, pre)?, pre.bos)
        }
        Some(name @ "gemma4") => {
            let pre = PreTokenizer::named(name).with_context(|| format!("no pre-tokenizer {name}"))?;
            (byte_pairs(metadata, &tokens, &types, pre)?, pre.bos)
        }
        Some("bert") => {
            let is_control: Vec<bool> = types.iter().map(|kind| [CONTROL, UNKNOWN].contains(kind)).collect();
            let mut tokenizer = wordpiece::tokenizer(metadata, &tokens, &is_control)?;
            add_tokens(&mut tokenizer, &tokens, &types)?;
            return Ok(tokenizer);
        }
        Some("t5") => {
            let mut tokenizer = unigram::tokenizer(metadata, &tokens)?;
            add_tokens(&mut tokenizer, &tokens, &types)?;
            return Ok(tokenizer);
        }
        kind => bail!(
            "the tokenizer type {kind:?} is not known; supported are llama, gpt2, gemma4, bert and t5: {REMEDY}"
        ),
    };
    add_tokens(&mut tokenizer, &tokens, &types)?;
    add_bos_eos(&mut tokenizer, metadata, &tokens, bos)?;
    Ok(tokenizer)
}

/// Builds a SentencePiece tokenizer: the adjacent pair with the highest score is merged first.
fn sentence_piece(metadata: &Metadata, tokens: &[String], types: &[i64]) -> Result<Tokenizer> {
    let scores = metadata.scores("scores")?;
    ensure!(tokens.len() == scores.len(), "{} tokens and {} scores do not match", tokens.len(), scores.len());
    let vocabulary = vocabulary_of(tokens);
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| types[*id] == NORMAL) {
        for (middle, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(middle);
            if vocabulary.contains_key(left) && vocabulary.contains_key(right) {
                merges.push((id, left.to_owned(), right.to_owned()));
            }
        }
    }
    merges.sort_by(|a, b| scores[b.0].total_cmp(&scores[a.0]).then(a.0.cmp(&b.0)));
    let merges = merges.into_iter().map(|(_, left, right)| (left, right)).collect();

    let builder = BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(true).fuse_unk(true);
    let mut tokenizer = build(builder, tokens, types)?;

    set_space_handling(&mut tokenizer, metadata.flag("add_space_prefix").unwrap_or(true))?;
    Ok(tokenizer)
}

/// Replaces spaces by [`SPACE`], and adds one before the text if `prefix`. Decodes them, and bytes written as `<0x41>`.
fn set_space_handling(tokenizer: &mut Tokenizer, prefix: bool) -> Result<()> {
    let spaces = Replace::new(" ", SPACE).map_err(Error::msg)?.into();
    let back = Replace::new(SPACE, " ").map_err(Error::msg)?.into();
    let mut normalizers = vec![spaces];
    let mut decoders = vec![back, ByteFallback::new().into(), Fuse::new().into()];
    if prefix {
        normalizers.insert(0, Prepend::new(SPACE.into()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).map_err(Error::msg)?;
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    Ok(())
}

/// Builds a tokenizer that merges pairs in the order of a list.
fn byte_pairs(
    metadata: &Metadata,
    tokens: &[String],
    types: &[i64],
    pre: &PreTokenizer,
) -> Result<Tokenizer> {
    let merges = metadata.texts("merges")?.into_iter().map(|merge| {
        // The first character may itself be a space.
        let second = merge.char_indices().nth(1).map_or(merge.len(), |(second, _)| second);
        match merge[second..].split_once(' ') {
            Some((_, right)) => Ok((merge[..merge.len() - right.len() - 1].to_owned(), right.to_owned())),
            None => bail!("the merge {merge:?} is not a pair of tokens"),
        }
    });
    let builder = BPE::builder().vocab_and_merges(vocabulary_of(tokens), merges.collect::<Result<Vec<_>>>()?);
    let builder = builder.byte_fallback(pre.plain_text).fuse_unk(pre.plain_text);
    let mut tokenizer = build(builder.ignore_merges(pre.ignore_merges), tokens, types)?;
    if pre.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(Error::msg)?;
    }
    let mut steps = pre.steps()?;
    if pre.plain_text {
        set_space_handling(&mut tokenizer, false)?;
    } else {
        steps.push(ByteLevel::new(false, true, false).into());
        tokenizer.with_decoder(Some(ByteLevel::new(false, true, false)));
    }
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(steps)));
    Ok(tokenizer)
}

/// Builds the tokenizer, with its unknown token if there is one.
fn build(builder: BpeBuilder, tokens: &[String], types: &[i64]) -> Result<Tokenizer> {
    let unknown = types.iter().position(|kind| *kind == UNKNOWN);
    let builder = match unknown {
        Some(unknown) => builder.unk_token(tokens[unknown].clone()),
        None => builder,
    };
    Ok(Tokenizer::new(builder.build().map_err(Error::msg)?))
}

fn vocabulary_of(tokens: &[String]) -> Vocab {
    (0u32..).zip(tokens).map(|(id, token)| (token.clone(), id)).collect()
}

/// Adds the tokens that are matched before the text is split.
fn add_tokens(tokenizer: &mut Tokenizer, tokens: &[String], types: &[i64]) -> Result<()> {
    // Longest first, so that no token matches a prefix of another.
    let mut added: Vec<(&String, &i64)> = tokens.iter().zip(types).collect();
    added.sort_by_key(|(token, _)| Reverse(token.len()));
    let added_tokens = |kinds: &[i64], special: bool| -> Vec<AddedToken> {
        let chosen = added.iter().filter(|(token, kind)| kinds.contains(kind) && !token.is_empty());
        chosen.map(|(token, _)| AddedToken::from((*token).clone(), special).normalized(false)).collect()
    };
    tokenizer.add_special_tokens(added_tokens(&[CONTROL, UNKNOWN], true)).map_err(Error::msg)?;
    tokenizer.add_tokens(added_tokens(&[USER_DEFINED], false)).map_err(Error::msg)?;
    Ok(())
}

/// Adds the BOS and EOS tokens around each text.
fn add_bos_eos(tokenizer: &mut Tokenizer, metadata: &Metadata, tokens: &[String], bos: bool) -> Result<()> {
    let token = |add: &str, default: bool, key: &str| -> Option<(String, u32)> {
        let id = metadata.token(key).filter(|_| metadata.flag(add).unwrap_or(default))?;
        Some((tokens.get(id as usize)?.clone(), id))
    };
    let first = token("add_bos_token", bos, "bos_token_id");
    let last = token("add_eos_token", false, "eos_token_id");
    let name = |token: &Option<(String, u32)>| token.as_ref().map(|(token, _)| token.clone());
    let template: Vec<String> = name(&first).into_iter().chain(["$0".into()]).chain(name(&last)).collect();
    let mut builder = TemplateProcessing::builder();
    builder.try_single(template).map_err(Error::msg)?;
    if let Some(end) = name(&last) {
        // Texts of a pair are separated as in ModernBERT, the only such family with classifiers of pairs.
        let second = ["$A".into(), end.clone(), "$B:1".into(), format!("{end}:1")];
        let pair: Vec<String> = name(&first).into_iter().chain(second).collect();
        builder.try_pair(pair).map_err(Error::msg)?;
    }
    builder.special_tokens(first.into_iter().chain(last).collect::<Vec<_>>());
    let processor = builder.build()?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}
