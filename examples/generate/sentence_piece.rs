//! The tokenizer of GGUF files that say `llama`: SentencePiece, pieces with scores and no list of merges.
use std::cmp::Reverse;

use anyhow::{Context, Error, Result, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use crate::vocabulary::gguf_token;

/// What stands for a space.
const SPACE: &str = "\u{2581}";
/// Values of `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Joins the pair of neighbours first whose whole has the highest score, as SentencePiece does.
pub fn tokenizer(content: &Content) -> Result<Tokenizer> {
    let tokens = array(content, "tokens", |value| value.to_string().cloned())?;
    let scores = array(content, "scores", Value::to_f32)?;
    let types = array(content, "token_type", |value| match value {
        Value::I32(kind) => Ok((*kind).into()),
        value => value.to_u64().map(|kind| kind as i64),
    })?;
    ensure!(
        tokens.len() == scores.len() && tokens.len() == types.len(),
        "{} tokens, {} scores and {} types do not fit together",
        tokens.len(),
        scores.len(),
        types.len()
    );
    let vocabulary: Vocab = (0u32..).zip(&tokens).map(|(id, token)| (token.clone(), id)).collect();
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

    let mut builder = BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(true).fuse_unk(true);
    if let Some(unknown) = types.iter().position(|kind| *kind == UNKNOWN) {
        builder = builder.unk_token(tokens[unknown].clone());
    }
    let mut tokenizer = Tokenizer::new(builder.build().map_err(Error::msg)?);

    let spaces = Replace::new(" ", SPACE).map_err(Error::msg)?.into();
    let back = Replace::new(SPACE, " ").map_err(Error::msg)?.into();
    let mut normalizers = vec![spaces];
    let mut decoders = vec![back, ByteFallback::new().into(), Fuse::new().into()];
    if flag(content, "add_space_prefix", true)? {
        normalizers.insert(0, Prepend::new(SPACE.into()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).map_err(Error::msg)?;
    tokenizer.with_decoder(Some(Decoders::new(decoders)));

    // Longer ones first, so that none is taken for the start of another.
    let mut added: Vec<(&String, i64)> = tokens.iter().zip(types).collect();
    added.sort_by_key(|(token, _)| Reverse(token.len()));
    let of = |kinds: &[i64]| -> Vec<AddedToken> {
        let chosen = added.iter().filter(|(_, kind)| kinds.contains(kind));
        chosen
            .map(|(token, kind)| AddedToken::from((*token).clone(), *kind != USER_DEFINED).normalized(false))
            .collect()
    };
    tokenizer.add_special_tokens(of(&[CONTROL, UNKNOWN])).map_err(Error::msg)?;
    tokenizer.add_tokens(of(&[USER_DEFINED])).map_err(Error::msg)?;

    let frame = |add: &str, default, key| -> Result<Option<(String, u32)>> {
        let id = gguf_token(content, key).filter(|id| (*id as usize) < tokens.len());
        Ok(id
            .filter(|_| flag(content, add, default).unwrap_or(default))
            .map(|id| (tokens[id as usize].clone(), id)))
    };
    let first = frame("add_bos_token", true, "bos_token_id")?;
    let last = frame("add_eos_token", false, "eos_token_id")?;
    let pieces = first.iter().map(|(token, _)| token.clone());
    let pieces: Vec<String> =
        pieces.chain(["$0".into()]).chain(last.iter().map(|(token, _)| token.clone())).collect();
    let template = TemplateProcessing::builder()
        .try_single(pieces)
        .map_err(Error::msg)?
        .special_tokens(first.into_iter().chain(last).collect::<Vec<_>>())
        .build()?;
    tokenizer.with_post_processor(Some(template));
    Ok(tokenizer)
}

fn array<T>(content: &Content, key: &str, item: impl Fn(&Value) -> candle_core::Result<T>) -> Result<Vec<T>> {
    let key = format!("tokenizer.ggml.{key}");
    let values = content.metadata.get(&key).with_context(|| format!("there is no {key}"))?;
    let items = values.to_vec().and_then(|values| values.iter().map(item).collect());
    items.with_context(|| format!("the metadata {key}"))
}

fn flag(content: &Content, key: &str, default: bool) -> Result<bool> {
    let key = format!("tokenizer.ggml.{key}");
    content
        .metadata
        .get(&key)
        .map_or(Ok(default), |value| value.to_bool())
        .with_context(|| format!("the metadata {key}"))
}
