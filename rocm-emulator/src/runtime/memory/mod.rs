//! Live memory: device allocations, pinned host memory, and the segments of loaded code objects.
mod buffer;
mod initialisation;
mod pages;
mod parts;
mod quarantine;

use super::error::{ErrorCode, Result, bail, fail};
use super::injection;
use crate::exec::{AddressSpace, Checks, FreedRanges, Range, RangeHistories, RangeHistory, Written};
pub use buffer::HostBuffer;
use parking_lot::{Mutex, RwLock};
use parts::Parts;
use quarantine::{Quarantine, RED_ZONE};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of every allocation, as on the hardware.
pub const ALIGNMENT: usize = 256;

/// Kind of a live range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory from hipMalloc on this device.
    Device(usize),
    /// Memory from hipHostMalloc, accessible to every device.
    Pinned { flags: u32 },
    /// The caller's memory, registered with hipHostRegister.
    Registered,
    /// A segment of a code object loaded on this device.
    Code { device: usize, writable: bool },
}

impl Kind {
    /// Returns the device whose memory the range is; `None` for host memory.
    pub fn device(self) -> Option<usize> {
        match self {
            Self::Device(device) | Self::Code { device, .. } => Some(device),
            Self::Pinned { .. } | Self::Registered => None,
        }
    }
}

/// Result of looking up a live range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub base: usize,
    pub len: usize,
    pub kind: Kind,
}

#[derive(Debug)]
struct Allocation {
    len: usize,
    kind: Kind,
    /// `None` if the memory is owned elsewhere (registered memory, code objects).
    backing: Option<HostBuffer>,
    /// The parts that commands may access.
    parts: Parts,
}

#[derive(Default)]
struct Table {
    live: BTreeMap<usize, Allocation>,
    /// Bytes in use by device.
    used: Vec<u64>,
}

/// The table of live ranges of all devices.
pub struct Memory {
    table: RwLock<Table>,
    /// Base and length of the suballocations that are live from the host's view; commands begin and end them later.
    reserved: Mutex<BTreeMap<usize, usize>>,
    /// Addresses of suballocations that begin in graphs and end outside of them.
    captured: Mutex<BTreeSet<usize>>,
    total: u64,
    poison: Option<u8>,
    checks: Checks,
    /// The ranges that were freed last, for error messages.
    freed: Arc<FreedRanges>,
    /// Holds freed memory if memory is checked.
    quarantine: Option<Mutex<Quarantine>>,
    /// Incremented with every change of the devices' address spaces.
    generation: AtomicU64,
    /// Held shared while a command accesses memory, and exclusively for a moment before memory is returned to the host,
    /// so that no running kernel loses its memory.
    in_flight: RwLock<()>,
}

impl Memory {
    /// Creates the table, with `total` bytes for each of `devices` devices.
    pub fn new(devices: usize, total: u64, poison: Option<u8>, checks: Checks) -> Self {
        Self {
            table: RwLock::new(Table { live: BTreeMap::new(), used: vec![0; devices] }),
            reserved: Mutex::default(),
            captured: Mutex::default(),
            total,
            poison,
            checks,
            freed: Arc::default(),
            quarantine: checks.memory.then(Mutex::default),
            generation: AtomicU64::new(1),
            in_flight: RwLock::new(()),
        }
    }

    /// Allocates device memory and returns its address, a multiple of [`ALIGNMENT`].
    ///
    /// # Errors
    /// `OutOfMemory` if the device's total would be exceeded or the host lacks memory.
    pub fn allocate_device(&self, device: usize, len: usize) -> Result<usize> {
        injection::check_allocation(len)?;
        let charged = charge(len);
        {
            let mut table = self.table.write();
            let Some(used) = table.used.get_mut(device) else {
                bail!(InvalidDevice, "there is no device {device}");
            };
            if charged > self.total - *used {
                bail!(
                    OutOfMemory,
                    "device {device}: {len} bytes requested, {} of {} bytes free",
                    self.total - *used,
                    self.total
                );
            }
            *used += charged;
        }
        let Some(mut buffer) = self.buffer(len, ALIGNMENT) else {
            self.table.write().used[device] -= charged;
            bail!(OutOfMemory, "device {device}: the host cannot allocate {len} bytes");
        };
        if let Some(byte) = self.poison {
            buffer.fill(byte);
        }
        Ok(self.insert(buffer, Kind::Device(device)))
    }

    /// Allocates host memory that every device can access, and returns its address.
    ///
    /// # Errors
    /// `OutOfMemory` if the host lacks memory.
    pub fn allocate_pinned(&self, len: usize, flags: u32) -> Result<usize> {
        match self.buffer(len, 4096) {
            Some(buffer) => Ok(self.insert(buffer, Kind::Pinned { flags })),
            None => fail(ErrorCode::OutOfMemory, format!("the host cannot allocate {len} bytes to pin")),
        }
    }

