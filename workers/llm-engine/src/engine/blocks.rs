//! Block pool of the cache: reference counts, and the prefix tree of blocks whose contents can be shared.
use std::collections::{BTreeMap, HashMap};

use crate::step::BLOCK_SIZE;

use super::cache_events::{self, CacheEvent};
use super::states::StatePool;

/// Tokens of a full block.
pub type BlockTokens = [u32; BLOCK_SIZE];

/// Predecessor of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parent {
    /// None: the block begins a sequence. Sequences share blocks only with sequences of the same salt.
    Start {
        /// Identifies the group of sequences that may share blocks.
        salt: u128,
    },
    /// This registered block.
    Block(u32),
}

/// Maximum number of child blocks that are compared for a common prefix, most recent first.
const MAX_COMPARED_BLOCKS: usize = 64;

#[derive(Default)]
struct Block {
    ref_count: u32,
    /// Time of the last release: its key in `idle`.
    idle_since: u64,
    /// Its contents, once it is full and registered for sharing.
    registered: Option<Registered>,
    /// Registered blocks that continue this one, most recent last.
    children: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Registered {
    parent: Parent,
    tokens: BlockTokens,
    /// Client that computed it.
    owner: u128,
    /// Hash of its tokens from the start of the sequence; 0 if events are not recorded.
    hash: u64,
}

/// All blocks of the cache. Each is free, held, or idle: registered, unreferenced, and kept until needed.
///
/// A full block is identified by its registered parent and its own tokens, and thus by all tokens from the
/// start. A holder of a registered block also holds its ancestors, and releases blocks from last to first.
/// The least recently released block therefore has no registered children, and can be evicted safely.
pub struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    registered: HashMap<(Parent, BlockTokens), u32>,
    /// Registered blocks at the start of a sequence, by salt.
    roots: HashMap<u128, Vec<u32>>,
    /// Registered blocks without references, least recently released first.
    idle: BTreeMap<u64, u32>,
    clock: u64,
    shares: bool,
    /// Slots of recurrent states, with checkpoints at the ends of registered blocks.
    pub(super) states: StatePool,
    /// Events since they were last taken, if they are recorded.
    events: Option<Vec<CacheEvent>>,
}

impl BlockPool {
    /// Creates a pool of at most `u32::MAX` blocks. If `shares` is true, full blocks can be shared.
    pub fn new(blocks: u32, shares: bool) -> Self {
        Self {
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            free: (0..blocks).rev().collect(),
            registered: HashMap::new(),
            roots: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            shares,
            states: StatePool::default(),
            events: None,
        }
    }

    /// Starts recording events of blocks. No block may be registered yet.
    pub fn record_events(&mut self) {
        self.events = Some(Vec::new());
    }

    /// Returns the events since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Forgets the contents of all blocks. There must be no references.
    pub fn clear(&mut self) {
        let (events, states) = (self.events.take(), self.states.len() as u32);
        *self = Self { states: StatePool::new(states), ..Self::new(self.len() as u32, self.shares) };
        self.events = events;
        self.events.iter_mut().for_each(|events| events.push(CacheEvent::Cleared));
    }

    /// Returns true if full blocks are shared.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Returns the total number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the slots of recurrent states.
    pub fn states(&self) -> &StatePool {
        &self.states
    }

    /// Returns true if the pool has no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the number of blocks that [`Self::allocate`] can return: free and idle ones.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Returns the number of referenced blocks.
    pub fn used(&self) -> usize {
        self.len() - self.available()
    }

