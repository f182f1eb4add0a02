//! The block pool, compared with a model of plain lists.
use std::collections::HashMap;

use llm_engine::engine::blocks::{BlockPool, BlockTokens, Parent};
use llm_engine::engine::{CacheEvent, block_hash, seed};
use llm_engine::step::BLOCK_SIZE;
use proptest::prelude::*;

const START: Parent = Parent::Start { salt: 0 };

#[derive(Clone, Debug)]
enum Action {
    /// Starts a sequence of full blocks, each filled with one number.
    Begin(Vec<u32>),
    End(prop::sample::Index),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => prop::collection::vec(0..3_u32, 1..6).prop_map(Action::Begin),
        2 => any::<prop::sample::Index>().prop_map(Action::End),
    ];
    prop::collection::vec(action, 1..80)
}

/// Model of the pool's contents.
#[derive(Default)]
struct Lists {
    /// Numbers from the start of the sequence, for each registered block.
    content: HashMap<u32, Vec<u32>>,
    /// Registered blocks without references, least recently released first.
    idle: Vec<u32>,
    tables: Vec<Vec<u32>>,
}

impl Lists {
    fn ref_count(&self, block: u32) -> usize {
        self.tables.iter().flatten().filter(|&&b| b == block).count()
    }

    fn begin(&mut self, pool: &mut BlockPool, numbers: &[u32], blocks: usize) {
        let mut table = Vec::new();
        for (place, &number) in numbers.iter().enumerate() {
            let tokens: BlockTokens = [number; BLOCK_SIZE];
            let before = table.last().map_or(START, |&block| Parent::Block(block));
            let prefix = &numbers[..=place];
            let known = self.content.iter().find(|(_, content)| *content == prefix).map(|(&block, _)| block);
            assert_eq!(pool.find(before, &tokens), known);
            if let Some(block) = known {
                pool.retain(block);
                self.idle.retain(|&b| b != block);
                table.push(block);
                continue;
            }
            let used_blocks = self.content.len()
                + self
                    .tables
                    .iter()
                    .chain([&table])
                    .flatten()
                    .filter(|b| !self.content.contains_key(b))
                    .count();
            let Some(block) = pool.allocate() else {
                assert!(used_blocks == blocks && self.idle.is_empty());
                break;
            };
            if used_blocks == blocks {
                assert_eq!(block, self.idle.remove(0), "the least recently released block is evicted");
                self.content.remove(&block);
            }
            assert!(
                self.ref_count(block) == 0 && !table.contains(&block) && !self.content.contains_key(&block)
            );
            assert_eq!(pool.register(block, before, &tokens, 0), block);
            self.content.insert(block, prefix.to_vec());
            table.push(block);
        }
        self.tables.push(table);
    }

    fn end(&mut self, pool: &mut BlockPool, index: usize) {
        let mut table = self.tables.swap_remove(index);
        let idle: Vec<_> = table.iter().rev().copied().filter(|&block| self.ref_count(block) == 0).collect();
        self.idle.extend(idle);
        pool.release_all(&mut table);
        assert!(table.is_empty());
    }
}

/// Applies events to the numbers from the start of the sequence of each block, by the block's hash.
fn apply(events: Vec<CacheEvent>, reported: &mut HashMap<u64, Vec<u32>>) {
    for event in events {
        match event {
            CacheEvent::Stored { hashes, parent, tokens } => {
                let mut prefix = parent.map_or_else(Vec::new, |parent| reported[&parent].clone());
                let mut previous = parent.unwrap_or(seed(0));
                assert_eq!(tokens.len(), hashes.len() * BLOCK_SIZE);
                for (hash, block) in hashes.into_iter().zip(tokens.chunks_exact(BLOCK_SIZE)) {
                    assert_eq!(hash, block_hash(previous, block.first_chunk().unwrap()));
                    previous = hash;
                    prefix.push(block[0]);
                    assert_eq!(reported.insert(hash, prefix.clone()), None);
                }
            }
            CacheEvent::Removed { hashes } => {
                hashes.iter().for_each(|hash| assert!(reported.remove(hash).is_some()));
            }
            CacheEvent::Cleared => reported.clear(),
        }
    }
}

