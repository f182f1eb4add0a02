//! The cache's blocks: who holds them, and which hold tokens that others may share.
use std::collections::{BTreeMap, HashMap};

use crate::step::BLOCK;

/// The tokens of a full block.
pub type BlockTokens = [u32; BLOCK];

/// So many of the latest blocks behind a prefix are compared for a common start.
const COMPARED: usize = 64;

#[derive(Default)]
struct Block {
    holders: u32,
    /// When the last holder let go: its key in `idle`.
    idle_since: u64,
    /// What it holds, once it is full and may be shared.
    known: Option<Known>,
    /// Known blocks that go on from here, the latest last.
    after: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Known {
    before: Option<u32>,
    tokens: BlockTokens,
}

/// All blocks of the cache, each free, held, or idle: known and kept until its place is needed.
///
/// A full block is known by the known block before it and by its own tokens, so by all tokens from the start. Who
/// holds a known block holds those before it, and lets go from the last to the first: so the one least recently held
/// has no known block behind it, and can go without breaking a chain.
pub struct Pool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    known: HashMap<(Option<u32>, BlockTokens), u32>,
    /// Known blocks at the start of a sequence.
    first: Vec<u32>,
    /// Known blocks that nobody holds, the least recently held first.
    idle: BTreeMap<u64, u32>,
    clock: u64,
    shares: bool,
}

impl Pool {
    /// A pool of so many blocks, at most `u32::MAX`; `shares` says whether full blocks are known to others.
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

    /// Whether full blocks are known to others.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Blocks in all.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that [`Self::allocate`] could give: free ones and idle ones.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Blocks that someone holds.
    pub fn used(&self) -> usize {
        self.len() - self.available()
    }

    /// A block to write to, held once: a free one, else the idle one least recently held, which is then forgotten.
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

    /// One holder more of a block that is held or known.
    pub fn hold(&mut self, block: u32) {
        let held = self.block(block);
        held.holders += 1;
        if held.holders == 1 {
            let since = held.idle_since;
            self.idle.remove(&since);
        }
    }

    /// One holder less; the last one leaves it idle if it is known, else free.
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

    /// Lets go of a sequence's blocks, from the last to the first.
    pub fn release_all(&mut self, blocks: &mut Vec<u32>) {
        while let Some(block) = blocks.pop() {
            self.release(block);
        }
    }

    /// The block known to hold `tokens` behind the known block `before`.
    pub fn find(&self, before: Option<u32>, tokens: &BlockTokens) -> Option<u32> {
        self.known.get(&(before, *tokens)).copied()
    }

    /// Of the latest blocks behind `before`, the one that has most first tokens in common with `tokens`, and how many.
    pub fn nearest(&self, before: Option<u32>, tokens: &[u32]) -> Option<(u32, usize)> {
        let common = |block: u32| {
            let known = self.blocks[block as usize].known.as_ref();
            known.map_or(0, |known| known.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        let latest = self.after(before).iter().rev().take(COMPARED);
        latest.map(|&block| (block, common(block))).max_by_key(|&(_, common)| common).filter(|&(_, n)| n > 0)
    }

    /// Makes known that `block`, held once, holds `tokens` behind the known block `before`. Gives back the block that
    /// the holder has from now on: where one with the same tokens was known, that one, and `block` is free.
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

    /// Whether blocks are counted right, given the tables of all that hold some.
    ///
    /// # Errors
    /// Says which block is lost, held too often, or known though what lies before it is not.
    pub fn check<'a>(&self, tables: impl IntoIterator<Item = &'a [u32]>) -> Result<(), String> {
        let mut holders = vec![0; self.len()];
        for table in tables {
            for (place, &block) in table.iter().enumerate() {
                holders[block as usize] += 1;
                let before = place.checked_sub(1).map(|place| table[place]);
                match self.blocks[block as usize].known {
                    Some(known) if known.before != before => {
                        return Err(format!("block {block} does not lie behind {before:?}"));
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
                    "block {id}: {} holders counted, {} there",
                    block.holders, holders[number]
                ));
            }
            if places[number] != u32::from(block.holders == 0) {
                return Err(format!("block {id} with {} holders: {} places", block.holders, places[number]));
            }
            if let Some(known) = block.known {
                let chained = known.before.is_none_or(|b| self.blocks[b as usize].known.is_some());
                let listed = self.after(known.before).iter().filter(|&&b| b == id).count() == 1;
                if !chained || !listed || self.find(known.before, &known.tokens) != Some(id) {
                    return Err(format!("block {id} is known, and what lies before it is not"));
                }
            } else if !block.after.is_empty() {
                return Err(format!("block {id} is not known, and what lies behind it is"));
            }
        }
        let known = self.blocks.iter().filter(|block| block.known.is_some()).count();
        let idle_known = self.idle.values().all(|&block| self.blocks[block as usize].known.is_some());
        let free_unknown = self.free.iter().all(|&block| self.blocks[block as usize].known.is_none());
        match known == self.known.len() && idle_known && free_unknown {
            true => Ok(()),
            false => Err(format!("{known} blocks are known, {} listed", self.known.len())),
        }
    }
}
