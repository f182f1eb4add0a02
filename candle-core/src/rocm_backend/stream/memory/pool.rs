//! The policy of a device's memory: when to reuse, when to ask the driver, when to give back.
use super::arena::{Arena, BlockId, Sums};
use super::limits::Limits;
use super::sizes;
use std::sync::MutexGuard;
use std::time::Duration;

/// Operations of a device that the policy needs. Dropping a segment frees it by the driver, which waits for the device.
pub(super) trait Driver {
    type Segment;
    type Error;

    /// Device memory of `bytes` bytes and its address; `None` if the device has not that much.
    fn allocate(&self, bytes: usize) -> Result<Option<(usize, Self::Segment)>, Self::Error>;

    /// Whether a segment may be dropped now: not while the device is stuck, since dropping waits for it.
    fn may_free(&self) -> bool;

    /// Held while it is asked how much is free and then for memory: two pools of one GPU must not both count on the
    /// same bytes.
    fn alone(&self) -> Option<MutexGuard<'static, ()>> {
        None
    }

    /// Free and total bytes of the device.
    fn info(&self) -> Result<(usize, usize), Self::Error>;
}

/// The driver is asked for more, before free neighbours are joined, up to so many times what ever was in use at once.
/// Of 400 random steps a few settle only with more than twice that, none needs more than three times.
const GROWTH: usize = 3;
/// And so much more, since segments are shared.
const SLACK: usize = 64 << 20;

/// Memory that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) address: usize,
    /// Memory to give back.
    pub(crate) block: BlockId,
}

/// Why there is no memory. All sizes in bytes.
#[derive(Debug, PartialEq)]
pub(crate) enum Refusal<E> {
    /// The device has not that much, even with all that was idle given back.
    OutOfMemory { requested: usize, free: usize, total: usize },
    /// The device has that much, but less than the reserve would stay free.
    BeyondReserve { requested: usize, reserve: usize, free: usize, total: usize },
    /// A call failed.
    Failed(E),
}

/// Sums over the life of a device, and what holds now. Sizes in bytes, as handed out: rounded up to blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// In use by tensors now.
    pub live: usize,
    /// The most that ever was in use at once.
    pub peak: usize,
    /// Got from the driver and kept for reuse.
    pub parked: usize,
    /// The part of `parked` that cannot be given back, since it shares a segment with something in use.
    pub held: usize,
    /// The part of `held` that lies scattered between what is in use: all but the largest piece of each segment, where
    /// free neighbours are one piece.
    pub fragmented: usize,
    /// Requests for memory that were met so far.
    pub requests: u64,
    /// Requests that were met without the driver.
    pub hits: u64,
    /// Left to the end of the process, since the device was stuck when it was to be given back.
    pub abandoned: usize,
    /// Calls of hipMalloc that gave memory so far.
    pub driver_allocations: u64,
    /// Calls of hipFree so far.
    pub driver_frees: u64,
}

/// Memory of one device in one stream's order: what is given back may be handed out at once, since the work that
/// used it comes before the work that will.
pub(super) struct Pool<D: Driver> {
    driver: D,
    pub(super) limits: Limits,
    /// Bytes that stay unused behind each request.
    gap: usize,
    arena: Arena,
    /// Segments from the driver, by their number.
    segments: Vec<Option<D::Segment>>,
    /// Only what counts calls; the rest is the arena's.
    counts: MemoryStats,
}

impl<D: Driver> Pool<D> {
    pub(super) fn new(driver: D, limits: Limits, gap: usize) -> Self {
        let (arena, segments, counts) = Default::default();
        Self { driver, limits, gap, arena, segments, counts }
    }

