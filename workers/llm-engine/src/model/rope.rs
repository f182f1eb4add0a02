//! Rotary embeddings: tables of angles, and turning rows by those of their positions.
use std::f64::consts::TAU;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::rotary_emb::{rope_i, rope_thd};
use serde_json::Value;

/// How frequencies differ from the powers of theta.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All are divided by it.
    Linear(f64),
    /// Llama 3: low frequencies are divided by `factor`, high ones are not, and those between in part.
    Llama3 {
        /// Divides low frequencies.
        factor: f64,
        /// Waves longer than `original` over this are low.
        low: f64,
        /// Waves shorter than `original` over this are high.
        high: f64,
        /// The context of the first training.
        original: f64,
    },
    /// YaRN: pairs that turn seldom in the first training's context are divided by `factor`, those that turn often are not,
    /// and those between in part.
    Yarn {
        /// Divides frequencies of pairs that turn seldom.
        factor: f64,
        /// The context of the first training.
        original: f64,
        /// Pairs that turn more often than this are kept.
        fast: f64,
        /// Pairs that turn less often than this are divided.
        slow: f64,
        /// Sines and cosines are multiplied by it.
        magnitude: f64,
    },
    /// Each is divided by its own.
    Divisors(Vec<f32>),
    /// Each is divided by its own, others where the context is longer than `original`.
    Long {
        /// Divisors for contexts up to `original`.
        short: Vec<f32>,
        /// Divisors for longer ones.
        long: Vec<f32>,
        /// The context of the first training.
        original: usize,
        /// Sines and cosines are multiplied by it.
        magnitude: f64,
    },
}

impl Scaling {
    /// Of the object `rope_scaling` of a config.json, for `pairs` frequencies.
    ///
    /// # Errors
    /// Types that are not known, numbers that are missing, lists of other lengths.
    pub fn of(said: &Value, original: Option<usize>, context: usize, pairs: usize) -> Result<Self> {
        let number = |key: &str| said[key].as_f64().with_context(|| format!("{key:?} is no number"));
        let list = |key: &str| -> Result<Vec<f32>> {
            let list: Vec<f32> =
                serde_json::from_value(said[key].clone()).with_context(|| format!("{key:?} is no list"))?;
            ensure!(list.len() == pairs, "{key:?} has {} numbers for {pairs} frequencies", list.len());
            Ok(list)
        };
        let bound = |key: &str, default: f64| said[key].as_f64().unwrap_or(default);
        let kind = [&said["rope_type"], &said["type"]].into_iter().find_map(Value::as_str);
        Ok(match kind {
            None | Some("default") => Self::None,
            Some("linear") => Self::Linear(number("factor")?),
            Some("llama3") => Self::Llama3 {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original: number("original_max_position_embeddings")?,
            },
            Some("yarn") => {
                let inner = said["original_max_position_embeddings"].as_u64().map(|size| size as usize);
                let original = inner.or(original).unwrap_or(context) as f64;
                let factor = said["factor"].as_f64().unwrap_or(context as f64 / original);
                let (fast, slow) = (bound("beta_fast", 32.0), bound("beta_slow", 1.0));
                ensure!(
                    factor >= 1.0 && factor.is_finite(),
                    "\"factor\" is {factor}, and has to be 1 or more"
                );
                ensure!(original >= 1.0, "\"original_max_position_embeddings\" is {original}");
                ensure!(
                    slow > 0.0 && fast > slow,
                    "\"beta_fast\" and \"beta_slow\" are {fast} and {slow}: the first has to be larger"
                );
                let scale = |by: f64| 0.1 * by * factor.ln() + 1.0;
                let scales = [&said["mscale"], &said["mscale_all_dim"]].map(Value::as_f64);
                let magnitude = match (said["attention_factor"].as_f64(), scales) {
                    (Some(magnitude), _) => magnitude,
                    (None, [Some(own), Some(all)]) if own != 0.0 && all != 0.0 => scale(own) / scale(all),
                    (None, _) => scale(1.0),
                };
                Self::Yarn { factor, original, fast, slow, magnitude }
            }
            Some("divisors") => Self::Divisors(list("divisors")?),
            Some("longrope" | "su") => {
                let inner = said["original_max_position_embeddings"].as_u64().map(|size| size as usize);
                let original = original.or(inner).unwrap_or(context);
                ensure!(original > 1, "\"original_max_position_embeddings\" is {original}");
                let factor = said["factor"].as_f64().unwrap_or(context as f64 / original as f64);
                let magnitude = match said["attention_factor"].as_f64() {
                    Some(magnitude) => magnitude,
                    None if factor > 1.0 => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
                    None => 1.0,
                };
                Self::Long { short: list("short_factor")?, long: list("long_factor")?, original, magnitude }
            }
            Some(other) => {
                bail!("the type {other:?} is not known: default, linear, llama3, longrope and yarn are")
            }
        })
    }

