//! Setup of the log.

use crate::ServerArguments;
use anyhow::{Context, Result, anyhow};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Installs a log subscriber that writes to standard error, configured by `--log` and `--log-json`.
///
/// # Errors
/// The filter is invalid, or the process already has a subscriber.
pub fn init(arguments: &ServerArguments) -> Result<()> {
    let filter = &arguments.log;
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("--log {filter:?} is not a valid log filter"))?;
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr);
    let set = if arguments.log_json { log.json().try_init() } else { log.try_init() };
    set.map_err(|error| anyhow!("cannot set up the log: {error}"))
}
