//! The log.

use crate::ServerArguments;
use std::error::Error;
use tracing_subscriber::EnvFilter;

/// Sends the log to standard error, as `--log` and `--log-json` say. Once a process.
///
/// # Errors
/// A filter that cannot be read, and a process that has a log already.
pub fn init(arguments: &ServerArguments) -> Result<(), Box<dyn Error + Send + Sync>> {
    let filter = EnvFilter::try_new(&arguments.log)
        .map_err(|error| format!("--log {:?} is no filter of logs: {error}", arguments.log))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if arguments.log_json { log.json().try_init() } else { log.try_init() }
}
