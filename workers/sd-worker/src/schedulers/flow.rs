//! Noise levels of flow-matching models (Lipman et al. 2023): samples are (1 - σ) x0 + σ ε, and the network predicts ε - x0.
//!
//! Levels follow FlowMatchEulerDiscreteScheduler of diffusers and the pipelines that call it.
use serde::Deserialize;
use serde_json::{Map, Value};

use super::grid::{Grid, Level};
use crate::{Error, Result};

/// Maximum number of steps of a schedule, including the steps that are omitted.
pub const MAX_SCHEDULE_STEPS: usize = 1000;
/// Class of the scheduler in diffusers.
pub(super) const CLASS: &str = "FlowMatchEulerDiscreteScheduler";
/// Settings that are not supported unless they are false or null.
const UNSUPPORTED: [&str; 6] = [
    "invert_sigmas",
    "shift_terminal",
    "stochastic_sampling",
    "use_beta_sigmas",
    "use_exponential_sigmas",
    "use_karras_sigmas",
];

/// Shift that depends on the number of tokens of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeShift {
    /// σ' = exp(μ) / (exp(μ) + 1/σ - 1).
    Exponential,
    /// σ' = μ / (μ + 1/σ - 1).
    Linear,
}

/// Noise levels of a flow-matching model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Flow {
    pub(crate) num_train_timesteps: usize,
    /// Constant shift: σ' = shift σ / (1 + (shift - 1) σ).
    pub shift: f64,
    /// If true, μ is a linear function of the number of tokens of the image, and replaces `shift`.
    pub use_dynamic_shifting: bool,
    /// μ at `base_image_seq_len` tokens.
    pub base_shift: f64,
    /// μ at `max_image_seq_len` tokens.
    pub max_shift: f64,
    pub(crate) base_image_seq_len: usize,
    pub(crate) max_image_seq_len: usize,
    pub(crate) time_shift_type: TimeShift,
    /// If true, n steps begin at the multiples of 1/n, as in FluxPipeline; otherwise they span the trained levels.
    #[serde(skip)]
    pub spans_fractions: bool,
    /// Side of a token in pixels.
    #[serde(skip)]
    pub token_side: usize,
    /// Number of tokens of the image of a request.
    #[serde(skip)]
    pub tokens: usize,
}

impl Default for Flow {
    /// Returns the values of keys that are missing in a file.
    fn default() -> Self {
        Self {
            num_train_timesteps: 1000,
            shift: 1.0,
            use_dynamic_shifting: false,
            base_shift: 0.5,
            max_shift: 1.15,
            base_image_seq_len: 256,
            max_image_seq_len: 4096,
            time_shift_type: TimeShift::Exponential,
            spans_fractions: false,
            token_side: 1,
            tokens: 0,
        }
    }
}

impl Flow {
    /// Reads scheduler_config.json without members that are null, for a pipeline class of diffusers.
    pub(super) fn from_keys(mut keys: Map<String, Value>, pipeline: &str) -> Result<Self> {
        let bad = |what: String| Error::model(format!("scheduler_config.json: {what}"));
        for key in UNSUPPORTED {
            let value = keys.get(key).unwrap_or(&Value::Null);
            if !value.is_null() && value != &Value::Bool(false) {
                return Err(bad(format!("{key} = {value} is not supported")));
            }
        }
        let is_flux = pipeline.starts_with("Flux");
        // The pipelines have different defaults.
        keys.entry("max_shift").or_insert(if is_flux { 1.15 } else { 1.16 }.into());
        let flow: Self = serde_json::from_value(Value::Object(keys)).map_err(|e| bad(e.to_string()))?;
        let shifts = [flow.shift, flow.base_shift, flow.max_shift];
        let valid = shifts.iter().all(|shift| *shift > 0.0 && *shift < 100.0)
            && flow.num_train_timesteps > 1
            && flow.base_image_seq_len < flow.max_image_seq_len;
        if !valid {
            return Err(bad(format!(
                "shifts {shifts:?} must be above 0 and below 100, num_train_timesteps = {} above 1, and \
                 base_image_seq_len = {} below max_image_seq_len = {}",
                flow.num_train_timesteps, flow.base_image_seq_len, flow.max_image_seq_len
            )));
        }
        Ok(Self { spans_fractions: is_flux, ..flow })
    }

    /// Returns the noise levels for an image of this width and height in pixels.
    #[must_use]
    pub fn with_size(&self, width: usize, height: usize) -> Self {
        let side = self.token_side.max(1);
        Self { tokens: (width / side) * (height / side), ..self.clone() }
    }

    fn shifted(&self, sigma: f64) -> f64 {
        self.shift * sigma / (1.0 + (self.shift - 1.0) * sigma)
    }

    fn shifted_by_size(&self, sigma: f64) -> f64 {
        let (least, most) = (self.base_image_seq_len as f64, self.max_image_seq_len as f64);
        let slope = (self.max_shift - self.base_shift) / (most - least);
        let mu = self.base_shift + slope * (self.tokens as f64 - least);
        let odds = match self.time_shift_type {
            TimeShift::Exponential => mu.exp(),
            TimeShift::Linear => mu,
        };
        odds / (odds + (1.0 / sigma - 1.0))
    }

