//! The log.

use crate::ServerArguments;
use std::error::Error;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be read.
    #[error("--log {filter:?} is no filter of logs: {source}")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// The process has a log already.
    #[error("the log cannot be set up: {0}")]
    Taken(Box<dyn Error + Send + Sync>),
}

/// Sends the log to standard error, as `--log` and `--log-json` say. Once a process.
///
/// # Errors
/// A filter that cannot be read, and a process that has a log already.
pub fn init(arguments: &ServerArguments) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(&arguments.log)
        .map_err(|source| LogError::Filter { filter: arguments.log.clone(), source })?;
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr);
    let set = if arguments.log_json { log.json().try_init() } else { log.try_init() };
    set.map_err(LogError::Taken)
}