proptest! {
    #[test]
    fn the_pool_matches_a_model_of_plain_lists(blocks in 1..12_usize, actions in actions()) {
        let mut pool = BlockPool::new(blocks as u32, true);
        pool.record_events();
        let mut lists = Lists::default();
        let mut reported = HashMap::new();
        for action in actions {
            match action {
                Action::Begin(numbers) => lists.begin(&mut pool, &numbers, blocks),
                Action::End(index) if !lists.tables.is_empty() => {
                    lists.end(&mut pool, index.index(lists.tables.len()));
                }
                Action::End(_) => {}
            }
            pool.check(lists.tables.iter().map(Vec::as_slice)).unwrap();
            prop_assert_eq!(pool.available(), blocks - lists.content.len() + lists.idle.len());
            apply(pool.take_events(), &mut reported);
            let mut contents: Vec<_> = lists.content.values().cloned().collect();
            let mut others: Vec<_> = reported.values().cloned().collect();
            contents.sort();
            others.sort();
            prop_assert_eq!(contents, others);
        }
        while !lists.tables.is_empty() {
            lists.end(&mut pool, 0);
        }
        pool.check([]).unwrap();
        prop_assert_eq!(pool.used(), 0);
        pool.clear();
        apply(pool.take_events(), &mut reported);
        prop_assert!(reported.is_empty());
    }
}

#[test]
fn a_registered_block_replaces_a_duplicate() {
    let mut pool = BlockPool::new(3, true);
    let [a, b] = [pool.allocate().unwrap(), pool.allocate().unwrap()];
    assert_eq!(pool.register(a, START, &[7; BLOCK_SIZE], 0), a);
    assert_eq!(pool.register(b, START, &[7; BLOCK_SIZE], 0), a);
    pool.check([&[a][..], &[a][..]]).unwrap();
    assert_eq!(pool.used(), 1);
}

#[test]
fn the_block_with_the_longest_common_prefix_is_found() {
    let mut pool = BlockPool::new(4, true);
    let first = pool.allocate().unwrap();
    pool.register(first, START, &[1; BLOCK_SIZE], 0);
    let after = Parent::Block(first);
    let mut tokens = [2; BLOCK_SIZE];
    tokens[9..].fill(3);
    let [short, long] = [[2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4], tokens].map(|tokens| {
        let block = pool.allocate().unwrap();
        (pool.register(block, after, &tokens, 0), tokens)
    });
    assert_eq!(pool.longest_prefix_match(after, &[2; 15], 0), Some((long.0, 9)));
    assert_eq!(pool.longest_prefix_match(after, &short.1[..15], 0), Some((short.0, 15)));
    assert_eq!(pool.longest_prefix_match(after, &[5; 15], 0), None);
    assert_eq!(pool.longest_prefix_match(START, &[2; 15], 0), None);
}

#[test]
fn a_wrong_reference_count_is_detected() {
    let mut pool = BlockPool::new(2, true);
    let block = pool.allocate().unwrap();
    assert!(pool.check([]).is_err());
    assert!(pool.check([&[block][..], &[block][..]]).is_err());
    pool.check([&[block][..]]).unwrap();
}

#[test]
fn blocks_are_found_only_with_the_same_salt() {
    let mut pool = BlockPool::new(2, true);
    let tokens = [7; BLOCK_SIZE];
    let block = pool.allocate().unwrap();
    pool.register(block, Parent::Start { salt: 1 }, &tokens, 5);
    assert_eq!(pool.find(Parent::Start { salt: 1 }, &tokens), Some(block));
    assert_eq!(pool.longest_prefix_match(Parent::Start { salt: 1 }, &[7; 15], 5), Some((block, 15)));
    for salt in [0, 2] {
        assert_eq!(pool.find(Parent::Start { salt }, &tokens), None);
        assert_eq!(pool.longest_prefix_match(Parent::Start { salt }, &[7; 15], 5), None);
    }
    pool.check([&[block][..]]).unwrap();
    pool.release(block);
    // Evicts it.
    let both = [pool.allocate().unwrap(), pool.allocate().unwrap()];
    assert_eq!(pool.find(Parent::Start { salt: 1 }, &tokens), None);
    pool.check(both.iter().map(std::slice::from_ref)).unwrap();
}

#[test]
fn parts_of_blocks_match_only_for_the_client_that_computed_them() {
    let mut pool = BlockPool::new(1, true);
    let block = pool.allocate().unwrap();
    pool.register(block, START, &[7; BLOCK_SIZE], 5);
    assert_eq!(pool.longest_prefix_match(START, &[7; 15], 5), Some((block, 15)));
    assert_eq!(pool.longest_prefix_match(START, &[7; 15], 6), None);
    assert_eq!(pool.find(START, &[7; BLOCK_SIZE]), Some(block));
}