    /// Memory of at least `bytes` bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Allocation, Refusal<D::Error>> {
        let padded = bytes.max(1).saturating_add(self.gap);
        let Some(len) = sizes::block(padded) else {
            let (free, total) = self.driver.info().map_err(Refusal::Failed)?;
            return Err(Refusal::OutOfMemory { requested: bytes, free, total });
        };
        let found = if self.limits.parked == Some(0) { None } else { self.find(len) };
        let block = match found {
            Some(block) => {
                self.counts.hits += 1;
                block
            }
            None => self.ask(bytes, padded, len)?,
        };
        self.counts.requests += 1;
        Ok(Allocation { address: self.arena.address(block), block })
    }

    /// A free block of `len` bytes: one that was given back in this size, else a part of a larger one.
    ///
    /// Neighbours are joined only when memory cannot grow any more. Up to there each size gets blocks of its own from
    /// the driver, and a step that repeats finds all of them again.
    fn find(&mut self, len: usize) -> Option<BlockId> {
        if let Some(block) = self.arena.take(len) {
            return Some(block);
        }
        let kind = sizes::kind(len);
        // A large segment serves no block of less than half of it.
        let most = if kind == sizes::LARGE { 2 * len } else { usize::MAX };
        let carved = self.arena.carve(kind, len, most);
        let Sums { held, live, peak, .. } = self.arena.sums();
        if carved.is_some() || held + sizes::segment(len) <= GROWTH * peak.max(live + len) + SLACK {
            return carved;
        }
        self.arena.join(kind);
        self.arena.carve(kind, len, most)
    }

    /// A block that the driver gives; under pressure, a part of any that is free; then what the driver gives once idle
    /// segments were given back, the largest first.
    fn ask(&mut self, requested: usize, padded: usize, len: usize) -> Result<BlockId, Refusal<D::Error>> {
        let kind = sizes::kind(len);
        let least = padded.next_multiple_of(sizes::GRANULE);
        let own = [requested.max(1)];
        let shared = [sizes::segment(len), len, least];
        let unpooled = self.limits.parked == Some(0);
        let sizes: &[usize] = if unpooled { &own } else { &shared };
        if let Some(block) = self.grow(sizes, kind, len)? {
            return Ok(block);
        }
        if !unpooled {
            self.arena.join(kind);
            if let Some(block) = self.arena.carve(kind, least, usize::MAX) {
                self.counts.hits += 1;
                return Ok(block);
            }
        }
        while let Some(segment) = self.arena.largest_idle() {
            self.release(segment);
            if let Some(block) = self.grow(sizes, kind, len)? {
                return Ok(block);
            }
        }
        let (free, total) = self.driver.info().map_err(Refusal::Failed)?;
        let reserve = self.limits.reserve;
        let least = sizes.last().copied().unwrap_or(requested);
        Err(match free >= least && free - least < reserve {
            true => Refusal::BeyondReserve { requested, reserve, free, total },
            false => Refusal::OutOfMemory { requested, free, total },
        })
    }

    /// A block in a segment of the first of `sizes` that leaves the reserve free and that the driver grants.
    fn grow(
        &mut self,
        sizes: &[usize],
        kind: usize,
        len: usize,
    ) -> Result<Option<BlockId>, Refusal<D::Error>> {
        let _alone = self.driver.alone();
        let (free, _) = self.driver.info().map_err(Refusal::Failed)?;
        for &size in sizes.iter().filter(|&&size| size.saturating_add(self.limits.reserve) <= free) {
            let Some((address, memory)) = self.driver.allocate(size).map_err(Refusal::Failed)? else {
                continue;
            };
            self.counts.driver_allocations += 1;
            let segment = self.arena.add_segment(address, size, kind);
            let at = segment as usize;
            self.segments.resize_with(self.segments.len().max(at + 1), || None);
            self.segments[at] = Some(memory);
            return Ok(Some(self.arena.take_first(segment, len.min(size))));
        }
        Ok(None)
    }

    /// Takes memory back that [`Self::take`] gave.
    pub(super) fn give(&mut self, block: BlockId) {
        let Some(given) = self.arena.give(block) else {
            debug_assert!(false, "{block:?} is given back twice");
            return;
        };
        match self.limits.parked {
            None => {}
            Some(0) if given.idle => self.release(given.segment),
            Some(most) => {
                self.give_back_idle(most);
            }
        }
    }

    /// Gives idle segments back to the driver until at most `most` bytes are free: what was not used for longest first,
    /// since the largest may be what the next step of a loop asks for. Returns how many bytes.
    pub(super) fn give_back_idle(&mut self, most: usize) -> usize {
        self.release_while(|arena| match arena.sums().free() > most && arena.sums().idle > 0 {
            true => arena.oldest_idle(),
            false => None,
        })
    }

    /// Gives back the segments that were idle for `time`. `now` counts from any fixed moment. A segment's time begins
    /// with the first of these calls that finds it idle, so that giving memory back need not read a clock.
    pub(super) fn give_back_idle_for(&mut self, time: Duration, now: Duration) -> usize {
        self.release_while(|arena| arena.idle_for(time, now))
    }

    fn release_while(&mut self, next: impl Fn(&mut Arena) -> Option<u32>) -> usize {
        let before = self.arena.sums().held;
        while let Some(segment) = next(&mut self.arena) {
            self.release(segment);
        }
        before - self.arena.sums().held
    }

    fn release(&mut self, segment: u32) {
        let len = self.arena.remove(segment);
        let Some(memory) = self.segments.get_mut(segment as usize).and_then(Option::take) else { return };
        if self.driver.may_free() {
            self.counts.driver_frees += 1;
        } else {
            self.counts.abandoned += len;
            std::mem::forget(memory);
        }
    }

    /// Leaves everything to the end of the process.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.segments));
    }

    /// Number of bytes that one request should ask for now: the share of what is free or idle, and no more than the reserve
    /// leaves.
    pub(super) fn allowed(&self) -> Result<usize, D::Error> {
        let (free, _) = self.driver.info()?;
        let usable = free.saturating_add(self.arena.sums().idle);
        Ok(self
            .limits
            .share_of(usable)
            .min(usable.saturating_sub(self.limits.reserve).saturating_sub(self.gap)))
    }

    pub(super) fn stats(&self) -> MemoryStats {
        let sums = self.arena.sums();
        MemoryStats {
            live: sums.live,
            peak: sums.peak,
            parked: sums.free(),
            held: sums.free() - sums.idle,
            fragmented: self.arena.scattered_bytes(),
            ..self.counts
        }
    }

    #[cfg(test)]
    pub(super) fn driver(&self) -> &D {
        &self.driver
    }
}
