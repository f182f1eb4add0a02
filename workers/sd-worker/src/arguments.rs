//! The command line; each argument is also a variable of the same name in capitals.
use candle_core::DType;
use clap::Parser;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use worker_core::ServerArguments;
use worker_core::auth::Token;

use crate::callback;
use crate::model::{LoadOptions, Model, Version};
use crate::pipeline::Bounds;
use crate::queue;

/// Serves pictures by Stable Diffusion.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub struct Arguments {
    /// Folder in diffusers' layout, or name on the Hub: org/name
    #[arg(long, env)]
    pub model_path: String,

    /// Branch, tag or commit of a model on the Hub [default: main]
    #[arg(long, env)]
    pub model_ref: Option<String>,

    /// What the model must be; auto takes any
    #[arg(long, env, value_enum, default_value_t)]
    pub sd_version: SdVersion,

    /// Number of the AMD card [default: the first that works]
    #[arg(long, env)]
    pub rocm_device: Option<usize>,

    /// Compute in half precision [default: on cards, not on the CPU]
    #[arg(long, env, num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub use_f16: Option<bool>,

    /// URL that gets the outcome of every job by POST
    #[arg(long, env, value_parser = worker_core::arguments::http_url)]
    pub callback_url: Option<String>,

    /// Token that the callback URL is sent as `Authorization: Bearer TOKEN`
    #[arg(long, env, hide_env_values = true)]
    pub callback_token: Option<Token>,

    /// Requests that wait before others are refused
    #[arg(long, env, default_value_t = queue::Options::default().max_waiting)]
    pub max_waiting: usize,

    /// Pixels of a picture's side at most
    #[arg(long, env, default_value_t = Bounds::default().side, value_parser = between(64, 1 << 14))]
    pub max_side: usize,

    /// Pixels of a picture at most
    #[arg(long, env, default_value_t = Bounds::default().pixels, value_parser = between(1 << 12, 1 << 28))]
    pub max_pixels: usize,

    /// Steps of a picture at most
    #[arg(long, env, default_value_t = Bounds::default().steps, value_parser = between(1, 1000))]
    pub max_steps: usize,

    /// Pictures of a request at most
    #[arg(long, env, default_value_t = 4, value_parser = between(1, 64))]
    pub max_images: usize,

    /// Steps from one preview to the next; 0 shows none
    #[arg(long, env, default_value_t = queue::Options::default().preview_every)]
    pub preview_every: usize,

    /// What all workers have.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// This worker's own defaults of [`ServerArguments`].
pub const DEFAULTS: [(&str, &str); 2] = [("port", "8082"), ("body_limit", "33554432")];

/// The kinds of models that may be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SdVersion {
    /// Any.
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
    /// Made for few steps, of either kind.
    Turbo,
}

impl SdVersion {
    /// Whether a model is what was asked for.
    pub fn is(self, model: &Model) -> bool {
        match self {
            Self::Auto => true,
            Self::V1 => model.version == Version::V1,
            Self::V2 => model.version == Version::V2,
            Self::Xl => model.version == Version::Xl,
            Self::Turbo => model.turbo,
        }
    }
}

impl Arguments {
    /// As the pipeline takes them.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            side: self.max_side,
            pixels: self.max_pixels,
            steps: self.max_steps,
            pictures: self.max_images,
            ..Bounds::default()
        }
    }

    /// Who is told how jobs ended. The worker's own token is for its clients alone.
    pub fn callback(&self) -> Option<callback::Options> {
        let token = self.callback_token.clone();
        Some(callback::Options { token, ..callback::Options::new(self.callback_url.clone()?) })
    }

    /// As the queue takes them.
    pub fn queue(&self) -> queue::Options {
        queue::Options { max_waiting: self.max_waiting, preview_every: self.preview_every }
    }

    /// As the model's loader takes them.
    pub fn load(&self) -> LoadOptions {
        let dtype = self.use_f16.map(|half| if half { DType::F16 } else { DType::F32 });
        LoadOptions { dtype, ..LoadOptions::default() }
    }
}

fn between(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["worker", "--model-path", "m"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn half_precision_is_asked_for_forbidden_or_left_open() {
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
    fn versions_have_their_usual_names() {
        let table = [
            ("auto", SdVersion::Auto),
            ("1.5", SdVersion::V1),
            ("2.1", SdVersion::V2),
            ("xl", SdVersion::Xl),
            ("turbo", SdVersion::Turbo),
        ];
        for (name, version) in table {
            assert_eq!(parsed(&format!("--sd-version {name}")).unwrap().sd_version, version);
        }
        assert_eq!(parsed("").unwrap().sd_version, SdVersion::Auto);
    }

    #[test]
    fn the_callback_has_a_token_of_its_own() {
        let url = "--callback-url http://127.0.0.1:1/done";
        for (line, told, token) in [
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
            assert_eq!(callback.as_ref().map(|options| options.url.as_str()), told, "{line}");
            let sent = callback.as_ref().and_then(|options| Some(options.token.as_ref()?.reveal()));
            assert_eq!(sent, token, "{line}");
        }
        assert!(!format!("{:?}", parsed("--callback-token theirs").unwrap()).contains("theirs"));
    }

    #[test]
    fn limits_are_checked_and_passed_on() {
        let arguments =
            parsed("--max-side 512 --max-pixels 4096 --max-steps 9 --max-images 2 --preview-every 0")
                .unwrap();
        let bounds = arguments.bounds();
        assert_eq!((bounds.side, bounds.pixels, bounds.steps, bounds.pictures), (512, 4096, 9, 2));
        assert_eq!(arguments.queue().preview_every, 0);
        for wrong in
            ["--max-images 0", "--max-steps 0", "--max-side x", "--sd-version 3", "--callback-url ftp://x"]
        {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
