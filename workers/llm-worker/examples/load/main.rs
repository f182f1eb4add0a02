//! Loads of a language-model server.
//!
//! ```sh
//! cargo run --example load -- models --out FOLDER
//! cargo run --example load -- mixed --address 127.0.0.1:8081 --streams 64 --seconds 60
//! cargo run --example load -- open --url http://127.0.0.1:8081 --rate 4 --seconds 60
//! ```
//!
//! `models` writes tiny models. `mixed` checks that no stream of workers is lost, incorrect or mixed with another. `open`
//! measures latencies of any OpenAI-compatible server.
mod answer;
mod kinds;
mod mixed;
mod models;
mod open;
mod report;
mod sse;
mod workload;

use std::process::ExitCode;

use clap::Parser;

/// Loads a language-model server
#[derive(Parser)]
enum Command {
    /// Writes tiny models: adapters, a model that reads pictures, and a mixture of experts
    Models(models::Arguments),
    /// Sends requests of all kinds to all models of workers and checks each answer
    Mixed(mixed::Arguments),
    /// Sends requests at random times, whether or not earlier ones have ended, and reports latencies
    Open(open::Arguments),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Models(arguments) => models::run(&arguments).map(|()| true),
        Command::Mixed(arguments) => mixed::run(&arguments),
        Command::Open(arguments) => open::run(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
