//! Text held to JSON.
use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::pieces::Pieces;
use crate::request::Constraint;

/// Levels, values, and objects and arrays among them, of a schema.
const DEPTH: usize = 48;
const VALUES: usize = 20_000;
const CONTAINERS: usize = 2_000;
/// Stack to compile a schema with, for each object or array of it: references nest them in any order.
const STACK: usize = 128 << 10;
/// Tokens longer than this no grammar allows: the tree of tokens is not deeper.
const TOKEN: usize = 256;
/// Between the parts of JSON: as much as pretty JSON needs, and an end to it, since some models would never write more.
const SPACE: &str = r"[ \n\t]{1,20}";

/// What all grammars of a vocabulary share, made when the first one is asked for.
#[derive(Default)]
pub(super) struct Grammars {
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl Grammars {
    pub(super) fn start(&self, pieces: &Pieces, ends: &[u32], constraint: &Constraint) -> Result<Grammar> {
        let any = json!({ "type": "object" });
        let schema = match constraint {
            Constraint::JsonObject => &any,
            Constraint::JsonSchema(schema) => schema,
        };
        let containers = containers(schema)?;
        let schema = TopLevelGrammar::from_json_schema(spaced(schema)?);
        let factory =
            self.factory.get_or_init(|| factory(pieces, ends).map_err(|error| format!("{error:#}")));
        let factory = factory.as_ref().map_err(|error| anyhow!("no grammar for this vocabulary: {error}"))?;
        let compiled = thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size((4 << 20) + containers * STACK);
            let thread = thread.spawn_scoped(scope, || factory.create_parser(schema));
            thread.map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("it breaks the compiler"))))
        });
        let parser = compiled.context("no thread to compile the schema on")?.map_err(|error| plain(&error));
        let parser = parser.context("the schema cannot be used")?;
        Ok(Grammar { matcher: Matcher::new(Ok(parser)), allowed: SimpleVob::new() })
    }
}

/// The objects and arrays of a schema, if it is not too large.
fn containers(schema: &Value) -> Result<usize> {
    let (mut values, mut containers) = (0, 0);
    let mut level = vec![schema];
    for _ in 0..DEPTH {
        values += level.len();
        containers += level.iter().filter(|value| value.is_object() || value.is_array()).count();
        level = level.into_iter().flat_map(children).collect();
    }
    ensure!(level.is_empty(), "the schema is nested deeper than {DEPTH} levels");
    for (count, most, what) in [(values, VALUES, "values"), (containers, CONTAINERS, "objects and arrays")] {
        ensure!(count <= most, "the schema has {count} {what}, more than {most}");
    }
    Ok(containers)
}

/// The schema with our spaces.
fn spaced(schema: &Value) -> Result<Value> {
    match schema {
        Value::Bool(true) => Ok(json!({ "x-guidance": { "whitespace_pattern": SPACE } })),
        Value::Object(fields) => {
            ensure!(
                !fields.contains_key("x-guidance"),
                "the schema has x-guidance, which is no part of JSON Schema"
            );
            let mut fields = fields.clone();
            fields.insert("x-guidance".into(), json!({ "whitespace_pattern": SPACE }));
            Ok(Value::Object(fields))
        }
        _ => bail!("a schema must be an object, not {schema}"),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(values) => values.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn factory(pieces: &Pieces, ends: &[u32]) -> Result<ParserFactory> {
    let count = u32::try_from(pieces.count())?;
    let usable = |token: u32| !pieces.is_special(token) && !ends.contains(&token);
    let words = (0..count).map(|token| {
        let bytes = pieces.bytes(token).filter(|bytes| usable(token) && bytes.len() <= TOKEN);
        bytes.unwrap_or_default().to_vec()
    });
    let trie = TokTrie::from(&TokRxInfo::new(count, INVALID_TOKEN), &words.collect::<Vec<_>>());
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(ends)));
    let mut factory = ParserFactory::new_simple(&environment)?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// Without what the crate adds for its own developers.
fn plain(error: &anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let text = text.split("\n<").next().unwrap_or_default();
    anyhow!("{text}")
}

/// Where a text is in a grammar.
pub struct Grammar {
    matcher: Matcher,
    allowed: SimpleVob,
}

impl Grammar {
    /// Bits of the tokens that may come, 32 a word, the lowest bit first; tokens that end a text exactly where it may end.
    ///
    /// # Errors
    /// Where the grammar takes too long to go on, or a token came that was not allowed.
    pub fn allowed(&mut self) -> Result<&[u32]> {
        self.allowed = self.matcher.compute_mask_or_eos().map_err(|error| plain(&error))?;
        Ok(self.allowed.as_slice())
    }

    /// Goes on behind `token`.
    ///
    /// # Errors
    /// Where it was not allowed; the grammar is of no more use then.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            let ends = self.matcher.tok_env()?.tok_trie().eos_tokens().contains(&token);
            ensure!(ends, "token {token} comes behind the end of the text");
            return Ok(());
        }
        let accepted = self.matcher.consume_token(token).map_err(|error| plain(&error));
        accepted.with_context(|| format!("the grammar does not allow token {token} here"))
    }

    /// Whether nothing but the end may come, or it has come.
    pub fn finished(&self) -> bool {
        self.matcher.is_stopped()
    }
}
