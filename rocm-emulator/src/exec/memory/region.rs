//! Regions of memory: bounds checks, and conversion of lanes' addresses to host pointers.
use super::MemoryResult;
use crate::exec::check::{LaneAccess, LdsHistory, SharedChecker};
use crate::exec::{Access, AddressSpace, FaultKind, Location, Range};

/// Memory that lanes access: global memory, LDS or private memory.
pub(super) trait Region {
    /// True for LDS, the only region with two-address instructions.
    const IS_LDS: bool = false;

    /// Returns a pointer to `bytes` bytes at `address` for `lane`, or the fault.
    ///
    /// The pointer may be read, and written if `access` is not a load, for `bytes` bytes until the launch ends.
    fn locate(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8>;

    /// Returns the location of an address, for error messages.
    fn location(&self, address: u64) -> Location;

    /// Returns a pointer to a block that several lanes access, if the access is permitted as a whole.
    fn locate_block(&mut self, address: u64, bytes: u64, access: Access) -> Option<*mut u8>;
}

/// Number of range cache entries. Instructions of a function use them in turn.
const RANGE_CACHE_SLOTS: usize = 64;
/// Distance in bytes from the argument segment within which a stray access is attributed to it.
pub(in crate::exec) const KERNARG_SURROUNDINGS: u64 = 256;

/// Global memory: the live ranges, and the launch's argument segment and dispatch packet.
pub(in crate::exec) struct Global<'a> {
    space: &'a AddressSpace,
    /// Argument segment and dispatch packet.
    own: [Range; 2],
    /// Cache of each instruction's last range, because it usually accesses the same range again.
    recent: [Range; RANGE_CACHE_SLOTS],
    slot: usize,
    /// Optional checks. If present, every access is checked and `recent` stays empty.
    checker: Option<SharedChecker>,
}

const EMPTY_RANGE: Range = Range { base: 0, len: 0, writable: false };

impl<'a> Global<'a> {
    /// Creates the region. `own` holds the ranges that belong to this launch, its argument segment first.
    /// They must stay readable while it runs.
    pub(in crate::exec) fn new(space: &'a AddressSpace, own: [Range; 2]) -> Self {
        Self { space, own, recent: [EMPTY_RANGE; RANGE_CACHE_SLOTS], slot: 0, checker: None }
    }

    /// Enables the checks of every access.
    pub(in crate::exec) fn checked_by(mut self, checker: Option<SharedChecker>) -> Self {
        self.checker = checker;
        self
    }

    /// Selects the cache entry of an instruction.
    #[inline(always)]
    pub(super) fn select(&mut self, slot: u8) {
        self.slot = usize::from(slot) % RANGE_CACHE_SLOTS;
    }

    #[cold]
    fn search(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8> {
        let own = self.own.iter().find(|range| range.holds(address, bytes)).copied();
        let found = own.or_else(|| self.space.find(address)).filter(|range| range.holds(address, bytes));
        if let (Some(range), Some(checker)) = (found, &self.checker)
            && (range.writable || access == Access::Load)
        {
            if own.is_none() {
                let (history, location) = (self.space.history(range.base), || self.location(address));
                let access = LaneAccess { access, lane, address, bytes };
                let possible_race = checker.borrow_mut().global(history, range.base, access, location)?;
                if let Some(possible_race) = possible_race {
                    // SAFETY: the access lies within the range, which stays readable while the launch runs.
                    let before = unsafe { Snapshot::take(address as *const u8, &possible_race.bytes) };
                    checker.borrow_mut().possible_race(possible_race, before);
                }
            }
            return Ok(address as *mut u8);
        }
        let (lane, bytes) = (lane as u32, bytes as u32);
        match found {
            Some(range) if range.writable || access == Access::Load => {
                self.recent[self.slot] = range;
                Ok(address as *mut u8)
            }
            Some(range) => {
                Err(Box::new(FaultKind::ReadOnly { access, lane, address, bytes, nearest: Some(range) }))
            }
            None => Err(Box::new(self.outside(lane, address, bytes, access))),
        }
    }

    /// Returns the fault of an access outside every live range.
    fn outside(&self, lane: u32, address: u64, bytes: u32, access: Access) -> FaultKind {
        let [kernarg, _] = self.own;
        let offset = address.wrapping_sub(kernarg.base) as i64;
        let nearest = self.space.nearest(address);
        let is_near =
            |range: Range| range.holds(address, 1) || range.end().abs_diff(address) <= KERNARG_SURROUNDINGS;
        if is_near(kernarg) && self.space.find(address).is_none() && self.space.freed_at(address).is_none() {
            return FaultKind::KernargOutOfBounds { access, lane, offset, bytes, size: kernarg.len };
        }
        match self.space.freed_at(address) {
            // An access that leaves live memory is out of bounds, even if freed memory follows.
            Some(freed) if self.space.find(address).is_none() => {
                FaultKind::UseAfterFree { access, lane, address, bytes, freed }
            }
            _ => FaultKind::OutOfBounds { access, lane, address, bytes, nearest },
        }
    }
}

impl Region for Global<'_> {
    #[cold]
    fn location(&self, address: u64) -> Location {
        Location::Global { address, nearest: self.space.nearest(address) }
    }

