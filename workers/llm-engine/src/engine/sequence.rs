//! A request's tokens and cache blocks, as the scheduler manages them.
use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::model::adapter::Adapter;
use crate::model::vision::{Placement, PromptAxes};
use crate::step::{BLOCK_SIZE, PictureRows};

use super::blocks::{BlockPool, BlockTokens, Parent};

/// Bit that distinguishes hashes from token ids, none of which has it.
const HASH_BIT: u32 = 1 << 31;

/// Pictures of a prompt.
#[derive(Clone, Debug, Default)]
pub struct PromptPictures {
    /// The pictures, in the order of their positions.
    pub placements: Vec<Placement>,
    /// Positions of three axes, if the model has them.
    pub axes: Option<Arc<PromptAxes>>,
    /// If true, attention is bidirectional among the tokens of a picture, so that one step computes all of them.
    pub is_bidirectional: bool,
}

/// A request in the scheduler, with attached data of type `W`.
pub struct Sequence<W> {
    /// Id in the order of submission.
    pub(super) id: u64,
    /// Prompt, generated tokens and drafts.
    pub(super) tokens: Vec<u32>,
    prompt: usize,
    /// Number of draft tokens, which the next step verifies.
    pub(super) drafted: usize,
    /// Number of leading positions that a draft model has computed, and their hash.
    pub(super) draft_prefix: (usize, u64),
    /// Number of positions in the cache before drafts of the current step were accepted.
    accepted_from: Option<usize>,
    /// Number of positions whose keys and values are in the cache.
    pub(super) computed: usize,
    /// Blocks that hold these positions, in order.
    pub(super) blocks: Vec<u32>,
    /// Slot of its recurrent state, if the model has one.
    pub(super) state: Option<u32>,
    /// Slots of the states after each draft token, until the drafts are verified.
    draft_states: Vec<u32>,
    /// Length of the prefix that was found in the cache when it last adopted blocks, in positions; a multiple of the block
    /// size.
    shared_prefix: usize,
    /// Number of rows in the current plan.
    pub(super) rows: usize,
    /// Number of spare blocks that its admission requires, according to the last attempt.
    pub(super) needed: usize,
    /// True if it was preempted before.
    pub(super) preempted: bool,
    /// Number that identifies the client.
    pub(super) client: u128,
    /// Identifies the group of sequences that may share blocks.
    salt: u128,
    /// Adapter that is applied to its rows.
    pub(super) adapter: Option<Arc<Adapter>>,
    /// Pictures of the prompt.
    pub(super) pictures: PromptPictures,
    cached: usize,
    /// If true, it adopts cached blocks of other sequences.
    shares: bool,
    /// Number of prompt rows whose logits were returned; `None` if they are not needed.
    scored: Option<usize>,
    /// Attached data.
    pub writer: W,
}

impl<W> Sequence<W> {
    /// Creates a sequence for a prompt of at least one token.
    pub fn new(prompt: Vec<u32>, writer: W) -> Self {
        Self {
            id: 0,
            prompt: prompt.len(),
            tokens: prompt,
            drafted: 0,
            draft_prefix: (0, 0),
            accepted_from: None,
            computed: 0,
            blocks: Vec::new(),
            state: None,
            draft_states: Vec::new(),
            shared_prefix: 0,
            rows: 0,
            needed: 0,
            preempted: false,
            client: 0,
            salt: 0,
            adapter: None,
            pictures: PromptPictures::default(),
            cached: 0,
            shares: true,
            scored: None,
            writer,
        }
    }

    /// Sets the number that identifies the client.
    pub fn of_client(self, client: u128) -> Self {
        Self { client, ..self }
    }

    /// Restricts sharing of blocks to sequences with the same salt.
    pub fn with_salt(self, salt: u128) -> Self {
        Self { salt, ..self }
    }

