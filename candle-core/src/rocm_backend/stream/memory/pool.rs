//! Policy of the memory pool: when to reuse memory, to allocate from the driver, and to release to it.
use super::arena::{Arena, BlockId, Sums};
use super::limits::Limits;
use super::sizes;
use std::sync::MutexGuard;
use std::time::Duration;

/// Operations of a device that the pool needs. Dropping a segment frees it, which waits for the device.
pub(super) trait Driver {
    type Segment;
    type Error;

    /// Allocates `bytes` bytes. Returns the address and the memory, or `None` if the device has not enough.
    fn allocate(&self, bytes: usize) -> Result<Option<(usize, Self::Segment)>, Self::Error>;

    /// Returns true if a segment can be dropped. It cannot while the device hangs, since dropping waits for it.
    fn may_free(&self) -> bool;

    /// Locks the query of free memory and the allocation that follows, so that two pools of one GPU do not count on the
    /// same bytes.
    fn lock_allocation(&self) -> Option<MutexGuard<'static, ()>> {
        None
    }

    fn info(&self) -> Result<(usize, usize), Self::Error>;
}

/// Returns the growth limit of all segments: the peak usage, a sixteenth of it, and 64 MiB for partly used segments. Beyond
/// it, idle segments are released before memory is allocated from the driver.
fn max_held(peak: usize) -> usize {
    peak + peak / 16 + (64 << 20)
}

/// Returns the growth limit of the segments of small blocks: 1.5 times their peak usage, and 16 MiB. Up to it, memory is
/// allocated from the driver before free blocks are coalesced.
fn max_held_small(peak: usize) -> usize {
    peak + peak / 2 + (16 << 20)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) address: usize,
    /// Identifier for the release.
    pub(crate) block: BlockId,
}

/// Error of an allocation. All sizes are in bytes.
#[derive(Debug, PartialEq)]
pub(crate) enum AllocError<E> {
    /// The device has not enough free memory, even after idle memory was released.
    OutOfMemory {
        requested: usize,
        free: usize,
        total: usize,
    },
    /// The device has enough free memory, but less than the reserve would remain.
    BeyondReserve {
        requested: usize,
        reserve: usize,
        free: usize,
        total: usize,
    },
    Failed(E),
}

/// Memory statistics of a device. Sizes are in bytes and rounded up to block sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in use by tensors.
    pub live: usize,
    /// Maximum of `live` so far.
    pub peak: usize,
    /// Bytes allocated from the driver and cached for reuse.
    pub cached: usize,
    /// Part of `cached` that cannot be released, because it shares a segment with memory in use.
    pub held: usize,
    /// Part of `held` that is fragmented: in each segment, all free bytes except those of the largest free range.
    pub fragmented: usize,
    /// Number of successful requests.
    pub requests: u64,
    /// Number of requests that were served without the driver.
    pub hits: u64,
    /// Bytes leaked until the process ends, because the device hung when they were to be released.
    pub abandoned: usize,
    /// Number of successful calls of hipMalloc.
    pub driver_allocations: u64,
    /// Number of calls of hipFree.
    pub driver_frees: u64,
}

/// Memory pool of one stream. Released memory can be reused immediately, since the stream orders the work that used
/// it before the work that will use it.
pub(super) struct Pool<D: Driver> {
    driver: D,
    pub(super) limits: Limits,
    /// Number of unused bytes after each allocation.
    gap: usize,
    arena: Arena,
    /// If true, segments are released only when the pool is dropped.
    keeps_segments: bool,
    /// Segments by their number in the arena.
    segments: Vec<Option<D::Segment>>,
    /// Counters of calls; the other fields are computed from the arena.
    counts: MemoryStats,
}

impl<D: Driver> Pool<D> {
    pub(super) fn new(driver: D, limits: Limits, gap: usize) -> Self {
        let (arena, keeps_segments, segments, counts) = Default::default();
        Self { driver, limits, gap, arena, keeps_segments, segments, counts }
    }

    /// Creates an empty pool with the same driver. It keeps all of its segments until it is dropped, since graphs use
    /// their addresses.
    pub(super) fn new_like(&self) -> Self
    where
        D: Clone,
    {
        let limits = Limits { cached: None, idle: None, ..self.limits };
        Self { keeps_segments: true, ..Self::new(self.driver.clone(), limits, self.gap) }
    }

