//! The bookkeeping of segments cut into blocks: which are free, which lie side by side. No device is involved.
use super::lists::{Block, Lists, State, NONE};
use super::sizes;
use std::time::Duration;

/// A block in use, until it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId(u32);

/// Segments of device memory, cut into blocks. Addresses are never followed.
#[derive(Debug, Default)]
pub(super) struct Arena {
    blocks: Vec<Block>,
    /// Entries of `blocks` and `segments` that stand for none.
    spare_blocks: Vec<u32>,
    segments: Vec<Segment>,
    spare_segments: Vec<u32>,
    kinds: [Kind; sizes::KINDS],
    sums: Sums,
    /// Counts what was given back: now, and when idle segments were last looked at.
    given: u64,
    looked: u64,
}

/// The free blocks of a kind of segments.
#[derive(Debug, Default)]
struct Kind {
    returned: Lists,
    whole: Lists,
}

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Got from the driver.
    pub(super) held: usize,
    /// In use.
    pub(super) live: usize,
    /// The most that was in use at once.
    pub(super) peak: usize,
    /// In segments of which nothing is in use.
    pub(super) idle: usize,
}

impl Sums {
    /// Got from the driver and not in use.
    pub(super) fn free(&self) -> usize {
        self.held - self.live
    }
}

/// Memory got from the driver. It is idle if none of its blocks is in use.
#[derive(Clone, Copy, Debug)]
struct Segment {
    len: usize,
    kind: usize,
    first: u32,
    /// Blocks in use.
    used: usize,
    /// Value of [`Arena::given`] when a block of it was last given back.
    given: u64,
    /// When it was first seen unused since.
    since: Duration,
}

impl Segment {
    fn is_idle(&self) -> bool {
        self.len > 0 && self.used == 0
    }
}

