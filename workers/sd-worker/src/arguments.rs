//! Command-line arguments. Each can also be set by an environment variable in upper case.
use std::path::{Path, PathBuf};

use candle_core::DType;
use clap::Parser;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use worker_core::arguments::bytes_or_none;
use worker_core::auth::Token;
use worker_core::{ModelLocation, ServerArguments};

use crate::callback;
use crate::model::{self, FileOptions, LoadOptions, Model, Version};
use crate::models::models_in;
use crate::pipeline::{Bounds, DEFAULT_BATCH_REQUESTS};
use crate::queue;
use crate::schedulers;

/// Image generation server for Stable Diffusion.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub struct Arguments {
    /// Folder in the layout of diffusers, .safetensors or GGUF file of a model, or name on the Hugging Face Hub: org/name
    #[arg(long, env, required_unless_present_any = ["models", "models_dir"])]
    pub model_path: Option<String>,

    /// Models that are loaded when they are first requested, as NAME=PATH, where PATH is a value of --model-path
    #[arg(long, env, num_args = 1.., value_delimiter = ',', value_parser = ModelLocation::parse,
        conflicts_with_all = FOR_ONE_MODEL)]
    pub models: Vec<ModelLocation>,

    /// Folder of models that are loaded when they are first requested: .safetensors and GGUF files, and subfolders in the
    /// layout of diffusers
    #[arg(long, env, conflicts_with_all = FOR_ONE_MODEL)]
    pub models_dir: Option<PathBuf>,

    /// Maximum number of models of --models and --models-dir that are loaded at once. Before another is loaded, the least
    /// recently used one is unloaded, and also others if the memory of the device does not suffice
    #[arg(long, env, default_value_t = 1, value_parser = range(1, 1000))]
    pub models_max: usize,

    /// Branch, tag or commit of a model on the Hub [default: main]
    #[arg(long, env)]
    pub model_ref: Option<String>,

    /// tokenizer.json of CLIP for a model in a file, or folder that holds the tokenizers [default: the folder of the file]
    #[arg(long, env)]
    pub tokenizer: Option<PathBuf>,

    /// XL's refiner, which computes the last steps of requests that ask for it: folder, .safetensors or GGUF file
    #[arg(long, env, conflicts_with_all = ["models", "models_dir"])]
    pub refiner: Option<PathBuf>,

    /// File of a VAE that replaces the one of the model: .safetensors or GGUF
    #[arg(long, env)]
    pub vae: Option<PathBuf>,

    /// File of the text encoder CLIP-L, for models that do not contain it or instead of theirs: .safetensors or GGUF
    #[arg(long, env, alias = "clip_l")]
    pub clip_l: Option<PathBuf>,

    /// File of the text encoder CLIP-G of XL and Stable Diffusion 3, or of that of 2.x: .safetensors or GGUF
    #[arg(long, env, alias = "clip_g")]
    pub clip_g: Option<PathBuf>,

    /// File of the text encoder T5 of Flux and Stable Diffusion 3: .safetensors or GGUF
    #[arg(long, env)]
    pub t5xxl: Option<PathBuf>,

    /// Location of the weights of the text encoder T5 between prompts
    #[arg(long, env, value_enum, default_value_t)]
    pub t5_memory: T5Memory,

    /// Memory for decoded copies of the quantized matrices of the UNet or transformer, such as 4GiB, or 0. Steps read them instead
    /// of decoding blocks. Limited to the memory that weights, refiner and 2 GiB of activations leave, less the parts of
    /// other models that may be loaded [default: an eighth of what weights, refiner and activations leave, on data-center GPUs]
    #[arg(long, env, value_parser = bytes_or_none)]
    pub decoded_memory: Option<usize>,

    /// Do not check images with the model's safety checker
    #[arg(long, env)]
    pub no_safety_checker: bool,

    /// Folder with LoRA files (.safetensors), which requests name
    #[arg(long, env)]
    pub lora_dir: Option<PathBuf>,

    /// Folder with ControlNets, which requests name: .safetensors files, and subfolders in the layout of diffusers
    #[arg(long, env)]
    pub controlnet_dir: Option<PathBuf>,

    /// Folder with embeddings of textual inversion (.safetensors); prompts use their names
    #[arg(long, env)]
    pub embedding_dir: Option<PathBuf>,

    /// Quantity that the UNet of a .safetensors file predicts [default: found in the file]
    #[arg(long, env, value_enum)]
    pub prediction: Option<Prediction>,

    /// Required version of the model; auto accepts all
    #[arg(long, env, value_enum, default_value_t)]
    pub sd_version: SdVersion,

    /// .safetensors or GGUF file of a transformer, with original names or those of diffusers, that replaces the folder's
    #[arg(long, env)]
    pub transformer: Option<PathBuf>,

    /// Ordinal of the AMD GPU [default: the first usable one]
    #[arg(long, env)]
    pub rocm_device: Option<usize>,

    /// Compute in half precision [default: true on GPUs, false on the CPU]
    #[arg(long, env, num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub use_f16: Option<bool>,

    /// URL to which the result of every job is sent by POST
    #[arg(long, env, value_parser = worker_core::arguments::http_url)]
    pub callback_url: Option<String>,

    /// Token sent to the callback URL as `Authorization: Bearer TOKEN`
    #[arg(long, env, hide_env_values = true)]
    pub callback_token: Option<Token>,

    /// Maximum number of waiting requests
    #[arg(long, env, default_value_t = queue::Options::default().max_waiting)]
    pub max_waiting: usize,

    /// Maximum width and height of an image in pixels
    #[arg(long, env, default_value_t = Bounds::default().side, value_parser = range(64, 1 << 14))]
    pub max_side: usize,

    /// Maximum number of pixels of an image
    #[arg(long, env, default_value_t = Bounds::default().pixels, value_parser = range(1 << 12, 1 << 28))]
    pub max_pixels: usize,

    /// Maximum number of steps of an image
    #[arg(long, env, default_value_t = Bounds::default().steps, value_parser = range(1, 1000))]
    pub max_steps: usize,

    /// Maximum number of images of a request
    #[arg(long, env, default_value_t = 4, value_parser = range(1, 64))]
    pub max_images: usize,

    /// Maximum number of requests that are computed together; 1 computes them one at a time
    #[arg(long, env, default_value_t = DEFAULT_BATCH_REQUESTS, value_parser = range(1, 64))]
    pub batch_requests: usize,

    /// Number of steps between previews; 0 disables previews
    #[arg(long, env, default_value_t = queue::Options::default().preview_every)]
    pub preview_every: usize,

    /// Arguments shared by all workers.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// Defaults that replace those of [`ServerArguments`].
