//! From a lane's address to a host pointer, checked.
use super::MemoryResult;
use crate::exec::check::{LaneAccess, LdsHistory, SharedChecker};
use crate::exec::{Access, AddressSpace, FaultKind, Place, Range};

/// A kind of memory.
pub(super) trait Region {
    /// Only LDS has two-address instructions.
    const IS_LDS: bool = false;

    /// The place of `bytes` bytes at `address` for `lane`, or the fault.
    ///
    /// The pointer may be read, and written if `access` is not a load, for `bytes` bytes until the launch ends.
    fn locate(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8>;

    /// What a message says about an address.
    fn place(&self, address: u64) -> Place;

    /// The place of one piece that several lanes share, if it is allowed as a whole.
    fn locate_piece(&mut self, address: u64, bytes: u64, access: Access) -> Option<*mut u8>;
}

/// Instructions that access global memory are numbered within their function; more than this share entries.
const SLOTS: usize = 64;
/// An access that misses everything, but not by more than this the argument segment's end, was meant for it.
pub(in crate::exec) const KERNARG_SURROUNDINGS: u64 = 256;

/// Global memory: the live ranges, and the launch's own argument segment and dispatch packet.
pub(in crate::exec) struct Global<'a> {
    space: &'a AddressSpace,
    /// The argument segment and the dispatch packet.
    own: [Range; 2],
    /// The range that an instruction hit last: it will hit it again.
    recent: [Range; SLOTS],
    slot: usize,
    /// Asked about every access; then nothing is kept in `recent`.
    checker: Option<SharedChecker>,
}

const NOTHING: Range = Range { base: 0, len: 0, writable: false };

impl<'a> Global<'a> {
    /// `own`: ranges that only this launch sees, its argument segment first. They must stay readable while it
    /// runs.
    pub(in crate::exec) fn new(space: &'a AddressSpace, own: [Range; 2]) -> Self {
        Self { space, own, recent: [NOTHING; SLOTS], slot: 0, checker: None }
    }

    /// Checks every access.
    pub(in crate::exec) fn checked_by(mut self, checker: Option<SharedChecker>) -> Self {
        self.checker = checker;
        self
    }

    /// Chooses the cache entry of an instruction.
    #[inline(always)]
    pub(super) fn select(&mut self, slot: u8) {
        self.slot = usize::from(slot) % SLOTS;
    }

    #[cold]
    fn search(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8> {
        let own = self.own.iter().find(|range| range.holds(address, bytes)).copied();
        let found = own.or_else(|| self.space.find(address)).filter(|range| range.holds(address, bytes));
        if let (Some(range), Some(checker)) = (found, &self.checker)
            && (range.writable || access == Access::Load)
        {
            if own.is_none() {
                let (history, place) = (self.space.history(range.base), || self.place(address));
                let access = LaneAccess { access, lane, address, bytes };
                let possible_race = checker.borrow_mut().global(history, range.base, access, place)?;
                if let Some(possible_race) = possible_race {
                    // SAFETY: the range holds the access, and stays readable while the launch runs.
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

    /// What is wrong with an access that no live range holds.
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
            // An access that begins in live memory and leaves it is out of bounds, whatever was there before.
            Some(freed) if self.space.find(address).is_none() => {
                FaultKind::UseAfterFree { access, lane, address, bytes, freed }
            }
            _ => FaultKind::OutOfBounds { access, lane, address, bytes, nearest },
        }
    }
}

impl Region for Global<'_> {
    #[cold]
    fn place(&self, address: u64) -> Place {
        Place::Global { address, nearest: self.space.nearest(address) }
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
    fn locate_piece(&mut self, address: u64, bytes: u64, access: Access) -> Option<*mut u8> {
        let range = &self.recent[self.slot];
        if range.holds(address, bytes) && (range.writable || access == Access::Load) {
            return Some(address as *mut u8);
        }
        // Checks want to know the lanes.
        if self.checker.is_some() { None } else { self.search(0, address, bytes, access).ok() }
    }
}

/// What lay somewhere before an instruction stored there.
#[derive(Debug)]
pub(in crate::exec) struct Snapshot {
    place: *const u8,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// # Safety
    /// The bytes, counted from `place` on, must be readable until the snapshot has been asked.
    unsafe fn take(place: *const u8, bytes: &std::ops::Range<u64>) -> Self {
        // SAFETY: the caller's promise.
        let (place, bytes) = unsafe {
            let place = place.add(bytes.start as usize);
            (place, std::slice::from_raw_parts(place, (bytes.end - bytes.start) as usize).to_vec())
        };
        Self { place, bytes }
    }

    /// Whether something else lies there now.
    pub(in crate::exec) fn has_changed(&self) -> bool {
        // SAFETY: readable by the promise of [`Self::take`]; launches that are checked run on one thread.
        let now = unsafe { std::slice::from_raw_parts(self.place, self.bytes.len()) };
        now != self.bytes
    }
}

/// A workgroup's LDS.
#[derive(Default)]
pub(in crate::exec) struct Lds {
    /// In 16-byte units, for alignment.
    storage: Vec<u128>,
    size: u32,
    /// Bytes that may be accessed without a further check: all or, if accesses are checked, none.
    open: u32,
    history: Option<Box<LdsHistory>>,
}

impl Lds {
    /// Makes it `size` bytes of ones: an element that is read before it is written is a NaN or -1, not a
    /// plausible 0.
    pub(in crate::exec) fn reset(&mut self, size: u32, checker: Option<&SharedChecker>) {
        let units = (size as usize).div_ceil(16);
        self.storage.clear();
        self.storage.resize(units, u128::MAX);
        self.size = size;
        self.history = checker.map(|checker| Box::new(LdsHistory::new(checker, size)));
        self.open = if self.history.is_some() { 0 } else { size };
    }

    /// Lets go of what checks remember of it.
    pub(in crate::exec) fn forget(&mut self) {
        self.history = None;
    }

    /// [`Region::locate`] for what is not open.
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
                let place = unsafe { self.storage.as_mut_ptr().cast::<u8>().add(address as usize) };
                if let Some(possible_race) = possible_race {
                    // SAFETY: as above; a workgroup's LDS stays where it is until the workgroup ends.
                    let before = unsafe { Snapshot::take(place, &possible_race.bytes) };
                    history.possible_race(possible_race, before);
                }
                Ok(place)
            }
            _ => {
                let (lane, bytes) = (lane as u32, bytes as u32);
                Err(Box::new(FaultKind::LdsOutOfBounds { access, lane, address, bytes, size }))
            }
        }
    }

