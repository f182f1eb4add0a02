//! Content, reasoning, and the beginnings of calls.
use std::sync::Arc;

use super::call::{CallReader, Step};
use super::delta::{Delta, Tool};
use super::harmony::Harmony;
use super::marks::{first, is_partial, overlap};
use super::output::Output;
use super::reasoning_formats::ReasoningFormat;
use super::tool_formats::{Bare, HARMONY, LIST, OBJECT, ToolFormat};

/// Maximum number of bytes that are read at once.
const MAX_PART: usize = 1024;

/// Streaming parser of the text of an answer.
#[derive(Clone, Debug)]
pub struct Parser {
    reader: Reader,
    output: Output,
}

#[derive(Clone, Debug)]
enum Reader {
    Marked(Marked),
    Harmony(Harmony),
}

impl Parser {
    /// Creates a parser for the formats of calls and reasoning. If `single`, calls after the first are dropped; if
    /// `is_reasoning`, the text begins within the reasoning.
    pub fn new(
        (tool, reasoning): (Option<&'static ToolFormat>, Option<&'static ReasoningFormat>),
        tools: Arc<[Tool]>,
        single: bool,
        is_reasoning: bool,
    ) -> Self {
        let harmony = tool.map(|format| format.name).or(reasoning.map(|format| format.name)) == Some(HARMONY);
        let reader = if harmony {
            Reader::Harmony(Harmony::new(tools, reasoning.is_some()))
        } else {
            let state = if is_reasoning { State::Reasoning } else { State::Content };
            Reader::Marked(Marked { tool, reasoning, tools, held: String::new(), state })
        };
        Self { reader, output: Output::new(single) }
    }

    /// Begins within a message whose text so far is `text`.
    pub fn continuing(mut self, text: &str) -> Self {
        let is_reasoning = match &mut self.reader {
            Reader::Marked(reader) => reader.continue_after(text),
            Reader::Harmony(reader) => reader.continue_message(),
        };
        self.output.continue_after(is_reasoning);
        self
    }

    /// Adds text, and returns what is certain by now.
    pub fn push(&mut self, mut text: &str) -> Vec<Delta> {
        // Long texts are read in parts, because each rejected call moves the rest of its part.
        while text.len() > MAX_PART {
            let boundary = (MAX_PART..text.len()).find(|&at| text.is_char_boundary(at));
            let (part, rest) = text.split_at(boundary.unwrap_or(text.len()));
            self.advance(part, false);
            text = rest;
        }
        self.advance(text, false);
        self.output.take()
    }

