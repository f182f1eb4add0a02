//! Contents of scheduler_config.json, as written by diffusers.
use serde::Deserialize;
use serde_json::{Map, Value};

use super::flow::{CLASS, Flow};
use super::method::Method;
use crate::{Error, Result};

/// Quantity that the network predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// The noise ε.
    Epsilon,
    /// v = α ε - σ x0.
    VPrediction,
    /// The denoised sample x0.
    Sample,
    /// The velocity ε - x0 of flow matching.
    #[serde(skip)]
    Flow,
}

/// Schedule of β over the training timesteps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BetaSchedule {
    /// Linear in β.
    Linear,
    /// Linear in √β, used by Stable Diffusion.
    ScaledLinear,
    /// ᾱ is a squared cosine.
    SquaredcosCapV2,
}

/// Selection of the training timesteps for sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// Multiples of an integer stride, starting at the lowest timestep.
    Leading,
    /// Evenly spaced, starting at the highest timestep.
    Trailing,
    /// Evenly spaced from the lowest to the highest timestep.
    Linspace,
}

/// Noise level after the last step. DDIM and PNDM use [`SchedulerConfig::set_alpha_to_one`] instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalSigma {
    /// No noise.
    Zero,
    /// The lowest noise level of the training.
    SigmaMin,
}

/// The function B(h) of UniPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UniPcKind {
    /// B(h) = h.
    Bh1,
    /// B(h) = exp(h) - 1, recommended for guided sampling.
    #[default]
    Bh2,
}

/// Noise schedule of the training, and settings for sampling.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    /// Number of training timesteps.
    pub num_train_timesteps: usize,
    /// β of the first timestep.
    pub beta_start: f64,
    /// β of the last timestep.
    pub beta_end: f64,
    /// Schedule of β between them.
    pub beta_schedule: BetaSchedule,
    /// Explicit values of β, which replace the three fields above.
    pub trained_betas: Option<Vec<f64>>,
    /// Quantity that the network predicts.
    #[serde(rename = "prediction_type")]
    pub prediction: Prediction,
    /// Selection of timesteps; `None` selects the default of the method.
    #[serde(rename = "timestep_spacing")]
    pub spacing: Option<Spacing>,
    /// Added to the timesteps of [`Spacing::Leading`].
    pub steps_offset: usize,
    /// If false, the last step of DDIM and PNDM ends at the first ᾱ, otherwise without noise. `None` means true for
    /// DDIM and false for PNDM. LCM always ends without noise.
    pub set_alpha_to_one: Option<bool>,
    /// If true, all methods except DDIM, PNDM and LCM use the noise levels of Karras et al. (2022).
    #[serde(rename = "use_karras_sigmas")]
    pub karras: bool,
    /// If true, the same methods use noise levels with a constant ratio from one to the next. Excludes `karras`.
    #[serde(rename = "use_exponential_sigmas")]
    pub exponential: bool,
    /// If true, β is rescaled to a zero SNR at the last timestep.
    pub rescale_betas_zero_snr: bool,
    /// Noise level after the last step.
    pub final_sigmas_type: FinalSigma,
    /// Order of UniPC, 1 to 3.
    pub solver_order: usize,
    /// Number of timesteps for which a latent consistency model was distilled.
    pub original_inference_steps: usize,
    /// Factor of the timesteps in the coefficients of LCM.
    pub timestep_scaling: f64,
    /// Function B(h) of UniPC.
    #[serde(skip)]
    pub uni_pc: UniPcKind,
    /// Sampling method of the scheduler class in the file.
    #[serde(skip)]
    pub method: Method,
    /// Noise levels of a flow-matching model, which replace those of the training timesteps.
    #[serde(skip)]
    pub flow: Option<Flow>,
}

impl Default for SchedulerConfig {
    /// Returns the configuration of Stable Diffusion 1.5.
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
            exponential: false,
            rescale_betas_zero_snr: false,
            final_sigmas_type: FinalSigma::Zero,
            solver_order: 2,
            original_inference_steps: 50,
            timestep_scaling: 10.0,
            uni_pc: UniPcKind::default(),
            method: Method::Ddim,
            flow: None,
        }
    }
}

/// Keys of features that are not supported.
const UNSUPPORTED: [&str; 6] =
    ["clip_sample", "thresholding", "use_beta_sigmas", "use_flow_sigmas", "use_lu_lambdas", "variance_type"];

/// Scheduler class, key, and supported values. Some values belong to other classes; diffusers replaces them
/// by defaults of the class.
const SUPPORTED: [(&str, &str, &[&str]); 8] = [
    ("DPMSolverMultistepScheduler", "algorithm_type", &["dpmsolver++", "sde-dpmsolver++", "deis"]),
    ("DPMSolverMultistepScheduler", "solver_order", &["2"]),
    ("DPMSolverMultistepScheduler", "solver_type", &["midpoint", "logrho", "bh1", "bh2"]),
    ("EulerDiscreteScheduler", "interpolation_type", &["linear"]),
    ("EulerDiscreteScheduler", "timestep_type", &["discrete"]),
    ("PNDMScheduler", "skip_prk_steps", &["true"]),
    ("UniPCMultistepScheduler", "disable_corrector", &["[]"]),
    ("UniPCMultistepScheduler", "predict_x0", &["true"]),
];

