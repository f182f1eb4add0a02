//! scheduler_config.json as diffusers writes it.
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Method;
use crate::{Error, Result};

/// What the network predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// The noise ε.
    Epsilon,
    /// v = α ε - σ x0.
    VPrediction,
    /// The picture x0.
    Sample,
}

/// How β grows from step to step of the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BetaSchedule {
    /// Evenly.
    Linear,
    /// Its square root evenly: Stable Diffusion.
    ScaledLinear,
    /// From ᾱ as a squared cosine.
    SquaredcosCapV2,
}

/// Which of the training's timesteps are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// Multiples of a whole number, from the lowest.
    Leading,
    /// Even parts, from the highest.
    Trailing,
    /// Evenly from the lowest to the highest.
    Linspace,
}

/// Where the last step ends, except for DDIM, which has [`SchedulerConfig::set_alpha_to_one`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalSigma {
    /// Without noise.
    Zero,
    /// At the lowest noise of the training.
    SigmaMin,
}

/// The function B(h) of UniPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UniPcKind {
    /// B(h) = h.
    Bh1,
    /// B(h) = exp(h) - 1: the better one for guided sampling.
    #[default]
    Bh2,
}

/// The noise schedule of a model's training and how to walk it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    /// Steps of the training.
    pub num_train_timesteps: usize,
    /// β of the first step.
    pub beta_start: f64,
    /// β of the last step.
    pub beta_end: f64,
    /// Between them.
    pub beta_schedule: BetaSchedule,
    /// Every β, instead of the three above.
    pub trained_betas: Option<Vec<f64>>,
    /// What the network predicts.
    #[serde(rename = "prediction_type")]
    pub prediction: Prediction,
    /// Which timesteps are visited.
    #[serde(rename = "timestep_spacing")]
    pub spacing: Spacing,
    /// Added to the timesteps of [`Spacing::Leading`].
    pub steps_offset: usize,
    /// DDIM's last step ends without noise, not at the first ᾱ.
    pub set_alpha_to_one: bool,
    /// Noise levels after Karras et al. (2022), for all methods but DDIM.
    #[serde(rename = "use_karras_sigmas")]
    pub karras: bool,
    /// β are changed so that the last timestep has no signal left.
    pub rescale_betas_zero_snr: bool,
    /// Where the last step ends.
    pub final_sigmas_type: FinalSigma,
    /// Order of UniPC, 1 to 3.
    pub solver_order: usize,
    /// UniPC's B(h).
    #[serde(skip)]
    pub uni_pc: UniPcKind,
    /// What the file is made for.
    #[serde(skip)]
    pub method: Method,
}

impl Default for SchedulerConfig {
    /// Stable Diffusion's.
    fn default() -> Self {
        Self {
            num_train_timesteps: 1000,
            beta_start: 0.00085,
            beta_end: 0.012,
            beta_schedule: BetaSchedule::ScaledLinear,
            trained_betas: None,
            prediction: Prediction::Epsilon,
            spacing: Spacing::Leading,
            steps_offset: 1,
            set_alpha_to_one: false,
            karras: false,
            rescale_betas_zero_snr: false,
            final_sigmas_type: FinalSigma::Zero,
            solver_order: 2,
            uni_pc: UniPcKind::default(),
            method: Method::Ddim,
        }
    }
}

/// Keys whose other values would need steps that are not here.
const UNSUPPORTED: [&str; 7] = [
    "clip_sample",
    "thresholding",
    "use_beta_sigmas",
    "use_exponential_sigmas",
    "use_flow_sigmas",
    "use_lu_lambdas",
    "variance_type",
];

impl SchedulerConfig {
    /// Reads scheduler_config.json. Classes without a method here (PNDM, DDPM, ...) get DDIM, which walks the same
    /// timesteps.
    ///
    /// # Errors
    /// The text is no JSON, has values of another type, or asks for what is not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let bad = |e: serde_json::Error| Error::model(format!("scheduler_config.json: {e}"));
        let mut keys: Map<String, Value> = serde_json::from_str(text).map_err(bad)?;
        let class = keys.get("_class_name").and_then(Value::as_str).unwrap_or_default().to_string();
        for key in UNSUPPORTED {
            let value = keys.get(key).unwrap_or(&Value::Null);
            let learned = value.as_str().is_some_and(|kind| kind.starts_with("learned"));
            if value == &Value::Bool(true) || learned {
                return Err(Error::model(format!("scheduler_config.json: {key} = {value} is not supported")));
            }
        }
        if ["LCM", "TCD", "EDM", "FlowMatch", "Cosine"].iter().any(|other| class.starts_with(other)) {
            return Err(Error::model(format!("scheduler_config.json: {class} is not supported")));
        }
        keys.retain(|_, value| !value.is_null());
        let leads = ["", "DDIMScheduler", "DDPMScheduler", "PNDMScheduler"].contains(&class.as_str());
        // What diffusers' classes take where a file says nothing; Stable Diffusion's files do not say all.
        let silent: [(&str, Value); 6] = [
            ("beta_start", 0.0001.into()),
            ("beta_end", 0.02.into()),
            ("beta_schedule", "linear".into()),
            ("steps_offset", 0.into()),
            ("timestep_spacing", if leads { "leading" } else { "linspace" }.into()),
            ("set_alpha_to_one", (class == "DDIMScheduler").into()),
        ];
        for (key, value) in silent {
            keys.entry(key).or_insert(value);
        }
        let bh1 = keys.get("solver_type").and_then(Value::as_str) == Some("bh1");
        let mut config: Self = serde_json::from_value(Value::Object(keys)).map_err(bad)?;
        config.uni_pc = if bh1 { UniPcKind::Bh1 } else { UniPcKind::Bh2 };
        config.method = Method::of_class(&class);
        Ok(config)
    }
}