    /// Returns the remaining deltas at the end of the text.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.advance("", true);
        self.output.finish();
        self.output.take()
    }

    /// Returns true if the text ended within the arguments of a call.
    pub fn is_truncated(&self) -> bool {
        self.output.is_truncated()
    }

    fn advance(&mut self, text: &str, ended: bool) {
        match &mut self.reader {
            Reader::Marked(reader) => {
                reader.held.push_str(text);
                reader.advance(ended, &mut self.output);
            }
            Reader::Harmony(reader) => reader.advance(text, ended, &mut self.output),
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    Content,
    Reasoning,
    Call(CallReader),
}

/// Parser of texts with marks.
#[derive(Clone, Debug)]
struct Marked {
    tool: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
    tools: Arc<[Tool]>,
    /// Text that is not certain yet.
    held: String,
    state: State,
}

impl Marked {
    /// Begins after `text`. Returns true if that is within the reasoning.
    fn continue_after(&mut self, text: &str) -> bool {
        let last = |marks: &[&str]| marks.iter().filter_map(|mark| text.rfind(mark)).max();
        let is_reasoning = self.reasoning.is_some_and(|format| last(format.openers) > last(format.closers));
        self.state = if is_reasoning { State::Reasoning } else { State::Content };
        is_reasoning
    }

    fn advance(&mut self, ended: bool, out: &mut Output) {
        loop {
            let is_done = match &mut self.state {
                State::Content => !self.content(ended, out),
                State::Reasoning => !self.reasoning(ended, out),
                State::Call(reader) => match reader.advance(&mut self.held, &self.tools, ended, out) {
                    Step::More => true,
                    Step::Done => {
                        self.state = State::Content;
                        false
                    }
                    Step::Reject => {
                        out.content(reader.raw());
                        self.state = State::Content;
                        false
                    }
                },
            };
            if is_done {
                return;
            }
        }
    }

    /// Reads content up to the next mark. Returns false if more text is needed.
    fn content(&mut self, ended: bool, out: &mut Output) -> bool {
        if out.is_after_call() {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
            let closers = || self.tool.into_iter().flat_map(|format| format.closers.iter().copied());
            if let Some(mark) = closers().find(|mark| self.held.starts_with(mark)) {
                self.held.drain(..mark.len());
                return true;
            }
            if !ended && is_partial(&self.held, closers()) {
                return false;
            }
        }
        let bare = self.tool.map_or(Bare::Nowhere, |format| format.bare);
        let anywhere = [OBJECT, LIST].into_iter().filter(|_| bare == Bare::Anywhere);
        let openers = self.tool.into_iter().flat_map(|format| format.openers.iter().copied());
        let dropped = self.reasoning.into_iter().flat_map(|format| format.dropped.iter().copied());
        let marks = anywhere.chain(openers).chain(dropped);
        if !out.has_content() {
            let space = self.held.len() - self.held.trim_start().len();
            out.content(&self.held[..space]);
            self.held.drain(..space);
        }
        let mut found = first(&self.held, marks.clone());
        if !out.has_content() {
            let reasoning = self.reasoning.into_iter().flat_map(|format| format.openers.iter().copied());
            let at_start = [OBJECT, LIST].into_iter().filter(|_| bare == Bare::AtStart);
            let at_start = reasoning.chain(at_start);
            if !ended && is_partial(&self.held, at_start.clone().chain(marks.clone())) {
                return false;
            }
            let longest = at_start.filter(|mark| self.held.starts_with(mark)).max_by_key(|mark| mark.len());
            if let Some(mark) = longest
                && !found.is_some_and(|(at, other)| at == 0 && other.len() > mark.len())
            {
                found = Some((0, mark));
            }
        }
        let Some((at, mark)) = found else {
            let keep = if ended { 0 } else { overlap(&self.held, marks) };
            let certain = self.held.len() - keep;
            out.content(&self.held[..certain]);
            self.held.drain(..certain);
            return false;
        };
        out.content(&self.held[..at]);
        self.held.drain(..at);
        // A longer mark may be arriving.
        if !ended && is_partial(&self.held, marks) {
            return false;
        }
        self.held.drain(..mark.len());
        let is_reasoning = self.reasoning.is_some_and(|format| format.openers.contains(&mark));
        let is_dropped = self.reasoning.is_some_and(|format| format.dropped.contains(&mark));
        if is_reasoning {
            out.begin_reasoning();
            self.state = State::Reasoning;
        } else if let Some(format) = self.tool.filter(|_| !is_dropped) {
            self.state = State::Call(CallReader::new(format, mark));
        }
        true
    }

    /// Reads reasoning up to its end. Returns false if more text is needed.
    fn reasoning(&mut self, ended: bool, out: &mut Output) -> bool {
        let closers = || self.reasoning.into_iter().flat_map(|format| format.closers.iter().copied());
        // The model may write a start mark, too, even if the template ends with one.
        if out.is_reasoning_start() {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
            let openers = || self.reasoning.into_iter().flat_map(|format| format.openers.iter().copied());
            if let Some(mark) = openers().find(|mark| self.held.starts_with(mark)) {
                self.held.drain(..mark.len());
                return true;
            }
            if !ended && is_partial(&self.held, openers()) {
                return false;
            }
        }
        let found = first(&self.held, closers());
        let keep = if ended { 0 } else { overlap(&self.held, closers()) };
        let certain = found.map_or(self.held.len() - keep, |(at, _)| at);
        out.reasoning(&self.held[..certain]);
        self.held.drain(..certain + found.map_or(0, |(_, mark)| mark.len()));
        if found.is_some() {
            out.end_reasoning();
            self.state = State::Content;
        }
        found.is_some()
    }
}
