//! Command line. Each flag can also be set by an environment variable of the same name in capitals.
use std::path::PathBuf;

use candle_core::DType;
use clap::Parser;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use llm_engine::engine::{DraftSource, Options, Speculation};
use llm_engine::model::LoadOptions;
use llm_engine::model::adapter::AdapterLimits;
use llm_engine::model::cache_dtype::CacheDType;
use llm_engine::model::vision::DEFAULT_IMAGE_TOKENS;
use worker_core::ServerArguments;
use worker_core::arguments::{bytes, bytes_or_none};

use crate::api::parsers::Formats;
use crate::kv_events::{self, Endpoint};
use crate::lora_modules::{self, LoraModule, LoraModules};
use crate::models::ModelLocation;
use crate::picture_options::{ImageHost, PictureOptions};
use crate::speculative::{self, SpeculativeConfig};

/// Default of `--prompt-step-tokens`.
const PROMPT_STEP_TOKENS: usize = 2048;

/// Serves a language model with an OpenAI-compatible API.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub struct Arguments {
    /// Folder of safetensors, .gguf file, or model on the Hugging Face Hub: org/name, or org/name/file.gguf
    #[arg(long, env, required_unless_present_any = ["models", "models_dir", "models_preset"])]
    pub model: Option<String>,

    /// Models that are loaded when they are first requested, as NAME=MODEL, where MODEL is a value of --model
    #[arg(long, env, num_args = 1.., value_delimiter = ',', value_parser = ModelLocation::parse,
        conflicts_with = "model")]
    pub models: Vec<ModelLocation>,

    /// Folder of models that are loaded when they are first requested: .gguf files, and subfolders with config.json or
    /// a .gguf file
    #[arg(long, env, conflicts_with = "model")]
    pub models_dir: Option<PathBuf>,

    /// File with a section for each model with settings of its own: [NAME], and lines like context = 4096, with flags without
    /// dashes as keys. A section with model = MODEL adds a model to those of --models and --models-dir
    #[arg(long, env, value_name = "FILE", conflicts_with = "model")]
    pub models_preset: Option<PathBuf>,

    /// Maximum number of models that are loaded on demand and are in memory at once. Each gets an equal part of the GPU's
    /// memory; before another is loaded, the least recently used one is unloaded
    #[arg(long, env, default_value_t = 1, value_parser = count)]
    pub models_max: usize,

    /// Branch, tag or commit of a model on the Hub [default: main]
    #[arg(long, env)]
    pub model_ref: Option<String>,

    /// Chat template: a file or alpaca, chatml, gemma, llama2, llama3, mistral, phi3 or zephyr [default: the model's, or
    /// chatml if it has none]
    #[arg(long, env)]
    pub chat_template: Option<String>,

    /// Names of the model in the API, separated by commas; responses contain the first [default: the value of --model]
    #[arg(long, env, num_args = 1.., value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub served_model_name: Vec<String>,

    /// Accept requests for any model name
    #[arg(long, env)]
    pub any_model_name: bool,

    /// Index of the AMD GPU [default: the first that works]
    #[arg(long, env)]
    pub rocm_device: Option<usize>,

    /// Number of AMD GPUs among which the model is divided, from --rocm-device on
    #[arg(long, env, default_value_t = 1, visible_alias = "tensor-parallel-size", value_parser = count)]
    pub tensor_parallel: usize,

    /// Data type of float weights: f32, f16 or bf16 [default: as in the files; f32 on the CPU]
    #[arg(long, env, value_parser = dtype)]
    pub dtype: Option<DType>,

    /// Data type of the key-value cache: auto, f32, f16, bf16, int8 or fp8 (E4M3). auto is that of float weights, and f16
    /// for quantized GGUF files on a GPU
    #[arg(long, env, default_value = "auto", visible_alias = "kv-cache-dtype", value_parser = cache_dtype)]
    pub cache_dtype: CacheChoice,

    /// Maximum context length, in tokens [default: the model's]
    #[arg(long, env, value_parser = count)]
    pub context: Option<usize>,

    /// Size of the key-value cache on each GPU, such as 8GiB [default: free memory less a margin; 512MiB on the CPU]
    #[arg(long, env, value_parser = bytes)]
    pub cache_memory: Option<usize>,

    /// Memory for decoded copies of quantized matrices on each GPU, such as 4GiB, or 0. Products of many rows read them instead
    /// of decoding blocks [default: an eighth of the memory that weights leave, on data-center GPUs]
    #[arg(long, env, value_parser = bytes_or_none)]
    pub decoded_memory: Option<usize>,

    /// Maximum number of requests in a batch
    #[arg(long, env, default_value_t = Options::default().max_running, value_parser = count)]
    pub max_running: usize,

    /// Maximum number of waiting requests; more are rejected
    #[arg(long, env, default_value_t = Options::default().max_waiting)]
    pub max_waiting: usize,

    /// Maximum number of tokens per step: lower values reduce latency, higher ones read prompts faster
    #[arg(long, env, default_value_t = Options::default().step_tokens, value_parser = count)]
    pub step_tokens: usize,

    /// Maximum number of tokens per step while no text is being generated; no effect if it is less than --step-tokens
    #[arg(long, env, default_value_t = PROMPT_STEP_TOKENS)]
    pub prompt_step_tokens: usize,

    /// Ignore the sampler settings in the model's generation_config.json; those of OpenAI's API are then the defaults
    #[arg(long, env)]
    pub ignore_generation_config: bool,

    /// Format of tool calls; auto detects it from the chat template, none returns calls as text
    #[arg(long, env, default_value = "auto", value_parser = names(Formats::tool_names()))]
    pub tool_parser: String,

    /// Format of reasoning; auto detects it from the chat template, none returns reasoning as text
    #[arg(long, env, default_value = "auto", value_parser = names(Formats::reasoning_names()))]
    pub reasoning_parser: String,

    /// Maximum number of tokens of a picture, for models that read pictures; larger pictures are made smaller
    #[arg(long, env, default_value_t = DEFAULT_IMAGE_TOKENS, value_parser = count)]
    pub image_tokens: usize,

    /// mmproj file with the encoder of pictures of a GGUF model [default: a file of the model in the same folder]
    #[arg(long, env, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,

    /// Maximum number of pictures of a request
    #[arg(long, env, default_value_t = PictureOptions::default().count, value_parser = count)]
    pub images_per_request: usize,

    /// Hosts from which pictures may be fetched, separated by commas: example.org, or example.org:8080 for one port
    /// [default: none; requests contain pictures as data URLs]
    #[arg(long, env, num_args = 1.., value_delimiter = ',', value_parser = ImageHost::parse)]
    pub image_hosts: Vec<ImageHost>,

    /// Disable sharing of the cache between prompts with a common prefix
    #[arg(long, env)]
    pub no_prefix_cache: bool,

    /// Endpoint at which events of the prefix cache are published by ZeroMQ in vLLM's format: tcp://*:5557 listens,
    /// tcp://ROUTER:5557 connects [default: none]
    #[arg(long, env, conflicts_with = "no_prefix_cache")]
    pub kv_events: Option<Endpoint>,

    /// Endpoint at which earlier events can be requested, such as tcp://*:5558 [default: none]
    #[arg(long, env, requires = "kv_events")]
    pub kv_events_replay: Option<Endpoint>,

    /// Topic of the events; llm-d expects kv@ADDRESS@MODEL
    #[arg(long, env, default_value = "", hide_default_value = true)]
    pub kv_events_topic: String,

    /// Report the number of prompt tokens found in the cache. Clients can then detect which texts others have sent
    #[arg(long, env)]
    pub enable_prompt_tokens_details: bool,

    /// Launch the kernels of decoding steps one by one instead of as graphs
    #[arg(long, env)]
    pub no_graphs: bool,

    /// Speculation, as a JSON object with vLLM's fields: {"method": "ngram", "num_speculative_tokens": 7,
    /// "prompt_lookup_min": 2, "prompt_lookup_max": 4}, {"method": "draft_model", "model": "org/name"}, or
    /// {"method": "mtp"}. With several models, n-grams are used for all, and none switches them off in a section of
    /// --models-preset [default: none]
    #[arg(long, env, value_parser = speculative::parse)]
    pub speculative_config: Option<SpeculativeConfig>,

    /// Adapters (LoRA) in PEFT's format, as NAME=PATH or {"name": ..., "path": ..., "base_model_name": ...}
    #[arg(long, env, num_args = 1.., value_parser = lora_modules::parse)]
    pub lora_modules: Vec<LoraModules>,

    /// Maximum rank of an adapter
    #[arg(long, env, default_value_t = AdapterLimits::default().rank, value_parser = count)]
    pub max_lora_rank: usize,

    /// Maximum number of loaded adapters, for which memory is reserved [default: those of --lora-modules; 4 more with
    /// --allow-runtime-lora-updating]
    #[arg(long, env, value_parser = count)]
    pub max_loras: Option<usize>,

    /// Let clients load adapters from any folder that the worker can read, and unload them
    #[arg(long, env)]
    pub allow_runtime_lora_updating: bool,

    /// Accepted for vLLM's command lines, without effect: the other flags enable adapters
    #[arg(long, env)]
    pub enable_lora: bool,

    /// Unload the model after this many seconds without requests; the next request loads it again [default: never]
    #[arg(long, env, value_parser = count)]
    pub idle_unload: Option<usize>,

    /// Arguments of all workers.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// This worker's defaults for [`ServerArguments`].