/// Non-standard number literals that Python's json module writes.
const NON_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

impl SchedulerConfig {
    /// Parses scheduler_config.json of a model whose pipeline class in diffusers is `pipeline`. DDIM replaces
    /// classes without a corresponding method, such as DDPM, because it uses the same timesteps.
    ///
    /// # Errors
    /// The text is not valid JSON, a value has the wrong type, or a setting is not supported.
    pub fn from_json(text: &str, pipeline: &str) -> Result<Self> {
        let bad = |e: serde_json::Error| Error::model(format!("scheduler_config.json: {e}"));
        let unsupported = |key: &str, value: &Value| {
            Err(Error::model(format!("scheduler_config.json: {key} = {value} is not supported")))
        };
        let mut keys: Map<String, Value> = serde_json::from_str(&replace_non_finite(text)).map_err(bad)?;
        keys.retain(|_, value| !value.is_null());
        let class = keys.get("_class_name").and_then(Value::as_str).unwrap_or_default().to_string();
        if class == CLASS {
            let flow = Some(Flow::from_keys(keys, pipeline)?);
            return Ok(Self { prediction: Prediction::Flow, method: Method::Euler, flow, ..Self::default() });
        }
        if pipeline.starts_with("StableDiffusion") && !pipeline.starts_with("StableDiffusionXL") {
            fix_legacy_config(&mut keys);
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
        if ["TCD", "EDM", "FlowMatch", "Cosine"].iter().any(|other| class.starts_with(other)) {
            return Err(Error::model(format!("scheduler_config.json: {class} is not supported")));
        }
        // Defaults shared by all classes in diffusers. Null selects the default of the method.
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
        let is_sde = keys.get("algorithm_type").and_then(Value::as_str) == Some("sde-dpmsolver++");
        let bh1 = keys.get("solver_type").and_then(Value::as_str) == Some("bh1");
        let mut config: Self = serde_json::from_value(Value::Object(keys)).map_err(bad)?;
        if config.karras && config.exponential {
            let why = "use_karras_sigmas and use_exponential_sigmas are both true; set one to false";
            return Err(Error::model(format!("scheduler_config.json: {why}")));
        }
        config.uni_pc = if bh1 { UniPcKind::Bh1 } else { UniPcKind::Bh2 };
        config.method = match Method::of_class(&class) {
            Method::DpmSolver2M if is_sde => Method::DpmSolver2MSde,
            method => method,
        };
        Ok(config)
    }

    /// Returns the methods that the model supports.
    pub fn methods(&self) -> &'static [Method] {
        if self.flow.is_some() { &[Method::Euler] } else { &Method::ALL }
    }

    /// Returns the selection of timesteps for `method`.
    pub fn spacing(&self, method: Method) -> Spacing {
        self.spacing.unwrap_or(if method.has_trained_levels() { Spacing::Leading } else { Spacing::Linspace })
    }

    /// Returns true if the last step of a method with trained levels ends without noise.
    pub(super) fn ends_at_one(&self, method: Method) -> bool {
        method == Method::Lcm || self.set_alpha_to_one.unwrap_or(method == Method::Ddim)
    }
}

/// Corrects settings of old files in the same way as the Stable Diffusion pipeline of diffusers.
fn fix_legacy_config(keys: &mut Map<String, Value>) {
    let steps_offset = keys.get("steps_offset").and_then(Value::as_u64).unwrap_or_default();
    let clip_sample = keys.get("clip_sample") == Some(&Value::Bool(true));
    for (key, wrong, right) in [
        ("steps_offset", steps_offset != 1, Value::from(1)),
        ("clip_sample", clip_sample, Value::from(false)),
    ] {
        if wrong {
            tracing::warn!(
                "scheduler_config.json: replacing {key} by {right}, which Stable Diffusion requires"
            );
            keys.insert(key.to_owned(), right);
        }
    }
}

/// Replaces non-standard number literals by null. diffusers writes `-Infinity` for `lambda_min_clipped`,
/// which has no effect.
fn replace_non_finite(text: &str) -> String {
    let mut finite = String::with_capacity(text.len());
    let (mut rest, mut quoted, mut escaped) = (text, false, false);
    while let Some(first) = rest.chars().next() {
        let word = NON_FINITE.iter().find(|word| !quoted && rest.starts_with(**word));
        let (taken, behind) = rest.split_at(word.map_or(first.len_utf8(), |word| word.len()));
        finite.push_str(if word.is_some() { "null" } else { taken });
        quoted ^= first == '"' && !escaped;
        escaped = quoted && first == '\\' && !escaped;
        rest = behind;
    }
    finite
}
