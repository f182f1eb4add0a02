//! Prompts at the beginning of texts, for the field `echo` of completions.
use llm_engine::text::TextCodec;

/// A prompt that is repeated at the beginning of its texts.
#[derive(Clone, Debug)]
pub struct Echo {
    /// Text of the prompt.
    pub text: String,
    /// First token.
    pub first: u32,
    /// Number of characters of the tokens before the text: a space that the tokenizer inserted.
    pub inserted: usize,
}

impl Echo {
    /// Creates the echo of each prompt. `texts` are the prompts as requested; without them, the tokens are decoded.
    pub fn all(codec: &TextCodec, prompts: &[Vec<u32>], texts: Vec<String>) -> Vec<Self> {
        let mut texts = texts.into_iter();
        let echo = |prompt: &Vec<u32>| {
            let text = texts.next().unwrap_or_else(|| codec.decode(prompt).unwrap_or_default());
            let characters = prompt.iter().map(|token| width(codec, *token, false)).sum::<usize>();
            let inserted = characters.saturating_sub(text.chars().count()).min(1);
            Self { text, first: prompt.first().copied().unwrap_or(0), inserted }
        };
        prompts.iter().map(echo).collect()
    }
}

/// Returns the number of characters that begin in a token; 0 for special tokens, unless texts contain them.
pub fn width(codec: &TextCodec, token: u32, special_tokens: bool) -> usize {
    if codec.is_special(token) && !special_tokens {
        return 0;
    }
    let bytes = codec.token_bytes(token).unwrap_or_default();
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}
