//! Parser of one call or a list of calls, after the mark that begins them.
use super::delta::Tool;
use super::header::{self, ArgumentForm, Header};
use super::marks::is_partial;
use super::nesting::Nesting;
use super::object::{ObjectScan, ObjectStep};
use super::output::Output;
use super::parameters::{ParameterScan, ParameterStep};
use super::python;
use super::tags::{self, Tags};
use super::tool_formats::{LIST, OBJECT, ToolFormat};

/// Maximum length of a rejected call that is searched for other calls.
const MAX_SEARCHED: usize = 4096;
/// Maximum length of a function's name.
const MAX_NAME: usize = 256;

/// Result of reading the text so far.
pub(super) enum Step {
    /// More text is needed.
    More,
    /// All calls have ended; further text is not part of them.
    Done,
    /// There is no call. The text from the mark on is content.
    Reject,
}

/// Position within a call.
#[derive(Clone, Debug)]
enum Phase {
    /// Before a call.
    Start,
    /// In a JSON object that is not certain to be a call.
    Object(ObjectScan),
    /// After the mark of a tag, such as `<function=`.
    Tag(&'static Tags),
    /// In a name without a tag.
    Header,
    /// In arguments that are read as a whole, because `convert` has to make JSON of them.
    Whole { tool: usize, nesting: Nesting, pos: usize, convert: fn(&str, &Tool) -> Option<String> },
    /// In JSON arguments within so many open objects.
    Arguments { nesting: Nesting, levels: usize },
    /// After the arguments, in the enclosing object.
    Tail(Nesting),
    /// In XML parameters.
    Parameters(ParameterScan),
    /// After a call.
    After,
}

/// Returns the name in an attribute.
fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

enum Flow {
    To(Phase),
    End(Step),
}

/// Parser of calls.
#[derive(Clone, Debug)]
pub(super) struct CallReader {
    format: &'static ToolFormat,
    /// Text that was read but is content if there is no call.
    raw: String,
    is_list: bool,
    phase: Phase,
}

impl CallReader {
    /// Creates a parser for the text after `mark`.
    pub(super) fn new(format: &'static ToolFormat, mark: &str) -> Self {
        let phase = Self::after_mark(mark);
        Self { format, raw: mark.to_owned(), is_list: mark == LIST, phase }
    }

    fn after_mark(mark: &str) -> Phase {
        match mark {
            OBJECT => Phase::Object(ObjectScan::new()),
            mark => tags::of_mark(mark).map_or(Phase::Start, Phase::Tag),
        }
    }

    /// Returns the text that is content if there is no call.
    pub(super) fn raw(&self) -> &str {
        &self.raw
    }

