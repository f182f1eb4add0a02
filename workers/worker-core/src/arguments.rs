//! Command-line arguments shared by all workers. Each can also be set by an environment variable in upper case.

use crate::advertise::address;
pub use crate::advertise::http_url;
use crate::auth::Token;
use axum::http::HeaderValue;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Command, CommandFactory, FromArgMatches};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments for networking, access control, monitoring and shutdown, to be flattened into other arguments.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// Name of this worker in heartbeats, logs and ids of jobs [default: random]
    #[arg(long, env, default_value_t = random_id(), hide_default_value = true, value_parser = worker_name)]
    pub worker_id: String,

    /// IP address to listen on; 0.0.0.0 listens on all interfaces
    #[arg(long, env, default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port to listen on; 0 selects a free port
    #[arg(long, env, default_value_t = 8080)]
    pub port: u16,

    /// File to which the port is written once the worker is listening
    #[arg(long, env)]
    pub port_file: Option<PathBuf>,

    /// URL to which a heartbeat is sent by POST every 30 seconds
    #[arg(long, env, value_parser = http_url)]
    pub hive_url: Option<String>,

    /// Token sent with heartbeats as `Authorization: Bearer TOKEN`
    #[arg(long, env, hide_env_values = true)]
    pub hive_token: Option<Token>,

    /// URL, HOST or HOST:PORT that heartbeats report [default: --host, or this machine's address on the route to the hive]
    #[arg(long, visible_alias = "advertise", env, value_parser = address)]
    pub advertise_address: Option<String>,

    /// Tokens, separated by commas, of which clients must send one as `Authorization: Bearer TOKEN`. Clients with
    /// different tokens do not share cached prompts
    #[arg(long, env, hide_env_values = true, value_delimiter = ',')]
    pub api_token: Vec<Token>,

    /// Names in the Host header that are accepted besides localhost if the worker listens on the loopback interface
    /// without --api-token, separated by commas; * allows all
    #[arg(long, env, value_delimiter = ',')]
    pub allowed_host: Vec<String>,

    /// Origins allowed by CORS, separated by commas; * allows all
    #[arg(long, env, value_delimiter = ',')]
    pub cors_origin: Vec<HeaderValue>,

    /// IP addresses of proxies whose X-Forwarded-For header is trusted, separated by commas
    #[arg(long, env, value_delimiter = ',')]
    pub trusted_proxy: Vec<IpAddr>,

    /// Maximum size of a request body in bytes
    #[arg(long, env, default_value_t = 1 << 20, value_parser = RangedU64ValueParser::<usize>::new())]
    pub body_limit: usize,

    /// Maximum size of a request head in bytes
    #[arg(long, env, default_value_t = 32 << 10, value_parser = RangedU64ValueParser::<usize>::new().range(1024..=256 << 10))]
    pub header_limit: usize,

    /// Seconds allowed to receive a request head, including on an idle kept-alive connection; should exceed
    /// the keep-alive timeout of proxies
    #[arg(long, env, default_value_t = 75, value_parser = seconds(1))]
    pub header_timeout: u64,

    /// Seconds until a response, or the first byte of a stream, must be available; 0 disables the limit
    #[arg(long, env, default_value_t = 600, value_parser = seconds(0))]
    pub request_timeout: u64,

    /// Seconds for which a client may read nothing of a response before its connection is closed; 0 disables the limit
    #[arg(long, env, default_value_t = 60, value_parser = seconds(0))]
    pub write_timeout: u64,

    /// Maximum number of connections; at the limit, idle ones are closed [default: the limit of open files less 80]
    #[arg(long, env, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_connections: Option<usize>,

    /// Maximum number of open requests, and of running texts, images and jobs, per client; 0 disables the limit
    #[arg(long, env, default_value_t = 32)]
    pub streams_per_client: usize,

    /// Seconds after SIGTERM during which requests are still accepted while /ready returns 503, so that gateways notice
    #[arg(long, env, default_value_t = 0, value_parser = seconds(0))]
    pub drain_grace: u64,

    /// Seconds that running requests have to finish after SIGTERM and --drain-grace
    #[arg(long, env, default_value_t = 30, value_parser = seconds(0))]
    pub drain_seconds: u64,

    /// Further seconds allowed for the current step and for reports of the last jobs
    #[arg(long, env, default_value_t = 5, value_parser = seconds(0))]
    pub shutdown_seconds: u64,

    /// Log filter in the syntax of tracing-subscriber's EnvFilter: warn, or info,worker_core=debug
    #[arg(long, env, default_value = "info")]
    pub log: String,

    /// Log one JSON object per line
    #[arg(long, env)]
    pub log_json: bool,
}