    #[inline(always)]
    fn locate(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8> {
        let range = &self.recent[self.slot];
        if range.holds(address, bytes) && (range.writable || access == Access::Load) {
            return Ok(address as *mut u8);
        }
        self.search(lane, address, bytes, access)
    }

    #[inline(always)]
    fn locate_block(&mut self, address: u64, bytes: u64, access: Access) -> Option<*mut u8> {
        let range = &self.recent[self.slot];
        if range.holds(address, bytes) && (range.writable || access == Access::Load) {
            return Some(address as *mut u8);
        }
        // The checks need each lane's access.
        if self.checker.is_some() { None } else { self.search(0, address, bytes, access).ok() }
    }
}

/// Contents of memory before an instruction stores there.
#[derive(Debug)]
pub(in crate::exec) struct Snapshot {
    start: *const u8,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// # Safety
    /// The range `bytes` relative to `start` must be readable until the last call of [`Self::has_changed`].
    unsafe fn take(start: *const u8, bytes: &std::ops::Range<u64>) -> Self {
        // SAFETY: the caller guarantees it.
        let (start, bytes) = unsafe {
            let start = start.add(bytes.start as usize);
            (start, std::slice::from_raw_parts(start, (bytes.end - bytes.start) as usize).to_vec())
        };
        Self { start, bytes }
    }

    /// Returns true if the memory's contents differ from the snapshot.
    pub(in crate::exec) fn has_changed(&self) -> bool {
        // SAFETY: readable, as [`Self::take`] requires; checked launches run on one thread.
        let now = unsafe { std::slice::from_raw_parts(self.start, self.bytes.len()) };
        now != self.bytes
    }
}

/// LDS of a workgroup.
#[derive(Default)]
pub(in crate::exec) struct Lds {
    /// Contents in 16-byte units, for alignment.
    storage: Vec<u128>,
    size: u32,
    /// Number of bytes that may be accessed without checks: all, or none if accesses are checked.
    unchecked_size: u32,
    history: Option<Box<LdsHistory>>,
}

impl Lds {
    /// Resets LDS to `size` bytes of all ones. An element that is read before it is written is then NaN or -1
    /// instead of a plausible 0.
    pub(in crate::exec) fn reset(&mut self, size: u32, checker: Option<&SharedChecker>) {
        let units = (size as usize).div_ceil(16);
        self.storage.clear();
        self.storage.resize(units, u128::MAX);
        self.size = size;
        self.history = checker.map(|checker| Box::new(LdsHistory::new(checker, size)));
        self.unchecked_size = if self.history.is_some() { 0 } else { size };
    }

    /// Drops the state of the checks.
    pub(in crate::exec) fn forget(&mut self) {
        self.history = None;
    }