    /// Moves text from `held` to calls. If `ended`, no more text follows.
    pub(super) fn advance(
        &mut self,
        held: &mut String,
        tools: &[Tool],
        ended: bool,
        out: &mut Output,
    ) -> Step {
        loop {
            let flow = match &mut self.phase {
                Phase::Start => self.start(held, ended),
                Phase::Object(scan) => match scan.advance(held, tools) {
                    ObjectStep::More if !ended => Flow::End(Step::More),
                    ObjectStep::More | ObjectStep::Reject => {
                        let scanned = scan.scanned();
                        self.reject(held, scanned)
                    }
                    ObjectStep::Arguments { tool, start, levels } => {
                        held.drain(..start);
                        self.begin(tool, tools, out);
                        Flow::To(Phase::Arguments { nesting: Nesting::default(), levels })
                    }
                    ObjectStep::Complete { tool, arguments, end } => {
                        held.drain(..end);
                        self.begin(tool, tools, out);
                        out.arguments(&arguments);
                        out.end_call();
                        Flow::To(Phase::After)
                    }
                },
                Phase::Tag(tags) => {
                    let tags = *tags;
                    self.tag(tags, held, tools, ended, out)
                }
                Phase::Header => match header::read(held, tools) {
                    Header::More => Flow::End(if ended { Step::Reject } else { Step::More }),
                    Header::Reject => Flow::End(Step::Reject),
                    Header::Call { tool, len, form } => {
                        self.raw.extend(held.drain(..len));
                        Flow::To(match form {
                            ArgumentForm::Json => {
                                self.begin(tool, tools, out);
                                Phase::Arguments { nesting: Nesting::default(), levels: 0 }
                            }
                            ArgumentForm::Tags(tags) => {
                                self.begin(tool, tools, out);
                                Phase::Parameters(ParameterScan::new(tags, tool))
                            }
                            ArgumentForm::Python => {
                                let (nesting, convert) = (Nesting::within(1), python::arguments as _);
                                Phase::Whole { tool, nesting, pos: 0, convert }
                            }
                            ArgumentForm::Raw => {
                                let (nesting, convert) = (Nesting::raw(), python::raw_arguments as _);
                                Phase::Whole { tool, nesting, pos: 0, convert }
                            }
                        })
                    }
                },
                Phase::Whole { tool, nesting, pos, convert } => {
                    let end = held.bytes().enumerate().skip(*pos).find(|&(_, byte)| nesting.advance(byte));
                    *pos = held.len();
                    let call = end.and_then(|(end, _)| {
                        let tool = tools.get(*tool)?;
                        Some((end, &tool.name, convert(&held[..end], tool)?))
                    });
                    match call {
                        Some((end, name, arguments)) => {
                            held.drain(..=end);
                            self.raw.clear();
                            out.call(name, &arguments);
                            Flow::To(Phase::After)
                        }
                        None if end.is_some() || ended => {
                            let scanned = end.map_or(held.len(), |(end, _)| end);
                            self.reject(held, scanned)
                        }
                        None => Flow::End(Step::More),
                    }
                }
                Phase::Arguments { nesting, levels } => {
                    let levels = *levels;
                    let end = held.bytes().position(|byte| nesting.advance(byte));
                    let len = end.map_or(held.len(), |end| end + 1);
                    out.arguments(&held[..len]);
                    held.drain(..len);
                    match end {
                        Some(_) => {
                            out.end_call();
                            Flow::To(if levels == 0 {
                                Phase::After
                            } else {
                                Phase::Tail(Nesting::within(levels))
                            })
                        }
                        None => Flow::End(if ended { Step::Done } else { Step::More }),
                    }
                }
                Phase::Tail(nesting) => {
                    // A missing brace must not consume the end mark.
                    let is_end =
                        |nesting: &Nesting, byte| !nesting.is_string() && matches!(byte, b'<' | b'`' | b'[');
                    let mut end = None;
                    for (at, byte) in held.bytes().enumerate() {
                        if is_end(nesting, byte) {
                            end = Some(at);
                        } else if nesting.advance(byte) {
                            end = Some(at + 1);
                        }
                        if end.is_some() {
                            break;
                        }
                    }
                    held.drain(..end.unwrap_or(held.len()));
                    match end {
                        Some(_) => Flow::To(Phase::After),
                        None => Flow::End(if ended { Step::Done } else { Step::More }),
                    }
                }
                Phase::Parameters(scan) => match scan.advance(held, tools, ended, out) {
                    ParameterStep::More if ended => {
                        // The beginning of a tag or of a value that is no string is not content.
                        held.clear();
                        Flow::End(Step::Done)
                    }
                    ParameterStep::More => Flow::End(Step::More),
                    ParameterStep::Complete => {
                        out.end_call();
                        Flow::To(Phase::After)
                    }
                },
                Phase::After => self.after(held, ended),
            };
            match flow {
                Flow::To(phase) => self.phase = phase,
                Flow::End(step) => return step,
            }
        }
    }

    fn begin(&mut self, tool: usize, tools: &[Tool], out: &mut Output) {
        self.raw.clear();
        out.begin_call(tools.get(tool).map_or("", |tool| &tool.name));
    }

