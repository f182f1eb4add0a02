//! The log.

use crate::ServerArguments;
use anyhow::{Context, Result, anyhow};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Sends the log to standard error, as `--log` and `--log-json` say. Once a process.
///
/// # Errors
/// A filter that cannot be read, and a process that has a log already.
pub fn init(arguments: &ServerArguments) -> Result<()> {
    let filter = &arguments.log;
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("--log {filter:?} is no filter of logs"))?;
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr);
    let set = if arguments.log_json { log.json().try_init() } else { log.try_init() };
    set.map_err(|error| anyhow!("the log cannot be set up: {error}"))
}
