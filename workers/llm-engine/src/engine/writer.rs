//! A request's text, random numbers, grammar and events.
use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model_thread::error_summary;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::request::{Event, LogProb, Request, Sampling, StopReason, TokenLogProb, Usage};
use crate::sampling::{Occurrences, Row, Sampled, TokenCounts};
use crate::text::{Grammar, TextCodec, TextStream};

use super::draft_length::DraftLength;
use super::events::EventSink;
use super::sequence::Sequence;
use super::status::{QueueSlot, Shared, StepTokens};

/// Turns a request's tokens into events. Its stream always receives exactly one [`Event::End`] or
/// [`Event::Error`], at the latest when the writer is dropped.
pub(super) struct Writer {
    sampling: Sampling,
    /// Sampling parameters of the first `min_tokens` tokens, which exclude those that end the text.
    early_sampling: Sampling,
    /// Tokens that the penalties consider.
    token_counts: TokenCounts,
    min_tokens: usize,
    max_tokens: usize,
    vocabulary: usize,
    stop_tokens: Vec<u32>,
    ignore_eos: bool,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    /// Sampling parameters that select the tokens of the prompt, for the rows of the current step.
    prompt_sampling: Vec<Sampling>,
    text: Arc<TextCodec>,
    stream: TextStream,
    grammar: Option<Grammar>,
    /// Random generator; each token consumes one number, accepted draft tokens included.
    random: StdRng,
    /// Random numbers of the next tokens.
    draws: VecDeque<f32>,
    draft_length: DraftLength,
    /// Number of the current step's rows whose tokens can be used: a grammar limits the drafts that may be accepted.
    usable_rows: usize,
    events: EventSink,
    cancelled: Arc<AtomicBool>,
    started: bool,
    usage: Usage,
    /// Accepted tokens whose events are not sent yet, in order; empty once the text has ended.
    undelivered: Vec<Sampled>,
    /// Final event, sent after the request's blocks are released.
    ending: Option<Event>,
    slot: Option<QueueSlot>,
    shared: Arc<Shared>,
}

impl Writer {
    /// Splits a request into its prompt and its writer. `max_tokens` is the requested limit, or what fits, of a model
    /// with `vocabulary` tokens; `max_drafts` is the engine's limit of draft tokens.
    pub(super) fn new(
        request: Request,
        (max_tokens, vocabulary, max_drafts): (usize, usize, usize),
        grammar: Option<Grammar>,
        text: &Arc<TextCodec>,
        slot: QueueSlot,
        events: EventSink,
        cancelled: Arc<AtomicBool>,
    ) -> (Vec<u32>, Self) {
        let Request { prompt, sampling, stop, stop_token_ids, min_tokens, .. } = request;
        let Request { ignore_eos, shown_tokens, logprobs, prompt_logprobs, .. } = request;
        let stream = TextStream::new(text.clone(), stop)
            .searching_from(min_tokens)
            .showing(shown_tokens)
            .including_stop(request.include_stop)
            .with_special_tokens(request.special_tokens);
        let ends = if ignore_eos { &[] } else { text.ends() };
        let ends = ends.iter().filter(|end| (**end as usize) < vocabulary).chain(&stop_token_ids);
        let mut early_sampling = sampling.clone();
        early_sampling.logit_bias.extend(ends.map(|end| (*end, f32::NEG_INFINITY)));
        let draft_length = DraftLength::new(request.max_drafts.map_or(max_drafts, |max| max.min(max_drafts)));
        let random = StdRng::seed_from_u64(sampling.seed.unwrap_or_else(rand::random));
        let writer = Self {
            token_counts: TokenCounts::new(&sampling),
            sampling,
            early_sampling,
            min_tokens,
            max_tokens,
            vocabulary,
            stop_tokens: stop_token_ids,
            ignore_eos,
            logprobs,
            prompt_logprobs,
            prompt_sampling: Vec::new(),
            stream,
            text: text.clone(),
            grammar,
            random,
            draws: VecDeque::new(),
            draft_length,
            usable_rows: 1,
            events,
            cancelled,
            started: false,
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            undelivered: Vec::new(),
            ending: None,
            shared: slot.shared().clone(),
            slot: Some(slot),
        };
        (prompt, writer)
    }

