//! Rotary position embeddings: frequencies, and tables of cosines and sines.
use std::f64::consts::TAU;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::fused::{CacheHeads, HeadNorms, Rotary};
use serde_json::Value;

/// Modification of the frequencies, which are powers of theta by default.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// No modification.
    None,
    /// Divides all frequencies by this factor.
    Linear(f64),
    /// Llama 3: divides low frequencies by `factor`, keeps high ones, and interpolates in between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Context length of the original training.
        original: f64,
    },
    /// YaRN: divides the frequencies of pairs that rotate rarely over the original context by `factor`, keeps
    /// those that rotate often, and interpolates in between.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Context length of the original training.
        original: f64,
        /// Pairs with more rotations than this are kept.
        fast: f64,
        /// Pairs with fewer rotations than this are divided.
        slow: f64,
        /// If true, the bounds of the interpolation are whole numbers of pairs.
        truncated: bool,
        /// Factor of sines and cosines.
        magnitude: f64,
    },
    /// Rotates only this number of pairs, and divides their frequencies by a factor.
    Proportional {
        /// Number of first pairs that rotate.
        pairs: usize,
        /// Divisor of their frequencies.
        factor: f64,
    },
    /// Divides each frequency by its own divisor.
    Divisors(Vec<f32>),
    /// LongRoPE: divides each frequency by its own divisor, which depends on the context length.
    LongRope {
        /// Divisors for contexts up to `original`.
        short: Vec<f32>,
        /// Divisors for longer contexts.
        long: Vec<f32>,
        /// Context length of the original training.
        original: usize,
        /// Factor of sines and cosines.
        magnitude: f64,
    },
}

impl Scaling {
    /// Reads the `rope_scaling` object of a config.json, for `pairs` frequencies.
    ///
    /// # Errors
    /// Returns an error for an unknown type, a missing number or a list of the wrong length.
    pub fn from_json(json: &Value, original: Option<usize>, context: usize, pairs: usize) -> Result<Self> {
        let number = |key: &str| json[key].as_f64().with_context(|| format!("{key:?} is not a number"));
        let list = |key: &str| -> Result<Vec<f32>> {
            let list: Vec<f32> = serde_json::from_value(json[key].clone())
                .with_context(|| format!("{key:?} is not a list"))?;
            ensure!(list.len() == pairs, "{key:?} has {} numbers for {pairs} frequencies", list.len());
            Ok(list)
        };
        let bound = |key: &str, default: f64| json[key].as_f64().unwrap_or(default);
        let kind = [&json["rope_type"], &json["type"]].into_iter().find_map(Value::as_str);
        Ok(match kind {
            // The sections of positions of three axes change no frequencies.
            None | Some("default" | "mrope") => Self::None,
            Some("linear") => Self::Linear(number("factor")?),
            Some("llama3") => Self::Llama3 {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original: number("original_max_position_embeddings")?,
            },
            Some("yarn") => {
                let inner = json["original_max_position_embeddings"].as_u64().map(|size| size as usize);
                let original = inner.or(original).unwrap_or(context) as f64;
                let factor = json["factor"].as_f64().unwrap_or(context as f64 / original);
                let (fast, slow) = (bound("beta_fast", 32.0), bound("beta_slow", 1.0));
                ensure!(
                    factor >= 1.0 && factor.is_finite(),
                    "\"factor\" is {factor}, but must be at least 1"
                );
                ensure!(original >= 1.0, "\"original_max_position_embeddings\" is {original}, less than 1");
                ensure!(
                    slow > 0.0 && fast > slow,
                    "\"beta_fast\" is {fast} and \"beta_slow\" is {slow}, but 0 < beta_slow < beta_fast is required"
                );
                let scale = |by: f64| 0.1 * by * factor.ln() + 1.0;
                let scales = [&json["mscale"], &json["mscale_all_dim"]].map(Value::as_f64);
                let magnitude = match (json["attention_factor"].as_f64(), scales) {
                    (Some(magnitude), _) => magnitude,
                    (None, [Some(base), Some(all)]) if base != 0.0 && all != 0.0 => scale(base) / scale(all),
                    (None, _) => scale(1.0),
                };
                let truncated = json["truncate"] != false;
                Self::Yarn { factor, original, fast, slow, truncated, magnitude }
            }
            Some("proportional") => {
                let share = bound("partial_rotary_factor", 1.0);
                ensure!(
                    (0.0..=1.0).contains(&share),
                    "\"partial_rotary_factor\" is {share}, but must be between 0 and 1"
                );
                Self::Proportional { pairs: (share * pairs as f64) as usize, factor: bound("factor", 1.0) }
            }
            Some("divisors") => Self::Divisors(list("divisors")?),
            Some("longrope" | "su") => {
                let inner = json["original_max_position_embeddings"].as_u64().map(|size| size as usize);
                let original = original.or(inner).unwrap_or(context);
                ensure!(original > 1, "\"original_max_position_embeddings\" is {original}, less than 2");
                let factor = json["factor"].as_f64().unwrap_or(context as f64 / original as f64);
                // Phi-3.5-MoE has a factor for each list of divisors.
                let mscale = if context > original { &json["long_mscale"] } else { &json["short_mscale"] };
                let magnitude = match json["attention_factor"].as_f64().or(mscale.as_f64()) {
                    Some(magnitude) => magnitude,
                    None if factor > 1.0 => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
                    None => 1.0,
                };
                let (short, long) = (list("short_factor")?, list("long_factor")?);
                Self::LongRope { short, long, original, magnitude }
            }
            Some(other) => {
                bail!(
                    "the type {other:?} is not known; use default, linear, llama3, longrope, proportional or yarn"
                )
            }
        })
    }

