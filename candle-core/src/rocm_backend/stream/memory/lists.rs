//! Blocks of segments, and lists of free blocks by length.
use super::sizes;

/// Index that stands for no block.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Used,
    /// Released; the next request of the same size reuses it.
    Released,
    /// Free and not of the size of a request: the rest of a segment, or merged from adjacent blocks.
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

    /// Returns a block of at least `len` bytes that exceeds it by less than a step.
    pub(super) fn exact(&self, blocks: &[Block], len: usize) -> Option<u32> {
        self.of_class(blocks, sizes::class(len)).find(|&id| {
            let found = blocks[id as usize].len;
            found >= len && found - len < sizes::step(len)
        })
    }

    /// Returns a block of at least `len` bytes from the lowest class that has one.
    pub(super) fn at_least(&self, blocks: &[Block], len: usize) -> Option<u32> {
        let class = sizes::class(len);
        let same = self.of_class(blocks, class).find(|&id| blocks[id as usize].len >= len);
        same.or_else(|| self.occupied_from(class + 1).map(|class| self.heads[class]))
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
        assert_eq!(lists.at_least(&blocks, 256), Some(5));
    }

    #[test]
    fn found_blocks_are_long_enough() {
        let (blocks, lists) = filled();
        for (len, expected) in
            [(1, Some(2)), (257, Some(5)), (1 << 20, Some(3)), ((1 << 20) + 256, Some(3)), (6 << 40, None)]
        {
            assert_eq!(lists.at_least(&blocks, len), expected, "{len}");
        }
        assert_eq!(lists.at_least(&blocks, (1 << 20) + 768), Some(4));
        // Blocks of the same class that are too long by a step are not exact.
        assert_eq!(lists.exact(&blocks, (5 << 40) - (64 << 20)), None);
    }

    #[test]
    fn blocks_can_be_removed_from_the_middle_of_a_list() {
        let (mut blocks, mut lists) = filled();
        let id = blocks.len() as u32;
        blocks.push(Block::new(0, 256, 0));
        lists.push(&mut blocks, id);
        for removed in [2, id, 0, 5, 1, 3, 4] {
            lists.remove(&mut blocks, removed);
            assert_ne!(lists.at_least(&blocks, 1), Some(removed));
        }
        assert_eq!((lists.any(), lists.at_least(&blocks, 1)), (None, None));
    }
}