    /// Slow path of [`Region::locate`], for accesses that are checked or out of bounds.
    #[cold]
    fn locate_checked(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> MemoryResult<*mut u8> {
        let size = self.size;
        match &mut self.history {
            Some(history) if address.checked_add(bytes).is_some_and(|end| end <= size.into()) => {
                let possible_race = history.access(LaneAccess { access, lane, address, bytes }, size)?;
                // SAFETY: the storage holds at least `size` bytes, and the access ends within them.
                let pointer = unsafe { self.storage.as_mut_ptr().cast::<u8>().add(address as usize) };
                if let Some(possible_race) = possible_race {
                    // SAFETY: as above; a workgroup's LDS does not move until the workgroup ends.
                    let before = unsafe { Snapshot::take(pointer, &possible_race.bytes) };
                    history.possible_race(possible_race, before);
                }
                Ok(pointer)
            }
            _ => {
                let (lane, bytes) = (lane as u32, bytes as u32);
                Err(Box::new(FaultKind::LdsOutOfBounds { access, lane, address, bytes, size }))
            }
        }
    }

    /// Returns the whole contents.
    #[cfg(test)]
    pub(in crate::exec) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the storage holds at least `size` bytes, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.storage.as_mut_ptr().cast(), self.size as usize) }
    }
}

impl Region for Lds {
    const IS_LDS: bool = true;

    #[cold]
    fn location(&self, offset: u64) -> Location {
        Location::Lds { offset, size: self.size }
    }

    #[inline(always)]
    fn locate(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8> {
        match self.locate_block(address, bytes, access) {
            Some(pointer) => Ok(pointer),
            None => self.locate_checked(lane, address, bytes, access),
        }
    }

    #[inline(always)]
    fn locate_block(&mut self, address: u64, bytes: u64, _access: Access) -> Option<*mut u8> {
        let fits = address.checked_add(bytes)? <= u64::from(self.unchecked_size);
        // SAFETY: the storage holds at least `unchecked_size` bytes, and the block ends within them.
        fits.then(|| unsafe { self.storage.as_mut_ptr().cast::<u8>().add(address as usize) })
    }
}

/// Private memory of a wave's lanes, one lane after another.
#[derive(Default)]
pub(in crate::exec) struct Private {
    storage: Vec<u128>,
    /// Bytes per lane.
    size: u32,
    /// Distance between lanes in 16-byte units.
    stride: usize,
}

impl Private {
    /// Resets private memory to `size` zero bytes for each of `lanes` lanes.
    pub(in crate::exec) fn reset(&mut self, size: u32, lanes: usize) {
        self.stride = (size as usize).div_ceil(16);
        self.storage.clear();
        self.storage.resize(self.stride * lanes, 0);
        self.size = size;
    }

    /// Returns a lane's whole private memory.
    #[cfg(test)]
    pub(in crate::exec) fn bytes(&mut self, lane: usize) -> &mut [u8] {
        let own = &mut self.storage[lane * self.stride..(lane + 1) * self.stride];
        // SAFETY: a lane has `stride` units of 16 bytes, at least `size` bytes, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(own.as_mut_ptr().cast(), self.size as usize) }
    }
}

impl Region for Private {
    #[cold]
    fn location(&self, offset: u64) -> Location {
        Location::Private { offset, size: self.size }
    }

    #[inline(always)]
    fn locate(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8> {
        let fits = address <= u64::from(self.size) && bytes <= u64::from(self.size) - address;
        match self.storage.get_mut(lane * self.stride..) {
            // SAFETY: a lane has `stride` units of 16 bytes, at least `size` bytes, which contain the access.
            Some(own) if fits => Ok(unsafe { own.as_mut_ptr().cast::<u8>().add(address as usize) }),
            _ => {
                let (lane, bytes) = (lane as u32, bytes as u32);
                Err(Box::new(FaultKind::PrivateOutOfBounds { access, lane, address, bytes, size: self.size }))
            }
        }
    }

    #[inline(always)]
    fn locate_block(&mut self, _address: u64, _bytes: u64, _access: Access) -> Option<*mut u8> {
        // Lanes' private memory is not contiguous.
        None
    }
}