    /// Rejects a call after `scanned` bytes. A long one is not searched for other calls, which would take quadratic time.
    fn reject(&mut self, held: &mut String, scanned: usize) -> Flow {
        if scanned > MAX_SEARCHED {
            let boundary = (scanned..held.len()).find(|&at| held.is_char_boundary(at));
            self.take(held, boundary.unwrap_or(held.len()));
        }
        Flow::End(Step::Reject)
    }

    /// Moves the next `len` bytes to `raw`.
    fn take(&mut self, held: &mut String, len: usize) {
        self.raw.extend(held.drain(..len));
    }

    fn start(&mut self, held: &mut String, ended: bool) -> Flow {
        self.take(held, held.len() - held.trim_start().len());
        let text = held.as_str();
        // Marks may enclose each other.
        if let Some(mark) = self.format.openers.iter().find(|mark| text.starts_with(**mark)) {
            self.take(held, mark.len());
            return Flow::To(Self::after_mark(mark));
        }
        if !ended && (text.is_empty() || is_partial(text, self.format.openers.iter().copied())) {
            return Flow::End(Step::More);
        }
        match text.chars().next() {
            Some('{') => {
                self.take(held, 1);
                Flow::To(Self::after_mark(OBJECT))
            }
            Some('[') if !self.is_list => {
                self.take(held, 1);
                self.is_list = true;
                Flow::To(Phase::Start)
            }
            Some(sign) if sign.is_alphanumeric() || sign == '_' => Flow::To(Phase::Header),
            _ => Flow::End(Step::Reject),
        }
    }

    fn tag(
        &mut self,
        tags: &'static Tags,
        held: &mut String,
        tools: &[Tool],
        ended: bool,
        out: &mut Output,
    ) -> Flow {
        let more = Flow::End(if ended { Step::Reject } else { Step::More });
        let Some(end) = held.find('>') else {
            let name = unquoted(held);
            let is_begun = tools.iter().any(|tool| tool.name.starts_with(name));
            return if is_begun && held.len() < MAX_NAME { more } else { Flow::End(Step::Reject) };
        };
        let name = unquoted(&held[..end]);
        let Some(tool) = tools.iter().position(|tool| tool.name == name) else {
            return Flow::End(Step::Reject);
        };
        let text = held[end + 1..].trim_start();
        let start = held.len() - text.len();
        let phase = match text.chars().next() {
            None if start < MAX_NAME => return more,
            Some('{') => Phase::Arguments { nesting: Nesting::default(), levels: 0 },
            Some('<') => Phase::Parameters(ParameterScan::new(tags, tool)),
            _ => return Flow::End(Step::Reject),
        };
        held.drain(..start);
        self.begin(tool, tools, out);
        Flow::To(phase)
    }

    fn after(&mut self, held: &mut String, ended: bool) -> Flow {
        held.drain(..held.len() - held.trim_start().len());
        let text = held.as_str();
        match text.chars().next() {
            Some(',') if self.is_list => {
                self.take(held, 1);
                Flow::To(Phase::Start)
            }
            Some(']') if self.is_list => {
                held.drain(..1);
                self.is_list = false;
                Flow::To(Phase::After)
            }
            // The end of `print(f())`.
            Some(')') => {
                held.drain(..1);
                Flow::To(Phase::After)
            }
            Some('{') if !self.is_list => {
                self.take(held, 1);
                Flow::To(Self::after_mark(OBJECT))
            }
            Some(';') if !self.is_list => {
                let object = text[1..].trim_start();
                match object.chars().next() {
                    Some('{') => {
                        let len = held.len() - object.len() + 1;
                        self.take(held, len);
                        Flow::To(Self::after_mark(OBJECT))
                    }
                    None if !ended => Flow::End(Step::More),
                    _ => Flow::End(Step::Done),
                }
            }
            None if !ended => Flow::End(Step::More),
            _ => Flow::End(Step::Done),
        }
    }
}
