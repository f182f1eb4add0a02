//! Bookkeeping of segments that are split into blocks: which blocks are free and which are adjacent. It does not access
//! the device.
use super::lists::{Block, Lists, State, NONE};
use super::sizes;
use std::time::Duration;

/// Identifier of a block that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId(u32);

/// Segments of device memory, split into blocks. Addresses are never dereferenced.
#[derive(Debug, Default)]
pub(super) struct Arena {
    blocks: Vec<Block>,
    /// Unused indices of `blocks`, and below of `segments`.
    spare_blocks: Vec<u32>,
    segments: Vec<Segment>,
    spare_segments: Vec<u32>,
    kinds: [Kind; sizes::KINDS],
    sums: Sums,
    /// Number of releases so far, and its value at the last call of [`Self::idle_for`].
    releases: u64,
    scanned_releases: u64,
}

/// Free blocks of the segments of one kind, see [`State`], and totals.
#[derive(Debug, Default)]
struct Kind {
    released: Lists,
    whole: Lists,
    sums: Sums,
}

/// Totals in bytes, of all segments or of those of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Bytes allocated from the driver.
    pub(super) held: usize,
    pub(super) live: usize,
    /// Maximum of `live` so far.
    pub(super) peak: usize,
    /// Bytes in idle segments, which have no block in use.
    pub(super) idle: usize,
}

impl Sums {
    /// Returns the number of bytes allocated from the driver and not in use.
    pub(super) fn free(&self) -> usize {
        self.held - self.live
    }
}

/// Memory allocated from the driver. It is idle if none of its blocks is in use.
#[derive(Clone, Copy, Debug)]
struct Segment {
    len: usize,
    kind: usize,
    first: u32,
    /// Number of blocks in use.
    used: usize,
    /// Value of [`Arena::releases`] when one of its blocks was last released.
    last_release: u64,
    /// Time of the first call of [`Arena::idle_for`] after that.
    since: Duration,
}

impl Segment {
    fn is_idle(&self) -> bool {
        self.len > 0 && self.used == 0
    }
}

/// The segment of a released block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) segment: u32,
    pub(super) idle: bool,
}

impl Arena {
    pub(super) fn address(&self, block: BlockId) -> usize {
        self.blocks[block.0 as usize].address
    }

    #[cfg(test)]
    pub(super) fn len(&self, block: BlockId) -> usize {
        self.blocks[block.0 as usize].len
    }

    /// Reuses a released block of the size `len`, which must be a result of [`sizes::block`].
    pub(super) fn reuse(&mut self, len: usize) -> Option<BlockId> {
        let kind = &mut self.kinds[sizes::kind(len)];
        let id = kind.released.exact(&self.blocks, len)?;
        kind.released.remove(&mut self.blocks, id);
        Some(self.mark_used(id))
    }

    /// Splits a block of `len` bytes off the shortest free block in state [`State::Whole`] that is long enough.
    pub(super) fn carve(&mut self, kind: usize, len: usize) -> Option<BlockId> {
        let id = self.kinds[kind].whole.best(&self.blocks, len)?;
        Some(self.split(id, len))
    }

    /// Splits the first block, of `len` bytes, off a segment that was just added and is at least as long.
    pub(super) fn carve_first(&mut self, segment: u32, len: usize) -> BlockId {
        self.split(self.segments[segment as usize].first, len)
    }

    /// Merges all adjacent free blocks of a kind.
    pub(super) fn coalesce(&mut self, kind: usize) {
        while let Some(id) = self.kinds[kind].released.any() {
            self.unlist(kind, id);
            self.merge_with_neighbors(kind, id);
        }
    }

    /// Merges a free block that is in no list with the free blocks next to it, and adds the result to those in state
    /// [`State::Whole`].
    fn merge_with_neighbors(&mut self, kind: usize, id: u32) {
        let mut first = id;
        while let Some(before) = self.free_block(self.blocks[first as usize].before) {
            self.unlist(kind, before);
            self.merge(before, first);
            first = before;
        }
        while let Some(after) = self.free_block(self.blocks[first as usize].after) {
            self.unlist(kind, after);
            self.merge(first, after);
        }
        self.blocks[first as usize].state = State::Whole;
        self.kinds[kind].whole.push(&mut self.blocks, first);
    }