    /// Applies an adapter. Blocks are shared only with sequences of the same salt and adapter.
    pub fn with_adapter(self, adapter: Option<Arc<Adapter>>) -> Self {
        let salt = adapter.as_ref().map_or(self.salt, |adapter| adapter.cache_salt(self.salt));
        Self { adapter, salt, ..self }
    }

    /// Sets the pictures of the prompt. Their blocks are shared with sequences that have them at the same positions.
    pub fn with_pictures(self, pictures: PromptPictures) -> Self {
        Self { pictures, ..self }
    }

    /// Computes the whole prompt, without cached blocks of other sequences.
    pub fn without_sharing(self) -> Self {
        Self { shares: false, ..self }
    }

    /// Requests the logits of all rows of the prompt, which is then computed without cached blocks of other sequences.
    pub fn with_prompt_logits(self) -> Self {
        Self { scored: Some(0), ..self.without_sharing() }
    }

    /// Returns the id that the scheduler assigned.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the prompt tokens.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt]
    }

    /// Returns the tokens generated so far.
    pub fn written(&self) -> &[u32] {
        &self.tokens[self.prompt..self.tokens.len() - self.drafted]
    }

    /// Returns the prompt, the generated tokens and the drafts.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the draft tokens, which follow the generated ones.
    pub fn drafts(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.drafted..]
    }

    /// Appends draft tokens, which the next step verifies.
    pub fn push_drafts(&mut self, drafts: &[u32]) {
        self.tokens.extend_from_slice(drafts);
        self.drafted += drafts.len();
    }

    /// Replaces the draft token at `index`.
    pub(super) fn set_draft(&mut self, index: usize, token: u32) {
        let first = self.tokens.len() - self.drafted;
        self.tokens[first + index] = token;
    }

    /// Returns the number that identifies the group of sequences that may share blocks.
    pub(super) fn salt(&self) -> u128 {
        self.salt
    }

    /// Keeps the first `count` draft tokens, and drops the others.
    pub(super) fn keep_drafts(&mut self, count: usize) {
        let dropped = self.drafted.saturating_sub(count);
        self.tokens.truncate(self.tokens.len() - dropped);
        self.drafted -= dropped;
    }

    /// Removes the draft tokens and returns them. The caller appends those that are accepted, and calls
    /// [`Self::accept`].
    pub fn take_drafts(&mut self) -> Vec<u32> {
        self.tokens.split_off(self.tokens.len() - std::mem::take(&mut self.drafted))
    }

    /// Records that the first `count` drafts of the committed step are accepted: their keys and values are in the cache, and
    /// its recurrent state is that after the last of them.
    pub fn accept(&mut self, count: usize) {
        self.accepted_from = Some(self.computed);
        self.computed += count;
        let last = count.checked_sub(1).and_then(|last| self.draft_states.get_mut(last));
        if let (Some(state), Some(last)) = (&mut self.state, last) {
            std::mem::swap(state, last);
        }
    }

    /// Allocates slots for the states after its drafts, and drops those drafts for which there are too few. Leaves `spare`
    /// slots to other sequences.
    pub(super) fn allocate_draft_states(&mut self, pool: &mut BlockPool, spare: usize) {
        if self.state.is_none() {
            return;
        }
        while self.draft_states.len() < self.drafted && pool.states.available() > spare {
            self.draft_states.extend(pool.states.allocate());
        }
        self.keep_drafts(self.draft_states.len());
    }

    /// Returns the slots that keep the states after its planned rows: after the last one that is no draft, and after each
    /// draft. Empty if it has no states.
    pub(super) fn kept_states(&self) -> impl Iterator<Item = u32> {
        let others = self.rows.saturating_sub(1 + self.drafted);
        let none = std::iter::repeat_n(u32::MAX, if self.state.is_some() { others } else { 0 });
        none.chain(self.state).chain(self.draft_states.iter().copied().take(self.drafted))
    }

    /// Releases its blocks and its states.
    pub(super) fn release(&mut self, pool: &mut BlockPool) {
        pool.release_all(&mut self.blocks);
        self.draft_states.drain(..).chain(self.state.take()).for_each(|slot| pool.states.release(slot));
    }

    /// Registers the blocks filled by accepted drafts, and releases the blocks and states of rejected ones.
    pub(super) fn finish_verification(&mut self, pool: &mut BlockPool) {
        self.draft_states.drain(..).for_each(|slot| pool.states.release(slot));
        let Some(from) = self.accepted_from.take() else { return };
        self.register(from, pool);
        for block in self.blocks.drain(self.tokens.len().div_ceil(BLOCK_SIZE).min(self.blocks.len())..).rev()
        {
            pool.release(block);
        }
    }

    /// Borrows the prompt, the generated tokens with the drafts, and the attached data simultaneously.
    pub fn parts(&mut self) -> (&[u32], &[u32], &mut W) {
        let (prompt, written) = self.tokens.split_at(self.prompt);
        (prompt, written, &mut self.writer)
    }

    /// Returns the number of positions in the cache.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Returns the number of prompt tokens that were found in the cache.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Returns the blocks that it holds.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Returns the slot of its recurrent state.
    pub fn state(&self) -> Option<u32> {
        self.state
    }

    /// Returns the number of rows in the current plan.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Appends a generated token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Returns true if logits of prompt rows, before the last one, are still needed.
    pub(super) fn has_unscored_rows(&self) -> bool {
        self.scored.is_some_and(|scored| scored + 1 < self.prompt)
    }

    /// Returns the positions whose logits are needed if `rows` are computed; they are the last ones of `rows`.
    pub(super) fn logit_positions(&self, rows: Range<usize>) -> Range<usize> {
        let first = match self.scored {
            Some(scored) if self.has_unscored_rows() => scored.max(rows.start).min(rows.end),
            _ if rows.end == self.tokens.len() => rows.end - 1 - self.drafted,
            _ => rows.end,
        };
        first..rows.end
    }

    /// Returns the positions whose logits the committed step returned.
    pub fn returned(&self) -> Range<usize> {
        let end = self.computed + self.drafted;
        self.logit_positions(end - self.rows..end)
    }

    /// Records that the logits of the prompt rows before `position` were read.
    pub fn set_scored(&mut self, position: usize) {
        self.scored = self.scored.map(|scored| scored.max(position));
    }

    /// Returns true if the logits of its last row are needed, because all of its tokens are computed.
    pub(super) fn wants_logits(&self) -> bool {
        self.rows > 0 && self.computed + self.drafted == self.tokens.len()
    }

    /// Returns the number of tokens, without drafts, that are not in the cache.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.drafted - self.computed
    }

    /// Returns true if a token is sampled after its next row, so that drafts may follow that row.
    pub(super) fn is_decoding(&self) -> bool {
        self.pending() == 1 && !self.has_unscored_rows()
    }

    /// Returns the number of additional blocks that its tokens need.
    pub(super) fn blocks_missing(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK_SIZE).saturating_sub(self.blocks.len())
    }

    /// Returns the number of prompt positions in the cache.
    pub(super) fn prompt_computed(&self) -> usize {
        self.computed.min(self.prompt)
    }

    /// Returns parent and tokens of the block that its next row belongs to, if its tokens fill that block.
    pub(super) fn next_block(&self) -> Option<(Parent, BlockTokens)> {
        let block = self.computed / BLOCK_SIZE;
        Some((self.parent_of(block), self.block_tokens(block)?))
    }

    /// Returns the tokens of a full block. If it contains features of pictures, a hash of tokens and pictures, which
    /// differs from all tokens, replaces them.
    fn block_tokens(&self, block: usize) -> Option<BlockTokens> {
        let positions = block * BLOCK_SIZE..(block + 1) * BLOCK_SIZE;
        let mut tokens = *self.tokens[positions.start..].first_chunk()?;
        let mut hash: Option<Sha256> = None;
        self.visit_features(positions, |placement, rows, first| {
            let hash = hash.get_or_insert_default();
            hash.update(placement.picture.hash());
            [rows.start, rows.end, first].into_iter().for_each(|number| hash.update(number.to_be_bytes()));
        });
        if let Some(hash) = hash {
            let hash = tokens.iter().fold(hash, |hash, token| hash.chain_update(token.to_be_bytes()));
            let words = hash.finalize();
            for (token, bytes) in tokens.iter_mut().zip(words.chunks_exact(size_of::<u32>()).cycle()) {
                *token = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) | HASH_BIT;
            }
        }
        Some(tokens)
    }

    /// Calls `visit` for each run of picture features within a range of the prompt. Passes the picture, the rows relative
    /// to the range, and the index of the first feature.
    fn visit_features(&self, within: Range<usize>, mut visit: impl FnMut(&Placement, Range<usize>, usize)) {
        for placement in &self.pictures.placements {
            let mut feature = 0;
            for span in &placement.spans {
                let overlap = span.start.max(within.start)..span.end.min(within.end);
                if !overlap.is_empty() {
                    let rows = overlap.start - within.start..overlap.end - within.start;
                    visit(placement, rows, feature + overlap.start - span.start);
                }
                feature += span.len();
            }
        }
    }

    /// Returns the features of pictures among its planned rows, which begin at the row `first` of a step.
    pub(super) fn picture_rows(&self, first: usize) -> Vec<PictureRows> {
        let mut all = Vec::new();
        self.visit_features(self.computed..self.computed + self.rows, |placement, rows, feature| {
            let rows = first + rows.start..first + rows.end;
            all.push(PictureRows { picture: placement.picture.clone(), rows, first: feature });
        });
        all
    }

    /// Limits the number of next rows to at most one picture, or to none unless `allows_picture`. Returns the number, and
    /// true if a picture is among the rows.
    pub(super) fn rows_with_pictures(&self, rows: usize, allows_picture: bool) -> (usize, bool) {
        let (from, end) = (self.computed, self.computed + rows);
        let ends = |picture: &&Placement| picture.spans.last().is_some_and(|span| span.end > from);
        let mut next = self.pictures.placements.iter().filter(ends);
        let begin = |picture: Option<&Placement>| {
            picture.and_then(|picture| picture.spans.first()).map_or(usize::MAX, |span| span.start.max(from))
        };
        let (first, second) = (begin(next.next()), begin(next.next()));
        match allows_picture {
            true => (second.min(end) - from, first < end),
            false => (first.min(end) - from, false),
        }
    }

    /// Returns the tokens with bidirectional attention that a step ending at `position` would split, if there are any.
    pub(super) fn bidirectional_span(&self, position: usize) -> Option<Range<usize>> {
        let pictures = self.pictures.placements.iter().filter(|_| self.pictures.is_bidirectional);
        let mut spans = pictures.flat_map(|picture| &picture.spans);
        spans.find(|span| span.start < position && position < span.end).cloned()
    }

    fn parent_of(&self, block: usize) -> Parent {
        match block.checked_sub(1) {
            Some(before) => Parent::Block(self.blocks[before]),
            None => Parent::Start { salt: self.salt },
        }
    }

    /// Returns true if a token will be sampled after its last planned row, which is not committed yet.
    pub(super) fn will_want_logits(&self) -> bool {
        self.rows > 0 && self.computed + self.rows == self.tokens.len()
    }

    /// Returns true if its next row starts a block that it could share. The last row is always computed.
    pub(super) fn may_share(&self) -> bool {
        self.shares && self.computed.is_multiple_of(BLOCK_SIZE) && self.pending() > BLOCK_SIZE
    }

    /// Adopts registered blocks that match its next tokens. Returns the number of positions saved.
    pub(super) fn share(&mut self, pool: &mut BlockPool) -> usize {
        let from = self.computed;
        while self.may_share() {
            let Some(block) = self.next_block().and_then(|(before, tokens)| pool.find(before, &tokens))
            else {
                break;
            };
            pool.retain(block);
            self.blocks.push(block);
            self.computed += BLOCK_SIZE;
        }
        if !pool.states.is_empty() {
            self.truncate_to_checkpoint(from, pool);
        }
        self.computed - from
    }

    /// Releases the blocks after the last checkpoint among those just adopted, which begin after `from` positions.
    fn truncate_to_checkpoint(&mut self, from: usize, pool: &mut BlockPool) {
        if self.computed == from {
            return;
        }
        // Only here is the number of positions a multiple of the block size.
        self.shared_prefix = self.shared_prefix.max(self.computed);
        while self.computed > from
            && let Some(&block) = self.blocks.last()
            && pool.states.find(block).is_none()
        {
            self.blocks.pop();
            pool.release(block);
            self.computed -= BLOCK_SIZE;
        }
    }

    /// Returns the slot of the checkpoint after its last position, if that is the end of a block that has one.
    pub(super) fn checkpoint(&self, pool: &mut BlockPool) -> Option<u32> {
        let block = self.blocks.last().filter(|_| self.computed == self.blocks.len() * BLOCK_SIZE)?;
        pool.states.find(*block)
    }

    /// Returns the number of positions after which its state is checkpointed next. They end with the prefix shared with
    /// other sequences, or with the last block before the prompt's last token.
    pub(super) fn next_checkpoint(&self) -> Option<usize> {
        let last = (self.prompt - 1) / BLOCK_SIZE * BLOCK_SIZE;
        [self.shared_prefix, last].into_iter().filter(|position| *position > self.computed).min()
    }

    /// Allocates a copy of the registered block with the longest common prefix, if that is long enough. Adds a
    /// reference to the source. Returns (source, destination) and the number of positions saved.
    pub(super) fn copy_partial_match(&mut self, pool: &mut BlockPool) -> Option<((u32, u32), usize)> {
        if !self.shares || !self.computed.is_multiple_of(BLOCK_SIZE) || self.state.is_some() {
            return None;
        }
        let last = self.tokens.len() - 1;
        let spans = self.pictures.placements.iter().flat_map(|placement| &placement.spans);
        let picture = spans.filter(|span| span.end > self.computed).map(|span| span.start).next();
        let end = picture.map_or(last, |start| start.min(last));
        let wanted = self.tokens.get(self.computed..end)?;
        let (from, common) =
            pool.longest_prefix_match(self.parent_of(self.blocks.len()), wanted, self.client)?;
        // A copy launches kernels in each layer, so recomputing fewer rows is cheaper.
        if common < BLOCK_SIZE / 2 {
            return None;
        }
        pool.retain(from);
        let Some(to) = pool.allocate() else {
            pool.release(from);
            return None;
        };
        self.blocks.push(to);
        self.computed += common;
        Some(((from, to), common))
    }

    /// Counts positions found in the cache, except those of its own that are found again after a preemption.
    pub(super) fn count_cached(&mut self, positions: usize) {
        if !self.preempted {
            self.cached += positions;
        }
    }

    /// Marks the planned rows, except drafts, as computed, and registers full blocks for sharing.
    pub(super) fn commit(&mut self, pool: &mut BlockPool) {
        let from = self.computed;
        self.computed += self.rows.saturating_sub(self.drafted);
        self.register(from, pool);
    }

    /// Registers the blocks that were filled after the first `from` positions.
    fn register(&mut self, from: usize, pool: &mut BlockPool) {
        if !pool.shares() {
            return;
        }
        let first = from / BLOCK_SIZE;
        for block in first..self.computed / BLOCK_SIZE {
            if let Some(tokens) = self.block_tokens(block) {
                let parent = self.parent_of(block);
                self.blocks[block] = pool.register(self.blocks[block], parent, &tokens, self.client);
            }
        }
    }
}
