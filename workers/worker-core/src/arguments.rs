//! The arguments that every worker has; each is also a variable of the same name in capitals.

use crate::auth::Token;
use axum::http::{HeaderValue, Uri};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Command, CommandFactory, FromArgMatches};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How the worker is reached, guarded, watched and ended. Flatten it into the worker's own arguments.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// Name of this worker, as the hive and the logs have it [default: random]
    #[arg(long, env, default_value_t = random_id(), hide_default_value = true)]
    pub worker_id: String,

    /// Address to listen at; 0.0.0.0 is every one of this machine
    #[arg(long, env, default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port to listen at; 0 takes a free one
    #[arg(long, env, default_value_t = 8080)]
    pub port: u16,

    /// File that gets the port once the worker listens
    #[arg(long, env)]
    pub port_file: Option<PathBuf>,

    /// URL that is told every 30 seconds how the worker does
    #[arg(long, env, value_parser = http_url)]
    pub hive_url: Option<String>,

    /// Token that the hive is sent as `Authorization: Bearer TOKEN`
    #[arg(long, env, hide_env_values = true)]
    pub hive_token: Option<Token>,

    /// Token that clients must send as `Authorization: Bearer TOKEN`
    #[arg(long, env, hide_env_values = true)]
    pub api_token: Option<Token>,

    /// Origins whose pages may call the worker, with commas between; * is all
    #[arg(long, env, value_delimiter = ',')]
    pub cors_origin: Vec<HeaderValue>,

    /// Proxies whose X-Forwarded-For is believed, with commas between
    #[arg(long, env, value_delimiter = ',')]
    pub trusted_proxy: Vec<IpAddr>,

    /// Bytes that the body of a request may have
    #[arg(long, env, default_value_t = 1 << 20, value_parser = RangedU64ValueParser::<usize>::new())]
    pub body_limit: usize,

    /// Bytes that the head of a request may have
    #[arg(long, env, default_value_t = 32 << 10, value_parser = RangedU64ValueParser::<usize>::new().range(1024..=256 << 10))]
    pub header_limit: usize,

    /// Seconds for the head of a request to arrive, and for the next one on a kept connection: more than a
    /// proxy keeps it
    #[arg(long, env, default_value_t = 75, value_parser = seconds(1))]
    pub header_timeout: u64,

    /// Seconds until a request must have its answer, or the first byte of its stream; 0 waits for ever
    #[arg(long, env, default_value_t = 600, value_parser = seconds(0))]
    pub request_timeout: u64,

    /// Requests that one client may have open, and texts, pictures and jobs that may run for it; 0 sets no limit
    #[arg(long, env, default_value_t = 32)]
    pub streams_per_client: usize,

    /// Seconds that running requests have to end after SIGTERM
    #[arg(long, env, default_value_t = 30, value_parser = seconds(0))]
    pub drain_seconds: u64,

    /// Seconds that a step, and reports of the last jobs, may take after that
    #[arg(long, env, default_value_t = 5, value_parser = seconds(0))]
    pub shutdown_seconds: u64,

    /// What is logged, as tracing's filters are written: warn, or info,worker_core=debug
    #[arg(long, env, default_value = "info")]
    pub log: String,

    /// Log one JSON object a line
    #[arg(long, env)]
    pub log_json: bool,
}

impl ServerArguments {
    /// How long a head may take to arrive.
    pub fn header_timeout(&self) -> Duration {
        Duration::from_secs(self.header_timeout)
    }

    /// How long an answer may take to begin, if that is limited.
    pub fn request_timeout(&self) -> Option<Duration> {
        (self.request_timeout > 0).then(|| Duration::from_secs(self.request_timeout))
    }

    /// How long running requests have when the worker ends.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    /// How long the end waits for a step that is still computed, and for what is reported elsewhere, such as the ends of
    /// the last jobs: a device that hangs must not hold the process.
    pub fn shutdown(&self) -> Duration {
        Duration::from_secs(self.shutdown_seconds)
    }
}

/// Parses the command line and the environment into `T`, with the worker's own defaults in place of some of
/// [`ServerArguments`]' (see [`command`]). Ends the process where they are wrong, or where help is asked for.
pub fn parse<T: CommandFactory + FromArgMatches>(defaults: &[(&'static str, &'static str)]) -> T {
    let mut command = command::<T>(defaults);
    let matches = command.get_matches_mut();
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// The command of `T` with other defaults: `("port", "8081")`, `("body_limit", "67108864")`. The first of a
/// pair is the argument's field; clap panics where there is none.
pub fn command<T: CommandFactory>(defaults: &[(&'static str, &'static str)]) -> Command {
    defaults.iter().fold(T::command(), |command, &(argument, default)| {
        command.mut_arg(argument, |argument| argument.default_value(default))
    })
}

/// A parser of seconds, from `least` to a day.
fn seconds(least: u64) -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(least..=86_400)
}

fn random_id() -> String {
    format!("worker-{:08x}", rand::random::<u32>())
}

/// Parses a URL that can be asked.
///
/// # Errors
/// It is none, or begins with neither `http://` nor `https://`.
pub fn http_url(text: &str) -> Result<String, String> {
    let uri: Uri = text.parse().map_err(|error| format!("is no URL: {error}"))?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(text.to_owned()),
        _ => Err("must begin with http:// or https://".to_owned()),
    }
}
