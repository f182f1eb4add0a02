//! Slots of recurrent states. Sequences hold some; others are checkpoints: copies of the states at the ends of cached
//! blocks, from which other sequences continue.
use std::collections::{BTreeMap, HashMap};

/// All slots of a model's states. Each is free, held by a sequence, or a checkpoint.
#[derive(Default)]
pub struct StatePool {
    slots: u32,
    free: Vec<u32>,
    /// Slots and blocks of checkpoints, least recently used first.
    checkpoints: BTreeMap<u64, (u32, u32)>,
    /// Time of the last use of each block's checkpoint: its key in `checkpoints`.
    used: HashMap<u32, u64>,
    clock: u64,
}

impl StatePool {
    /// Creates a pool of free slots; 0 for models without recurrent states.
    pub fn new(slots: u32) -> Self {
        Self { slots, free: (0..slots).rev().collect(), ..Self::default() }
    }

    /// Returns the number of slots; 0 for models without recurrent states.
    pub fn len(&self) -> usize {
        self.slots as usize
    }

    /// Returns true for models without recurrent states.
    pub fn is_empty(&self) -> bool {
        self.slots == 0
    }

    /// Returns the number of slots that sequences hold.
    pub fn used(&self) -> usize {
        self.len() - self.available()
    }

    /// Returns the number of slots that [`Self::allocate`] may return.
    pub fn available(&self) -> usize {
        self.free.len() + self.checkpoints.len()
    }

    /// Allocates a free slot, or that of the least recently used checkpoint, which is forgotten.
    pub fn allocate(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let (_, (slot, block)) = self.checkpoints.pop_first()?;
            self.used.remove(&block);
            Some(slot)
        })
    }

    /// Frees a held slot.
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Makes a held slot the checkpoint at the end of a block. Frees it if the block has one already.
    pub fn add_checkpoint(&mut self, slot: u32, block: u32) {
        if self.find(block).is_some() {
            return self.release(slot);
        }
        self.clock += 1;
        self.checkpoints.insert(self.clock, (slot, block));
        self.used.insert(block, self.clock);
    }

    /// Returns the slot of the checkpoint at the end of a block, and marks it as the most recently used.
    pub fn find(&mut self, block: u32) -> Option<u32> {
        let used = self.used.get_mut(&block)?;
        self.clock += 1;
        let (slot, _) = self.checkpoints.remove(used)?;
        *used = self.clock;
        self.checkpoints.insert(self.clock, (slot, block));
        Some(slot)
    }

    /// Frees the checkpoint of a block whose contents are forgotten.
    pub fn forget(&mut self, block: u32) {
        let checkpoint = self.used.remove(&block).and_then(|used| self.checkpoints.remove(&used));
        self.free.extend(checkpoint.map(|(slot, _)| slot));
    }

    /// Checks the pool's invariants, given the slots that sequences hold.
    ///
    /// # Errors
    /// Returns a description of the first violation.
    pub fn check(&self, held: impl IntoIterator<Item = u32>) -> Result<(), String> {
        let of_checkpoints = self.checkpoints.values().map(|(slot, _)| *slot);
        let mut all: Vec<u32> = self.free.iter().copied().chain(of_checkpoints).chain(held).collect();
        all.sort_unstable();
        if !all.iter().copied().eq(0..self.slots) {
            return Err(format!("the slots of states are {all:?}, but there are {}", self.slots));
        }
        let consistent = self.checkpoints.iter().all(|(time, (_, block))| self.used.get(block) == Some(time));
        match consistent && self.used.len() == self.checkpoints.len() {
            true => Ok(()),
            false => Err(format!("checkpoints {:?} do not match {:?}", self.checkpoints, self.used)),
        }
    }
}