impl ServerArguments {
    /// Returns the time limit for receiving a request head.
    pub fn header_timeout(&self) -> Duration {
        Duration::from_secs(self.header_timeout)
    }

    /// Returns the time limit for starting a response, or `None` if there is no limit.
    pub fn request_timeout(&self) -> Option<Duration> {
        (self.request_timeout > 0).then(|| Duration::from_secs(self.request_timeout))
    }

    /// Returns the time for which a client may read nothing, or `None` if there is no limit.
    pub fn write_timeout(&self) -> Option<Duration> {
        (self.write_timeout > 0).then(|| Duration::from_secs(self.write_timeout))
    }

    /// Returns the time between SIGTERM and the start of shutdown.
    pub fn drain_grace(&self) -> Duration {
        Duration::from_secs(self.drain_grace)
    }

    /// Returns the time that running requests have to finish at shutdown.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    /// Returns the time that shutdown waits for the current step and for reports of finished jobs. It is
    /// limited, so that a hung device does not keep the process alive.
    pub fn shutdown(&self) -> Duration {
        Duration::from_secs(self.shutdown_seconds)
    }
}

/// Parses the command line and the environment into `T`; `defaults` overrides defaults of [`ServerArguments`]
/// (see [`command`]). Exits the process if the arguments are invalid or help is requested.
pub fn parse<T: CommandFactory + FromArgMatches>(defaults: &[(&'static str, &'static str)]) -> T {
    let mut command = command::<T>(defaults);
    let matches = command.get_matches_mut();
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Returns the clap command of `T` with the given defaults, such as `("port", "8081")`. The first element of
/// each pair is a field name; clap panics if there is no such field.
pub fn command<T: CommandFactory>(defaults: &[(&'static str, &'static str)]) -> Command {
    defaults.iter().fold(T::command(), |command, &(argument, default)| {
        command.mut_arg(argument, |argument| argument.default_value(default))
    })
}

/// Returns a parser of seconds in the range from `least` to one day.
fn seconds(least: u64) -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(least..=86_400)
}

/// Maximum length of a worker's name; a Kubernetes pod's name is at most as long.
const MAX_WORKER_NAME: usize = 253;

fn random_id() -> String {
    format!("worker-{:08x}", rand::random::<u32>())
}

/// Checks that `text` can be part of a URL, because ids of jobs contain it.
fn worker_name(text: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=MAX_WORKER_NAME).contains(&text.len()) && text.bytes().all(is_allowed) {
        true => Ok(text.to_owned()),
        false => Err(format!("must be 1 to {MAX_WORKER_NAME} of the characters A-Z, a-z, 0-9, -, _ and .")),
    }
}

/// Units of sizes, with the binary logarithms of their bytes.
const UNITS: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Parses a number of bytes above 0 with an optional unit.
///
/// # Errors
/// Returns an error for other texts.
pub fn bytes(text: &str) -> Result<usize, String> {
    let (number, shift) = UNITS
        .iter()
        .find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?.trim_end(), shift)))
        .unwrap_or((text, 0));
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "must be a size such as 8GiB or 1000000".to_owned())
}

/// Like [`bytes`], but accepts 0.
///
/// # Errors
/// See [`bytes`].
pub fn bytes_or_none(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { bytes(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, expected) in [
            ("8GiB", Some(8usize << 30)),
            ("512 MiB", Some(512 << 20)),
            ("1000", Some(1000)),
            ("3B", Some(3)),
            ("0", None),
            ("1.5GiB", None),
            ("99999999999GiB", None),
            ("GiB", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }
}