/// The segment of what was given back, and whether it is idle now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
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

    /// A block that was given back, of the size `len` (of [`sizes::block`]).
    pub(super) fn take(&mut self, len: usize) -> Option<BlockId> {
        let kind = &mut self.kinds[sizes::kind(len)];
        let id = kind.returned.exact(&self.blocks, len)?;
        kind.returned.remove(&mut self.blocks, id);
        Some(self.hand_out(id))
    }

    /// A block of `len` bytes out of one that has no size of its own and is at most `most` bytes long.
    pub(super) fn carve(&mut self, kind: usize, len: usize, most: usize) -> Option<BlockId> {
        let id = self.kinds[kind].whole.at_least(&self.blocks, len)?;
        (self.blocks[id as usize].len <= most).then(|| self.cut(id, len))
    }

    /// A block of `len` bytes out of a segment that was just added and has at least as many.
    pub(super) fn take_first(&mut self, segment: u32, len: usize) -> BlockId {
        self.cut(self.segments[segment as usize].first, len)
    }

    /// Joins all free neighbours of a kind.
    pub(super) fn join(&mut self, kind: usize) {
        while let Some(id) = self.kinds[kind].returned.any() {
            self.unlist(kind, id);
            let mut first = id;
            while let Some(before) = self.free_neighbour(self.blocks[first as usize].before) {
                self.unlist(kind, before);
                self.swallow(before, first);
                first = before;
            }
            while let Some(after) = self.free_neighbour(self.blocks[first as usize].after) {
                self.unlist(kind, after);
                self.swallow(first, after);
            }
            self.blocks[first as usize].state = State::Whole;
            self.kinds[kind].whole.push(&mut self.blocks, first);
        }
    }

    /// Gives a block back; `None` if it is not in use.
    pub(super) fn give(&mut self, block: BlockId) -> Option<Given> {
        let given = self.blocks.get_mut(block.0 as usize).filter(|block| block.state == State::Used)?;
        given.state = State::Returned;
        let (len, id) = (given.len, given.segment);
        self.given += 1;
        let segment = &mut self.segments[id as usize];
        segment.used -= 1;
        segment.given = self.given;
        let idle = segment.used == 0;
        if idle {
            self.sums.idle += segment.len;
        }
        self.sums.live -= len;
        self.kinds[segment.kind].returned.push(&mut self.blocks, block.0);
        Some(Given { segment: id, idle })
    }

    /// Adds memory got from the driver. Returns its number, which counts up from 0 and is used again after removal.
    pub(super) fn add_segment(&mut self, address: usize, len: usize, kind: usize) -> u32 {
        let segment = self.spare_segments.pop().unwrap_or(self.segments.len() as u32);
        let first = self.add_block(Block::new(address, len, segment));
        let new = Segment { len, kind, first, used: 0, given: self.given, since: Duration::ZERO };
        match self.segments.get_mut(segment as usize) {
            Some(spare) => *spare = new,
            None => self.segments.push(new),
        }
        self.kinds[kind].whole.push(&mut self.blocks, first);
        self.sums.held += len;
        self.sums.idle += len;
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
        self.sums.held -= len;
        self.sums.idle -= len;
        len
    }

    /// The largest segment of which nothing is in use.
    pub(super) fn largest_idle(&self) -> Option<u32> {
        self.idle().max_by_key(|(_, segment)| segment.len).map(|(id, _)| id)
    }

    /// The idle segment that was not used for longest.
    pub(super) fn oldest_idle(&self) -> Option<u32> {
        self.idle().min_by_key(|(_, segment)| segment.given).map(|(id, _)| id)
    }

    /// A segment that is idle for at least `time`, where `now` counts from any fixed moment. Segments count as idle
    /// from the first look that finds them so.
    pub(super) fn idle_for(&mut self, time: Duration, now: Duration) -> Option<u32> {
        for segment in self.segments.iter_mut().filter(|segment| segment.given > self.looked) {
            segment.since = now;
        }
        self.looked = self.given;
        self.idle().find(|(_, segment)| now.saturating_sub(segment.since) >= time).map(|(id, _)| id)
    }

    pub(super) fn sums(&self) -> Sums {
        self.sums
    }

    /// Bytes that are free in pieces between what is in use: all but the largest piece of each segment, where free
    /// neighbours are one piece. Looks at every block.
    pub(super) fn scattered_bytes(&self) -> usize {
        let in_use = self.segments.iter().filter(|segment| segment.used > 0);
        in_use.map(|segment| self.scattered(segment.first)).sum()
    }

    fn scattered(&self, first: u32) -> usize {
        let (mut sum, mut largest, mut piece) = (0, 0, 0);
        let mut id = first;
        while id != NONE {
            let block = &self.blocks[id as usize];
            piece = if block.is_free() { piece + block.len } else { 0 };
            sum += if block.is_free() { block.len } else { 0 };
            largest = piece.max(largest);
            id = block.after;
        }
        sum - largest
    }

    fn idle(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0..).zip(&self.segments).filter(|(_, segment)| segment.is_idle())
    }

    fn hand_out(&mut self, id: u32) -> BlockId {
        let block = &mut self.blocks[id as usize];
        block.state = State::Used;
        let segment = &mut self.segments[block.segment as usize];
        if segment.used == 0 {
            self.sums.idle -= segment.len;
        }
        segment.used += 1;
        self.sums.live += block.len;
        self.sums.peak = self.sums.peak.max(self.sums.live);
        BlockId(id)
    }

    /// Hands out the first `len` bytes of a block that has no size of its own.
    fn cut(&mut self, id: u32, len: usize) -> BlockId {
        let Block { address, len: found, segment, after, .. } = self.blocks[id as usize];
        let kind = self.segments[segment as usize].kind;
        self.kinds[kind].whole.remove(&mut self.blocks, id);
        // A smaller rest would only be in the way: the block keeps it, and stays of its class.
        if found - len >= sizes::step(len) {
            let rest = self.add_block(Block::new(address + len, found - len, segment));
            self.link(id, rest);
            self.link(rest, after);
            self.blocks[id as usize].len = len;
            self.kinds[kind].whole.push(&mut self.blocks, rest);
        }
        self.hand_out(id)
    }

    fn free_neighbour(&self, id: u32) -> Option<u32> {
        self.blocks.get(id as usize).filter(|block| block.is_free()).map(|_| id)
    }

    /// Takes a free block from the list that it is in.
    fn unlist(&mut self, kind: usize, id: u32) {
        let kind = &mut self.kinds[kind];
        match self.blocks[id as usize].state {
            State::Returned => kind.returned.remove(&mut self.blocks, id),
            State::Whole => kind.whole.remove(&mut self.blocks, id),
            State::Used | State::Absent => {}
        }
    }

    /// Makes `second`, which lies behind `first`, a part of it. Neither is in a list.
    fn swallow(&mut self, first: u32, second: u32) {
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
