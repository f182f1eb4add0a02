//! Settings and results of a batch as 32-bit words, in the layout of the kernel `candle-kernels/sampling.cu`.
use candle_core::{Result, bail};

use super::row::Row;
use super::settings::Sampling;

/// Number of words of a row's settings.
pub(super) const SETTINGS_WORDS: usize = 16;
/// Number of words of a row's result before its most likely tokens.
pub(super) const RESULT_WORDS: usize = 7;
#[cfg(feature = "rocm")]
const _: () = {
    use candle_core::rocm::hip_kernels::contract::{SAMPLE_RESULT_WORDS, SAMPLE_SETTINGS_WORDS};
    assert!(SETTINGS_WORDS == SAMPLE_SETTINGS_WORDS && RESULT_WORDS == SAMPLE_RESULT_WORDS);
};

/// Number of keys per unit of distance: see [`Settings::scale`].
pub(super) const KEY_SCALE: f32 = (1 << 26) as f32;
/// Value of an optional setting or token that is absent.
pub(super) const NONE: u32 = u32::MAX;

const IS_GREEDY: u32 = 1;
const HAS_LOGPROBS: u32 = 2;

/// Settings of a row. Positions are indices of words in the buffer of all settings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    /// Keys per logit. A token's key is the distance of its logit to the largest one in units of
    /// `temperature / 2^26`.
    pub(super) scale: f32,
    /// Random number in units of 2^-32.
    pub(super) draw: u32,
    /// Number of tokens to keep; [`NONE`] for all.
    pub(super) top_k: u32,
    /// Fraction of the weight to keep in units of 2^-32; [`NONE`] for all.
    pub(super) top_p: u32,
    /// Largest key that min-p keeps.
    pub(super) last_key: u32,
    pub(super) is_greedy: bool,
    pub(super) has_logprobs: bool,
    /// Number of most likely tokens to return.
    pub(super) top: u32,
    /// Position of the bits of allowed tokens; 0 if all are allowed.
    pub(super) mask: u32,
    /// Position and number of pairs of a token and its bias.
    pub(super) biases: [u32; 2],
    /// Position and number of pairs of a token and its number of occurrences in the generated text.
    pub(super) occurrences: [u32; 2],
    /// Repetition, presence and frequency penalties.
    pub(super) penalties: [f32; 3],
}

impl Settings {
    fn of(row: &Row, vocabulary: usize) -> Self {
        let sampling = row.sampling;
        let is_greedy = row.is_greedy();
        let fraction = |value: f32| (f64::from(value) * 2f64.powi(32)) as u32;
        Self {
            // A subnormal temperature must not give infinity, since the largest logit has a distance of 0.
            scale: (KEY_SCALE / sampling.temperature).min(f32::MAX),
            draw: fraction(row.draw),
            top_k: sampling.top_k.filter(|k| *k < vocabulary).map_or(NONE, |k| k.max(1) as u32),
            top_p: if sampling.top_p < 1.0 { fraction(sampling.top_p) } else { NONE },
            // -ln(0) is infinity, which saturates.
            last_key: (-f64::from(sampling.min_p).ln() * f64::from(KEY_SCALE)) as u32,
            is_greedy,
            has_logprobs: row.logprobs.is_some(),
            top: row.logprobs.unwrap_or(0).min(vocabulary) as u32,
            penalties: [sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty],
            ..Self::default()
        }
    }

    fn to_words(self) -> [u32; SETTINGS_WORDS] {
        let flags = u32::from(self.is_greedy) * IS_GREEDY + u32::from(self.has_logprobs) * HAS_LOGPROBS;
        let Self { scale, draw, top_k, top_p, last_key, top, mask, .. } = self;
        let mut words = [0; SETTINGS_WORDS];
        words[..8].copy_from_slice(&[scale.to_bits(), draw, top_k, top_p, last_key, flags, top, mask]);
        words[8..12].copy_from_slice([self.biases, self.occurrences].as_flattened());
        words[12..15].copy_from_slice(&self.penalties.map(f32::to_bits));
        words
    }

    /// Reads the settings of a row from the buffer of all settings.
    pub(super) fn read(words: &[u32], row: usize) -> Self {
        let at = |word: usize| words[row * SETTINGS_WORDS + word];
        let float = |word: usize| f32::from_bits(at(word));
        Self {
            scale: float(0),
            draw: at(1),
            top_k: at(2),
            top_p: at(3),
            last_key: at(4),
            is_greedy: at(5) & IS_GREEDY != 0,
            has_logprobs: at(5) & HAS_LOGPROBS != 0,
            top: at(6),
            mask: at(7),
            biases: [at(8), at(9)],
            occurrences: [at(10), at(11)],
            penalties: [12, 13, 14].map(float),
        }
    }
}

/// Returns the pairs at a position: tokens and their biases or numbers.
pub(super) fn pairs(words: &[u32], [begin, count]: [u32; 2]) -> &[[u32; 2]] {
    &words[begin as usize..].as_chunks().0[..count as usize]
}

