//! A worker as a process.

use crate::{ServerArguments, logging};
use anyhow::{Context, Result};
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Builder;

/// How long the end waits for threads that still compute: a card that hangs must not hold the process.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Runs a worker to its end: status 0 where it was told to end; 1, and a line that says why, where it could not work.
pub fn run(arguments: &ServerArguments, live: impl Future<Output = Result<()>>) -> ExitCode {
    match begin(arguments, live) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: logs of containers are read by lines.
            eprintln!("error: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn begin(arguments: &ServerArguments, live: impl Future<Output = Result<()>>) -> Result<()> {
    logging::init(arguments)?;
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("the system has no threads to give")?;
    let ended = runtime.block_on(live);
    runtime.shutdown_timeout(PATIENCE);
    ended
}