    /// Sends [`Event::Started`] on the first call.
    pub(super) fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.send(Event::Started);
        }
    }

    /// Returns true if generation has ended or the client has disconnected.
    pub(super) fn is_finished(&mut self) -> bool {
        if self.ending.is_none() && (self.cancelled.load(Ordering::Relaxed) || self.events.is_closed()) {
            self.end(StopReason::Cancelled);
        }
        self.ending.is_some()
    }

    /// Returns true if the text has a grammar.
    pub(super) fn has_grammar(&self) -> bool {
        self.grammar.is_some()
    }

    /// Returns true if `token` ends the text and is not part of it.
    fn is_end(&self, token: u32) -> bool {
        (!self.ignore_eos && self.text.is_end(token)) || self.stop_tokens.contains(&token)
    }

    /// Adds the sampler's input for the prompt tokens after the positions `scored`. With `drafted`, also adds it for the
    /// next token and the tokens after each of that many drafts, which are the last tokens of `text`.
    fn push_rows<'a>(
        &'a mut self,
        (prompt, text): (&'a [u32], &'a [u32]),
        scored: Range<usize>,
        drafted: Option<usize>,
        rows: &mut Vec<Row<'a>>,
    ) {
        // The largest bias makes the prompt's token the most likely one, and log probabilities ignore biases.
        let select = |token: &u32| Sampling {
            temperature: 0.0,
            logit_bias: vec![(*token, f32::MAX)],
            ..Sampling::default()
        };
        let targets = prompt.get(scored.start + 1..scored.end + 1).unwrap_or_default();
        self.prompt_sampling = targets.iter().map(select).collect();
        let (written, drafts) = text.split_at(text.len() - drafted.unwrap_or(0));
        let mut after_drafts = Vec::new();
        if let Some(drafted) = drafted {
            let ends = written.len() + 1..=text.len();
            after_drafts = self.token_counts.at_ends(prompt, text, ends, written.len());
            self.draw(1 + drafted);
            self.usable_rows = match self.grammar.as_mut().map(|grammar| grammar.prepare(drafts)) {
                None => 1 + drafted,
                Some(Ok(masks)) => masks,
                Some(Err(error)) => {
                    self.fail("grammar", error_summary(&error));
                    0
                }
            };
        }
        let (writer, logprobs) = (&*self, self.prompt_logprobs);
        let row =
            |sampling| Row { sampling, draw: 0.0, occurrences: Cow::default(), allowed: None, logprobs };
        rows.extend(writer.prompt_sampling.iter().map(row));
        let before_drafts = drafted.map(|_| Cow::Borrowed(writer.token_counts.occurrences()));
        let all = before_drafts.into_iter().chain(after_drafts.into_iter().map(Cow::Owned));
        for (index, occurrences) in all.enumerate() {
            // Rows beyond the computed masks get the last mask, and their results are not used.
            let allowed = writer.grammar.as_ref().and_then(|grammar| grammar.mask(index));
            let row = writer.row(occurrences, index, allowed);
            rows.push(Row { logprobs: writer.logprobs, ..row });
        }
    }

    /// Generates the random numbers of the next `count` tokens.
    fn draw(&mut self, count: usize) {
        while self.draws.len() < count {
            self.draws.push_back(self.random.random());
        }
    }

    /// Returns the sampler's input for the token after `index` drafts. `occurrences` are those before that token.
    fn row<'a>(
        &'a self,
        occurrences: Cow<'a, Occurrences>,
        index: usize,
        allowed: Option<&'a [u32]>,
    ) -> Row<'a> {
        let is_early = self.usage.completion_tokens + index < self.min_tokens
            && allowed.is_none_or(|allowed| allows_others(allowed, self.text.ends()));
        let sampling = if is_early { &self.early_sampling } else { &self.sampling };
        let draw = self.draws.get(index).copied().unwrap_or_default();
        Row { sampling, draw, occurrences, allowed, logprobs: None }
    }

    /// Reports the log probabilities of prompt tokens. `targets` are the tokens themselves.
    fn write_prompt(&mut self, targets: &[u32], scored: impl Iterator<Item = Sampled>) {
        let token = |(target, scored): (&u32, Sampled)| {
            // Only a logit of negative infinity stays below all others.
            let logprob = scored.logprob.filter(|_| scored.token == *target).unwrap_or(f32::NEG_INFINITY);
            TokenLogProb { actual: LogProb { token: *target, logprob }, top: scored.top }
        };
        let tokens: Vec<_> = targets.iter().zip(scored).map(token).collect();
        if !tokens.is_empty() {
            self.send(Event::Prompt { tokens });
        }
    }

    /// Accepts the next token: updates the state that the next step needs. [`Self::deliver`] sends its event later. Returns true
    /// if the token is part of the text; an end-of-text token is not.
    fn accept(&mut self, sampled: Sampled, cached: usize) -> bool {
        self.usage.cached_tokens = cached;
        if self.max_tokens == 0 {
            self.end(StopReason::Length);
            return false;
        }
        let token = sampled.token;
        self.draws.pop_front();
        if self.is_end(token) {
            self.end(StopReason::Stop);
            return false;
        }
        if let Some(Err(error)) = self.grammar.as_mut().map(|grammar| grammar.accept(token)) {
            self.fail("grammar", error_summary(&error));
            return false;
        }
        self.usage.completion_tokens += 1;
        self.undelivered.push(sampled);
        // A stop string ends the text before its next row is computed.
        if self.stream.has_stops() {
            self.deliver();
        }
        if self.grammar.as_ref().is_some_and(Grammar::finished) {
            self.end(StopReason::Stop);
        } else if self.usage.completion_tokens >= self.max_tokens {
            self.end(StopReason::Length);
        }
        true
    }

    /// Sends the events of the accepted tokens. The text ends at a stop string, or if too many events are unread.
    pub(super) fn deliver(&mut self) {
        let Self { undelivered, stream, events, usage, ending, .. } = self;
        for Sampled { token, logprob, top } in undelivered.drain(..) {
            // Ids beyond the tokenizer's vocabulary, which pad the model's, add no text.
            let piece = stream.push(token).unwrap_or_default();
            *ending = events.send(Event::Token { token, text: piece.text, logprob, top }).err();
            if ending.is_none() && piece.stopped {
                let stop = stream.found_stop().map(str::to_owned);
                *ending =
                    Some(Event::End { text: String::new(), reason: StopReason::Stop, stop, usage: *usage });
            }
            if ending.is_some() {
                return;
            }
        }
    }

    /// Ends generation with an error, unless it ended before.
    pub(super) fn fail(&mut self, code: &'static str, message: String) {
        self.deliver();
        self.ending.get_or_insert(Event::Error { code, message });
    }

    /// Ends generation, unless it ended before.
    fn end(&mut self, reason: StopReason) {
        self.deliver();
        if self.ending.is_none() {
            let text = self.stream.finish();
            self.ending = Some(Event::End { text, reason, stop: None, usage: self.usage });
        }
    }

    /// Sends an event. If the receiver was dropped, the next [`Self::is_finished`] returns true.
    fn send(&mut self, event: Event) {
        if let Err(too_slow) = self.events.send(event) {
            self.ending = Some(too_slow);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.slot.take());
        let shared = self.shared.clone();
        match shared.failed() {
            Some(failure) => self.fail(failure.code, failure.message.clone()),
            None => self.end(StopReason::Cancelled),
        }
        if let Some(ending) = self.ending.take() {
            self.events.finish(ending);
        }
    }
}

