//! Structural tags: text in which parts between a begin and an end have formats of their own.
//!
//! Both forms of vLLM are read: `structures` with `triggers`, and XGrammar's nested `format`.
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::lark::{ANY_TEXT, literal, pattern};
use super::schema::with_whitespace;

/// Converts a structural tag to a grammar in Lark.
///
/// # Errors
/// Returns an error that names the missing or unsupported field.
pub(super) fn to_lark(tag: &Value) -> Result<String> {
    let mut rules = Rules::default();
    let start = match tag.get("format").filter(|format| !format.is_null()) {
        Some(format) => rules.format(format)?,
        None => {
            let structures = list(tag, "structures")?.iter();
            let tags = structures.map(|structure| {
                let content = rules.schema(field(structure, "schema")?)?;
                Ok(Tag {
                    begin: string(structure, "begin")?,
                    rest: with_end(content, string(structure, "end")?),
                })
            });
            let tags = tags.collect::<Result<Vec<_>>>()?;
            rules.triggered(&strings(tag, "triggers")?, &tags, false, false)?
        }
    };
    Ok(format!("start: {start}\n{}", rules.text))
}

/// A tag: its begin, and the expression of everything after it.
struct Tag<'a> {
    begin: &'a str,
    rest: String,
}

/// Rules that expressions refer to.
#[derive(Default)]
struct Rules {
    text: String,
    count: usize,
}

impl Rules {
    /// Adds a rule that matches the shortest text that ends with `end`, and returns its name.
    fn text_until(&mut self, end: &str) -> String {
        self.count += 1;
        let name = format!("text{}", self.count);
        let _ = writeln!(self.text, "{name}[lazy]: /{ANY_TEXT}{}/", pattern(end));
        name
    }

    fn schema(&self, schema: &Value) -> Result<String> {
        Ok(format!("%json {}", with_whitespace(schema)?))
    }

    /// Returns the expression of a format.
    fn format(&mut self, format: &Value) -> Result<String> {
        let flag = |name: &str| format[name].as_bool().unwrap_or(false);
        let kind = string(format, "type")?;
        Ok(match kind {
            "const_string" => literal(string(format, "value")?),
            "json_schema" => self.schema(field(format, "json_schema")?)?,
            "regex" => format!("/{}/", llguidance::regex_to_lark(string(format, "pattern")?, "")),
            "any_text" => format!("/{ANY_TEXT}/"),
            "sequence" => self.formats(format)?.join(" "),
            "or" => format!("({})", self.formats(format)?.join(" | ")),
            "tag" => {
                let Tag { begin, rest } = self.tag(format)?;
                format!("({} {rest})", literal(begin))
            }
            "triggered_tags" => {
                let tags =
                    list(format, "tags")?.iter().map(|tag| self.tag(tag)).collect::<Result<Vec<_>>>()?;
                let triggers = strings(format, "triggers")?;
                self.triggered(&triggers, &tags, flag("at_least_one"), flag("stop_after_first"))?
            }
            "tags_with_separator" => {
                let tags =
                    list(format, "tags")?.iter().map(|tag| self.tag(tag)).collect::<Result<Vec<_>>>()?;
                ensure!(!tags.is_empty(), "`tags` is empty");
                let tags = tags.iter().map(|Tag { begin, rest }| format!("{} {rest}", literal(begin)));
                let one = format!("({})", tags.collect::<Vec<_>>().join(" | "));
                let separator = literal(string(format, "separator")?);
                let all = match flag("stop_after_first") {
                    true => one,
                    false => format!("({one} ({separator} {one})*)"),
                };
                if flag("at_least_one") { all } else { format!("{all}?") }
            }
            _ => bail!(
                "the format {kind:?} is not supported; use const_string, json_schema, regex, any_text, sequence, or, tag, triggered_tags or tags_with_separator"
            ),
        })
    }

    fn formats(&mut self, format: &Value) -> Result<Vec<String>> {
        let elements = list(format, "elements")?;
        ensure!(!elements.is_empty(), "`elements` is empty");
        elements.iter().map(|element| self.format(element)).collect()
    }

    fn tag<'a>(&mut self, tag: &'a Value) -> Result<Tag<'a>> {
        let (begin, end) = (string(tag, "begin")?, string(tag, "end")?);
        let content = field(tag, "content")?;
        let rest = match content["type"] == "any_text" {
            true => self.text_until(end),
            false => with_end(self.format(content)?, end),
        };
        Ok(Tag { begin, rest })
    }

    /// Returns the expression of free text in which each trigger begins one of the tags.
    fn triggered(
        &mut self,
        triggers: &[&str],
        tags: &[Tag],
        at_least_one: bool,
        stop_after_first: bool,
    ) -> Result<String> {
        ensure!(triggers.iter().all(|trigger| !trigger.is_empty()), "`triggers` contains an empty string");
        ensure!(!tags.is_empty(), "there are no tags");
        let mut segments = Vec::new();
        for trigger in triggers {
            let alternatives = tags.iter().filter_map(|Tag { begin, rest }| {
                Some(format!("{} {rest}", literal(begin.strip_prefix(trigger)?)))
            });
            let alternatives = alternatives.collect::<Vec<_>>();
            ensure!(!alternatives.is_empty(), "no tag begins with the trigger {trigger:?}");
            segments.push(format!("{} ({})", self.text_until(trigger), alternatives.join(" | ")));
        }
        let unreached =
            tags.iter().find(|tag| !triggers.iter().any(|trigger| tag.begin.starts_with(trigger)));
        if let Some(Tag { begin, .. }) = unreached {
            bail!("the tag {begin:?} begins with none of the `triggers`");
        }
        let segment = format!("({})", segments.join(" | "));
        Ok(match (stop_after_first, at_least_one) {
            (true, true) => segment,
            (true, false) => format!("({segment} | /{ANY_TEXT}/)"),
            (false, true) => format!("{segment}+ /{ANY_TEXT}/"),
            (false, false) => format!("{segment}* /{ANY_TEXT}/"),
        })
    }
}

/// Returns the expression of a tag's content and end.
fn with_end(content: String, end: &str) -> String {
    format!("{content} {}", literal(end))
}

fn field<'a>(value: &'a Value, name: &str) -> Result<&'a Value> {
    value.get(name).filter(|field| !field.is_null()).with_context(|| format!("`{name}` is missing"))
}

fn string<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    field(value, name)?.as_str().with_context(|| format!("`{name}` must be a string"))
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    field(value, name)?.as_array().with_context(|| format!("`{name}` must be a list"))
}

fn strings<'a>(value: &'a Value, name: &str) -> Result<Vec<&'a str>> {
    let text = |item: &'a Value| item.as_str().with_context(|| format!("`{name}` must contain strings"));
    let strings = list(value, name)?.iter().map(text).collect::<Result<Vec<_>>>()?;
    ensure!(!strings.is_empty(), "`{name}` is empty");
    Ok(strings)
}
