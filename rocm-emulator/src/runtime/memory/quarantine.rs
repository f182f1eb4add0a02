//! Freed memory that is not reused for a while, so that a use after free does not access a new allocation.
use super::HostBuffer;
use std::collections::VecDeque;

/// Maximum number of bytes that are kept.
const CAPACITY: usize = 512 << 20;
/// Size in bytes of the red zones on both sides of every allocation.
pub(super) const RED_ZONE: usize = 16 << 10;

/// The buffers that were freed last.
#[derive(Default)]
pub(super) struct Quarantine {
    buffers: VecDeque<HostBuffer>,
    bytes: usize,
}

impl Quarantine {
    /// Adds a buffer and returns the oldest buffers that exceed the capacity.
    pub(super) fn keep(&mut self, buffer: HostBuffer) -> Vec<HostBuffer> {
        self.bytes += buffer.len();
        self.buffers.push_back(buffer);
        let mut gone = Vec::new();
        while self.bytes > CAPACITY
            && let Some(oldest) = self.buffers.pop_front()
        {
            self.bytes -= oldest.len();
            gone.push(oldest);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first() {
        let mut quarantine = Quarantine::default();
        let buffer = |len| HostBuffer::new(len, 256).unwrap();
        let first = buffer(CAPACITY - 100);
        let base = first.base();
        assert!(quarantine.keep(first).is_empty());
        assert!(quarantine.keep(buffer(100)).is_empty());
        let gone = quarantine.keep(buffer(1));
        assert_eq!(gone.iter().map(HostBuffer::base).collect::<Vec<_>>(), [base]);
        assert_eq!(quarantine.bytes, 101);
        assert_eq!(quarantine.keep(buffer(CAPACITY + 1)).len(), 3);
    }
}