    /// Releases a block. A large block is merged with the free blocks next to it. Returns `None` if it is not in use.
    pub(super) fn release(&mut self, block: BlockId) -> Option<Released> {
        let released = self.blocks.get_mut(block.0 as usize).filter(|block| block.state == State::Used)?;
        released.state = State::Released;
        let (len, id) = (released.len, released.segment);
        self.releases += 1;
        let segment = &mut self.segments[id as usize];
        segment.used -= 1;
        segment.last_release = self.releases;
        let (kind, idle) = (segment.kind, segment.used == 0);
        let idle_len = if idle { segment.len } else { 0 };
        for sums in self.sums_with(kind) {
            sums.idle += idle_len;
            sums.live -= len;
        }
        match kind {
            sizes::SMALL => self.kinds[kind].released.push(&mut self.blocks, block.0),
            _ => self.merge_with_neighbors(kind, block.0),
        }
        Some(Released { segment: id, idle })
    }

    /// Adds memory allocated from the driver. Returns its number, which counts up from 0 and is reused after removal.
    pub(super) fn add_segment(&mut self, address: usize, len: usize, kind: usize) -> u32 {
        let segment = self.spare_segments.pop().unwrap_or(self.segments.len() as u32);
        let first = self.add_block(Block::new(address, len, segment));
        let new = Segment { len, kind, first, used: 0, last_release: self.releases, since: Duration::ZERO };
        match self.segments.get_mut(segment as usize) {
            Some(spare) => *spare = new,
            None => self.segments.push(new),
        }
        self.kinds[kind].whole.push(&mut self.blocks, first);
        for sums in self.sums_with(kind) {
            sums.held += len;
            sums.idle += len;
        }
        segment
    }

    /// Removes an idle segment. Returns its length.
    pub(super) fn remove(&mut self, segment: u32) -> usize {
        let Segment { len, kind, first, .. } = self.segments[segment as usize];
        let mut id = first;
        while id != NONE {
            let after = self.blocks[id as usize].after;
            self.unlist(kind, id);
            self.drop_block(id);
            id = after;
        }
        self.segments[segment as usize].len = 0;
        self.spare_segments.push(segment);
        for sums in self.sums_with(kind) {
            sums.held -= len;
            sums.idle -= len;
        }
        len
    }

    /// Returns the largest idle segment of one of these kinds.
    pub(super) fn largest_idle(&self, kinds: &[usize]) -> Option<u32> {
        let idle = self.idle().filter(|(_, segment)| kinds.contains(&segment.kind));
        idle.max_by_key(|(_, segment)| segment.len).map(|(id, _)| id)
    }

    /// Returns the length of the longest free block of a kind in state [`State::Whole`]; 0 if there is none.
    pub(super) fn longest_free(&self, kind: usize) -> usize {
        self.kinds[kind].whole.longest(&self.blocks)
    }

    /// Returns the least recently used idle segment.
    pub(super) fn oldest_idle(&self) -> Option<u32> {
        self.idle().min_by_key(|(_, segment)| segment.last_release).map(|(id, _)| id)
    }

    /// Returns a segment that has been idle for at least `time`. `now` counts from any fixed moment. A segment counts
    /// as idle from the first call of this function that finds it idle.
    pub(super) fn idle_for(&mut self, time: Duration, now: Duration) -> Option<u32> {
        let scanned = self.scanned_releases;
        for segment in self.segments.iter_mut().filter(|segment| segment.last_release > scanned) {
            segment.since = now;
        }
        self.scanned_releases = self.releases;
        self.idle().find(|(_, segment)| now.saturating_sub(segment.since) >= time).map(|(id, _)| id)
    }

