//! Collection of deltas.
use super::delta::Delta;

/// Kind of item before the current position, which determines whether white space is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Content,
    Reasoning,
    Call,
}

/// Collects deltas. White space around reasoning and calls is dropped.
#[derive(Clone, Debug)]
pub(super) struct Output {
    deltas: Vec<Delta>,
    /// If true, calls after the first are dropped.
    single: bool,
    /// Number of calls that began.
    calls: usize,
    /// True while a call is open.
    open: bool,
    /// True if the text ended within the arguments of a call.
    truncated: bool,
    /// White space that is kept only if content follows.
    space: String,
    /// White space that is kept only if reasoning follows.
    reasoning_space: String,
    has_reasoning: bool,
    /// True until the current reasoning has text other than white space.
    reasoning_starts: bool,
    has_content: bool,
    before: Before,
}

impl Output {
    pub(super) fn new(single: bool) -> Self {
        Self {
            deltas: Vec::new(),
            single,
            calls: 0,
            open: false,
            truncated: false,
            space: String::new(),
            reasoning_space: String::new(),
            has_reasoning: false,
            reasoning_starts: true,
            has_content: false,
            before: Before::Content,
        }
    }

    /// Begins after other text of the answer, so that white space is kept.
    pub(super) fn continue_after(&mut self, is_reasoning: bool) {
        self.reasoning_starts = !is_reasoning;
        self.has_content = !is_reasoning;
    }

    /// Returns the deltas since the last call of this function.
    pub(super) fn take(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }

    /// Returns true once there was content other than white space.
    pub(super) fn has_content(&self) -> bool {
        self.has_content
    }

    /// Returns true directly after a call.
    pub(super) fn is_after_call(&self) -> bool {
        self.before == Before::Call
    }

    /// Returns true if the text ended within the arguments of a call.
    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }

    pub(super) fn content(&mut self, text: &str) {
        let text = if self.before == Before::Content { text } else { text.trim_start() };
        if text.is_empty() {
            return;
        }
        let trimmed = text.trim_end();
        if trimmed.is_empty() {
            self.space.push_str(text);
            return;
        }
        let mut content = std::mem::take(&mut self.space);
        content.push_str(trimmed);
        self.space.push_str(&text[trimmed.len()..]);
        (self.has_content, self.before) = (true, Before::Content);
        match self.deltas.last_mut() {
            Some(Delta::Content(last)) => last.push_str(&content),
            _ => self.deltas.push(Delta::Content(content)),
        }
    }

    pub(super) fn begin_reasoning(&mut self) {
        self.space.clear();
        self.reasoning_starts = true;
    }

    /// Returns true until the current reasoning has text other than white space.
    pub(super) fn is_reasoning_start(&self) -> bool {
        self.reasoning_starts
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        let text = if self.reasoning_starts { text.trim_start() } else { text };
        let trimmed = text.trim_end();
        if trimmed.is_empty() {
            self.reasoning_space.push_str(text);
            return;
        }
        let mut reasoning = std::mem::take(&mut self.reasoning_space);
        if self.reasoning_starts && self.has_reasoning {
            reasoning.push('\n');
        }
        reasoning.push_str(trimmed);
        self.reasoning_space.push_str(&text[trimmed.len()..]);
        (self.has_reasoning, self.reasoning_starts) = (true, false);
        match self.deltas.last_mut() {
            Some(Delta::Reasoning(last)) => last.push_str(&reasoning),
            _ => self.deltas.push(Delta::Reasoning(reasoning)),
        }
    }

    pub(super) fn end_reasoning(&mut self) {
        self.reasoning_space.clear();
        self.before = Before::Reasoning;
    }

    /// Begins a call. Content before it loses its trailing white space.
    pub(super) fn begin_call(&mut self, name: &str) {
        self.space.clear();
        self.calls += 1;
        self.open = true;
        if !self.is_muted() {
            self.deltas.push(Delta::CallBegin { index: self.calls - 1, name: name.to_owned() });
        }
    }

    pub(super) fn arguments(&mut self, text: &str) {
        if self.is_muted() || text.is_empty() {
            return;
        }
        match self.deltas.last_mut() {
            Some(Delta::Arguments { text: last, .. }) => last.push_str(text),
            _ => self.deltas.push(Delta::Arguments { index: self.calls - 1, text: text.to_owned() }),
        }
    }

    pub(super) fn end_call(&mut self) {
        self.open = false;
        self.before = Before::Call;
        if !self.is_muted() {
            self.deltas.push(Delta::CallEnd { index: self.calls - 1 });
        }
    }

    /// Adds a complete call.
    pub(super) fn call(&mut self, name: &str, arguments: &str) {
        self.begin_call(name);
        self.arguments(arguments);
        self.end_call();
    }

    /// Ends the text.
    pub(super) fn finish(&mut self) {
        if self.open {
            self.truncated = true;
            self.end_call();
        }
        let space = std::mem::take(&mut self.space);
        if self.before == Before::Content && !space.is_empty() {
            match self.deltas.last_mut() {
                Some(Delta::Content(last)) => last.push_str(&space),
                _ => self.deltas.push(Delta::Content(space)),
            }
        }
    }

    fn is_muted(&self) -> bool {
        self.single && self.calls > 1
    }
}