    fn buffer(&self, len: usize, alignment: usize) -> Option<HostBuffer> {
        match self.quarantine {
            Some(_) => HostBuffer::with_guard(len, alignment, RED_ZONE),
            None => HostBuffer::new(len, alignment),
        }
    }

    fn insert(&self, buffer: HostBuffer, kind: Kind) -> usize {
        let (base, len) = (buffer.base(), buffer.len());
        // Writes of the host to its own memory cannot be observed.
        let tracked = self.checks.init && matches!(kind, Kind::Device(_));
        let written = tracked.then(|| Arc::new(Written::new(len as u64)));
        let parts = Parts::whole(base, len, written);
        self.table.write().live.insert(base, Allocation { len, kind, backing: Some(buffer), parts });
        self.generation.fetch_add(1, Ordering::Release);
        base
    }

    /// Registers memory that this table did not allocate: host memory or a code object's segment.
    ///
    /// # Errors
    /// `HostMemoryAlreadyRegistered` if it overlaps a known range.
    ///
    /// # Safety
    /// The range must stay mapped, and writable unless its kind is read-only, until [`Self::forget`].
    pub unsafe fn adopt(&self, base: usize, len: usize, kind: Kind) -> Result<()> {
        let mut table = self.table.write();
        let end = base.saturating_add(len);
        let below = table.live.range(..end).next_back();
        if below.is_some_and(|(other, allocation)| other + allocation.len > base) {
            bail!(
                HostMemoryAlreadyRegistered,
                "{len} bytes at 0x{base:x} overlap memory that is already registered"
            );
        }
        table
            .live
            .insert(base, Allocation { len, kind, backing: None, parts: Parts::whole(base, len, None) });
        drop(table);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Unregisters a range of [`Self::adopt`], and waits until no running command can access it. Returns false if it was
    /// not registered.
    pub fn forget(&self, base: usize) -> bool {
        let removed = {
            let mut table = self.table.write();
            match table.live.get(&base) {
                Some(allocation) if allocation.backing.is_none() => table.live.remove(&base),
                _ => None,
            }
        };
        self.generation.fetch_add(1, Ordering::Release);
        self.wait_for_running();
        removed.is_some()
    }

    /// Frees an allocation. The caller has waited for the work that uses it.
    ///
    /// # Errors
    /// `InvalidValue` if `base` is not the start of a live allocation that `wanted` accepts.
    pub fn free(&self, base: usize, wanted: impl Fn(Kind) -> bool, call: &str) -> Result<()> {
        let allocation = {
            let mut table = self.table.write();
            match table.live.get(&base) {
                Some(found) if found.backing.is_some() && wanted(found.kind) => {}
                _ => return fail(ErrorCode::InvalidValue, self.not_freeable(&table, base, call)),
            }
            let allocation = table.live.remove(&base);
            if let Some(Allocation { kind: Kind::Device(device), len, .. }) = allocation {
                table.used[device] -= charge(len);
            }
            allocation
        };
        self.generation.fetch_add(1, Ordering::Release);
        self.wait_for_running();
        self.release(base, allocation);
        Ok(())
    }

    /// Releases allocations that were removed from the table.
    fn release(&self, base: usize, allocation: Option<Allocation>) {
        let Some(Allocation { len, backing: Some(buffer), .. }) = allocation else { return };
        self.forget_parts(base, len);
        self.freed.note(base as u64, len as u64);
        if let Some(quarantine) = &self.quarantine {
            let gone = quarantine.lock().keep(buffer);
            drop(gone);
        }
    }

    fn not_freeable(&self, table: &Table, base: usize, call: &str) -> String {
        match find(table, base) {
            None => match self.freed.find(base as u64) {
                Some(freed) => format!(
                    "{call}: 0x{base:x} is freed twice: it was an allocation of {} bytes ({} other frees since then)",
                    freed.len, freed.since
                ),
                None => format!("{call}: 0x{base:x} is not a live allocation"),
            },
            Some(found) if found.base != base => format!(
                "{call}: 0x{base:x} is {} bytes inside an allocation, not at its start",
                base - found.base
            ),
            Some(found) => format!("{call}: 0x{base:x} is memory of another kind: {:?}", found.kind),
        }
    }

    /// Frees every allocation of a device. The caller has waited for the device.
    pub fn free_all(&self, device: usize) {
        let removed: Vec<(usize, Option<Allocation>)> = {
            let mut table = self.table.write();
            let gone = |kind| kind == Kind::Device(device);
            let bases: Vec<usize> =
                table.live.iter().filter(|(_, a)| gone(a.kind)).map(|(base, _)| *base).collect();
            table.used[device] = 0;
            bases.iter().map(|base| (*base, table.live.remove(base))).collect()
        };
        self.generation.fetch_add(1, Ordering::Release);
        self.wait_for_running();
        removed.into_iter().for_each(|(base, allocation)| self.release(base, allocation));
    }

    /// Returns the live range that contains `address`. The address after the last byte counts for empty accesses only.
    pub fn find(&self, address: usize) -> Option<Found> {
        find(&self.table.read(), address)
    }

    /// Returns the free and total bytes of a device.
    pub fn info(&self, device: usize) -> (u64, u64) {
        let used = self.table.read().used.get(device).copied().unwrap_or(0);
        (self.total - used, self.total)
    }

    /// Returns a number that changes whenever the result of [`Self::address_space`] changes.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Records that the devices' address spaces have changed.
    pub fn touch(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the memory that kernels on `device` may access: its own, that of `peers`, and the host's pinned memory.
    pub fn address_space(&self, device: usize, peers: &[usize]) -> Arc<AddressSpace> {
        let sees = |kind: Kind| kind.device().is_none_or(|owner| owner == device || peers.contains(&owner));
        let (mut ranges, mut histories) = (Vec::new(), RangeHistories::new());
        let table = self.table.read();
        for allocation in table.live.values().filter(|allocation| sees(allocation.kind)) {
            let writable = !matches!(allocation.kind, Kind::Code { writable: false, .. });
            let parts = allocation.parts.iter();
            ranges.extend(parts.map(|part| Range { base: part.base as u64, len: part.len as u64, writable }));
            if self.checks.race || self.checks.init {
                let shared_with_host = matches!(allocation.kind, Kind::Pinned { .. } | Kind::Registered);
                histories.extend(allocation.parts.iter().map(|part| {
                    (part.base as u64, RangeHistory { written: part.written.clone(), shared_with_host })
                }));
            }
        }
        drop(table);
        // SAFETY: live ranges are mapped, and no memory is returned to the host while a command holds `running` (see
        // `wait_for_running`); the runtime keeps no references into device memory.
        let space = unsafe { AddressSpace::from_ranges(ranges) };
        Arc::new(space.with_freed(Arc::clone(&self.freed)).with_histories(histories))
    }

    /// Returns the lock to hold while a command accesses memory.
    pub fn running(&self) -> parking_lot::RwLockReadGuard<'_, ()> {
        self.in_flight.read()
    }

    /// Waits until every command that was accessing memory has finished. Later commands do not see memory that was removed
    /// before.
    fn wait_for_running(&self) {
        drop(self.in_flight.write());
    }
}

/// Returns the bytes that an allocation is charged: its length rounded up to [`ALIGNMENT`].
fn charge(len: usize) -> u64 {
    (len as u64).checked_next_multiple_of(ALIGNMENT as u64).unwrap_or(u64::MAX)
}

fn find(table: &Table, address: usize) -> Option<Found> {
    let (base, allocation) = holding(table, address)?;
    Some(Found { base, len: allocation.len, kind: allocation.kind })
}

/// Returns the live allocation that contains the byte at `address`, and its base.
fn holding(table: &Table, address: usize) -> Option<(usize, &Allocation)> {
    let (base, allocation) = table.live.range(..=address).next_back()?;
    (address - base < allocation.len).then_some((*base, allocation))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: fn(Kind) -> bool = |_| true;

    #[test]
    fn allocations_are_aligned_apart_and_zero() {
        let memory = Memory::new(1, 1 << 30, None, Checks::default());
        let bases: Vec<usize> =
            [1, 100, 257, 5000].iter().map(|len| memory.allocate_device(0, *len).unwrap()).collect();
        for (base, len) in bases.iter().zip([1, 100, 257, 5000]) {
            assert_eq!(base % ALIGNMENT, 0);
            let found = memory.find(base + len - 1).unwrap();
            assert_eq!((found.base, found.len, found.kind), (*base, len, Kind::Device(0)));
            assert_eq!(memory.find(base + len), None);
            assert_eq!(memory.find(base - 1), None);
            // SAFETY: the byte is inside a live allocation.
            assert_eq!(unsafe { *std::ptr::with_exposed_provenance::<u8>(base + len - 1) }, 0);
        }
    }

    #[test]
    fn the_total_is_not_exceeded() {
        let memory = Memory::new(2, 10_240, None, Checks::default());
        let first = memory.allocate_device(0, 10_000).unwrap();
        assert_eq!(memory.info(0), (0, 10_240));
        assert_eq!(memory.info(1), (10_240, 10_240));
        let error = memory.allocate_device(0, 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::OutOfMemory);
        assert!(error.detail.contains("0 of 10240"), "{error}");
        memory.free(first, ANY, "hipFree").unwrap();
        assert_eq!(memory.info(0), (10_240, 10_240));
        assert_eq!(memory.allocate_device(0, usize::MAX).unwrap_err().code, ErrorCode::OutOfMemory);
        assert_eq!(memory.allocate_device(5, 1).unwrap_err().code, ErrorCode::InvalidDevice);
        assert_eq!(memory.info(0), (10_240, 10_240));
    }

    #[test]
    fn a_huge_allocation_is_not_committed() {
        let memory = Memory::new(1, 64 << 30, None, Checks::default());
        let base = memory.allocate_device(0, 8 << 30).unwrap();
        assert_eq!(memory.info(0).0, 56 << 30);
        memory.free(base, ANY, "hipFree").unwrap();
    }

    #[test]
    fn only_starts_of_live_allocations_are_freed() {
        let memory = Memory::new(1, 1 << 20, None, Checks::default());
        let base = memory.allocate_device(0, 100).unwrap();
        let inside = memory.free(base + 8, ANY, "hipFree").unwrap_err();
        assert!(inside.detail.contains("8 bytes inside"), "{inside}");
        let kind = memory.free(base, |kind| matches!(kind, Kind::Pinned { .. }), "hipHostFree").unwrap_err();
        assert!(kind.detail.contains("another kind"), "{kind}");
        memory.free(base, ANY, "hipFree").unwrap();
        let twice = memory.free(base, ANY, "hipFree").unwrap_err();
        assert_eq!(twice.code, ErrorCode::InvalidValue);
        assert!(twice.detail.contains("freed twice: it was an allocation of 100 bytes"), "{twice}");
    }

    #[test]
    fn checked_memory_is_not_reused_and_has_red_zones() {
        let memory = Memory::new(1, 1 << 30, None, Checks { memory: true, ..Checks::default() });
        let mut bases = Vec::new();
        for _ in 0..100 {
            let base = memory.allocate_device(0, 1000).unwrap();
            assert!(bases.iter().all(|other| base.abs_diff(*other) >= RED_ZONE + 1000));
            bases.push(base);
            memory.free(base, ANY, "hipFree").unwrap();
        }
        let space = memory.address_space(0, &[]);
        assert_eq!(
            space.freed_at(bases[0] as u64 + 999).map(|freed| (freed.len, freed.since)),
            Some((1000, 99))
        );
        assert_eq!(space.freed_at(bases[0] as u64 + 1000), None);
        assert_eq!(memory.info(0).0, 1 << 30);
    }

    #[test]
    fn poison_fills_fresh_memory() {
        let memory = Memory::new(1, 1 << 20, Some(0xab), Checks::default());
        let base = memory.allocate_device(0, 300).unwrap();
        // SAFETY: the bytes are a live allocation of 300 bytes.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(base), 300) };
        assert!(bytes.iter().all(|byte| *byte == 0xab));
    }

    #[test]
    fn devices_access_their_own_and_their_peers_memory() {
        let memory = Memory::new(2, 1 << 20, None, Checks::default());
        let own = memory.allocate_device(0, 64).unwrap() as u64;
        let other = memory.allocate_device(1, 64).unwrap() as u64;
        let pinned = memory.allocate_pinned(64, 0).unwrap() as u64;
        let alone = memory.address_space(0, &[]);
        assert!(alone.find(own).is_some() && alone.find(pinned).is_some());
        assert_eq!(alone.find(other), None);
        assert!(memory.address_space(0, &[1]).find(other).is_some());
    }

    #[test]
    fn adopted_ranges_do_not_overlap() {
        let memory = Memory::new(1, 1 << 20, None, Checks::default());
        let mut bytes = vec![0u8; 64];
        let base = bytes.as_mut_ptr().expose_provenance();
        // SAFETY: the vector outlives the ranges; none of them is accessed.
        unsafe {
            memory.adopt(base, 32, Kind::Registered).unwrap();
            for (offset, len) in [(0, 8), (31, 8), (16, 1)] {
                let error = memory.adopt(base + offset, len, Kind::Registered).unwrap_err();
                assert_eq!(error.code, ErrorCode::HostMemoryAlreadyRegistered);
            }
            memory.adopt(base + 32, 32, Kind::Code { device: 0, writable: false }).unwrap();
        }
        let space = memory.address_space(0, &[]);
        assert_eq!(space.find(base as u64 + 40).map(|range| range.writable), Some(false));
        assert!(memory.free(base, ANY, "hipFree").is_err());
        assert!(memory.forget(base) && !memory.forget(base));
        assert!(memory.forget(base + 32));
        drop(bytes);
    }
}
