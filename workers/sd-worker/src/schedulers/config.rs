//! scheduler_config.json as diffusers writes it.
use serde::Deserialize;
use serde_json::{Map, Value};

use super::method::Method;
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
    /// Which timesteps are visited; None: those of the method's class.
    #[serde(rename = "timestep_spacing")]
    pub spacing: Option<Spacing>,
    /// Added to the timesteps of [`Spacing::Leading`].
    pub steps_offset: usize,
    /// DDIM's last step ends without noise, not at the first ᾱ; None: as its class has it.
    pub set_alpha_to_one: Option<bool>,
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
            spacing: Some(Spacing::Leading),
            steps_offset: 1,
            set_alpha_to_one: Some(false),
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

/// A class, a key of its files, and the values with which its steps are the ones here. Some of them are other classes',
/// for which diffusers takes the class's own.
const SUPPORTED: [(&str, &str, &[&str]); 7] = [
    ("DPMSolverMultistepScheduler", "algorithm_type", &["dpmsolver++", "deis"]),
    ("DPMSolverMultistepScheduler", "solver_order", &["2"]),
    ("DPMSolverMultistepScheduler", "solver_type", &["midpoint", "logrho", "bh1", "bh2"]),
    ("EulerDiscreteScheduler", "interpolation_type", &["linear"]),
    ("EulerDiscreteScheduler", "timestep_type", &["discrete"]),
    ("UniPCMultistepScheduler", "disable_corrector", &["[]"]),
    ("UniPCMultistepScheduler", "predict_x0", &["true"]),
];

/// What Python's JSON has for numbers, and no other.
const NO_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

impl SchedulerConfig {
    /// Reads scheduler_config.json of a folder whose pipeline is of diffusers' class `pipeline`. Classes without a method
    /// here (PNDM, DDPM, ...) get DDIM, which walks the same timesteps.
    ///
    /// # Errors
    /// The text is no JSON, has values of another type, or asks for what is not supported.
    pub fn from_json(text: &str, pipeline: &str) -> Result<Self> {
        let bad = |e: serde_json::Error| Error::model(format!("scheduler_config.json: {e}"));
        let unsupported = |key: &str, value: &Value| {
            Err(Error::model(format!("scheduler_config.json: {key} = {value} is not supported")))
        };
        let mut keys: Map<String, Value> = serde_json::from_str(&finite(text)).map_err(bad)?;
        keys.retain(|_, value| !value.is_null());
        let class = keys.get("_class_name").and_then(Value::as_str).unwrap_or_default().to_string();
        if pipeline.starts_with("StableDiffusion") && !pipeline.starts_with("StableDiffusionXL") {
            mend(&mut keys);
        }
        for key in UNSUPPORTED {
            let value = keys.get(key).unwrap_or(&Value::Null);
            let learned = value.as_str().is_some_and(|kind| kind.starts_with("learned"));
            if value == &Value::Bool(true) || learned {
                return unsupported(key, value);
            }
        }
        for (_, key, values) in SUPPORTED.iter().filter(|(of, ..)| *of == class) {
            let Some(value) = keys.get(*key) else { continue };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if !values.contains(&text.as_str()) {
                return unsupported(key, value);
            }
        }
        if ["LCM", "TCD", "EDM", "FlowMatch", "Cosine"].iter().any(|other| class.starts_with(other)) {
            return Err(Error::model(format!("scheduler_config.json: {class} is not supported")));
        }
        // What all of diffusers' classes take where a file says nothing; what they differ in is the method's.
        let silent: [(&str, Value); 6] = [
            ("beta_start", 0.0001.into()),
            ("beta_end", 0.02.into()),
            ("beta_schedule", "linear".into()),
            ("steps_offset", 0.into()),
            ("timestep_spacing", Value::Null),
            ("set_alpha_to_one", Value::Null),
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

    /// Which timesteps `method` visits.
    pub fn spacing(&self, method: Method) -> Spacing {
        self.spacing.unwrap_or(if method == Method::Ddim { Spacing::Leading } else { Spacing::Linspace })
    }

    /// Whether DDIM's last step ends without noise.
    pub(super) fn ends_at_one(&self) -> bool {
        self.set_alpha_to_one.unwrap_or(true)
    }
}

/// Puts right what diffusers' Stable Diffusion puts right of old files.
fn mend(keys: &mut Map<String, Value>) {
    let steps_offset = keys.get("steps_offset").and_then(Value::as_u64).unwrap_or_default();
    let clip_sample = keys.get("clip_sample") == Some(&Value::Bool(true));
    for (key, wrong, right) in [
        ("steps_offset", steps_offset != 1, Value::from(1)),
        ("clip_sample", clip_sample, Value::from(false)),
    ] {
        if wrong {
            tracing::warn!(
                "scheduler_config.json: {key} is taken to be {right}, as Stable Diffusion needs it"
            );
            keys.insert(key.to_owned(), right);
        }
    }
}

/// `text` with null for what JSON does not have as numbers. diffusers writes the infinity behind `lambda_min_clipped`,
/// which clips nothing.
fn finite(text: &str) -> String {
    let mut finite = String::with_capacity(text.len());
    let (mut rest, mut quoted, mut escaped) = (text, false, false);
    while let Some(first) = rest.chars().next() {
        let word = NO_NUMBERS.iter().find(|word| !quoted && rest.starts_with(**word));
        let (taken, behind) = rest.split_at(word.map_or(first.len_utf8(), |word| word.len()));
        finite.push_str(if word.is_some() { "null" } else { taken });
        quoted ^= first == '"' && !escaped;
        escaped = quoted && first == '\\' && !escaped;
        rest = behind;
    }
    finite
}