    pub(super) fn alloc(&mut self, bytes: usize) -> Result<Allocation, AllocError<D::Error>> {
        let padded = bytes.max(1).saturating_add(self.gap);
        let Some(len) = sizes::block(padded) else {
            let (free, total) = self.driver.info().map_err(AllocError::Failed)?;
            return Err(AllocError::OutOfMemory { requested: bytes, free, total });
        };
        let found = if self.limits.cached == Some(0) { None } else { self.find(len) };
        let block = match found {
            Some(block) => {
                self.counts.hits += 1;
                block
            }
            None => self.request(bytes, padded, len)?,
        };
        self.counts.requests += 1;
        Ok(Allocation { address: self.arena.address(block), block })
    }

    /// Finds a free block of `len` bytes: a released block of this size, or a part of a larger one.
    ///
    /// Large blocks are taken from the shortest free block that is long enough, and coalesced when they are released.
    /// Adjacent small blocks are only coalesced once their growth limit is reached, so that their release takes less time.
    fn find(&mut self, len: usize) -> Option<BlockId> {
        let kind = sizes::kind(len);
        if kind == sizes::LARGE {
            return self.arena.carve(kind, len);
        }
        let found = self.arena.reuse(len).or_else(|| self.arena.carve(kind, len));
        let Sums { held, live, peak, .. } = self.arena.sums_of(kind);
        if found.is_some() || held + sizes::segment(len) <= max_held_small(peak.max(live + len)) {
            return found;
        }
        self.arena.coalesce(kind);
        self.arena.carve(kind, len)
    }

    /// Allocates a block from the driver. If that fails, splits any free block that is large enough; then releases idle
    /// segments, the largest first, and tries the driver again.
    fn request(&mut self, bytes: usize, padded: usize, len: usize) -> Result<BlockId, AllocError<D::Error>> {
        let kind = sizes::kind(len);
        let least = padded.next_multiple_of(sizes::GRANULE);
        let unpooled = self.limits.cached == Some(0);
        // If a slightly shorter block is free, sizes probably grow, like those of a cache of keys and values. Then the
        // segment is larger than necessary, so that it serves the next sizes too.
        let grows = kind == sizes::LARGE && self.arena.longest_free(kind) >= len - len / 8;
        let segment = sizes::segment(if grows { sizes::ample(len) } else { len });
        let (own, shared) = ([bytes.max(1)], [segment, len, least]);
        let sizes: &[usize] = if unpooled { &own } else { &shared };
        if !unpooled && kind == sizes::LARGE {
            self.release_excess(segment, len);
        }
        if let Some(block) = self.grow(sizes, kind, len)? {
            return Ok(block);
        }
        if !unpooled {
            self.arena.coalesce(kind);
            let free = self.arena.carve(kind, least).or_else(|| self.arena.carve(sizes::LARGE, least));
            if let Some(block) = free {
                self.counts.hits += 1;
                return Ok(block);
            }
        }
        while let Some(segment) = self.largest_idle(&[sizes::SMALL, sizes::LARGE]) {
            self.free_segment(segment);
            if let Some(block) = self.grow(sizes, kind, len)? {
                return Ok(block);
            }
        }
        let (free, total) = self.driver.info().map_err(AllocError::Failed)?;
        let reserve = self.limits.reserve;
        let least = sizes.last().copied().unwrap_or(bytes);
        let requested = bytes;
        Err(match free >= least && free - least < reserve {
            true => AllocError::BeyondReserve { requested, reserve, free, total },
            false => AllocError::OutOfMemory { requested, free, total },
        })
    }

    /// Releases idle large segments, the largest first, until a segment of `segment` bytes for a block of `len` bytes is
    /// within the growth limit. All of them are too short for the block. If a loop repeats the same sizes, the longer
    /// segment serves those blocks from then on.
    fn release_excess(&mut self, segment: usize, len: usize) {
        let Sums { live, peak, .. } = self.arena.sums();
        let most = max_held(peak.max(live + len));
        while self.arena.sums().held + segment > most {
            let Some(idle) = self.largest_idle(&[sizes::LARGE]) else { return };
            self.free_segment(idle);
        }
    }

    /// Returns the largest idle segment of one of these kinds, unless the pool keeps its segments.
    fn largest_idle(&self, kinds: &[usize]) -> Option<u32> {
        self.arena.largest_idle(kinds).filter(|_| !self.keeps_segments)
    }