    pub(super) fn sums(&self) -> Sums {
        self.sums
    }

    /// Returns the totals of the segments of one kind.
    pub(super) fn sums_of(&self, kind: usize) -> Sums {
        self.kinds[kind].sums
    }

    /// Returns the totals of all segments and those of one kind.
    fn sums_with(&mut self, kind: usize) -> [&mut Sums; 2] {
        [&mut self.sums, &mut self.kinds[kind].sums]
    }

    /// Returns the number of fragmented bytes: in each segment in use, all free bytes except those of the largest free
    /// range. Iterates over every block.
    pub(super) fn fragmented_bytes(&self) -> usize {
        let in_use = self.segments.iter().filter(|segment| segment.used > 0);
        in_use.map(|segment| self.fragmented(segment.first)).sum()
    }

    fn fragmented(&self, first: u32) -> usize {
        let (mut sum, mut largest, mut range) = (0, 0, 0);
        let mut id = first;
        while id != NONE {
            let block = &self.blocks[id as usize];
            range = if block.is_free() { range + block.len } else { 0 };
            sum += if block.is_free() { block.len } else { 0 };
            largest = range.max(largest);
            id = block.after;
        }
        sum - largest
    }

    fn idle(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0..).zip(&self.segments).filter(|(_, segment)| segment.is_idle())
    }

    fn mark_used(&mut self, id: u32) -> BlockId {
        let block = &mut self.blocks[id as usize];
        block.state = State::Used;
        let (len, segment) = (block.len, &mut self.segments[block.segment as usize]);
        let (kind, idle_len) = (segment.kind, if segment.used == 0 { segment.len } else { 0 });
        segment.used += 1;
        for sums in self.sums_with(kind) {
            sums.idle -= idle_len;
            sums.live += len;
            sums.peak = sums.peak.max(sums.live);
        }
        BlockId(id)
    }

    /// Splits `len` bytes off the front of a free block and marks them used.
    fn split(&mut self, id: u32, len: usize) -> BlockId {
        let Block { address, len: found, segment, after, .. } = self.blocks[id as usize];
        let kind = self.segments[segment as usize].kind;
        self.kinds[kind].whole.remove(&mut self.blocks, id);
        if found - len >= sizes::least_rest(kind, len) {
            let rest = self.add_block(Block::new(address + len, found - len, segment));
            self.link(id, rest);
            self.link(rest, after);
            self.blocks[id as usize].len = len;
            self.kinds[kind].whole.push(&mut self.blocks, rest);
        }
        self.mark_used(id)
    }

    fn free_block(&self, id: u32) -> Option<u32> {
        self.blocks.get(id as usize).filter(|block| block.is_free()).map(|_| id)
    }

    fn unlist(&mut self, kind: usize, id: u32) {
        let kind = &mut self.kinds[kind];
        match self.blocks[id as usize].state {
            State::Released => kind.released.remove(&mut self.blocks, id),
            State::Whole => kind.whole.remove(&mut self.blocks, id),
            State::Used | State::Absent => {}
        }
    }

    /// Merges `second`, which follows `first`, into it. Neither may be in a list.
    fn merge(&mut self, first: u32, second: u32) {
        let Block { len, after, .. } = self.blocks[second as usize];
        self.blocks[first as usize].len += len;
        self.link(first, after);
        self.drop_block(second);
    }

    fn link(&mut self, before: u32, after: u32) {
        self.blocks[before as usize].after = after;
        if let Some(block) = self.blocks.get_mut(after as usize) {
            block.before = before;
        }
    }

    fn add_block(&mut self, block: Block) -> u32 {
        let Some(id) = self.spare_blocks.pop() else {
            self.blocks.push(block);
            return self.blocks.len() as u32 - 1;
        };
        self.blocks[id as usize] = block;
        id
    }

    fn drop_block(&mut self, id: u32) {
        self.blocks[id as usize].state = State::Absent;
        self.spare_blocks.push(id);
    }
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