    /// Positions that it was made for, where it says so beside the model's own context.
    pub fn reach(&self) -> usize {
        match self {
            Self::Yarn { factor, original, .. } => (factor * original) as usize,
            _ => 0,
        }
    }

    /// What sines and cosines are multiplied by.
    fn magnitude(&self) -> f64 {
        match self {
            Self::Long { magnitude, .. } | Self::Yarn { magnitude, .. } => *magnitude,
            _ => 1.0,
        }
    }
}

/// By which angles positions are turned.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Elements of a head that are turned, the first ones; even.
    pub turned: usize,
    /// How frequencies differ from the powers of theta.
    pub scaling: Scaling,
}

impl Rope {
    /// Angles per position, one for each pair, for sequences of at most `context` positions.
    pub fn frequencies(&self, context: usize) -> Vec<f32> {
        let pairs = 0..self.turned / 2;
        let plain = |pair: usize| self.theta.powf(-2.0 * pair as f64 / self.turned as f64);
        let divided = |by: &[f32]| pairs.clone().zip(by).map(|(pair, &by)| plain(pair) / by as f64).collect();
        let frequencies: Vec<f64> = match &self.scaling {
            Scaling::None => pairs.map(plain).collect(),
            Scaling::Linear(factor) => pairs.map(|pair| plain(pair) / factor).collect(),
            Scaling::Divisors(by) => divided(by),
            Scaling::Long { short, long, original, .. } => {
                divided(if context > *original { long } else { short })
            }
            Scaling::Yarn { factor, original, fast, slow, .. } => {
                // The pair that turns so often in the first training's context.
                let turning = |times: f64| {
                    self.turned as f64 * (original / (times * TAU)).ln() / (2.0 * self.theta.ln())
                };
                let first = turning(*fast).floor().max(0.0);
                let last = turning(*slow).ceil().min(self.turned as f64 - 1.0);
                // As transformers has it where both are the same.
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

/// Cosines and sines, (positions, pairs) each.
pub struct Table {
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
}

impl Table {
    /// Of positions up to `context`. With `interleaved`, neighbours are turned, else elements of both halves.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn new(
        rope: &Rope,
        interleaved: bool,
        context: usize,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Self> {
        let frequencies = rope.frequencies(context);
        let frequencies = Tensor::from_vec(frequencies, (1, rope.turned / 2), device)?;
        let positions = Tensor::arange(0u32, context as u32, device)?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let angles = positions.broadcast_mul(&frequencies)?;
        let magnitude = rope.scaling.magnitude();
        let of = |part: Tensor| -> candle_core::Result<Tensor> {
            let part = if magnitude == 1.0 { part } else { (part * magnitude)? };
            part.to_dtype(dtype)
        };
        Ok(Self { cos: of(angles.cos()?)?, sin: of(angles.sin()?)?, interleaved })
    }

    /// Those of a step's rows; `positions` is u32 (rows).
    ///
    /// # Errors
    /// Where the device fails, and for positions behind the context.
    pub fn at(&self, positions: &Tensor) -> candle_core::Result<Angles> {
        let (cos, sin) = (self.cos.index_select(positions, 0)?, self.sin.index_select(positions, 0)?);
        Ok(Angles { cos, sin, interleaved: self.interleaved })
    }
}

/// Cosines and sines of a step's rows, shared by its layers.
pub struct Angles {
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
}

impl Angles {
    /// Turns queries or keys (rows, heads, width), which are contiguous.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn turn(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let width = x.dim(D::Minus1)?;
        let turned = 2 * self.cos.dim(D::Minus1)?;
        if turned == width {
            return self.turn_all(x);
        }
        let first = self.turn_all(&x.narrow(D::Minus1, 0, turned)?.contiguous()?)?;
        Tensor::cat(&[&first, &x.narrow(D::Minus1, turned, width - turned)?], D::Minus1)
    }

    fn turn_all(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        if !self.interleaved {
            return rope_thd(&x.unsqueeze(0)?, &self.cos, &self.sin)?.squeeze(0);
        }
        // Neighbours are turned in (batch, heads, positions, width) only: rows become batches of one position.
        rope_i(&x.unsqueeze(2)?, &self.cos.unsqueeze(1)?, &self.sin.unsqueeze(1)?)?.squeeze(2)
    }
}