///
/// Requests of one client are queued and not rejected, because an application's server is a single client. The queue is
/// fair between clients.
pub const DEFAULTS: [(&str, &str); 3] =
    [("port", "8081"), ("body_limit", "8388608"), ("streams_per_client", "0")];

impl Arguments {
    /// Returns the options of speculation, if it is on.
    pub fn speculation(&self) -> Option<&Speculation> {
        self.speculative_config.as_ref()?.speculation.as_ref()
    }

    /// Returns the options of the engine.
    pub fn engine(&self) -> Options {
        Options {
            max_running: self.max_running,
            max_waiting: self.max_waiting,
            step_tokens: self.step_tokens,
            prompt_step_tokens: self.prompt_step_tokens,
            prefix_cache: !self.no_prefix_cache,
            speculation: self.speculation().cloned(),
            ..Options::default()
        }
    }

    /// Returns the endpoints of cache events, if they are published.
    pub fn kv_events(&self) -> Option<kv_events::Options> {
        let (replay, topic) = (self.kv_events_replay.clone(), self.kv_events_topic.clone());
        self.kv_events.clone().map(|events| kv_events::Options { events, replay, topic })
    }

    /// Returns the formats of tool calls and reasoning; `detected` are those of the chat template.
    pub fn formats(&self, detected: Formats) -> Formats {
        Formats {
            tool: match self.tool_parser.as_str() {
                AUTO => detected.tool,
                name => Formats::tool_named(name),
            },
            reasoning: match self.reasoning_parser.as_str() {
                AUTO => detected.reasoning,
                name => Formats::reasoning_named(name),
            },
        }
    }

