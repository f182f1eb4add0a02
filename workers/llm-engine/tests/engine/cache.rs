//! A cache of numbers instead of tensors, which detects reads and writes of wrong positions.
use llm_engine::step::{BLOCK_SIZE, SequenceStep, Step};

/// Hashes two numbers.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a.rotate_left(29) ^ b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the content of a cell: a hash of its token and all previous ones.
fn cell(before: u64, position: usize, token: u32) -> u64 {
    mix(mix(before, position as u64), u64::from(token))
}

/// Hashes all cells of a sequence, from which the mock computes logits.
fn digest(cells: impl Iterator<Item = u64>) -> u64 {
    cells.fold(1, mix)
}

/// Returns the digest of a sequence, computed from its tokens.
pub fn digest_of(tokens: &[u32]) -> u64 {
    let mut before = 0;
    digest(tokens.iter().enumerate().map(|(position, &token)| {
        before = cell(before, position, token);
        before
    }))
}

/// Returns the state after the tokens of a sequence.
pub fn state_of(tokens: &[u32]) -> u64 {
    tokens.iter().enumerate().fold(0, |state, (position, token)| cell(state, position, *token))
}

/// Cells of all blocks.
pub struct Cache {
    cells: Vec<u64>,
}

impl Cache {
    pub fn new(blocks: usize) -> Self {
        Self { cells: (0..blocks * BLOCK_SIZE).map(|slot| mix(77, slot as u64)).collect() }
    }

    pub fn copy(&mut self, pairs: &[(u32, u32)]) {
        for &(from, to) in pairs {
            let from = from as usize * BLOCK_SIZE;
            self.cells.copy_within(from..from + BLOCK_SIZE, to as usize * BLOCK_SIZE);
        }
    }

    /// Writes the rows of a step, and returns the digest of each sequence.
    pub fn step(&mut self, step: &Step) -> Vec<u64> {
        let rows = step.tokens.len();
        assert_eq!((step.positions.len(), step.slots.len()), (rows, rows));
        let mut next = 0;
        for sequence in &step.sequences {
            assert_eq!(sequence.rows.start, next);
            assert!(
                !sequence.rows.is_empty() && sequence.blocks.len() >= sequence.context.div_ceil(BLOCK_SIZE)
            );
            next = sequence.rows.end;
            for row in sequence.rows.clone() {
                let position = step.positions[row] as usize;
                assert_eq!(position + sequence.rows.end, sequence.context + row);
                let before = position.checked_sub(1).map_or(0, |before| self.at(&sequence.blocks, before));
                self.cells[step.slots[row] as usize] = cell(before, position, step.tokens[row]);
            }
        }
        assert_eq!(next, rows);
        step.sequences.iter().map(|sequence| self.digest_at(&sequence.blocks, sequence.context)).collect()
    }

    /// Returns the digest of the first `context` positions of a sequence.
    pub fn digest_at(&self, blocks: &[u32], context: usize) -> u64 {
        digest((0..context).map(|position| self.at(blocks, position)))
    }

    /// Copies states between slots. All sources are read first.
    pub fn copy_states(states: &mut [u64], pairs: &[(u32, u32)]) {
        let copied: Vec<u64> = pairs.iter().map(|(from, _)| states[*from as usize]).collect();
        pairs.iter().zip(copied).for_each(|((_, to), state)| states[*to as usize] = state);
    }

    /// Updates the states of a step's sequences, and returns those after their last rows, which are equal to their last cells.
    pub fn step_states(states: &mut [u64], step: &Step) -> Vec<u64> {
        assert_eq!(step.states.len(), step.sequences.len());
        let (before, kept) = (states.to_vec(), step.kept_slots());
        let last = |(sequence, slot): (&SequenceStep, &u32)| {
            sequence.rows.clone().fold(before[*slot as usize], |state, row| {
                let position = step.positions[row] as usize;
                let state = cell(if position == 0 { 0 } else { state }, position, step.tokens[row]);
                if kept[row] != u32::MAX {
                    states[kept[row] as usize] = state;
                }
                state
            })
        };
        step.sequences.iter().zip(&step.states).map(last).collect()
    }

    /// Returns the content of a cell.
    pub fn at(&self, blocks: &[u32], position: usize) -> u64 {
        self.cells[blocks[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE]
    }
}
