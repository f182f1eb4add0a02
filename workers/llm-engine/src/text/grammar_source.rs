//! Conversion of constraints to the input of llguidance.
use anyhow::{Context, Result, ensure};
use llguidance::api::TopLevelGrammar;
use serde_json::json;

use super::lark::pattern;
use super::schema::{check_embedded, containers, with_whitespace};
use super::{gbnf, structural_tag};
use crate::request::Constraint;

/// Maximum length of the text of a grammar, or of all choices, in bytes.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Maximum number of parts of a grammar's text.
const MAX_PARTS: usize = 2_000;
/// Characters that begin a part of a grammar's text: rules, groups, optional parts, and JSON.
const PART_BEGINS: [char; 4] = [':', '(', '[', '{'];

/// A grammar that is ready to be compiled.
pub(super) struct GrammarSource {
    pub grammar: TopLevelGrammar,
    /// Number of parts, which bounds the recursion depth of the compiler.
    pub parts: usize,
    /// Name for errors.
    pub name: &'static str,
}

impl GrammarSource {
    /// Converts a constraint.
    ///
    /// # Errors
    /// Returns an error if the constraint is invalid or too large.
    pub(super) fn of(constraint: &Constraint) -> Result<Self> {
        let (grammar, parts, name) = match constraint {
            Constraint::JsonObject => (
                TopLevelGrammar::from_json_schema(with_whitespace(&json!({ "type": "object" }))?),
                1,
                "schema",
            ),
            Constraint::JsonSchema(schema) => {
                let parts = containers(schema)?;
                (TopLevelGrammar::from_json_schema(with_whitespace(schema)?), parts, "schema")
            }
            Constraint::Regex(regex) => {
                ensure!(!regex.is_empty(), "the regular expression is empty");
                (TopLevelGrammar::from_regex(regex), parts(regex)?, "regular expression")
            }
            Constraint::Choice(choices) => {
                let bytes: usize = choices.iter().map(String::len).sum();
                ensure!(!choices.is_empty(), "the list of choices is empty");
                ensure!(
                    bytes <= MAX_TEXT_BYTES && choices.len() <= MAX_PARTS,
                    "{} choices have {bytes} bytes; the limits are {MAX_PARTS} choices and {MAX_TEXT_BYTES} bytes",
                    choices.len()
                );
                let patterns: Vec<String> = choices.iter().map(|choice| pattern(choice)).collect();
                let lark = format!("start: /(?:{})/", patterns.join("|"));
                (TopLevelGrammar::from_lark(lark), 1, "list of choices")
            }
            Constraint::Gbnf(text) => {
                let parts = parts(text)?;
                let lark = gbnf::to_lark(text).context("the GBNF grammar cannot be used")?;
                (TopLevelGrammar::from_lark(lark), parts, "GBNF grammar")
            }
            Constraint::Lark(text) => {
                let parts = parts(text)?;
                check_embedded(text)?;
                (TopLevelGrammar::from_lark(text.clone()), parts, "Lark grammar")
            }
            Constraint::StructuralTag(tag) => {
                let parts = containers(tag)?;
                let lark = structural_tag::to_lark(tag).context("the structural tag cannot be used")?;
                (TopLevelGrammar::from_lark(lark), parts, "structural tag")
            }
        };
        Ok(Self { grammar, parts, name })
    }
}

/// Returns an upper bound of the number of parts of a grammar's text.
fn parts(text: &str) -> Result<usize> {
    ensure!(
        text.len() <= MAX_TEXT_BYTES,
        "the grammar has {} bytes; the limit is {MAX_TEXT_BYTES}",
        text.len()
    );
    let parts = text.matches(PART_BEGINS).count();
    ensure!(
        parts <= MAX_PARTS,
        "the grammar has {parts} characters among `:([{{`, which begin its parts; the limit is {MAX_PARTS}"
    );
    Ok(parts)
}