    /// Returns the adapters to load.
    pub fn adapters(&self) -> impl Iterator<Item = &LoraModule> {
        self.lora_modules.iter().flat_map(LoraModules::modules)
    }

    /// Returns the limits of the pictures of requests.
    pub fn pictures(&self) -> PictureOptions {
        PictureOptions { hosts: self.image_hosts.clone(), count: self.images_per_request }
    }

    fn adapter_limits(&self) -> AdapterLimits {
        let more = if self.allow_runtime_lora_updating { RUNTIME_ADAPTERS } else { 0 };
        let count = self.max_loras.unwrap_or(self.adapters().count() + more);
        AdapterLimits { count, rank: self.max_lora_rank }
    }

    /// Returns the options for loading the model.
    pub fn load(&self) -> LoadOptions {
        let (cache_bytes, decoded_bytes, context) = (self.cache_memory, self.decoded_memory, self.context);
        let (dtype, cache_dtype, no_graphs) = (self.dtype, self.cache_dtype.0, self.no_graphs);
        let adapters = self.adapter_limits();
        let speculation = self.speculation();
        LoadOptions {
            dtype,
            cache_dtype,
            cache_bytes,
            decoded_bytes,
            context,
            max_sequences: Some(self.max_running),
            draft_tokens: speculation.map_or(0, |speculation| speculation.max_tokens),
            mtp: speculation.is_some_and(|speculation| speculation.source == DraftSource::Mtp),
            no_graphs,
            adapters,
            image_tokens: Some(self.image_tokens),
            mmproj: self.mmproj.clone(),
            ..LoadOptions::default()
        }
    }
}

/// Number of adapters that clients can load by default.
const RUNTIME_ADAPTERS: usize = 4;

/// Value of a flag that stands for the detected format.
const AUTO: &str = "auto";

/// Returns the parser of a flag whose values are `names`, `auto` and `none`.
fn names(names: impl Iterator<Item = &'static str>) -> PossibleValuesParser {
    PossibleValuesParser::new([AUTO, "none"].into_iter().chain(names))
}

