//! Sizes and options of alternating updates (AltUp): several streams of states, of which layers compute one.
use anyhow::{Context, Result, ensure};
use candle_core::cpu::erf::erf_inv;
use serde_json::Value;

use super::Fields;

/// Sizes and options of a model with several streams of states.
#[derive(Clone, Debug, PartialEq)]
pub struct AltUpConfig {
    /// Number of streams.
    pub streams: usize,
    /// Stream that layers compute.
    pub active: usize,
    /// If true, the states that the input of a layer gates are multiplied by a vector.
    pub scaled: bool,
    /// Width inside the learned residual layer (LAuReL), which is parallel to attention.
    pub residual_rank: usize,
    /// Number of standard deviations above their mean that gates of the feed-forward layers must exceed, for each layer; `None`
    /// if there is no such limit.
    pub gate_limits: Vec<Option<f64>>,
}

impl AltUpConfig {
    /// Reads the fields of a model with this number of layers.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields.
    pub fn from_fields(fields: &Fields, layers: usize) -> Result<Self> {
        let streams = fields.required("altup_num_inputs")?;
        let active = fields.size("altup_active_idx")?.unwrap_or(0);
        ensure!(streams > 1, "\"altup_num_inputs\" is {streams}, but must be at least 2");
        ensure!(
            active < streams,
            "\"altup_active_idx\" is {active}, but must be below \"altup_num_inputs\", which is {streams}"
        );
        let numbers = |key: &str| -> Result<Option<Vec<Option<f64>>>> {
            let Some(list) = fields.value(key) else { return Ok(None) };
            let number = |entry: &Value| if entry.is_null() { Some(None) } else { entry.as_f64().map(Some) };
            let numbers = list.as_array().and_then(|list| list.iter().map(number).collect());
            let numbers: Vec<_> = numbers.with_context(|| format!("{key:?} is not a list of numbers"))?;
            ensure!(numbers.len() == layers, "{key:?} has {} entries for {layers} layers", numbers.len());
            Ok(Some(numbers))
        };
        // GGUF files have the limits, config.json has the shares of a normal distribution that are below them.
        let gate_limits = match numbers("activation_sparsity_scale")? {
            Some(limits) => limits,
            None => {
                let share = |layer| (layers > 10 && layer < 10).then_some(0.95);
                let pattern = numbers("activation_sparsity_pattern")?;
                let shares = pattern.unwrap_or_else(|| (0..layers).map(share).collect());
                ensure!(
                    shares.iter().flatten().all(|share| (0.0..1.0).contains(share)),
                    "\"activation_sparsity_pattern\" must consist of numbers from 0 to below 1"
                );
                let limit = |share: f64| 2f64.sqrt() * erf_inv(2.0 * share - 1.0);
                let shares = shares.into_iter().map(|share| share.filter(|share| *share > 0.0));
                shares.map(|share| share.map(limit)).collect()
            }
        };
        Ok(Self {
            streams,
            active,
            scaled: fields.value("altup_correct_scale") != Some(&Value::Bool(false)),
            residual_rank: fields.required("laurel_rank")?,
            gate_limits,
        })
    }
}