pub const DEFAULTS: [(&str, &str); 2] = [("port", "8082"), ("body_limit", "33554432")];

/// Arguments that apply to one model.
const FOR_ONE_MODEL: [&str; 9] = [
    "model_path",
    "model_ref",
    "vae",
    "clip_l",
    "clip_g",
    "t5xxl",
    "transformer",
    "prediction",
    "sd_version",
];

/// Required version of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SdVersion {
    /// Any version.
    #[default]
    Auto,
    /// Stable Diffusion 1.
    #[value(name = "1.5")]
    V1,
    /// Stable Diffusion 2.
    #[value(name = "2.1")]
    V2,
    /// Stable Diffusion XL.
    Xl,
    /// Stable Diffusion 3 or 3.5.
    #[value(name = "3")]
    V3,
    /// Flux.
    Flux,
    /// Distilled Turbo model of any version.
    Turbo,
}

/// Location of the weights of the text encoder T5 between prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum T5Memory {
    /// In the memory of the device if all weights and 2 GiB of activations fit into it, or if its free memory is unknown;
    /// otherwise in the file.
    #[default]
    Auto,
    /// In the memory of the device.
    Resident,
    /// In the file; for each new prompt, they are read block by block.
    Streamed,
}

impl From<T5Memory> for model::T5Memory {
    fn from(memory: T5Memory) -> Self {
        match memory {
            T5Memory::Auto => Self::Auto,
            T5Memory::Resident => Self::Resident,
            T5Memory::Streamed => Self::Streamed,
        }
    }
}

/// Quantity that the UNet predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Prediction {
    /// The noise.
    Epsilon,
    /// The velocity of Salimans and Ho (2022).
    V,
}

impl From<Prediction> for schedulers::Prediction {
    fn from(prediction: Prediction) -> Self {
        match prediction {
            Prediction::Epsilon => Self::Epsilon,
            Prediction::V => Self::VPrediction,
        }
    }
}

impl SdVersion {
    /// Returns true if `model` is of this version.
    pub fn matches(self, model: &Model) -> bool {
        match self {
            Self::Auto => true,
            Self::V1 => model.version == Version::V1,
            Self::V2 => model.version == Version::V2,
            Self::Xl => matches!(model.version, Version::Xl | Version::XlRefiner),
            Self::V3 => matches!(model.version, Version::Sd3 | Version::Sd35),
            Self::Flux => model.version == Version::Flux,
            Self::Turbo => model.turbo,
        }
    }
}