/// Data type of the cache; `None` is chosen when the model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct CacheChoice(pub Option<CacheDType>);

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "must be at least 1".to_owned())
}

fn dtype(text: &str) -> Result<DType, String> {
    match text {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err("must be f32, f16 or bf16".to_owned()),
    }
}

fn cache_dtype(text: &str) -> Result<CacheChoice, String> {
    match (text, CacheDType::named(text)) {
        (AUTO, _) => Ok(CacheChoice(None)),
        (_, Some(dtype)) => Ok(CacheChoice(Some(dtype))),
        (_, None) => Err("must be auto, f32, f16, bf16, int8 or fp8".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use llm_engine::model::cache_dtype::CacheEncoding;

    use super::*;

    #[test]
    fn arguments_become_options() {
        let arguments = Arguments::try_parse_from(
            "worker --model m --no-prefix-cache --no-graphs --max-running 3 --dtype bf16 --cache-memory 1MiB --context 99 \
             --decoded-memory 0"
                .split(' '),
        )
        .unwrap();
        let engine = arguments.engine();
        assert_eq!((engine.max_running, engine.max_waiting, engine.prefix_cache), (3, 256, false));
        let load = arguments.load();
        assert_eq!(
            (load.dtype, load.cache_bytes, load.decoded_bytes, load.context),
            (Some(DType::BF16), Some(1 << 20), Some(0), Some(99))
        );
        assert_eq!((load.cache_dtype, load.no_graphs, arguments.tensor_parallel), (None, true, 1));
        assert_eq!(load.adapters, AdapterLimits { count: 0, rank: 16 });
        for (flags, count, rank) in [
            ("--lora-modules a=/a b=/b --lora-modules c=/c --enable-lora", 3, 16),
            ("--lora-modules a=/a --allow-runtime-lora-updating --max-lora-rank 64", 5, 64),
            ("--allow-runtime-lora-updating --max-loras 2", 2, 16),
        ] {
            let line = format!("worker --model m {flags}");
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(arguments.load().adapters, AdapterLimits { count, rank }, "{flags}");
        }
        for (text, expected) in [
            ("--cache-dtype auto", None),
            ("--cache-dtype f32", Some(CacheDType::F32)),
            ("--cache-dtype bf16", Some(CacheDType::BF16)),
            ("--cache-dtype int8", Some(CacheDType::Encoded(CacheEncoding::Int8))),
            ("--kv-cache-dtype fp8", Some(CacheDType::Encoded(CacheEncoding::Fp8))),
            ("--kv-cache-dtype fp8_e4m3", Some(CacheDType::Encoded(CacheEncoding::Fp8))),
            ("--kv-cache-dtype bfloat16", Some(CacheDType::BF16)),
        ] {
            let line = format!("worker --model m {text}");
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(arguments.load().cache_dtype, expected);
        }
        let of = |formats: Formats| {
            (formats.tool.map(|format| format.name), formats.reasoning.map(|format| format.name))
        };
        let detected = Formats::detect(|sign| sign == "<tool_call>" || sign == "<think>");
        for (flags, expected) in [
            ("", (Some("hermes"), Some("think"))),
            ("--tool-parser mistral --reasoning-parser none", (Some("mistral"), None)),
            ("--tool-parser none --reasoning-parser granite", (None, Some("granite"))),
        ] {
            let line = format!("worker --model m {flags}");
            let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
            assert_eq!(of(arguments.formats(detected)), expected, "{flags}");
        }
        let wrong = [
            "--tool-parser x",
            "--reasoning-parser hermes",
            "--max-running 0",
            "--idle-unload 0",
            "--step-tokens x",
            "--prompt-step-tokens -1",
            "--tensor-parallel 0",
            "--dtype f64",
            "--context 0",
            "--cache-dtype f64",
            "--cache-dtype fp8_e5m2",
            "--speculative-config ngram",
            "--lora-modules sql",
            "--max-loras 0",
            "--max-lora-rank 0",
            "--kv-events 5557",
            "--kv-events-replay tcp://*:5558",
            "--kv-events tcp://*:5557 --no-prefix-cache",
        ];
        for wrong in wrong {
            assert!(
                Arguments::try_parse_from(format!("worker --model m {wrong}").split(' ')).is_err(),
                "{wrong}"
            );
        }
    }
}
