//! Sampling of a row on the CPU, with the integer arithmetic of the kernel `candle-kernels/sampling.cu`. The results
//! are equal bit for bit.
use std::cmp::Reverse;

use super::words::{KEY_SCALE, NONE, Outcome, Settings, pairs, weight_bits};

/// log2(e) in units of 2^-30.
const LOG2_E: u64 = 1_549_082_005;
/// Bits of the mantissa of a weight.
const MANTISSA_BITS: u32 = 24;
/// Coefficients of the polynomial for `2^-fraction`, from the highest power to the lowest.
const POLYNOMIAL: [f32; 6] =
    [-0.001_003_630_5, 0.009_344_231, -0.055_408_56, 0.240_214_69, -0.693_146_94, 1.0];
/// Number of low bits of a key that do not select its histogram bin.
const BIN_SHIFT: u32 = 21;
const BINS: usize = 1 << (32 - BIN_SHIFT);

/// Samples a token from a row of logits. `words` contains the lists to which the settings refer.
pub(super) fn sample(logits: &[f32], settings: &Settings, words: &[u32]) -> Outcome {
    let bad_token = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY);
    let adjusted = adjusted(logits, settings, words);
    let (first, largest) = first_largest(&adjusted);
    let mut outcome = Outcome {
        token: first,
        bad_token: bad_token.map_or(NONE, |token| token as u32),
        largest,
        logit: 0.0,
        raw_largest: 0.0,
        raw_sum: 0,
        top: Vec::new(),
    };
    if bad_token.is_some() || largest == f32::NEG_INFINITY {
        return outcome;
    }
    let weights = Weights { shift: weight_bits(logits.len()) - MANTISSA_BITS };
    if !settings.is_greedy {
        outcome.token = draw(&adjusted, largest, settings, &weights);
    }
    outcome.logit = logits[outcome.token as usize];
    if settings.has_logprobs {
        let largest = first_largest(logits).1;
        outcome.raw_largest = largest;
        outcome.raw_sum = logits.iter().map(|logit| weights.of(key(*logit, largest, KEY_SCALE))).sum();
        outcome.top = most_likely(logits, settings.top as usize);
    }
    outcome
}

/// Returns the logits after all changes. Those that overflow become the largest number, or negative infinity.
fn adjusted(logits: &[f32], settings: &Settings, words: &[u32]) -> Vec<f32> {
    let mut adjusted = logits.to_vec();
    let mut change = |token: u32, change: &dyn Fn(f32) -> f32| {
        let logit = &mut adjusted[token as usize];
        *logit = change(*logit).min(f32::MAX);
    };
    for [token, bias] in pairs(words, settings.biases) {
        change(*token, &|logit| logit + f32::from_bits(*bias));
    }
    let [repetition, presence, frequency] = settings.penalties;
    for [token, count] in pairs(words, settings.occurrences) {
        let penalty = if *count > 0 { presence } else { 0.0 } + frequency * *count as f32;
        change(*token, &|logit| {
            let repeated = if logit > 0.0 { logit / repetition } else { logit * repetition };
            repeated - penalty
        });
    }
    if settings.mask != 0 {
        let mask = &words[settings.mask as usize..];
        for (token, logit) in adjusted.iter_mut().enumerate() {
            if mask[token / 32] >> (token % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    adjusted
}

/// Returns the first of the largest logits and its value; [`NONE`] if all are negative infinity.
fn first_largest(logits: &[f32]) -> (u32, f32) {
    let larger = |best: (u32, f32), (token, logit): (usize, &f32)| {
        if *logit > best.1 { (token as u32, *logit) } else { best }
    };
    logits.iter().enumerate().fold((NONE, f32::NEG_INFINITY), larger)
}

/// Returns the key of a logit: its scaled distance to the largest one, which saturates.
fn key(logit: f32, largest: f32, scale: f32) -> u32 {
    ((largest - logit) * scale) as u32
}

/// Fixed-point weights `e^-distance` of keys.
struct Weights {
    shift: u32,
}

impl Weights {
    fn of(&self, key: u32) -> u64 {
        let power = u64::from(key) * LOG2_E;
        let fraction = ((power >> 32) & 0xff_ffff) as f32 / (1 << 24) as f32;
        let [highest, rest @ ..] = POLYNOMIAL;
        let exponential =
            rest.into_iter().fold(highest, |sum, coefficient| sum.mul_add(fraction, coefficient));
        let mantissa = (exponential * (1 << MANTISSA_BITS) as f32) as u64;
        (mantissa << self.shift).checked_shr((power >> 56) as u32).unwrap_or(0)
    }
}

fn high_product(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// Draws a token among those that top-k, top-p and min-p keep.
fn draw(adjusted: &[f32], largest: f32, settings: &Settings, weights: &Weights) -> u32 {
    let keys: Vec<u32> = adjusted.iter().map(|logit| key(*logit, largest, settings.scale)).collect();
    let mut last = NONE;
    if settings.top_k != NONE {
        last = threshold(&keys, last, |_| 1, |_| u64::from(settings.top_k));
    }
    if settings.top_p != NONE {
        let share = u64::from(settings.top_p) << 32;
        last = threshold(&keys, last, |key| weights.of(key), |total| high_product(total, share));
    }
    let last = last.min(settings.last_key);
    let weight = |key: &u32| if *key <= last { weights.of(*key) } else { 0 };
    let total = keys.iter().map(weight).sum();
    let mut rest = high_product(total, u64::from(settings.draw) << 32);
    for (token, key) in keys.iter().enumerate() {
        let weight = weight(key);
        if rest < weight {
            return token as u32;
        }
        rest -= weight;
    }
    // Unreachable, since the draw is below the total.
    NONE
}

/// Returns the smallest key such that the amounts of all keys up to it sum to `target(total)`, or at least to 1.
/// Keys above `limit` are ignored.
fn threshold(keys: &[u32], limit: u32, amount: impl Fn(u32) -> u64, target: impl Fn(u64) -> u64) -> u32 {
    let mut bins = vec![0u64; BINS];
    let counted = || keys.iter().copied().filter(|key| *key <= limit);
    for key in counted() {
        bins[(key >> BIN_SHIFT) as usize] += amount(key);
    }
    let total: u64 = bins.iter().sum();
    let mut rest = target(total).clamp(1, total.max(1));
    let mut bin = 0;
    while bin + 1 < BINS && bins[bin] < rest {
        rest -= bins[bin];
        bin += 1;
    }
    let mut candidates: Vec<u32> = counted().filter(|key| (key >> BIN_SHIFT) as usize == bin).collect();
    candidates.sort_unstable();
    for key in candidates {
        let amount = amount(key);
        if rest <= amount {
            return key;
        }
        rest -= amount;
    }
    limit
}

/// Returns the `count` largest logits and their tokens in descending order; of equal ones, the first.
fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |token: &u32| Reverse(ordered(logits[*token as usize]));
    if count < tokens.len() {
        tokens.select_nth_unstable_by_key(count, |token| (order(token), *token));
        tokens.truncate(count);
    }
    tokens.into_iter().map(|token| (token, logits[token as usize])).collect()
}

/// Maps a float that is not NaN to an integer with the same order.
pub(super) fn ordered(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}
