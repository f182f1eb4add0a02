//! Chat templates.
use std::fmt::Write as _;
use std::io;

use anyhow::{Context, Result, bail, ensure};
use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Map, Value};

/// A model's Jinja chat template, with the functions and filters that Transformers provides.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    default: String,
    tool_use: Option<String>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template. `tool_use` replaces `default` if there are tools. `bos` and `eos` are the texts
    /// of the BOS and EOS tokens.
    ///
    /// # Errors
    /// Returns an error if a template is not valid Jinja.
    pub fn new(default: &str, tool_use: Option<&str>, bos: &str, eos: &str) -> Result<Self> {
        let checked = |text: &str| -> Result<String> {
            let text = without_generation_tags(text);
            environment().template_from_str(&text).context("the model's chat template is not valid Jinja")?;
            Ok(text)
        };
        Ok(Self {
            default: checked(default)?,
            tool_use: tool_use.map(checked).transpose()?,
            bos: bos.into(),
            eos: eos.into(),
        })
    }

    /// Returns the template's text.
    pub fn source(&self) -> &str {
        &self.default
    }

    /// Returns the texts of the BOS and EOS tokens.
    pub fn special_texts(&self) -> [&str; 2] {
        [&self.bos, &self.eos]
    }

    /// Renders the prompt for the model's answer to `messages`. Content that is a list of text parts is
    /// joined by newlines, and string arguments of tool calls are parsed as JSON, as templates expect.
    ///
    /// # Errors
    /// Returns an error if `messages` is not an array of objects, a part is not text, or the template raises
    /// an exception.
    pub fn render(&self, messages: &Value, tools: Option<&Value>) -> Result<String> {
        self.render_with(messages, tools, None, true)
    }

    /// Like [`Self::render`], with further variables, which cannot replace those that the template always has, and only
    /// with `add_generation_prompt` with the beginning of an answer after the messages.
    ///
    /// # Errors
    /// Like [`Self::render`].
    pub fn render_with(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        variables: Option<&Map<String, Value>>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let messages = messages.as_array().context("messages must be an array")?;
        let messages = messages.iter().map(message).collect::<Result<Vec<_>>>()?;
        let tools = tools.filter(|tools| tools.as_array().is_some_and(|tools| !tools.is_empty()));
        let text = if tools.is_some() { self.tool_use.as_ref() } else { None };
        let values = context! {
            messages,
            tools,
            add_generation_prompt,
            bos_token => self.bos,
            eos_token => self.eos,
            ..Jinja::from_serialize(variables.cloned().unwrap_or_default()),
        };
        let rendered = environment().render_str(text.unwrap_or(&self.default), values);
        rendered.context("the model's chat template rejected the messages")
    }

    /// Returns true if the template, or the one for tools, contains `text`.
    pub fn contains(&self, text: &str) -> bool {
        self.default.contains(text) || self.tool_use.as_ref().is_some_and(|template| template.contains(text))
    }
}

fn message(message: &Value) -> Result<Value> {
    ensure!(message.is_object(), "a message must be an object, not {message}");
    let mut message = message.clone();
    // Messages with only tool calls may omit the content; templates test whether it is none.
    if message.get("content").is_none() {
        message["content"] = Value::Null;
    }
    if let Some(parts) = message["content"].as_array() {
        let mut texts = Vec::new();
        for part in parts {
            let Some(text) = part["text"].as_str() else {
                bail!("the model accepts only text, not a part of type {}", part["type"])
            };
            texts.push(text);
        }
        message["content"] = texts.join("\n").into();
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        if let Some(object) = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            *arguments = object;
        }
    }
    Ok(message)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(template_error(message))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, minijinja::Error> {
        let mut text = String::new();
        match write!(text, "{}", chrono::Local::now().format(&format)) {
            Ok(()) => Ok(text),
            Err(_) => Err(template_error(format!("{format:?} is not a valid date format"))),
        }
    });
    environment.add_filter("tojson", to_json);
    environment
}

fn template_error(message: String) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, message)
}

/// Replaces `{% generation %}` tags, which mark text for training, with comments that keep the same
/// white-space control. Minijinja does not support these tags.
fn without_generation_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        out.push_str(&rest[..start]);
        if matches!(tag.trim_matches(['-', '+']).trim(), "generation" | "endgeneration") {
            let dash = |there: bool| if there { "-" } else { "" };
            let (before, after) = (dash(tag.starts_with('-')), dash(tag.ends_with('-')));
            let _ = write!(out, "{{#{before} {after}#}}");
        } else {
            out.push_str(&rest[start..start + length + 2]);
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

/// The `tojson` filter with the output format of Python's `json.dumps`, which templates rely on: a space
/// after commas and colons, no HTML escapes.
fn to_json(value: Jinja, indent: Option<Jinja>, options: Kwargs) -> Result<Jinja, minijinja::Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Jinja>>("indent")?,
    };
    let indent = indent.filter(|indent| !indent.is_none() && !indent.is_undefined());
    let indent = indent.map(usize::try_from).transpose()?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let _ = options.get::<Option<bool>>("ensure_ascii")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(template_error("separators must be two strings".into())),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let failed = |error: serde_json::Error| template_error(format!("cannot write JSON: {error}"));
    let mut json = serde_json::to_value(&value).map_err(failed)?;
    if sorted {
        json.sort_all_objects();
    }
    let mut bytes = Vec::new();
    let style = JsonStyle { item, key, indent, depth: 0, filled: false };
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, style)).map_err(failed)?;
    let text = String::from_utf8(bytes).map_err(|error| template_error(error.to_string()))?;
    Ok(Jinja::from_safe_string(text))
}

/// JSON formatter in the style of Python's `json.dumps`.
struct JsonStyle {
    item: String,
    key: String,
    /// Spaces per nesting level, with each item on its own line; `None` writes one line.
    indent: Option<usize>,
    depth: usize,
    /// True if the current array or object is not empty.
    filled: bool,
}

impl JsonStyle {
    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{}", " ".repeat(indent * self.depth)),
            None => Ok(()),
        }
    }

    fn begin<W: ?Sized + io::Write>(&mut self, writer: &mut W, sign: &str) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(sign.as_bytes())
    }

    fn end<W: ?Sized + io::Write>(&mut self, writer: &mut W, sign: &str) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(sign.as_bytes())
    }

    fn part<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.filled = true;
        self.line(writer)
    }
}

impl Formatter for JsonStyle {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, "[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, "]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.part(writer, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, "{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, "}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.part(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}
