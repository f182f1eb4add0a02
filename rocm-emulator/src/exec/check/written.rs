//! Bitmap of the bytes of an allocation that have been written.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bitmap words per chunk. A chunk is allocated when one of its bytes is first written.
const CHUNK_WORDS: usize = 512;
const CHUNK_BYTES: u64 = 64 * CHUNK_WORDS as u64;

type Chunk = Box<[AtomicU64; CHUNK_WORDS]>;

/// Written bytes of one allocation, shared by all kernels and copies that access it.
#[derive(Debug)]
pub struct Written {
    chunks: Box<[OnceLock<Chunk>]>,
}

/// Bytes of an access that were never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Offset of the first unwritten byte from the start of the access.
    pub first: u64,
    /// Number of unwritten bytes.
    pub count: u64,
}

impl Written {
    /// Creates the bitmap of an allocation of `len` bytes, none of which is written.
    pub fn new(len: u64) -> Self {
        Self { chunks: (0..len.div_ceil(CHUNK_BYTES)).map(|_| OnceLock::new()).collect() }
    }

    /// Marks bytes as written. They must lie within the allocation.
    pub fn set(&self, offset: u64, len: u64) {
        for (word, mask) in words(offset, len) {
            let Some(chunk) = self.chunks.get(word / CHUNK_WORDS) else { return };
            let chunk = chunk.get_or_init(|| Box::new([const { AtomicU64::new(0) }; CHUNK_WORDS]));
            let word = &chunk[word % CHUNK_WORDS];
            // Most bytes are written repeatedly, and a load is cheaper than an atomic OR.
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        }
    }

    /// Returns the bits of a word's written bytes.
    fn word(&self, word: usize) -> u64 {
        let chunk = self.chunks.get(word / CHUNK_WORDS).and_then(OnceLock::get);
        chunk.map_or(0, |chunk| chunk[word % CHUNK_WORDS].load(Ordering::Relaxed))
    }

    /// Returns the unwritten bytes of a range, if there are any.
    pub fn missing(&self, offset: u64, len: u64) -> Option<Missing> {
        let mut missing: Option<Missing> = None;
        for (word, mask) in words(offset, len) {
            let unset = mask & !self.word(word);
            if unset != 0 {
                let first = 64 * word as u64 + u64::from(unset.trailing_zeros()) - offset;
                let found = missing.get_or_insert(Missing { first, count: 0 });
                found.count += u64::from(unset.count_ones());
            }
        }
        missing
    }

    /// Marks the bytes of a range whose counterparts in `source` are written.
    pub fn copy(&self, offset: u64, source: &Self, source_offset: u64, len: u64) {
        let mut at = 0;
        while at < len {
            // Copy up to the end of the source's word.
            let from = source_offset + at;
            let count = (64 - from % 64).min(len - at);
            let bits = source.word((from / 64) as usize) >> (from % 64);
            let whole = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            if bits & whole == whole {
                self.set(offset + at, count);
            } else {
                (0..count).filter(|n| bits >> n & 1 != 0).for_each(|n| self.set(offset + at + n, 1));
            }
            at += count;
        }
    }
}

/// Returns the bitmap words of a range of bytes, each with the mask of its bits.
pub(super) fn words(offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (word, first) = (at / 64, at % 64);
            let count = (64 - first).min(end - at);
            at += count;
            (word as usize, (u64::MAX >> (64 - count)) << first)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_bytes_are_missing() {
        let written = Written::new(3 * CHUNK_BYTES);
        assert_eq!(written.missing(0, 3 * CHUNK_BYTES), Some(Missing { first: 0, count: 3 * CHUNK_BYTES }));
        // The range crosses a chunk boundary.
        written.set(CHUNK_BYTES - 70, 200);
        assert_eq!(written.missing(CHUNK_BYTES - 70, 200), None);
        assert_eq!(written.missing(CHUNK_BYTES - 71, 4), Some(Missing { first: 0, count: 1 }));
        assert_eq!(written.missing(CHUNK_BYTES + 128, 4), Some(Missing { first: 2, count: 2 }));
        written.set(CHUNK_BYTES + 131, 1);
        assert_eq!(written.missing(CHUNK_BYTES + 128, 4), Some(Missing { first: 2, count: 1 }));
        assert_eq!(written.missing(5, 0), None);
    }

    #[test]
    fn copy_marks_the_bytes_that_the_source_has_written() {
        let (source, target) = (Written::new(1000), Written::new(1000));
        let set = |n: u64| n.is_multiple_of(3) || (100..300).contains(&n);
        (0..1000).filter(|n| set(*n)).for_each(|n| source.set(n, 1));
        target.copy(500, &source, 17, 400);
        for n in 0..1000 {
            let expected = (500..900).contains(&n) && set(n - 500 + 17);
            assert_eq!(target.missing(n, 1).is_none(), expected, "{n}");
        }
    }
}