    /// All of it, for tests.
    #[cfg(test)]
    pub(in crate::exec) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the storage holds at least `size` bytes, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.storage.as_mut_ptr().cast(), self.size as usize) }
    }
}

impl Region for Lds {
    const IS_LDS: bool = true;

    #[cold]
    fn place(&self, offset: u64) -> Place {
        Place::Lds { offset, size: self.size }
    }

    #[inline(always)]
    fn locate(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8> {
        match self.locate_piece(address, bytes, access) {
            Some(place) => Ok(place),
            None => self.locate_checked(lane, address, bytes, access),
        }
    }

    #[inline(always)]
    fn locate_piece(&mut self, address: u64, bytes: u64, _access: Access) -> Option<*mut u8> {
        let fits = address.checked_add(bytes)? <= u64::from(self.open);
        // SAFETY: the storage holds at least `open` bytes, and the piece ends within them.
        fits.then(|| unsafe { self.storage.as_mut_ptr().cast::<u8>().add(address as usize) })
    }
}

/// The private memory of a wave's lanes, one lane's after the other's.
#[derive(Default)]
pub(in crate::exec) struct Private {
    storage: Vec<u128>,
    /// Bytes of one lane.
    size: u32,
    /// 16-byte units from one lane to the next.
    stride: usize,
}

impl Private {
    /// Makes it `size` bytes of zeros for each of `lanes` lanes.
    pub(in crate::exec) fn reset(&mut self, size: u32, lanes: usize) {
        self.stride = (size as usize).div_ceil(16);
        self.storage.clear();
        self.storage.resize(self.stride * lanes, 0);
        self.size = size;
    }

    /// All of a lane's, for tests.
    #[cfg(test)]
    pub(in crate::exec) fn bytes(&mut self, lane: usize) -> &mut [u8] {
        let own = &mut self.storage[lane * self.stride..(lane + 1) * self.stride];
        // SAFETY: a lane has `stride` units of 16 bytes, at least `size` bytes, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(own.as_mut_ptr().cast(), self.size as usize) }
    }
}

impl Region for Private {
    #[cold]
    fn place(&self, offset: u64) -> Place {
        Place::Private { offset, size: self.size }
    }

    #[inline(always)]
    fn locate(&mut self, lane: usize, address: u64, bytes: u64, access: Access) -> MemoryResult<*mut u8> {
        let fits = address <= u64::from(self.size) && bytes <= u64::from(self.size) - address;
        match self.storage.get_mut(lane * self.stride..) {
            // SAFETY: each lane has `stride` units of 16 bytes, at least `size` bytes, and the piece ends within them.
            Some(own) if fits => Ok(unsafe { own.as_mut_ptr().cast::<u8>().add(address as usize) }),
            _ => {
                let (lane, bytes) = (lane as u32, bytes as u32);
                Err(Box::new(FaultKind::PrivateOutOfBounds { access, lane, address, bytes, size: self.size }))
            }
        }
    }

    #[inline(always)]
    fn locate_piece(&mut self, _address: u64, _bytes: u64, _access: Access) -> Option<*mut u8> {
        // No two lanes share a piece.
        None
    }
}
