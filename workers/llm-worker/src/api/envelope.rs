//! Common envelope of responses and response chunks.
use futures_util::stream::unfold;
use serde::Serialize;
use tokio_stream::Stream;
use uuid::Uuid;
use worker_core::{ApiError, WorkPermit, unix_seconds};

use super::answer::Usage;
use super::generation::{ChoicePiece, Generation};
use super::options::Options;
use super::prompt_logprobs::PromptLogProbs;
use super::timings::Timings;

/// A response, or a chunk of a streamed response.
#[derive(Serialize)]
pub struct Answer<C> {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<C>,
    /// Null in the chunks of a stream that ends with the token counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogProbs>,
}

impl<C> Answer<C> {
    /// Sets the times.
    pub fn with_timings(self, timings: Option<Timings>) -> Self {
        Self { timings, ..self }
    }

    /// Sets the log probabilities of the prompt.
    pub fn with_prompt_logprobs(self, prompt_logprobs: Option<PromptLogProbs>) -> Self {
        Self { prompt_logprobs, ..self }
    }
}

/// Fields that all chunks of a response share.
pub struct Envelope {
    model: String,
    id: String,
    created: u64,
    object: &'static str,
    stream_usage: bool,
    _place: WorkPermit,
}

impl Envelope {
    /// Creates an envelope with a random id that starts with `prefix`. `object` is the type of the response.
    pub fn new(prefix: &str, object: &'static str, options: &Options, place: WorkPermit) -> Self {
        let id = format!("{prefix}{}", Uuid::new_v4().simple());
        Self {
            model: options.model.name.clone(),
            id,
            created: unix_seconds(),
            object,
            stream_usage: options.stream_usage,
            _place: place,
        }
    }

    /// Returns the complete response.
    pub fn whole<C>(&self, choices: Vec<C>, usage: Usage) -> Answer<C> {
        self.answer(choices, Some(Some(usage)))
    }

    /// Returns a chunk.
    pub fn chunk<C>(&self, choice: C) -> Answer<C> {
        self.answer(vec![choice], self.stream_usage.then_some(None))
    }

    fn answer<C>(&self, choices: Vec<C>, usage: Option<Option<Usage>>) -> Answer<C> {
        let (id, model) = (self.id.clone(), self.model.clone());
        let (timings, prompt_logprobs) = (None, None);
        Answer {
            id,
            object: self.object,
            created: self.created,
            model,
            choices,
            usage,
            timings,
            prompt_logprobs,
        }
    }

    /// Streams the chunks that `choice` makes of each piece, followed by the token counts if requested.
    pub fn chunks<C>(
        self,
        generation: Generation,
        choice: impl FnMut(ChoicePiece) -> C + Send + 'static,
    ) -> impl Stream<Item = Result<Answer<C>, ApiError>> + Send + 'static {
        unfold((self, choice, Some(generation)), |(envelope, mut choice, generation)| async move {
            let mut generation = generation?;
            let (item, rest) = match generation.next().await {
                Some(Ok(piece)) => {
                    let chunk = envelope.chunk(choice(piece)).with_timings(generation.timings());
                    (Ok(chunk), Some(generation))
                }
                Some(Err(error)) => (Err(error), None),
                None if envelope.stream_usage => (Ok(envelope.whole(Vec::new(), generation.usage())), None),
                None => return None,
            };
            Some((item, (envelope, choice, rest)))
        })
    }
}
