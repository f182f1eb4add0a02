//! What the scheduler knows of a request: its tokens, and where in the cache they lie.
use crate::step::BLOCK;

use super::blocks::{BlockTokens, Pool};

/// A request in the scheduler; `W` is whatever goes along with it.
pub struct Sequence<W> {
    /// Its number: older ones have smaller ones.
    pub(super) id: u64,
    /// The prompt, and what was written behind it.
    pub(super) tokens: Vec<u32>,
    prompt: usize,
    /// Positions whose keys and values lie in the cache.
    pub(super) computed: usize,
    /// Where they lie.
    pub(super) blocks: Vec<u32>,
    /// Rows that the plan gives it.
    pub(super) rows: usize,
    /// Spare blocks with which it could have been admitted when it was last tried.
    pub(super) needed: usize,
    /// Whether its blocks were taken from it before.
    pub(super) preempted: bool,
    cached: usize,
    /// What goes along.
    pub writer: W,
}

impl<W> Sequence<W> {
    /// A request that wants a text behind `prompt`, at least one token.
    pub fn new(prompt: Vec<u32>, writer: W) -> Self {
        Self {
            id: 0,
            prompt: prompt.len(),
            tokens: prompt,
            computed: 0,
            blocks: Vec::new(),
            rows: 0,
            needed: 0,
            preempted: false,
            cached: 0,
            writer,
        }
    }

    /// The number that the scheduler gave it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The prompt's tokens.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt]
    }

    /// The tokens written so far.
    pub fn written(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// Prompt, text so far, and what goes along, to be had at once.
    pub fn parts(&mut self) -> (&[u32], &[u32], &mut W) {
        let (prompt, written) = self.tokens.split_at(self.prompt);
        (prompt, written, &mut self.writer)
    }

    /// Positions that lie in the cache.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Tokens of the prompt that the cache knew.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Blocks that it holds.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Rows that the plan gives it.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The next token of its text.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Whether the logits behind its last row are wanted: nothing is left to compute behind it.
    pub(super) fn wants_logits(&self) -> bool {
        self.rows > 0 && self.computed == self.tokens.len()
    }

    /// Tokens that are not in the cache.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Blocks that its tokens need beyond those that it holds.
    pub(super) fn blocks_missing(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK).saturating_sub(self.blocks.len())
    }

    /// Of the prompt's positions, how many lie in the cache.
    pub(super) fn prompt_computed(&self) -> usize {
        self.computed.min(self.prompt)
    }

    /// The block that its next row goes to, if its tokens fill it: what lies before it, and its tokens.
    pub(super) fn filling(&self) -> Option<(Option<u32>, BlockTokens)> {
        let block = self.computed / BLOCK;
        let tokens = self.tokens[block * BLOCK..].first_chunk()?;
        Some((self.block_before(block), *tokens))
    }

    fn block_before(&self, block: usize) -> Option<u32> {
        block.checked_sub(1).map(|before| self.blocks[before])
    }

    /// Whether its next row is the first of a block that it could share: its last token's row is always computed.
    pub(super) fn may_share(&self) -> bool {
        self.computed.is_multiple_of(BLOCK) && self.pending() > BLOCK
    }

    /// Holds the known blocks that go on with its tokens. Gives back the positions that it need not compute for it.
    pub(super) fn share(&mut self, pool: &mut Pool) -> usize {
        let from = self.computed;
        while self.may_share() {
            let Some(block) = self.filling().and_then(|(before, tokens)| pool.find(before, &tokens)) else {
                break;
            };
            pool.hold(block);
            self.blocks.push(block);
            self.computed += BLOCK;
        }
        self.computed - from
    }

    /// Takes a block for a copy of the known one that starts with its next tokens, if enough of them. The one to be
    /// copied is held once more: (from, to), and positions that it need not compute.
    pub(super) fn copy_start(&mut self, pool: &mut Pool) -> Option<((u32, u32), usize)> {
        if !self.computed.is_multiple_of(BLOCK) {
            return None;
        }
        let wanted = &self.tokens[self.computed..self.tokens.len() - 1];
        let (from, common) = pool.nearest(self.block_before(self.blocks.len()), wanted)?;
        // A copy costs launches in each layer: fewer rows are cheaper computed.
        if common < BLOCK / 2 {
            return None;
        }
        pool.hold(from);
        let Some(to) = pool.allocate() else {
            pool.release(from);
            return None;
        };
        self.blocks.push(to);
        self.computed += common;
        Some(((from, to), common))
    }

    /// Counts positions that the cache had; its own, found again behind a preemption, are not meant.
    pub(super) fn count_cached(&mut self, positions: usize) {
        if !self.preempted {
            self.cached += positions;
        }
    }

    /// The rows that the plan gave it are computed: full blocks become known.
    pub(super) fn commit(&mut self, pool: &mut Pool) {
        let first = self.computed / BLOCK;
        self.computed += self.rows;
        if !pool.shares() {
            return;
        }
        for (block, tokens) in self.tokens[..self.computed].chunks_exact(BLOCK).enumerate().skip(first) {
            if let Some(tokens) = tokens.first_chunk() {
                self.blocks[block] = pool.know(self.blocks[block], self.block_before(block), tokens);
            }
        }
    }
}
