//! Blocks of segments, and lists of free blocks by length.
use super::sizes;

/// Index that stands for no block.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Used,
    /// A small block that was released; the next request of the same size reuses it.
    Released,
    /// Free, and merged with adjacent free blocks in this state.
    Whole,
    Absent,
}

/// A part of a segment. Blocks are linked in the order of their addresses, and free blocks of a class also by their list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: usize,
    pub(super) len: usize,
    pub(super) segment: u32,
    pub(super) state: State,
    pub(super) before: u32,
    pub(super) after: u32,
    list_before: u32,
    list_after: u32,
}

impl Block {
    /// Creates a free block that is not linked.
    pub(super) fn new(address: usize, len: usize, segment: u32) -> Self {
        let [before, after, list_before, list_after] = [NONE; 4];
        Self { address, len, segment, state: State::Whole, before, after, list_before, list_after }
    }

    pub(super) fn is_free(&self) -> bool {
        matches!(self.state, State::Released | State::Whole)
    }
}

const WORDS: usize = sizes::CLASSES.div_ceil(64);

/// Free blocks in a list for each class of lengths, last in, first out.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    heads: Box<[u32; sizes::CLASSES]>,
    /// Bit set of the lists that are not empty.
    occupied: [u64; WORDS],
}

impl Default for Lists {
    fn default() -> Self {
        Self { heads: Box::new([NONE; sizes::CLASSES]), occupied: [0; WORDS] }
    }
}

impl Lists {
    pub(super) fn push(&mut self, blocks: &mut [Block], id: u32) {
        let class = sizes::class(blocks[id as usize].len);
        let head = std::mem::replace(&mut self.heads[class], id);
        blocks[id as usize].list_before = NONE;
        blocks[id as usize].list_after = head;
        match head {
            NONE => self.occupied[class / 64] |= 1 << (class % 64),
            head => blocks[head as usize].list_before = id,
        }
    }

    pub(super) fn remove(&mut self, blocks: &mut [Block], id: u32) {
        let Block { len, list_before, list_after, .. } = blocks[id as usize];
        if list_after != NONE {
            blocks[list_after as usize].list_before = list_before;
        }
        if list_before != NONE {
            blocks[list_before as usize].list_after = list_after;
            return;
        }
        let class = sizes::class(len);
        self.heads[class] = list_after;
        if list_after == NONE {
            self.occupied[class / 64] &= !(1 << (class % 64));
        }
    }

    /// Returns a small block of at least `len` bytes that exceeds it by less than the distance to the next block size.
    pub(super) fn exact(&self, blocks: &[Block], len: usize) -> Option<u32> {
        self.of_class(blocks, sizes::class(len)).find(|&id| {
            let found = blocks[id as usize].len;
            found >= len && found - len < sizes::least_rest(sizes::SMALL, len)
        })
    }

    /// Returns the shortest block of at least `len` bytes. Of blocks of exactly this length, it is the one added last.
    pub(super) fn best(&self, blocks: &[Block], len: usize) -> Option<u32> {
        let shortest = |class: usize| {
            let mut best: Option<(usize, u32)> = None;
            for id in self.of_class(blocks, class) {
                let found = blocks[id as usize].len;
                if found == len {
                    return Some(id);
                }
                if found > len && best.is_none_or(|(least, _)| found < least) {
                    best = Some((found, id));
                }
            }
            best.map(|(_, id)| id)
        };
        let class = sizes::class(len);
        shortest(class).or_else(|| shortest(self.occupied_from(class + 1)?))
    }

    /// Returns the length of the longest block; 0 if there is none.
    pub(super) fn longest(&self, blocks: &[Block]) -> usize {
        let class = (0..WORDS)
            .rev()
            .find(|&word| self.occupied[word] != 0)
            .map_or(0, |word| word * 64 + self.occupied[word].ilog2() as usize);
        self.of_class(blocks, class).map(|id| blocks[id as usize].len).max().unwrap_or(0)
    }

    pub(super) fn any(&self) -> Option<u32> {
        self.occupied_from(0).map(|class| self.heads[class])
    }

    fn of_class<'a>(&'a self, blocks: &'a [Block], class: usize) -> impl Iterator<Item = u32> + 'a {
        let some = |id: u32| (id != NONE).then_some(id);
        std::iter::successors(some(self.heads[class]), move |&id| some(blocks[id as usize].list_after))
    }

    fn occupied_from(&self, class: usize) -> Option<usize> {
        let mut word = class / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (class % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 6] = [256, 1 << 20, 256, (1 << 20) + 512, 5 << 40, 3 << 10];

    fn filled() -> (Vec<Block>, Lists) {
        let mut blocks: Vec<Block> = LENGTHS.iter().map(|&len| Block::new(0, len, 0)).collect();
        let mut lists = Lists::default();
        (0..LENGTHS.len() as u32).for_each(|id| lists.push(&mut blocks, id));
        (blocks, lists)
    }

    #[test]
    fn the_last_block_of_a_class_is_returned_first() {
        let (mut blocks, mut lists) = filled();
        for expected in [2, 0] {
            assert_eq!(lists.exact(&blocks, 256), Some(expected));
            lists.remove(&mut blocks, expected);
        }
        assert_eq!(lists.exact(&blocks, 256), None);
        assert_eq!(lists.best(&blocks, 256), Some(5));
    }

    #[test]
    fn found_blocks_are_long_enough() {
        let (blocks, lists) = filled();
        for (len, expected) in
            [(1, Some(2)), (257, Some(5)), (1 << 20, Some(1)), ((1 << 20) + 256, Some(3)), (6 << 40, None)]
        {
            assert_eq!(lists.best(&blocks, len), expected, "{len}");
        }
        assert_eq!(lists.best(&blocks, (1 << 20) + 768), Some(4));
        assert_eq!(lists.longest(&blocks), 5 << 40);
        // Blocks of the same class that are too long by a step are not exact.
        assert_eq!(lists.exact(&blocks, (3 << 10) - 512), None);
    }

    #[test]
    fn the_shortest_block_is_best() {
        let lengths = [9 << 20, (8 << 20) + 512, (8 << 20) + 256, (8 << 20) + 256, 40 << 20, 33 << 20];
        let mut blocks: Vec<Block> = (0..).zip(lengths).map(|(i, len)| Block::new(64 - i, len, 0)).collect();
        let mut lists = Lists::default();
        assert_eq!((lists.longest(&blocks), lists.best(&blocks, 1)), (0, None));
        (0..6).for_each(|id| lists.push(&mut blocks, id));
        for expected in [3, 2, 1, 0, 5, 4] {
            assert_eq!(lists.best(&blocks, 8 << 20), Some(expected));
            lists.remove(&mut blocks, expected);
        }
    }

    #[test]
    fn blocks_can_be_removed_from_the_middle_of_a_list() {
        let (mut blocks, mut lists) = filled();
        let id = blocks.len() as u32;
        blocks.push(Block::new(0, 256, 0));
        lists.push(&mut blocks, id);
        for removed in [2, id, 0, 5, 1, 3, 4] {
            lists.remove(&mut blocks, removed);
            assert_ne!(lists.best(&blocks, 1), Some(removed));
        }
        assert_eq!((lists.any(), lists.best(&blocks, 1)), (None, None));
    }
}
