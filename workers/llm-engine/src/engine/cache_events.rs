//! Record of the full blocks that enter and leave the cache. Gateways use it to route prompts to cached prefixes.
use sha2::{Digest, Sha256};

use crate::step::BLOCK_SIZE;

/// Change to the full blocks in the cache. Hashes identify the blocks: they are equal in all processes for equal tokens
/// from the start of the sequence and the same salt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Consecutive blocks of a sequence were stored.
    Stored {
        /// Hashes of the blocks.
        hashes: Vec<u64>,
        /// Hash of the block before them; `None` at the start of a sequence.
        parent: Option<u64>,
        /// Tokens of all the blocks.
        tokens: Vec<u32>,
    },
    /// Blocks were removed.
    Removed {
        /// Hashes of the blocks.
        hashes: Vec<u64>,
    },
    /// All blocks were removed.
    Cleared,
}

/// Receiver of the events of each step. It runs on the engine's thread and must not block.
pub type CacheEventSink = Box<dyn FnMut(Vec<CacheEvent>) + Send>;

/// Returns the value from which the hash of the first block of a sequence with this salt is computed.
pub fn seed(salt: u128) -> u64 {
    leading_bits(Sha256::new().chain_update(salt.to_be_bytes()))
}

/// Returns the hash of a block; `previous` is the hash of the block before it, or the [`seed`].
pub fn block_hash(previous: u64, tokens: &[u32; BLOCK_SIZE]) -> u64 {
    let hasher = Sha256::new().chain_update(previous.to_be_bytes());
    leading_bits(tokens.iter().fold(hasher, |hasher, token| hasher.chain_update(token.to_be_bytes())))
}

fn leading_bits(hasher: Sha256) -> u64 {
    hasher.finalize().iter().take(8).fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// Appends a stored block, to the last event if the block continues it.
pub(super) fn push_stored(
    events: &mut Vec<CacheEvent>,
    hash: u64,
    parent: Option<u64>,
    block: &[u32; BLOCK_SIZE],
) {
    match events.last_mut() {
        Some(CacheEvent::Stored { hashes, tokens, .. }) if hashes.last().copied() == parent => {
            hashes.push(hash);
            tokens.extend(block);
        }
        _ => events.push(CacheEvent::Stored { hashes: vec![hash], parent, tokens: block.to_vec() }),
    }
}

/// Appends a removed block, to the last event if that also removed blocks.
pub(super) fn push_removed(events: &mut Vec<CacheEvent>, hash: u64) {
    match events.last_mut() {
        Some(CacheEvent::Removed { hashes }) => hashes.push(hash),
        _ => events.push(CacheEvent::Removed { hashes: vec![hash] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gateways keep hashes while workers are replaced, so another version must compute the same ones.
    #[test]
    fn hashes_are_the_same_in_every_process() {
        let tokens: [u32; BLOCK_SIZE] = std::array::from_fn(|index| index as u32);
        let first = block_hash(seed(0), &tokens);
        assert_eq!((first, block_hash(first, &tokens)), (FIRST, SECOND));
        assert_ne!(block_hash(seed(1), &tokens), first);
        assert_ne!(block_hash(seed(0), &[0; BLOCK_SIZE]), first);
    }

    const FIRST: u64 = 0xe229_cddd_78f6_57bb;
    const SECOND: u64 = 0xcc99_68a4_04c4_7e49;
}