    /// Returns timesteps and levels of `steps` steps, and the final level without noise.
    ///
    /// # Errors
    /// There are no steps or more than [`MAX_SCHEDULE_STEPS`], or the shift of a linear kind is not positive.
    pub(super) fn grid(&self, steps: usize) -> Result<Grid> {
        if steps == 0 {
            return Err(Error::request("0 steps: flow matching needs at least 1"));
        }
        if steps > MAX_SCHEDULE_STEPS {
            return Err(Error::request(format!(
                "{steps} steps: flow matching supports at most {MAX_SCHEDULE_STEPS}"
            )));
        }
        let trained = self.num_train_timesteps as f64;
        let last = match (self.spans_fractions, self.use_dynamic_shifting) {
            (true, _) => 1.0 / steps as f64,
            (false, true) => 1.0 / trained,
            // The lowest trained level is shifted twice, as in diffusers.
            (false, false) => self.shifted(1.0 / trained),
        };
        let parts = steps.saturating_sub(1).max(1) as f64;
        let shift = |i: usize| {
            let sigma = 1.0 + (last - 1.0) * (i as f64 / parts);
            if self.use_dynamic_shifting { self.shifted_by_size(sigma) } else { self.shifted(sigma) }
        };
        let mut sigmas: Vec<f64> = (0..steps).map(shift).collect();
        if sigmas.iter().any(|sigma| !(*sigma > 0.0 && *sigma <= 1.0)) {
            let tokens = self.tokens;
            return Err(Error::request(format!(
                "the scheduler's shift for an image of {tokens} tokens has noise levels outside of 0 to 1"
            )));
        }
        let timesteps = sigmas.iter().map(|sigma| sigma * trained).collect();
        sigmas.push(0.0);
        let levels = sigmas.into_iter().map(|sigma| Level { alpha: 1.0 - sigma, sigma }).collect();
        Ok(Grid::of(timesteps, levels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn flow(json: Value, pipeline: &str) -> Result<Flow> {
        Flow::from_keys(json.as_object().cloned().unwrap_or_default(), pipeline)
    }

    #[test]
    fn invalid_settings_are_refused() {
        for (json, part) in [
            (json!({"shift_terminal": 0.1}), "shift_terminal = 0.1 is not supported"),
            (json!({"use_karras_sigmas": true}), "use_karras_sigmas = true"),
            (json!({"shift": 0}), "must be above 0"),
            (json!({"base_image_seq_len": 4096}), "base_image_seq_len = 4096"),
            (json!({"time_shift_type": "cubic"}), "cubic"),
            (json!({"shift": "3"}), "expected f64"),
        ] {
            let error = flow(json, "FluxPipeline").unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
        let flow = flow(json!({}), "FluxPipeline").unwrap();
        assert!(flow.grid(0).is_err());
        assert_eq!(flow.grid(MAX_SCHEDULE_STEPS).unwrap().timesteps.len(), MAX_SCHEDULE_STEPS);
        for steps in [MAX_SCHEDULE_STEPS + 1, usize::MAX] {
            let error = flow.grid(steps).unwrap_err().to_string();
            assert!(error.contains("at most 1000"), "{error}");
        }
    }

    /// Levels of four steps, as FlowMatchEulerDiscreteScheduler of diffusers 0.42.1 returns them in its pipelines.
    #[test]
    fn levels_are_those_of_diffusers() {
        let dynamic = json!({"use_dynamic_shifting": true, "shift": 3.0});
        let linear = json!({"use_dynamic_shifting": true, "time_shift_type": "linear"});
        let (flux, sd3) = ("FluxPipeline", "StableDiffusion3Pipeline");
        // Middle levels of four steps.
        let table = [
            (flux, json!({"shift": 1.0}), 4096, [0.75, 0.5, 0.25]),
            (flux, dynamic.clone(), 12, [0.825967013835907, 0.6127052903175354, 0.3452659249305725]),
            (flux, dynamic.clone(), 1536, [0.8599986433982849, 0.6718725562095642, 0.40565770864486694]),
            (flux, dynamic, 4096, [0.9045307636260986, 0.7595109343528748, 0.5128441452980042]),
            (flux, linear.clone(), 4096, [0.7752808928489685, 0.5348836779594421, 0.27710843086242676]),
            (sd3, json!({"shift": 3.0}), 4096, [0.857692301273346, 0.602150559425354, 0.008928571827709675]),
            (
                sd3,
                json!({"use_dynamic_shifting": true}),
                1024,
                [0.790285587310791, 0.48546692728996277, 0.0018797129],
            ),
        ];
        for (pipeline, json, tokens, middle) in table {
            let flow = Flow { token_side: 16, ..flow(json, pipeline).unwrap() }.with_size(16 * tokens, 31);
            assert_eq!(flow.tokens, tokens);
            let grid = flow.grid(4).unwrap();
            let found: Vec<f64> = grid.levels.iter().map(|level| level.sigma).collect();
            let expected = [1.0, middle[0], middle[1], middle[2], 0.0];
            let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(
                near && found.len() == 5,
                "{pipeline}, {tokens} tokens: {found:?}, expected {expected:?}"
            );
            assert!((grid.timesteps[1] - 1000.0 * expected[1]).abs() < 1e-3);
            assert_eq!(flow.grid(1).unwrap().timesteps, [1000.0]);
        }
    }
}
