//! The bookkeeping of segments cut into blocks: which are free, which lie side by side. No device is involved.
use super::sizes;
use std::collections::{BTreeMap, BTreeSet};

/// Segments of device memory, cut into blocks. Addresses are only compared.
#[derive(Debug, Default)]
pub(super) struct Arena {
    /// Length by address. Together the blocks of a segment cover it.
    blocks: BTreeMap<usize, Block>,
    /// (length, address) of free blocks: the best fit is the next one, the lowest address among equals.
    free: BTreeSet<(usize, usize)>,
    /// (length, address) of segments that are one free block, and (time of the last use, address).
    idle: BTreeSet<(usize, usize)>,
    idle_since: BTreeSet<(u64, usize)>,
    /// Length of every segment by address.
    segments: BTreeMap<usize, usize>,
    free_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    len: usize,
    segment: usize,
    free: bool,
    /// When it was last in use, if it is free.
    since: u64,
}

impl Arena {
    /// Takes a block of `len` bytes (a size of [`sizes::block`]) out of the smallest free one that holds it.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        let &(found, address) = self.free.range((len, 0)..).next()?;
        let block = self.unpark(address)?;
        self.blocks.insert(address, Block { len, free: false, ..block });
        if found > len {
            self.park(address + len, Block { len: found - len, ..block });
        }
        Some(address)
    }

    /// Gives a block back, joined with its free neighbours. Returns its length; `None` if there is no such block.
    fn give(&mut self, address: usize, now: u64) -> Option<usize> {
        let given = *self.blocks.get(&address).filter(|block| !block.free)?;
        let (mut start, mut len) = (address, given.len);
        let mine = |&(_, block): &(usize, Block)| block.free && block.segment == given.segment;
        let before = self.blocks.range(..address).next_back().map(|(&at, &block)| (at, block));
        if let Some((at, block)) = before.filter(mine) {
            self.unpark(at);
            (start, len) = (at, len + block.len);
        }
        let after = self.blocks.range(address + 1..).next().map(|(&at, &block)| (at, block));
        if let Some((at, block)) = after.filter(mine) {
            self.unpark(at);
            len += block.len;
        }
        self.blocks.remove(&address);
        self.park(start, Block { len, segment: given.segment, free: true, since: now });
        Some(given.len)
    }

    /// Adds memory got from the driver.
    pub(super) fn add_segment(&mut self, address: usize, len: usize) {
        self.segments.insert(address, len);
        self.park(address, Block { len, segment: address, free: true, since: 0 });
    }

    /// Length and address of the largest segment of which nothing is in use.
    fn largest_idle(&self) -> Option<(usize, usize)> {
        self.idle.last().copied()
    }

    /// Time of the last use and address of the idle segment that was not used for longest.
    fn oldest_idle(&self) -> Option<(u64, usize)> {
        self.idle_since.first().copied()
    }

    /// Removes an idle segment.
    fn remove(&mut self, address: usize) {
        self.unpark(address);
        self.segments.remove(&address);
    }

    /// Bytes that are free, in whole segments or between blocks in use.
    fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Bytes of segments of which nothing is in use.
    fn idle_bytes(&self) -> usize {
        self.idle.iter().map(|&(len, _)| len).sum()
    }

    /// Bytes that are free in pieces: all but the largest piece of each segment. Looks at every block.
    fn scattered_bytes(&self) -> usize {
        let mut segments: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for block in self.blocks.values().filter(|block| block.free) {
            let (sum, largest) = segments.entry(block.segment).or_default();
            *sum += block.len;
            *largest = block.len.max(*largest);
        }
        segments.values().map(|(sum, largest)| sum - largest).sum()
    }

    /// Bytes got from the driver.
    #[cfg(test)]
    fn reserved_bytes(&self) -> usize {
        self.segments.values().sum()
    }

    fn park(&mut self, address: usize, block: Block) {
        self.blocks.insert(address, block);
        self.free.insert((block.len, address));
        self.free_bytes += block.len;
        if self.segments.get(&address) == Some(&block.len) {
            self.idle.insert((block.len, address));
            self.idle_since.insert((block.since, address));
        }
    }

    fn unpark(&mut self, address: usize) -> Option<Block> {
        let block = self.blocks.remove(&address)?;
        self.free.remove(&(block.len, address));
        self.idle.remove(&(block.len, address));
        self.idle_since.remove(&(block.since, address));
        self.free_bytes -= block.len;
        Some(block)
    }
}

/// The arenas of all kinds of segments.
#[derive(Debug, Default)]
pub(super) struct Arenas {
    kinds: [Arena; sizes::KINDS],
    /// Counts what is given back.
    now: u64,
}

impl Arenas {
    /// The arena for blocks of `len` bytes.
    pub(super) fn of(&mut self, len: usize) -> &mut Arena {
        &mut self.kinds[sizes::kind(len)]
    }

    /// Gives a block back; `None` if there is no such block.
    pub(super) fn give(&mut self, address: usize) -> Option<usize> {
        self.now += 1;
        self.kinds.iter_mut().find_map(|arena| arena.give(address, self.now))
    }