/// Returns the settings of all rows, followed by the lists and masks of each.
///
/// # Errors
/// Returns an error if a token is not in the vocabulary, a mask allows no token, or there are too many words.
pub(super) fn settings(rows: &[Row], vocabulary: usize) -> Result<Vec<u32>> {
    let words_of = |row: &Row| {
        let pairs = row.sampling.logit_bias.len() + row.occurrences.pairs().len();
        SETTINGS_WORDS + 2 * pairs + row.allowed.map_or(0, |_| vocabulary.div_ceil(32))
    };
    let mut words = Vec::with_capacity(rows.iter().map(words_of).sum());
    words.resize(rows.len() * SETTINGS_WORDS, 0);
    for (index, row) in rows.iter().enumerate() {
        let mut settings = Settings::of(row, vocabulary);
        let biases = biases(row.sampling);
        let last_biased = biases.last().map_or(0, |[token, _]| *token);
        settings.biases = push_pairs(&mut words, &biases, last_biased, vocabulary)?;
        let occurrences = &row.occurrences;
        settings.occurrences =
            push_pairs(&mut words, occurrences.pairs(), occurrences.largest(), vocabulary)?;
        if let Some(allowed) = row.allowed {
            settings.mask = position(&words)?;
            push_mask(&mut words, allowed, vocabulary);
            if words[settings.mask as usize..].iter().all(|word| *word == 0) {
                bail!("row {index} allows none of {vocabulary} tokens: its grammar has ended")
            }
        }
        words[index * SETTINGS_WORDS..][..SETTINGS_WORDS].copy_from_slice(&settings.to_words());
    }
    Ok(words)
}

/// Returns pairs of a token and the sum of its biases, sorted by token.
fn biases(sampling: &Sampling) -> Vec<[u32; 2]> {
    let mut biases = sampling.logit_bias.clone();
    // Biases of equal tokens stay in their order.
    biases.sort_by_key(|(token, _)| *token);
    let equal = biases.chunk_by(|first, next| first.0 == next.0);
    equal.map(|equal| [equal[0].0, equal.iter().map(|(_, bias)| bias).sum::<f32>().to_bits()]).collect()
}

/// Appends pairs of distinct tokens, at most `largest`, and a word. Returns their position and number.
fn push_pairs(words: &mut Vec<u32>, pairs: &[[u32; 2]], largest: u32, vocabulary: usize) -> Result<[u32; 2]> {
    if largest as usize >= vocabulary {
        bail!("token {largest} is not in the vocabulary of {vocabulary} tokens")
    }
    let position = position(words)?;
    words.extend_from_slice(pairs.as_flattened());
    Ok([position, pairs.len() as u32])
}

fn position(words: &[u32]) -> Result<u32> {
    match u32::try_from(words.len()) {
        Ok(position) => Ok(position),
        Err(_) => bail!("masks and penalties have {} words; the limit is 2^32", words.len()),
    }
}

/// Appends the bits of a mask. Tokens beyond the grammar's vocabulary, which pad the model's, are not allowed.
fn push_mask(words: &mut Vec<u32>, allowed: &[u32], vocabulary: usize) {
    let (start, width) = (words.len(), vocabulary.div_ceil(32));
    words.extend(allowed.iter().take(width));
    words.resize(start + width, 0);
    if !vocabulary.is_multiple_of(32) {
        words[start + width - 1] &= (1 << (vocabulary % 32)) - 1;
    }
}

/// Result of a row.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) token: u32,
    /// First token whose logit is NaN or positive infinity; [`NONE`] if there is none.
    pub(super) bad_token: u32,
    /// Largest logit after all changes.
    pub(super) largest: f32,
    /// Unchanged logit of the token.
    pub(super) logit: f32,
    /// Largest unchanged logit; 0 unless log probabilities are requested.
    pub(super) raw_largest: f32,
    /// Sum of the weights of all unchanged logits at a temperature of 1; 0 unless log probabilities are requested.
    pub(super) raw_sum: u64,
    /// Most likely tokens and their unchanged logits, in any order.
    pub(super) top: Vec<(u32, f32)>,
}

impl Outcome {
    pub(super) fn write(&self, words: &mut [u32]) {
        let [largest, logit, raw_largest] = [self.largest, self.logit, self.raw_largest].map(f32::to_bits);
        let sum = [self.raw_sum as u32, (self.raw_sum >> 32) as u32];
        let fixed = [self.token, self.bad_token, largest, logit, raw_largest, sum[0], sum[1]];
        words[..RESULT_WORDS].copy_from_slice(&fixed);
        for (pair, (token, logit)) in words[RESULT_WORDS..].chunks_exact_mut(2).zip(&self.top) {
            pair.copy_from_slice(&[*token, logit.to_bits()]);
        }
    }

    /// Reads a row's result with `top` most likely tokens.
    ///
    /// # Errors
    /// Returns an error if there are too few words.
    pub(super) fn read(words: &[u32], top: usize) -> Result<Self> {
        let [token, bad_token, largest, logit, raw_largest, low, high, pairs @ ..] = words else {
            bail!("internal error: the result of a row has {} words", words.len())
        };
        let [largest, logit, raw_largest] = [largest, logit, raw_largest].map(|bits| f32::from_bits(*bits));
        let pairs = pairs.chunks_exact(2).take(top);
        Ok(Self {
            token: *token,
            bad_token: *bad_token,
            largest,
            logit,
            raw_largest,
            raw_sum: u64::from(*high) << 32 | u64::from(*low),
            top: pairs.map(|pair| (pair[0], f32::from_bits(pair[1]))).collect(),
        })
    }
}

/// Returns the weight of the most likely token as a power of two: the weights of a row sum to at most 2^62.
pub(super) fn weight_bits(vocabulary: usize) -> u32 {
    62 - vocabulary.next_power_of_two().trailing_zeros()
}
