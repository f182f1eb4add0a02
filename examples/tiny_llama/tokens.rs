//! Trains the tokenizer on generated stories, and prepares token sequences for training.
use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::sequence::Sequence as Processors;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::grammar::Grammar;

/// Number of tokens in the vocabulary.
pub const VOCABULARY: usize = 512;
/// Replaces characters outside the vocabulary.
pub const UNKNOWN: (&str, u32) = ("<unk>", 0);
/// First token of each text.
pub const BEGIN: (&str, u32) = ("<s>", 1);
/// Last token of each text.
pub const END: (&str, u32) = ("</s>", 2);

/// Name of this pre-tokenizer in GGUF files.
pub const PRE_TOKENIZER: &str = "llama3";
/// Regular expression of `llama3`'s pre-tokens: words with the preceding space, up to three digits, punctuation, or spaces.
const WORDS: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Number of stories that the tokenizer is trained on.
const STORIES: u64 = 1500;

/// Trains a byte-pair encoding on stories. The result is deterministic.
///
/// # Errors
/// If the tokenizers library fails, or the vocabulary has another size than [`VOCABULARY`].
pub fn learn_tokenizer(grammar: &Grammar) -> Result<Tokenizer> {
    let specials = [UNKNOWN, BEGIN, END].map(|(name, _)| AddedToken::from(name, true));
    let bpe = BPE::builder().unk_token(UNKNOWN.0.to_string()).ignore_merges(true);
    let mut tokenizer = Tokenizer::new(bpe.build().map_err(failed)?);
    let split = Split::new(SplitPattern::Regex(WORDS.to_string()), SplitDelimiterBehavior::Isolated, false);
    let bytes = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.map_err(failed)?.into(), bytes.into()])));
    tokenizer.with_decoder(Some(ByteLevel::new(true, true, true)));
    let begin = TemplateProcessing::builder()
        .try_single(vec![BEGIN.0, "$0"])
        .and_then(|template| {
            template.try_pair(vec![
                format!("{}:0", BEGIN.0),
                "$A:0".to_string(),
                format!("{}:1", BEGIN.0),
                "$B:1".to_string(),
            ])
        })
        .map_err(anyhow::Error::msg)?
        .special_tokens(vec![BEGIN])
        .build()?;
    let processors: Vec<PostProcessorWrapper> = vec![ByteLevel::new(true, false, true).into(), begin.into()];
    tokenizer.with_post_processor(Some(Processors::new(processors)));

    // The byte-level encoding maps a space to `Ġ` and other printable ASCII characters to themselves.
    let alphabet = ('!'..='~').chain(['Ġ']).collect();
    let trainer = BpeTrainer::builder()
        .vocab_size(VOCABULARY)
        .special_tokens(specials.to_vec())
        .initial_alphabet(alphabet)
        .show_progress(false)
        .build();
    let stories = (0..STORIES).map(|seed| grammar.story(&mut StdRng::seed_from_u64(seed)));
    tokenizer.train(&mut TrainerWrapper::from(trainer), stories).map_err(failed)?;
    tokenizer.add_special_tokens(specials).map_err(failed)?;
    let count = tokenizer.get_vocab_size(true);
    ensure!(count == VOCABULARY, "the vocabulary has {count} tokens, expected {VOCABULARY}");
    Ok(tokenizer)
}

/// Returns `rows` rows of `length` tokens. Each starts at the beginning of a story.
///
/// # Errors
/// If the tokenizer fails.
pub fn pack(
    grammar: &Grammar,
    tokenizer: &Tokenizer,
    rng: &mut StdRng,
    rows: usize,
    length: usize,
) -> Result<Vec<u32>> {
    let mut tokens = Vec::with_capacity(rows * length);
    for row in 1..=rows {
        while tokens.len() < row * length {
            let story = tokenizer.encode_fast(grammar.story(rng), true).map_err(failed)?;
            tokens.extend_from_slice(story.get_ids());
            tokens.push(END.1);
        }
        tokens.truncate(row * length);
    }
    Ok(tokens)
}

/// Decodes tokens, without the special ones.
///
/// # Errors
/// If the tokenizer fails.
pub fn text(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
    tokenizer.decode(tokens, true).map_err(failed)
}

/// Encodes a text; the first token is [`BEGIN`].
///
/// # Errors
/// If the tokenizer fails.
pub fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(text, true).map_err(failed);
    Ok(encoding.with_context(|| format!("cannot tokenize '{text}'"))?.get_ids().to_vec())
}

fn failed(error: tokenizers::Error) -> anyhow::Error {
    anyhow::anyhow!("tokenizer: {error}")
}
