//! The policy of a device's memory: when to reuse, when to ask the driver, when to give back.
use super::arena::Arenas;
use super::limits::Limits;
use super::sizes;
use std::collections::BTreeMap;

/// What the policy needs of a device. Dropping a segment gives it back to the driver, which waits for the device.
pub(super) trait Driver {
    type Segment;
    type Error;

    /// Device memory of `bytes` bytes and its address; `None` if the device has not that much.
    fn allocate(&self, bytes: usize) -> Result<Option<(usize, Self::Segment)>, Self::Error>;

    /// Whether a segment may be dropped now: not while the device is stuck, since dropping waits for it.
    fn may_free(&self) -> bool;

    /// Free and total bytes of the device.
    fn info(&self) -> Result<(usize, usize), Self::Error>;
}

/// Why there is no memory.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal<E> {
    /// The device has not that much, even with all that was parked given back.
    OutOfMemory { requested: usize, free: usize, total: usize },
    /// More than the share of the free memory that one request may take.
    BeyondShare { requested: usize, allowed: usize, free: usize, total: usize },
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
    /// The part of `held` that lies scattered between what is in use: all but the largest piece of each segment.
    pub fragmented: usize,
    /// Requests for memory so far.
    pub requests: u64,
    /// Those that were met without the driver.
    pub hits: u64,
    /// Left to the end of the process, since the device was stuck when it was to be given back.
    pub abandoned: usize,
    /// Calls of hipMalloc and hipFree so far.
    pub driver_allocations: u64,
    pub driver_frees: u64,
}

/// A segment with its address, and its size.
type Granted<D> = ((usize, <D as Driver>::Segment), usize);

/// Memory of one device in one stream's order: what is given back may be handed out at once, since the work that
/// used it comes before the work that will.
pub(super) struct Pool<D: Driver> {
    driver: D,
    pub(super) limits: Limits,
    arenas: Arenas,
    /// What was got from the driver, by address.
    segments: BTreeMap<usize, (D::Segment, usize)>,
    /// Addresses and lengths of what is got from the driver for each request, as nothing is to be parked.
    unpooled: BTreeMap<usize, usize>,
    stats: MemoryStats,
}

impl<D: Driver> Pool<D> {
    pub(super) fn new(driver: D, limits: Limits) -> Self {
        Self {
            driver,
            limits,
            arenas: Arenas::default(),
            segments: BTreeMap::new(),
            unpooled: BTreeMap::new(),
            stats: MemoryStats::default(),
        }
    }

    /// Memory of at least `bytes` bytes: its address.
    pub(super) fn take(&mut self, bytes: usize) -> Result<usize, Refusal<D::Error>> {
        self.stats.requests += 1;
        let Some(len) = sizes::block(bytes) else {
            let (free, total) = self.driver.info().map_err(Refusal::Failed)?;
            return Err(Refusal::OutOfMemory { requested: bytes, free, total });
        };
        let (address, len) = if self.limits.parked == 0 {
            let ((address, segment), len) = self.ask(bytes, &[bytes])?;
            self.segments.insert(address, (segment, len));
            self.unpooled.insert(address, len);
            (address, len)
        } else {
            self.take_block(bytes, len)?
        };
        self.stats.live += len;
        self.stats.peak = self.stats.peak.max(self.stats.live);
        Ok(address)
    }

    /// A block of `len` bytes, or of a little less where the device has no room for more: its address and length.
    fn take_block(&mut self, bytes: usize, len: usize) -> Result<(usize, usize), Refusal<D::Error>> {
        if let Some(address) = self.arenas.of(len).take(len) {
            self.stats.hits += 1;
            return Ok((address, len));
        }
        let least = bytes.max(1).next_multiple_of(sizes::GRANULE);
        let ((base, segment), size) = self.ask(bytes, &[sizes::segment(len), len, least])?;
        self.segments.insert(base, (segment, size));
        let len = len.min(size);
        let arena = self.arenas.of(len);
        arena.add_segment(base, size);
        // The segment is its only candidate of at least this length, or a better one came first.
        let address = arena.take(len).unwrap_or(base);
        Ok((address, len))
    }

    /// Asks the driver for the first of `sizes` that it grants; then for the last, with as much of what is idle given
    /// back as it takes, the largest first.
    fn ask(&mut self, requested: usize, sizes: &[usize]) -> Result<Granted<D>, Refusal<D::Error>> {
        let last = sizes.last().copied().unwrap_or(requested);
        let (mut free, mut total) = self.driver.info().map_err(Refusal::Failed)?;
        for &size in sizes {
            if size <= self.limits.allowed(free) {
                if let Some(granted) = self.driver.allocate(size).map_err(Refusal::Failed)? {
                    self.stats.driver_allocations += 1;
                    return Ok((granted, size));
                }
            }
        }
        while let Some(address) = self.arenas.remove_largest() {
            self.release(address);
            (free, total) = self.driver.info().map_err(Refusal::Failed)?;
            if last <= self.limits.allowed(free) {
                if let Some(granted) = self.driver.allocate(last).map_err(Refusal::Failed)? {
                    self.stats.driver_allocations += 1;
                    return Ok((granted, last));
                }
            }
        }
        let allowed = self.limits.allowed(free);
        if allowed < last && last <= free {
            return Err(Refusal::BeyondShare { requested, allowed, free, total });
        }
        Err(Refusal::OutOfMemory { requested, free, total })
    }

    /// Takes memory back that [`Self::take`] gave. Returns false if it is none of it.
    pub(super) fn give(&mut self, address: usize) -> bool {
        if let Some(len) = self.unpooled.remove(&address) {
            self.stats.live -= len;
            self.release(address);
            return true;
        }
        let Some(len) = self.arenas.give(address) else { return false };
        self.stats.live -= len;
        self.give_back_idle(self.limits.parked);
        true
    }

    /// Gives idle segments back to the driver until at most `most` bytes are parked: what was not used for longest
    /// first, since the largest may be what the next step of a loop asks for. Returns the bytes that are parked no more.
    pub(super) fn give_back_idle(&mut self, most: usize) -> usize {
        let before = self.arenas.free_bytes();
        while self.arenas.free_bytes() > most {
            let Some(address) = self.arenas.remove_oldest() else { break };
            self.release(address);
        }
        before - self.arenas.free_bytes()
    }

    fn release(&mut self, address: usize) {
        let Some((segment, len)) = self.segments.remove(&address) else { return };
        if self.driver.may_free() {
            self.stats.driver_frees += 1;
        } else {
            self.stats.abandoned += len;
            std::mem::forget(segment);
        }
    }

    /// Leaves everything to the end of the process.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.segments));
    }

    /// How many bytes one request may ask for now.
    pub(super) fn allowed(&self) -> Result<usize, D::Error> {
        let (free, _) = self.driver.info()?;
        Ok(self.limits.allowed(free.saturating_add(self.arenas.idle_bytes())))
    }

    pub(super) fn stats(&self) -> MemoryStats {
        let parked = self.arenas.free_bytes();
        let (held, fragmented) = (parked - self.arenas.idle_bytes(), self.arenas.scattered_bytes());
        MemoryStats { parked, held, fragmented, ..self.stats }
    }

    #[cfg(test)]
    pub(super) fn driver(&self) -> &D {
        &self.driver
    }
}