    /// Returns the extended context length, or 0 if the scaling does not define one.
    pub fn extended_context(&self) -> usize {
        match self {
            Self::Yarn { factor, original, .. } => (factor * original) as usize,
            _ => 0,
        }
    }

    /// Returns the factor of sines and cosines.
    fn magnitude(&self) -> f64 {
        match self {
            Self::LongRope { magnitude, .. } | Self::Yarn { magnitude, .. } => *magnitude,
            _ => 1.0,
        }
    }
}

/// Parameters of rotary embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Number of leading elements of a head that are rotated; even.
    pub rotary_dim: usize,
    /// Modification of the frequencies.
    pub scaling: Scaling,
}

impl Rope {
    /// Returns the angle per position of each pair, for sequences of at most `context` positions.
    pub fn frequencies(&self, context: usize) -> Vec<f32> {
        let pairs = 0..self.rotary_dim / 2;
        let plain = |pair: usize| self.theta.powf(-2.0 * pair as f64 / self.rotary_dim as f64);
        let divided = |by: &[f32]| pairs.clone().zip(by).map(|(pair, &by)| plain(pair) / by as f64).collect();
        let frequencies: Vec<f64> = match &self.scaling {
            Scaling::None => pairs.map(plain).collect(),
            Scaling::Linear(factor) => pairs.map(|pair| plain(pair) / factor).collect(),
            Scaling::Proportional { pairs: rotated, factor } => {
                pairs.map(|pair| if pair < *rotated { plain(pair) / factor } else { 0.0 }).collect()
            }
            Scaling::Divisors(by) => divided(by),
            Scaling::LongRope { short, long, original, .. } => {
                divided(if context > *original { long } else { short })
            }
            Scaling::Yarn { factor, original, fast, slow, truncated, .. } => {
                // Index of the pair that rotates this many times over the original context.
                let pair_index = |times: f64| {
                    self.rotary_dim as f64 * (original / (times * TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (first, last) = (pair_index(*fast), pair_index(*slow));
                let (first, last) = if *truncated { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min(self.rotary_dim as f64 - 1.0));
                // Avoids a division by zero in the same way as transformers.
                let width = if first == last { 1e-3 } else { last - first };
                pairs
                    .map(|pair| {
                        let divided = ((pair as f64 - first) / width).clamp(0.0, 1.0);
                        plain(pair) * (1.0 - divided + divided / factor)
                    })
                    .collect()
            }
            Scaling::Llama3 { factor, low, high, original } => pairs
                .map(|pair| {
                    let frequency = plain(pair);
                    let waves = original * frequency / TAU;
                    let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * (kept + (1.0 - kept) / factor)
                })
                .collect(),
        };
        frequencies.into_iter().map(|frequency| frequency as f32).collect()
    }
}

/// Cosines and sines of all positions, f32 (positions, pairs) each.
pub struct RotaryTable {
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
}

impl RotaryTable {
    /// Computes the table for positions below `context`. With `interleaved`, neighboring elements form pairs;
    /// otherwise elements of both halves do.
    pub fn new(rope: &Rope, interleaved: bool, context: usize, device: &Device) -> candle_core::Result<Self> {
        let frequencies = rope.frequencies(context);
        let frequencies = Tensor::from_vec(frequencies, (1, rope.rotary_dim / 2), device)?;
        let positions = Tensor::arange(0u32, context as u32, device)?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let angles = positions.broadcast_mul(&frequencies)?;
        let magnitude = rope.scaling.magnitude();
        let scaled = |part: Tensor| if magnitude == 1.0 { Ok(part) } else { part * magnitude };
        Ok(Self { cos: scaled(angles.cos()?)?, sin: scaled(angles.sin()?)?, interleaved })
    }

    /// Returns a table for layers that do not rotate: cosines of 1 and sines of 0.
    pub fn without_rotation(&self) -> candle_core::Result<Self> {
        Ok(Self { cos: self.cos.ones_like()?, sin: self.sin.zeros_like()?, interleaved: self.interleaved })
    }

    /// Returns a table with a row for each row of `positions`, u32 (rows, pairs), the position of each pair.
    pub fn gathered(&self, positions: &Tensor) -> candle_core::Result<Self> {
        let rows = |table: &Tensor| table.gather(positions, 0);
        Ok(Self { cos: rows(&self.cos)?, sin: rows(&self.sin)?, interleaved: self.interleaved })
    }

    /// Returns the arguments of the fused operation.
    pub fn rotary(&self) -> Rotary<'_> {
        Rotary { cos: &self.cos, sin: &self.sin, interleaved: self.interleaved }
    }
}

/// Splits projections (rows, 3 · heads · width) into queries, keys and values (rows, heads, width), and normalizes, if there
/// are norms, and rotates queries and keys. `positions` and `rows` are the row in the rotary table and the number of each
/// row, u32 (rows).
///
/// # Errors
/// Returns an error if sizes do not match or the device fails.
pub fn rotated_heads(
    all: &Tensor,
    heads: usize,
    (norms, rotary): (Option<HeadNorms>, Rotary),
    positions: &Tensor,
    rows: &Tensor,
) -> candle_core::Result<[Tensor; 3]> {
    let (count, width) = (all.dim(0)?, all.dim(1)? / 3);
    let part = |index: usize| all.narrow(1, index * width, width);
    let empty = || Tensor::zeros((count, heads, width / heads), all.dtype(), all.device());
    let (keys, values) = (empty()?, empty()?);
    let heads = CacheHeads {
        q: &part(0)?,
        k: &part(1)?,
        v: &part(2)?,
        bias: None,
        norms,
        rotary,
        positions,
        slots: rows,
        keys: &keys,
        values: &values,
        scales: None,
    };
    Ok([heads.forward()?, keys, values])
}