    /// Removes the largest segment of which nothing is in use: its address.
    pub(super) fn remove_largest(&mut self) -> Option<usize> {
        let arena = self.kinds.iter_mut().max_by_key(|arena| arena.largest_idle())?;
        let (_, address) = arena.largest_idle()?;
        arena.remove(address);
        Some(address)
    }

    /// Removes the idle segment that was not used for longest: its address.
    pub(super) fn remove_oldest(&mut self) -> Option<usize> {
        let idle = self.kinds.iter_mut().filter_map(|arena| Some((arena.oldest_idle()?, arena)));
        let ((_, address), arena) = idle.min_by_key(|&(oldest, _)| oldest)?;
        arena.remove(address);
        Some(address)
    }

    /// Bytes got from the driver and not in use.
    pub(super) fn free_bytes(&self) -> usize {
        self.kinds.iter().map(Arena::free_bytes).sum()
    }

    /// Bytes that are free in pieces between what is in use.
    pub(super) fn scattered_bytes(&self) -> usize {
        self.kinds.iter().map(Arena::scattered_bytes).sum()
    }

    /// Bytes of segments of which nothing is in use.
    pub(super) fn idle_bytes(&self) -> usize {
        self.kinds.iter().map(Arena::idle_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: usize = 1 << 20;

    fn arena(segments: &[usize]) -> Arena {
        let mut arena = Arena::default();
        // Side by side, as a driver may hand them out.
        for (i, len) in segments.iter().enumerate() {
            arena.add_segment(0x1000_0000 + segments[..i].iter().sum::<usize>(), *len);
        }
        arena
    }

    #[test]
    fn a_block_comes_from_the_smallest_that_holds_it() {
        let mut arena = arena(&[4 * SEGMENT, SEGMENT]);
        let inside = arena.take(SEGMENT).unwrap();
        assert_eq!(inside, 0x1000_0000 + 4 * SEGMENT);
        assert_eq!(arena.take(SEGMENT), Some(0x1000_0000));
        assert_eq!(arena.free_bytes(), 3 * SEGMENT);
        assert_eq!(arena.take(4 * SEGMENT), None);
    }

    #[test]
    fn neighbours_merge_but_segments_do_not() {
        let mut arena = arena(&[SEGMENT, SEGMENT]);
        let blocks: Vec<_> = (0..8).map(|_| arena.take(SEGMENT / 4).unwrap()).collect();
        assert_eq!((arena.free_bytes(), arena.largest_idle()), (0, None));
        for i in [1, 3, 2, 0, 4, 6, 7, 5] {
            assert_eq!(arena.give(blocks[i], 1), Some(SEGMENT / 4));
        }
        assert_eq!(arena.take(SEGMENT + 1), None);
        let (a, b) = (arena.take(SEGMENT).unwrap(), arena.take(SEGMENT).unwrap());
        assert_eq!((a, b), (blocks[0], blocks[4]));
    }

    #[test]
    fn only_blocks_in_use_are_given_back() {
        let mut arena = arena(&[SEGMENT]);
        let block = arena.take(256).unwrap();
        assert_eq!(arena.give(block + 256, 1), None);
        assert_eq!(arena.give(block, 1), Some(256));
        assert_eq!(arena.give(block, 1), None);
    }

    #[test]
    fn idle_segments_are_known_by_size_and_age() {
        let mut arena = arena(&[SEGMENT, 3 * SEGMENT, 2 * SEGMENT]);
        let used: Vec<_> = [3, 2, 1].iter().map(|n| arena.take(n * SEGMENT).unwrap()).collect();
        assert_eq!((arena.largest_idle(), arena.oldest_idle()), (None, None));
        for (now, address) in (5..).zip([used[1], used[0], used[2]]) {
            arena.give(address, now);
        }
        assert_eq!(arena.largest_idle(), Some((3 * SEGMENT, used[0])));
        assert_eq!(arena.oldest_idle(), Some((5, used[1])));
        arena.remove(used[0]);
        arena.remove(used[1]);
        assert_eq!(arena.largest_idle(), Some((SEGMENT, used[2])));
        assert_eq!(arena.oldest_idle(), Some((7, used[2])));
        assert_eq!((arena.free_bytes(), arena.reserved_bytes()), (SEGMENT, SEGMENT));
    }

    /// Random takes and gives against a list of what is in use: blocks never overlap, nothing is lost.
    #[test]
    fn blocks_never_overlap_and_nothing_is_lost() {
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let mut arena = arena(&[SEGMENT; 4]);
        let mut used: Vec<(usize, usize)> = Vec::new();
        for _ in 0..20_000 {
            if random(2) == 0 && !used.is_empty() {
                let (address, len) = used.swap_remove(random(used.len()));
                assert_eq!(arena.give(address, 1), Some(len));
            } else if let Some(len) = sizes::block(1 + random(SEGMENT / 3)) {
                let Some(address) = arena.take(len) else { continue };
                assert!(used.iter().all(|&(at, l)| address + len <= at || at + l <= address));
                used.push((address, len));
            }
            let in_use: usize = used.iter().map(|(_, len)| len).sum();
            assert_eq!(arena.free_bytes() + in_use, arena.reserved_bytes());
        }
        used.into_iter().for_each(|(address, _)| assert!(arena.give(address, 2).is_some()));
        assert_eq!((arena.idle.len(), arena.idle_since.len(), arena.free.len()), (4, 4, 4));
    }
}