impl Sequence<Writer> {
    /// Returns the number of draft tokens that the text should get in the next step, at most `max`.
    pub(super) fn wanted_drafts(&mut self, max: usize) -> usize {
        let writer = &mut self.writer;
        // The last token needs no draft.
        let left = writer.max_tokens.saturating_sub(writer.usage.completion_tokens + 1);
        let wanted = writer.draft_length.next().min(max).min(left);
        writer.draw(wanted);
        wanted
    }

    /// Adds the sampler's input for the draft token at `index`, with the random number of the token that it predicts, after
    /// `unused` rows whose results are not used.
    pub(super) fn push_draft_rows<'a>(&'a mut self, index: usize, unused: usize, rows: &mut Vec<Row<'a>>) {
        let drafted = self.drafts().len();
        let (prompt, text, writer) = self.parts();
        let written = text.len() - drafted;
        let end = written + index;
        let mut occurrences = writer.token_counts.at_ends(prompt, text, end..=end, written);
        let row = |occurrences| writer.row(occurrences, index, None);
        rows.extend((0..unused).map(|_| row(Cow::default())));
        rows.extend(occurrences.pop().map(|occurrences| row(Cow::Owned(occurrences))));
    }

    /// Drops the drafts from the first token that would end the text, or that is outside the model's vocabulary.
    pub(super) fn drop_invalid_drafts(&mut self) {
        let is_invalid =
            |token: &u32| self.writer.is_end(*token) || *token as usize >= self.writer.vocabulary;
        let end = self.drafts().iter().position(is_invalid);
        self.keep_drafts(end.unwrap_or(usize::MAX));
    }

    /// Computes the masks of the tokens to sample, if the text has a grammar.
    pub(super) fn prepare_masks(&mut self) {
        let drafted = self.drafts().len();
        let (_, written, writer) = self.parts();
        let drafts = &written[written.len() - drafted..];
        // The sampler's input reports an error.
        writer.grammar.iter_mut().for_each(|grammar| _ = grammar.prepare(drafts));
    }

    /// Returns the positions of the prompt whose next tokens the committed step scored. If the step returned the logits of
    /// the next token, also returns the number of drafts whose logits it returned.
    fn scored(&self) -> (Range<usize>, Option<usize>) {
        let returned = self.returned();
        let drafted = (self.wants_logits() && !returned.is_empty()).then(|| self.drafts().len());
        (returned.start..returned.end - drafted.map_or(0, |drafted| 1 + drafted), drafted)
    }

    /// Adds the sampler's input for all rows of logits that the committed step returned.
    pub(super) fn push_rows<'a>(&'a mut self, rows: &mut Vec<Row<'a>>) {
        let (scored, drafted) = self.scored();
        let (prompt, written, writer) = self.parts();
        writer.push_rows((prompt, written), scored, drafted, rows);
    }

    /// Processes the results of its rows, which are tokens or sampling errors. Draft tokens are accepted while they equal
    /// the sampled tokens, so the text is the same as without drafts.
    pub(super) fn write(
        &mut self,
        results: &mut impl Iterator<Item = Result<Sampled, String>>,
        counts: &mut StepTokens,
    ) {
        let (scored, drafted) = self.scored();
        let rows: Vec<_> = results.take(scored.len() + drafted.map_or(0, |drafted| 1 + drafted)).collect();
        // The text may have ended while the step was computed.
        if self.writer.ending.is_some() {
            return;
        }
        let mut rows = rows.into_iter();
        let prompt_rows: Result<Vec<Sampled>, String> = rows.by_ref().take(scored.len()).collect();
        match prompt_rows {
            Ok(prompt_rows) if !prompt_rows.is_empty() => {
                let (prompt, _, writer) = self.parts();
                let targets = prompt.get(scored.start + 1..).unwrap_or_default();
                writer.write_prompt(targets, prompt_rows.into_iter());
                self.set_scored(scored.end);
            }
            Ok(_) => {}
            Err(message) => return self.writer.fail("sampling", message),
        }
        if drafted.is_some() {
            self.write_tokens(rows, counts);
        }
    }

    /// Appends the sampled tokens up to the first that differs from its draft.
    fn write_tokens(&mut self, rows: impl Iterator<Item = Result<Sampled, String>>, counts: &mut StepTokens) {
        let drafts = self.take_drafts();
        self.writer.usage.drafted_tokens += drafts.len();
        let (cached, mut accepted) = (self.cached(), 0);
        for (index, row) in rows.enumerate().take(self.writer.usable_rows) {
            if self.writer.ending.is_some() {
                break;
            }
            let sampled = match row {
                Ok(sampled) => sampled,
                Err(message) => {
                    self.writer.fail("sampling", message);
                    break;
                }
            };
            let token = sampled.token;
            let is_draft = drafts.get(index) == Some(&token);
            self.writer.usage.accepted_tokens += usize::from(is_draft);
            if !self.writer.accept(sampled, cached) {
                break;
            }
            self.push(token);
            counts.written += 1;
            if !is_draft {
                break;
            }
            accepted += 1;
        }
        self.accept(accepted);
        self.writer.draft_length.record(drafts.len(), accepted);
        counts.drafts += u64::from(!drafts.is_empty());
        counts.drafted += drafts.len() as u64;
        counts.accepted += accepted as u64;
    }
}

/// Returns true if a mask allows tokens besides `ends`.
fn allows_others(allowed: &[u32], ends: &[u32]) -> bool {
    let ends_in = |word: usize| {
        let bits = ends.iter().filter(|end| **end as usize / 32 == word).map(|end| 1u32 << (end % 32));
        bits.fold(0, |all, bit| all | bit)
    };
    allowed.iter().enumerate().any(|(word, bits)| *bits != 0 && bits & !ends_in(word) != 0)
}
