//! Block pool of the cache: reference counts, and the prefix tree of blocks whose contents can be shared.
use std::collections::{BTreeMap, HashMap};

use crate::step::BLOCK;

/// Tokens of a full block.
pub type BlockTokens = [u32; BLOCK];

/// Maximum number of child blocks that are compared for a common prefix, most recent first.
const COMPARED: usize = 64;

#[derive(Default)]
struct Block {
    holders: u32,
    /// Time of the last release: its key in `idle`.
    idle_since: u64,
    /// Its contents, once it is full and registered for sharing.
    known: Option<Known>,
    /// Registered blocks that continue this one, most recent last.
    after: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Known {
    before: Option<u32>,
    tokens: BlockTokens,
}

/// All blocks of the cache. Each is free, held, or idle: registered, unreferenced, and kept until it is
/// needed.
///
/// A full block is identified by its registered parent and its own tokens, and thus by all tokens from the
/// start. Whoever holds a registered block also holds its ancestors, and releases blocks from last to first.
/// The least recently released block therefore has no registered children, and can be evicted without
/// breaking a chain.
pub struct Pool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    known: HashMap<(Option<u32>, BlockTokens), u32>,
    /// Registered blocks at the start of a sequence.
    first: Vec<u32>,
    /// Registered blocks without references, least recently released first.
    idle: BTreeMap<u64, u32>,
    clock: u64,
    shares: bool,
}

impl Pool {
    /// Creates a pool of `blocks` blocks, at most `u32::MAX`. If `shares` is true, full blocks can be
    /// registered for sharing.
    pub fn new(blocks: u32, shares: bool) -> Self {
        Self {
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            free: (0..blocks).rev().collect(),
            known: HashMap::new(),
            first: Vec::new(),
            idle: BTreeMap::new(),
            clock: 0,
            shares,
        }
    }

    /// Returns true if full blocks are shared.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Returns the total number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
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

    /// Allocates a block with one reference: a free block, or otherwise the least recently released idle one,
    /// which is evicted.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.idle.pop_first()?;
                self.forget(block);
                block
            }
        };
        self.block(block).holders = 1;
        Some(block)
    }

    /// Adds a reference to a held or registered block.
    pub fn hold(&mut self, block: u32) {
        let held = self.block(block);
        held.holders += 1;
        if held.holders == 1 {
            let since = held.idle_since;
            self.idle.remove(&since);
        }
    }

    /// Drops a reference. The last one makes the block idle if it is registered, and free otherwise.
    pub fn release(&mut self, block: u32) {
        self.clock += 1;
        let clock = self.clock;
        let held = self.block(block);
        held.holders -= 1;
        if held.holders > 0 {
            return;
        }
        if held.known.is_some() {
            held.idle_since = clock;
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

    /// Returns the registered block that holds `tokens` after the registered block `parent`.
    pub fn find(&self, before: Option<u32>, tokens: &BlockTokens) -> Option<u32> {
        self.known.get(&(before, *tokens)).copied()
    }

    /// Returns the most recent child of `parent` with the longest common prefix with `tokens`, and the length
    /// of that prefix.
    pub fn nearest(&self, before: Option<u32>, tokens: &[u32]) -> Option<(u32, usize)> {
        let common = |block: u32| {
            let known = self.blocks[block as usize].known.as_ref();
            known.map_or(0, |known| known.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        let latest = self.after(before).iter().rev().take(COMPARED);
        latest.map(|&block| (block, common(block))).max_by_key(|&(_, common)| common).filter(|&(_, n)| n > 0)
    }

    /// Registers that `block`, which has one reference, holds `tokens` after the registered block `parent`.
    /// Returns the block to use from now on: if an identical block was registered already, that one is held
    /// and `block` is released.
    pub fn know(&mut self, block: u32, before: Option<u32>, tokens: &BlockTokens) -> u32 {
        if let Some(same) = self.find(before, tokens) {
            self.hold(same);
            self.release(block);
            return same;
        }
        self.known.insert((before, *tokens), block);
        self.block(block).known = Some(Known { before, tokens: *tokens });
        self.after_mut(before).push(block);
        block
    }

    fn forget(&mut self, block: u32) {
        if let Some(known) = self.block(block).known.take() {
            self.known.remove(&(known.before, known.tokens));
            let after = self.after_mut(known.before);
            if let Some(place) = after.iter().position(|&b| b == block) {
                after.remove(place);
            }
        }
    }

    fn block(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block as usize]
    }

    fn after(&self, before: Option<u32>) -> &Vec<u32> {
        before.map_or(&self.first, |before| &self.blocks[before as usize].after)
    }

    fn after_mut(&mut self, before: Option<u32>) -> &mut Vec<u32> {
        match before {
            Some(before) => &mut self.block(before).after,
            None => &mut self.first,
        }
    }

    /// Checks the pool's invariants, given the block tables of all holders.
    ///
    /// # Errors
    /// Returns a description of the first violation.
    pub fn check<'a>(&self, tables: impl IntoIterator<Item = &'a [u32]>) -> Result<(), String> {
        let mut holders = vec![0; self.len()];
        for table in tables {
            for (place, &block) in table.iter().enumerate() {
                holders[block as usize] += 1;
                let before = place.checked_sub(1).map(|place| table[place]);
                match self.blocks[block as usize].known {
                    Some(known) if known.before != before => {
                        return Err(format!("block {block} does not follow block {before:?}"));
                    }
                    _ => {}
                }
            }
        }
        let mut places = vec![0; self.len()];
        self.free.iter().chain(self.idle.values()).for_each(|&block| places[block as usize] += 1);
        for (number, block) in self.blocks.iter().enumerate() {
            let id = number as u32;
            if block.holders != holders[number] {
                return Err(format!(
                    "block {id}: reference count is {}, expected {}",
                    block.holders, holders[number]
                ));
            }
            if places[number] != u32::from(block.holders == 0) {
                return Err(format!("block {id} with {} references is in {} free lists", block.holders, places[number]));
            }
            if let Some(known) = block.known {
                let chained = known.before.is_none_or(|b| self.blocks[b as usize].known.is_some());
                let listed = self.after(known.before).iter().filter(|&&b| b == id).count() == 1;
                if !chained || !listed || self.find(known.before, &known.tokens) != Some(id) {
                    return Err(format!("block {id} is registered, but its parent is not"));
                }
            } else if !block.after.is_empty() {
                return Err(format!("block {id} is not registered, but has children"));
            }
        }
        let known = self.blocks.iter().filter(|block| block.known.is_some()).count();
        let idle_known = self.idle.values().all(|&block| self.blocks[block as usize].known.is_some());
        let free_unknown = self.free.iter().all(|&block| self.blocks[block as usize].known.is_none());
        match known == self.known.len() && idle_known && free_unknown {
            true => Ok(()),
            false => Err(format!("{known} blocks are registered, but the index has {}", self.known.len())),
        }
    }
}
