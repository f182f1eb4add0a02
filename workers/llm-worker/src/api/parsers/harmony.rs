//! Channels of gpt-oss: messages with a header that names a channel and, for calls, a recipient.
use std::sync::Arc;

use super::delta::Tool;
use super::marks::{first, overlap};
use super::output::Output;

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
/// Marks after the text of a message.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];
/// Marks of headers.
const HEADER_MARKS: [&str; 4] = [CHANNEL, MESSAGE, START, "<|constrain|>"];
/// Maximum length of a header.
const MAX_HEADER: usize = 1024;

/// Special tokens of the format.
pub(super) fn marks() -> impl Iterator<Item = &'static str> {
    ENDS.into_iter().chain(HEADER_MARKS)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Content,
    Reasoning,
    Call,
}

/// Parser of channels. The template ends within a header, after `<|start|>assistant`.
#[derive(Clone, Debug)]
pub(super) struct Harmony {
    tools: Arc<[Tool]>,
    /// If false, reasoning is content.
    has_reasoning: bool,
    held: String,
    state: State,
}

impl Harmony {
    pub(super) fn new(tools: Arc<[Tool]>, has_reasoning: bool) -> Self {
        Self { tools, has_reasoning, held: String::new(), state: State::Header }
    }

    /// Begins within a message to the user instead of a header. Returns false, because that is no reasoning.
    pub(super) fn continue_message(&mut self) -> bool {
        self.state = State::Content;
        false
    }

    pub(super) fn advance(&mut self, text: &str, ended: bool, out: &mut Output) {
        self.held.push_str(text);
        loop {
            if self.state == State::Header {
                let Some(end) = self.held.find(MESSAGE) else {
                    self.unfinished_header(ended, out);
                    return;
                };
                self.state = self.begin(&self.held[..end], out);
                self.held.drain(..end + MESSAGE.len());
            }
            let found = first(&self.held, ENDS.into_iter());
            let keep = if ended { 0 } else { overlap(&self.held, ENDS.into_iter()) };
            let certain = found.map_or(self.held.len() - keep, |(at, _)| at);
            let text = &self.held[..certain];
            match self.state {
                State::Content | State::Header => out.content(text),
                State::Reasoning => out.reasoning(text),
                State::Call => out.arguments(text),
            }
            self.held.drain(..certain);
            let Some((_, mark)) = found else {
                // The end mark of a call ends the text, too.
                if ended && self.state == State::Call && self.held.is_empty() {
                    self.state = State::Header;
                }
                return;
            };
            self.held.drain(..mark.len());
            match self.state {
                State::Reasoning => out.end_reasoning(),
                State::Call => out.end_call(),
                State::Content | State::Header => {}
            }
            self.state = State::Header;
        }
    }

    /// Returns the text without a header if it cannot become one.
    fn unfinished_header(&mut self, ended: bool, out: &mut Output) {
        if ended || self.held.len() > MAX_HEADER {
            let has_marks = HEADER_MARKS.iter().any(|mark| self.held.contains(mark));
            let text = std::mem::take(&mut self.held);
            if !has_marks {
                out.content(&text);
            }
        }
    }

    /// Returns the kind of message that the header describes, and begins it.
    fn begin(&self, header: &str, out: &mut Output) -> State {
        let end =
            |text: &str| text.find(|sign: char| sign.is_whitespace() || sign == '<').unwrap_or(text.len());
        let word = |text: &str, before: &str| {
            text.rsplit_once(before).map(|(_, after)| after[..end(after)].to_owned())
        };
        let channel = word(header, CHANNEL);
        if let Some(recipient) = word(header, "to=") {
            let name = recipient.strip_prefix("functions.").unwrap_or(&recipient);
            if self.tools.iter().any(|tool| tool.name == name) {
                out.begin_call(name);
                return State::Call;
            }
        }
        if channel.as_deref() == Some("analysis") && self.has_reasoning {
            out.begin_reasoning();
            return State::Reasoning;
        }
        State::Content
    }
}
