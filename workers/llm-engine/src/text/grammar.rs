//! Grammars that constrain generated text.
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::grammar_source::GrammarSource;
use super::lru_cache::LruCache;
use super::token_bytes::TokenBytes;
use crate::request::Constraint;

/// Stack bytes for compiling a grammar, per part. References may nest parts in any order.
const STACK_PER_PART: usize = 128 << 10;
/// Maximum length in bytes of a token that a grammar allows; bounds the depth of the token tree.
const MAX_TOKEN_BYTES: usize = 256;

/// Number of compiled grammars that are kept. Each may take a few MiB.
const MAX_COMPILED: usize = 16;

/// Grammar compiler of a vocabulary, created on first use, with the most recently used grammars.
pub(super) struct GrammarCompiler {
    factory: OnceLock<Result<ParserFactory, String>>,
    compiled: LruCache<Constraint, Mutex<Matcher>>,
}

impl Default for GrammarCompiler {
    fn default() -> Self {
        Self { factory: OnceLock::new(), compiled: LruCache::new(MAX_COMPILED) }
    }
}

impl GrammarCompiler {
    /// Returns the grammar of a constraint. It is compiled once for all texts of a request, and for later requests.
    pub fn compile(&self, tokens: &TokenBytes, ends: &[u32], constraint: &Constraint) -> Result<Grammar> {
        let copy = |start: &Mutex<Matcher>| start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let create = || self.matcher(tokens, ends, constraint).map(Mutex::new);
        Ok(Grammar { matcher: self.compiled.get(constraint, copy, create)?, masks: None })
    }

    fn matcher(&self, tokens: &TokenBytes, ends: &[u32], constraint: &Constraint) -> Result<Matcher> {
        let GrammarSource { grammar, parts, name } = GrammarSource::of(constraint)?;
        let factory =
            self.factory.get_or_init(|| factory(tokens, ends).map_err(|error| format!("{error:#}")));
        let factory = factory.as_ref().map_err(|error| anyhow!("cannot compile grammars: {error}"))?;
        let compiled = thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size((4 << 20) + parts * STACK_PER_PART);
            let thread = thread.spawn_scoped(scope, || factory.create_parser(grammar));
            thread
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("the grammar compiler panicked"))))
        });
        let parser = compiled.context("cannot start a compiler thread")?.map_err(|error| shortened(&error));
        Ok(Matcher::new(Ok(parser.with_context(|| format!("the {name} cannot be used"))?)))
    }
}

fn factory(tokens: &TokenBytes, ends: &[u32]) -> Result<ParserFactory> {
    let count = u32::try_from(tokens.count())?;
    let usable = |token: u32| !tokens.is_special(token) && !ends.contains(&token);
    let words = (0..count).map(|token| {
        let bytes = tokens.bytes(token).filter(|bytes| usable(token) && bytes.len() <= MAX_TOKEN_BYTES);
        bytes.unwrap_or_default().to_vec()
    });
    let trie = TokTrie::from(&TokRxInfo::new(count, INVALID_TOKEN), &words.collect::<Vec<_>>());
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(ends)));
    let mut factory = ParserFactory::new_simple(&environment)?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// Removes the details that llguidance appends for its developers.
fn shortened(error: &anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let text = text.split("\n<").next().unwrap_or_default();
    anyhow!("{text}")
}

/// State of a grammar after a partial text.
pub struct Grammar {
    matcher: Matcher,
    /// Allowed next tokens, and those after each draft token, or the error of computing the first; `None` if not
    /// computed yet.
    masks: Option<Result<Vec<SimpleVob>, String>>,
}

impl Grammar {
    /// Computes the masks of the next token and of the tokens after each of `drafts`. Stops at the first draft that is not
    /// allowed or whose successors cannot be computed. Returns the number of masks. Until [`Self::accept`] is called,
    /// later calls return the same number for any drafts.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded or a disallowed token was accepted before.
    pub fn prepare(&mut self, drafts: &[u32]) -> Result<usize> {
        let matcher = &mut self.matcher;
        let masks = self.masks.get_or_insert_with(|| {
            let first = matcher.compute_mask_or_eos().map_err(|error| format!("{:#}", shortened(&error)))?;
            Ok(masks_after(first, matcher, drafts))
        });
        masks.as_ref().map(Vec::len).map_err(|error| anyhow!("{error}"))
    }

    /// Returns the mask after `index` drafts if it is computed, and otherwise the last one; `None` if none is.
    pub fn mask(&self, index: usize) -> Option<&[u32]> {
        let masks = self.masks.as_ref()?.as_ref().ok()?;
        masks.get(index).or(masks.last()).map(SimpleVob::as_slice)
    }

    /// Returns a bit mask of the allowed next tokens, 32 per word, lowest bit first. Includes the end-of-text
    /// tokens exactly where the text may end.
    ///
    /// # Errors
    /// See [`Self::prepare`].
    pub fn allowed(&mut self) -> Result<&[u32]> {
        self.prepare(&[])?;
        self.mask(0).context("internal error: no mask was computed")
    }

    /// Advances the state by `token`.
    ///
    /// # Errors
    /// Returns an error if the token was not allowed; the grammar must not be used afterwards.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        self.masks = None;
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            let ends = self.matcher.tok_env()?.tok_trie().eos_tokens().contains(&token);
            ensure!(ends, "token {token} follows the end of the text");
            return Ok(());
        }
        let accepted = self.matcher.consume_token(token).map_err(|error| shortened(&error));
        accepted.with_context(|| format!("the grammar does not allow token {token} here"))
    }

    /// Returns true if only the end of the text may follow or has been reached.
    pub fn finished(&self) -> bool {
        self.matcher.is_stopped()
    }
}

/// Returns the mask `first` and the masks of the tokens after each draft, as long as the drafts are allowed. Works on
/// a copy, because some grammars cannot be rolled back.
fn masks_after(first: SimpleVob, matcher: &Matcher, drafts: &[u32]) -> Vec<SimpleVob> {
    let mut masks = vec![first];
    if drafts.is_empty() {
        return masks;
    }
    let mut ahead = matcher.clone();
    for draft in drafts {
        let bits = masks.last().and_then(|mask| mask.as_slice().get(*draft as usize / 32));
        if bits.is_none_or(|bits| bits >> (draft % 32) & 1 == 0) || ahead.consume_token(*draft).is_err() {
            break;
        }
        let Ok(mask) = ahead.compute_mask_or_eos() else { break };
        masks.push(mask);
    }
    masks
}