    /// Allocates a block with one reference: a free one, or the least recently released idle one.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.idle.pop_first()?;
                self.evict(block);
                block
            }
        };
        self.block(block).ref_count = 1;
        Some(block)
    }

    /// Adds a reference to a held or registered block.
    pub fn retain(&mut self, block: u32) {
        let entry = self.block(block);
        entry.ref_count += 1;
        if entry.ref_count == 1 {
            let since = entry.idle_since;
            self.idle.remove(&since);
        }
    }

    /// Drops a reference. The last one makes the block idle if it is registered, and free otherwise.
    pub fn release(&mut self, block: u32) {
        self.clock += 1;
        let clock = self.clock;
        let entry = self.block(block);
        entry.ref_count -= 1;
        if entry.ref_count > 0 {
            return;
        }
        if entry.registered.is_some() {
            entry.idle_since = clock;
            self.idle.insert(clock, block);
        } else {
            self.free.push(block);
        }
    }

    /// Releases a sequence's blocks from last to first.
    pub fn release_all(&mut self, blocks: &mut Vec<u32>) {
        while let Some(block) = blocks.pop() {
            self.release(block);
        }
    }

    /// Returns the registered block that holds `tokens` after `parent`.
    pub fn find(&self, parent: Parent, tokens: &BlockTokens) -> Option<u32> {
        self.registered.get(&(parent, *tokens)).copied()
    }

    /// Returns the most recent child of `parent` with the longest common prefix, and that prefix's length. Considers
    /// only blocks that `owner` computed: otherwise the number of saved positions would reveal the text of other clients
    /// token by token.
    pub fn longest_prefix_match(&self, parent: Parent, tokens: &[u32], owner: u128) -> Option<(u32, usize)> {
        let common = |block: u32| {
            let entry = self.blocks[block as usize].registered.as_ref().filter(|entry| entry.owner == owner);
            entry.map_or(0, |entry| entry.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        let latest = self.children(parent).iter().rev().take(MAX_COMPARED_BLOCKS);
        latest.map(|&block| (block, common(block))).max_by_key(|&(_, common)| common).filter(|&(_, n)| n > 0)
    }

    /// Registers that `block`, which has one reference, holds `tokens` after `parent`, computed by
    /// `owner`. Returns the block to use from now on. An identical registered block replaces `block`, which is
    /// released.
    pub fn register(&mut self, block: u32, parent: Parent, tokens: &BlockTokens, owner: u128) -> u32 {
        if let Some(existing) = self.find(parent, tokens) {
            self.retain(existing);
            self.release(block);
            return existing;
        }
        self.registered.insert((parent, *tokens), block);
        let hash = self.record_stored(parent, tokens);
        self.block(block).registered = Some(Registered { parent, tokens: *tokens, owner, hash });
        self.children_mut(parent).push(block);
        block
    }

    /// Records that a block is stored, and returns its hash.
    fn record_stored(&mut self, parent: Parent, tokens: &BlockTokens) -> u64 {
        let Some(events) = &mut self.events else { return 0 };
        let (previous, before) = match parent {
            Parent::Start { salt } => (cache_events::seed(salt), None),
            Parent::Block(before) => {
                let hash = self.blocks[before as usize].registered.map_or(0, |block| block.hash);
                (hash, Some(hash))
            }
        };
        let hash = cache_events::block_hash(previous, tokens);
        cache_events::push_stored(events, hash, before, tokens);
        hash
    }

    fn evict(&mut self, block: u32) {
        self.states.forget(block);
        if let Some(registered) = self.block(block).registered.take() {
            self.events.iter_mut().for_each(|events| cache_events::push_removed(events, registered.hash));
            self.registered.remove(&(registered.parent, registered.tokens));
            let children = self.children_mut(registered.parent);
            if let Some(index) = children.iter().position(|&b| b == block) {
                children.remove(index);
            }
            if let Parent::Start { salt } = registered.parent
                && self.roots.get(&salt).is_some_and(Vec::is_empty)
            {
                self.roots.remove(&salt);
            }
        }
    }

    fn block(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block as usize]
    }

    fn children(&self, parent: Parent) -> &[u32] {
        match parent {
            Parent::Block(parent) => &self.blocks[parent as usize].children,
            Parent::Start { salt } => self.roots.get(&salt).map_or(&[], Vec::as_slice),
        }
    }

    fn children_mut(&mut self, parent: Parent) -> &mut Vec<u32> {
        match parent {
            Parent::Block(parent) => &mut self.block(parent).children,
            Parent::Start { salt } => self.roots.entry(salt).or_default(),
        }
    }

    /// Checks the pool's invariants, given the block tables of all holders.
    ///
    /// # Errors
    /// Returns a description of the first violation.
    pub fn check<'a>(&self, tables: impl IntoIterator<Item = &'a [u32]>) -> Result<(), String> {
        let mut ref_count = vec![0; self.len()];
        for table in tables {
            for (index, &block) in table.iter().enumerate() {
                ref_count[block as usize] += 1;
                let parent = index.checked_sub(1).map(|index| table[index]);
                match self.blocks[block as usize].registered {
                    Some(Registered { parent: Parent::Block(b), .. }) if parent == Some(b) => {}
                    Some(Registered { parent: Parent::Start { .. }, .. }) if parent.is_none() => {}
                    Some(_) => return Err(format!("block {block} does not follow block {parent:?}")),
                    None => {}
                }
            }
        }
        let mut lists = vec![0; self.len()];
        self.free.iter().chain(self.idle.values()).for_each(|&block| lists[block as usize] += 1);
        for (number, block) in self.blocks.iter().enumerate() {
            let id = number as u32;
            if block.ref_count != ref_count[number] {
                return Err(format!(
                    "block {id}: reference count is {}, expected {}",
                    block.ref_count, ref_count[number]
                ));
            }
            if lists[number] != u32::from(block.ref_count == 0) {
                return Err(format!("block {id}: {} references, {} lists", block.ref_count, lists[number]));
            }
            if let Some(registered) = block.registered {
                let chained = match registered.parent {
                    Parent::Block(b) => self.blocks[b as usize].registered.is_some(),
                    Parent::Start { .. } => true,
                };
                let listed = self.children(registered.parent).iter().filter(|&&b| b == id).count() == 1;
                if !chained || !listed || self.find(registered.parent, &registered.tokens) != Some(id) {
                    return Err(format!("block {id} is registered, but its parent is not"));
                }
            } else if !block.children.is_empty() {
                return Err(format!("block {id} is not registered, but has children"));
            }
        }
        let registered = self.blocks.iter().filter(|block| block.registered.is_some()).count();
        let idle_ok = self.idle.values().all(|&block| self.blocks[block as usize].registered.is_some());
        let free_ok = self.free.iter().all(|&block| self.blocks[block as usize].registered.is_none());
        match registered == self.registered.len() && idle_ok && free_ok {
            true => Ok(()),
            false => Err(format!("{registered} blocks are registered, {} indexed", self.registered.len())),
        }
    }
}