impl Arguments {
    /// Returns the limits of the pipeline.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            side: self.max_side,
            pixels: self.max_pixels,
            steps: self.max_steps,
            pictures: self.max_images,
            ..Bounds::default()
        }
    }

    /// Returns the callback options, if there is a callback URL. The API token of the worker is not sent there.
    pub fn callback(&self) -> Option<callback::Options> {
        let token = self.callback_token.clone();
        Some(callback::Options { token, ..callback::Options::new(self.callback_url.clone()?) })
    }

    /// Returns the options of the queue.
    pub fn queue(&self) -> queue::Options {
        queue::Options { max_waiting: self.max_waiting, preview_every: self.preview_every }
    }

    /// Returns the models that are loaded on demand.
    ///
    /// # Errors
    /// The folder of `--models-dir` cannot be read or contains no model, or two models have one name.
    pub fn models_on_demand(&self) -> anyhow::Result<Vec<ModelLocation>> {
        let mut models = self.models.clone();
        if let Some(folder) = &self.models_dir {
            models.extend(models_in(folder)?);
        }
        ModelLocation::check_all(&models)?;
        Ok(models)
    }

    /// Returns the arguments of a worker that serves only `location`.
    pub fn for_model(&self, location: &ModelLocation) -> Self {
        let (models, models_dir) = (Vec::new(), None);
        // Folders have their own tokenizers.
        let tokenizer = self.tokenizer.clone().filter(|_| Path::new(&location.model).is_file());
        Self { model_path: Some(location.model.clone()), models, models_dir, tokenizer, ..self.clone() }
    }

    /// Returns the options for loading the refiner at a path.
    pub fn load_refiner(&self, path: &Path) -> LoadOptions {
        // Folders are complete. Files that hold a UNet alone need CLIP-G and the VAE of the base model.
        let of_file = |option: &Option<PathBuf>| option.clone().filter(|_| path.is_file());
        let (tokenizer, clip_g, vae) = (of_file(&self.tokenizer), of_file(&self.clip_g), of_file(&self.vae));
        let files =
            FileOptions { tokenizer, clip_g, vae, without_safety_checker: true, ..FileOptions::default() };
        // The base model decodes the latents.
        LoadOptions { files, without_vae: true, ..self.load() }
    }

    /// Returns the options for loading the model.
    pub fn load(&self) -> LoadOptions {
        let dtype = self.use_f16.map(|half| if half { DType::F16 } else { DType::F32 });
        let files = FileOptions {
            tokenizer: self.tokenizer.clone(),
            clip_l: self.clip_l.clone(),
            clip_g: self.clip_g.clone(),
            t5xxl: self.t5xxl.clone(),
            vae: self.vae.clone(),
            transformer: self.transformer.clone(),
            prediction: self.prediction.map(Into::into),
            turbo: self.sd_version == SdVersion::Turbo,
            without_safety_checker: self.no_safety_checker,
            embeddings: self.embedding_dir.clone(),
        };
        let (t5_memory, decoded_bytes) = (self.t5_memory.into(), self.decoded_memory);
        LoadOptions { dtype, files, t5_memory, decoded_bytes, ..LoadOptions::default() }
    }
}

fn range(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["worker", "--model-path", "m"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn use_f16_selects_the_dtype() {
        for (line, expected) in [
            ("", None),
            ("--use-f16", Some(DType::F16)),
            ("--use-f16 --max-steps 7", Some(DType::F16)),
            ("--use-f16=1", Some(DType::F16)),
            ("--use-f16 false", Some(DType::F32)),
        ] {
            assert_eq!(parsed(line).unwrap().load().dtype, expected, "{line}");
        }
    }

    #[test]
    fn versions_are_parsed() {
        let table = [
            ("auto", SdVersion::Auto),
            ("1.5", SdVersion::V1),
            ("2.1", SdVersion::V2),
            ("xl", SdVersion::Xl),
            ("3", SdVersion::V3),
            ("flux", SdVersion::Flux),
            ("turbo", SdVersion::Turbo),
        ];
        for (name, version) in table {
            assert_eq!(parsed(&format!("--sd-version {name}")).unwrap().sd_version, version);
        }
        assert_eq!(parsed("").unwrap().sd_version, SdVersion::Auto);
    }

    #[test]
    fn the_callback_has_a_separate_token() {
        let url = "--callback-url http://127.0.0.1:1/done";
        for (line, expected_url, token) in [
            ("--api-token ours", None, None),
            ("--callback-token theirs", None, None),
            (url, Some("http://127.0.0.1:1/done"), None),
            (&format!("{url} --api-token ours --hive-token its"), Some("http://127.0.0.1:1/done"), None),
            (
                &format!("{url} --api-token ours --callback-token theirs"),
                Some("http://127.0.0.1:1/done"),
                Some("theirs"),
            ),
        ] {
            let callback = parsed(line).unwrap().callback();
            assert_eq!(callback.as_ref().map(|options| options.url.as_str()), expected_url, "{line}");
            let sent = callback.as_ref().and_then(|options| Some(options.token.as_ref()?.reveal()));
            assert_eq!(sent, token, "{line}");
        }
        assert!(!format!("{:?}", parsed("--callback-token theirs").unwrap()).contains("theirs"));
    }

    #[test]
    fn limits_are_validated_and_passed_on() {
        let arguments =
            parsed("--max-side 512 --max-pixels 4096 --max-steps 9 --max-images 2 --preview-every 0")
                .unwrap();
        let bounds = arguments.bounds();
        assert_eq!((bounds.side, bounds.pixels, bounds.steps, bounds.pictures), (512, 4096, 9, 2));
        assert_eq!(arguments.queue().preview_every, 0);
        for wrong in
            ["--max-images 0", "--max-steps 0", "--max-side x", "--sd-version 4", "--callback-url ftp://x"]
        {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