    /// Adds a segment of the first of `sizes` that leaves the reserve free and that the driver can allocate.
    fn grow(
        &mut self,
        sizes: &[usize],
        kind: usize,
        len: usize,
    ) -> Result<Option<BlockId>, AllocError<D::Error>> {
        let _lock = self.driver.lock_allocation();
        let (free, _) = self.driver.info().map_err(AllocError::Failed)?;
        // A large block may have one size that is in the list several times.
        let repeats = |at: usize| sizes[..at].contains(&sizes[at]);
        for &size in (0..sizes.len()).filter(|&at| !repeats(at)).map(|at| &sizes[at]) {
            if size.saturating_add(self.limits.reserve) > free {
                continue;
            }
            let Some((address, memory)) = self.driver.allocate(size).map_err(AllocError::Failed)? else {
                continue;
            };
            self.counts.driver_allocations += 1;
            let segment = self.arena.add_segment(address, size, kind);
            let at = segment as usize;
            self.segments.resize_with(self.segments.len().max(at + 1), || None);
            self.segments[at] = Some(memory);
            return Ok(Some(self.arena.carve_first(segment, len.min(size))));
        }
        Ok(None)
    }

    /// Releases memory allocated by [`Self::alloc`].
    pub(super) fn release(&mut self, block: BlockId) {
        let Some(released) = self.arena.release(block) else {
            debug_assert!(false, "{block:?} is released twice");
            return;
        };
        match self.limits.cached {
            None => {}
            Some(0) if released.idle => self.free_segment(released.segment),
            Some(limit) => {
                self.release_idle(limit);
            }
        }
    }

    /// Releases idle segments to the driver until at most `limit` bytes are cached, least recently used first. Returns
    /// the number of bytes.
    pub(super) fn release_idle(&mut self, limit: usize) -> usize {
        self.release_while(|arena| match arena.sums().free() > limit && arena.sums().idle > 0 {
            true => arena.oldest_idle(),
            false => None,
        })
    }

    /// Releases the segments that have been idle for `time`. `now` counts from any fixed moment. The time of a segment
    /// begins with the first call that finds it idle, so that releasing a block does not read the clock.
    pub(super) fn release_idle_for(&mut self, time: Duration, now: Duration) -> usize {
        self.release_while(|arena| arena.idle_for(time, now))
    }

    fn release_while(&mut self, next: impl Fn(&mut Arena) -> Option<u32>) -> usize {
        if self.keeps_segments {
            return 0;
        }
        let before = self.arena.sums().held;
        while let Some(segment) = next(&mut self.arena) {
            self.free_segment(segment);
        }
        before - self.arena.sums().held
    }

    fn free_segment(&mut self, segment: u32) {
        let len = self.arena.remove(segment);
        let Some(memory) = self.segments.get_mut(segment as usize).and_then(Option::take) else { return };
        if self.driver.may_free() {
            self.counts.driver_frees += 1;
        } else {
            self.counts.abandoned += len;
            std::mem::forget(memory);
        }
    }

    /// Leaks all segments until the process ends.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.segments));
    }

    /// Returns the recommended maximum of an allocation in bytes: the share of the free and idle memory, and no more than
    /// the reserve permits.
    pub(super) fn allowed(&self) -> Result<usize, D::Error> {
        let (free, _) = self.driver.info()?;
        let usable = free.saturating_add(self.arena.sums().idle);
        Ok(self
            .limits
            .share_of(usable)
            .min(usable.saturating_sub(self.limits.reserve).saturating_sub(self.gap)))
    }

    /// Returns true if [`Self::alloc`] finds `bytes` bytes in a free block, without a call of the driver.
    pub(super) fn has_free(&self, bytes: usize) -> bool {
        let len = sizes::block(bytes.max(1).saturating_add(self.gap));
        self.limits.cached != Some(0)
            && len.is_some_and(|len| self.arena.longest_free(sizes::kind(len)) >= len)
    }

    pub(super) fn stats(&self) -> MemoryStats {
        let sums = self.arena.sums();
        MemoryStats {
            live: sums.live,
            peak: sums.peak,
            cached: sums.free(),
            held: sums.free() - sums.idle,
            fragmented: self.arena.fragmented_bytes(),
            ..self.counts
        }
    }

    pub(super) fn driver(&self) -> &D {
        &self.driver
    }
}
