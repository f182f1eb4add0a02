//! From requests to a generation, and from that to the events of a stream.
use std::sync::Arc;

use futures_util::stream::unfold;
use llm_engine::request::Request;
use tokio_stream::Stream;
use worker_core::ApiError;

use super::answer::Usage;
use super::generation::{Generation, Piece};
use super::tool_calls::CallFinder;
use super::{failure, prompts};
use crate::served::Served;

/// What a generation tells.
pub enum Told {
    /// More of a text.
    Piece(Piece),
    /// All are whole.
    Usage(Usage),
}

/// The pieces of a generation, then what was read and written.
pub fn pieces(generation: Generation) -> impl Stream<Item = Result<Told, ApiError>> + Send + 'static {
    unfold(Some(generation), |generation| async {
        let mut generation = generation?;
        match generation.next().await {
            Some(Ok(piece)) => Some((Ok(Told::Piece(piece)), Some(generation))),
            Some(Err(error)) => Some((Err(error), None)),
            None => Some((Ok(Told::Usage(generation.usage())), None)),
        }
    })
}

/// Submits the requests of one body, whose prompt and constraint are in the fields `params`.
///
/// # Errors
/// What the engine refuses.
pub async fn start(
    served: &Arc<Served>,
    requests: impl Iterator<Item = Request> + Send + 'static,
    to_a_prompt: usize,
    finder: Option<CallFinder>,
    [prompt, constraint]: [&'static str; 2],
) -> Result<Generation, ApiError> {
    let served = served.clone();
    prompts::blocking(move || {
        let started = Generation::start(&served, requests, to_a_prompt, finder);
        started.map_err(|refused| failure::refused(refused, prompt, constraint))
    })
    .await
}
