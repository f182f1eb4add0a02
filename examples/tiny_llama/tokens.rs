//! The tokenizer of the model, learnt from texts of the grammar, and token sequences to train on.
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

/// Tokens of the vocabulary.
pub const VOCABULARY: usize = 512;
/// Stands for what the vocabulary cannot spell.
pub const UNKNOWN: (&str, u32) = ("<unk>", 0);
/// Begins each text.
pub const BEGIN: (&str, u32) = ("<s>", 1);
/// Ends each text.
pub const END: (&str, u32) = ("</s>", 2);

/// What GGUF files call this way of cutting text into words.
pub const PRE_TOKENIZER: &str = "llama3";
/// Words with the space before them, up to three digits, other marks, and spaces, as `llama3` cuts them.
const WORDS: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Stories that the vocabulary is learnt from.
const STORIES: u64 = 1500;

/// Learns byte pairs from stories; the same at each call.
///
/// # Errors
/// If the tokenizers library refuses, or the vocabulary does not come out at its size.
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

    // A space is spelled `Ġ` there, other printable characters stand for themselves.
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
    ensure!(count == VOCABULARY, "the vocabulary has {count} tokens, not {VOCABULARY}");
    Ok(tokenizer)
}

/// Rows of `length` tokens, each beginning with a story and going on with others.
///
/// # Errors
/// If the tokenizer refuses a story.
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

/// The text of tokens without the special ones.
///
/// # Errors
/// If the tokenizer refuses them.
pub fn text(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
    tokenizer.decode(tokens, true).map_err(failed)
}

/// The tokens of a text, [`BEGIN`] before them.
///
/// # Errors
/// If the tokenizer refuses it.
pub fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(text, true).map_err(failed);
    Ok(encoding.with_context(|| format!("'{text}' has no tokens"))?.get_ids().to_vec())
}

fn failed(error: tokenizers::Error) -> anyhow::Error {
    anyhow::anyhow!("tokenizer: {error}")
}
